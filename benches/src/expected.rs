//! Expected output of a problem, and the comparison of an output with it.

use trike_cpu::ActivationPrecision;

/// Bound of `max|got - want| / max|want|` for kernels that accumulate in f32.
pub const BOUND: f64 = 1e-5;
/// The same bound for prefill attention over an f16 cache, in 16-bit integers.
pub const INT16_BOUND: f64 = 6e-4;
/// The same bound with activations and outputs rounded to f16 (11 bits of precision).
pub const F16_BOUND: f64 = 4e-3;

/// Maximum number of rows, and of tokens, whose outputs are computed individually; the first and the last are included.
const SAMPLED: usize = 48;

/// Exact result of `x W^T`, computed in f64.
///
/// Holds the values of a sample of outputs, and per token one checksum: the sum of all its outputs with fixed random signs,
/// which takes one pass over the weights instead of one per token. A wrong value at any position changes its checksum.
///
/// ```
/// use trike_benches::Expected;
///
/// let expected = Expected::new(&[1, -2, 0, 3], 2, &[1.0, 0.5]);
/// expected.assert_answer(&[0.0, 1.5], 1e-6, "by hand");
/// ```
#[derive(Clone, Debug)]
pub struct Expected {
    rows: usize,
    /// `(token, row, value)`.
    samples: Vec<(usize, usize, f64)>,
    /// One per token.
    checksums: Vec<f64>,
}

impl Expected {
    /// The result for integer weights (`rows x cols`, row-major) and activations (`tokens x cols`).
    ///
    /// # Panics
    ///
    /// If `cols` is 0 or does not divide the lengths.
    #[must_use]
    pub fn new(weights: &[i8], cols: usize, x: &[f32]) -> Self {
        assert!(cols > 0 && weights.len().is_multiple_of(cols) && x.len().is_multiple_of(cols), "whole rows");
        let (rows, tokens) = (weights.len() / cols, x.len() / cols);
        let dot = |token: usize, row: usize| -> f64 {
            let (x, w) = (&x[token * cols..][..cols], &weights[row * cols..][..cols]);
            x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum()
        };
        let pairs = sample(tokens).flat_map(|token| sample(rows).map(move |row| (token, row)));
        let samples = pairs.map(|(token, row)| (token, row, dot(token, row))).collect();
        // The checksum of a token is its dot product with the signed sum of the rows. i32 suffices for 2^31 / 127 rows.
        let mut sum = vec![0i32; cols];
        for (row, weights) in weights.chunks_exact(cols).enumerate() {
            let sign = i32::from(sign(row));
            sum.iter_mut().zip(weights).for_each(|(sum, &w)| *sum += sign * i32::from(w));
        }
        let checksum =
            |x: &[f32]| x.iter().zip(&sum).map(|(&x, &s)| f64::from(x) * f64::from(s)).sum::<f64>();
        Self { rows, samples, checksums: x.chunks_exact(cols).map(checksum).collect() }
    }

    /// Compares `out` (`tokens x rows`) with the expected result: sampled values to within `bound` times the largest, and
    /// checksums to within `sqrt(rows)` times that, the sum of independent errors.
    ///
    /// # Errors
    ///
    /// The position and both values of the first mismatch.
    pub fn check(&self, out: &[f32], bound: f64) -> Result<(), String> {
        let len = self.rows * self.checksums.len();
        if out.len() != len {
            return Err(format!("expected {len} outputs, got {}", out.len()));
        }
        let scale = self.samples.iter().fold(f64::MIN_POSITIVE, |m, &(_, _, value)| m.max(value.abs()));
        for &(token, row, expected) in &self.samples {
            let got = f64::from(out[token * self.rows + row]);
            // Written so that NaN fails.
            let close = (got - expected).abs() <= bound * scale;
            if !close {
                return Err(format!("token {token}, row {row}: expected {expected}, got {got}"));
            }
        }
        let slack = bound * scale * (self.rows as f64).sqrt();
        for (token, (out, expected)) in out.chunks_exact(self.rows).zip(&self.checksums).enumerate() {
            let signed = out.iter().enumerate().map(|(row, &y)| f64::from(sign(row)) * f64::from(y));
            let got: f64 = signed.sum();
            let close = (got - expected).abs() <= slack;
            if !close {
                return Err(format!("checksum of token {token}: expected {expected}, got {got}"));
            }
        }
        Ok(())
    }

    /// [`check`](Self::check) for tests.
    ///
    /// # Panics
    ///
    /// On a mismatch, with `what`, the position, and both values.
    #[track_caller]
    pub fn assert_answer(&self, out: &[f32], bound: f64, what: &str) {
        if let Err(place) = self.check(out, bound) {
            panic!("{what}: {place}");
        }
    }
}

/// Up to [`SAMPLED`] values of `0..n`, evenly spaced, both ends included.
fn sample(n: usize) -> impl Iterator<Item = usize> {
    let count = n.min(SAMPLED);
    (0..count).map(move |i| if i + 1 == count { n - 1 } else { i * n / count })
}

/// A pseudorandom sign per row: the top bit of a multiplicative hash.
fn sign(row: usize) -> i8 {
    if (row as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 0 { 1 } else { -1 }
}

/// `x` (rows of `cols`) quantized and dequantized, by the definition of [`ActivationPrecision::Int8PerToken`], or for
/// [`ActivationPrecision::Int16`] as the kernels of int8 weights do; f32 activations are returned unchanged.
///
/// # Panics
///
/// If `cols` is 0.
#[must_use]
pub fn as_quantized(x: &[f32], cols: usize, precision: ActivationPrecision) -> Vec<f32> {
    match precision {
        ActivationPrecision::F32 => x.to_vec(),
        ActivationPrecision::Int8PerToken => {
            x.chunks(cols).flat_map(|token| quantize_group(token, 127.0)).collect()
        }
        ActivationPrecision::Int8PerGroup(size) => {
            let groups = x.chunks(cols).flat_map(|token| token.chunks(size.get()));
            groups.flat_map(|group| quantize_group(group, 127.0)).collect()
        }
        ActivationPrecision::Int16 => {
            x.chunks(cols).flat_map(|token| quantize_group(token, 32_767.0)).collect()
        }
    }
}

fn quantize_group(x: &[f32], largest: f32) -> impl Iterator<Item = f32> {
    let scale = largest / x.iter().fold(1e-5f32, |m, v| m.max(v.abs()));
    x.iter().map(move |v| (v * scale).round_ties_even().clamp(-largest - 1.0, largest) / scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn one_wrong_output_anywhere_is_refused() {
        let (rows, cols, tokens) = (100, 7, 3);
        let weights: Vec<i8> = (0..rows * cols).map(|i| (i * i % 5) as i8 - 2).collect();
        let x: Vec<f32> = (0..tokens * cols).map(|i| i as f32 / 8.0 - 1.0).collect();
        let expected = Expected::new(&weights, cols, &x);
        let dot = |x: &[f32], w: &[i8]| x.iter().zip(w).map(|(&x, &w)| x * f32::from(w)).sum::<f32>();
        let right: Vec<f32> =
            x.chunks(cols).flat_map(|x| weights.chunks(cols).map(move |w| dot(x, w))).collect();
        expected.assert_answer(&right, 1e-5, "right");
        for place in 0..right.len() {
            for wrong in [right[place] + 0.1, f32::NAN] {
                let mut out = right.clone();
                out[place] = wrong;
                assert!(catch_unwind(|| expected.assert_answer(&out, 1e-5, "wrong")).is_err(), "{place}");
            }
        }
        assert!(catch_unwind(|| expected.assert_answer(&right[1..], 1e-5, "short")).is_err());
    }

    #[test]
    fn samples_reach_both_ends() {
        for n in [1, 2, 47, 48, 49, 1000] {
            let all: Vec<usize> = sample(n).collect();
            assert_eq!((all[0], all[all.len() - 1], all.len()), (0, n - 1, n.min(SAMPLED)));
            assert!(all.is_sorted_by(|a, b| a < b));
        }
        assert_eq!(sample(0).count(), 0);
    }

    #[test]
    fn quantizing_keeps_the_largest_and_the_grid() {
        let x = [127.0, -63.6, 0.5, 1.5, -254.0, 0.0, 3.0, 1.0];
        let q = as_quantized(&x, 4, ActivationPrecision::Int8PerToken);
        assert_eq!(q, [127.0, -64.0, 0.0, 2.0, -254.0, 0.0, 4.0, 0.0]);
        assert_eq!(as_quantized(&x, 4, ActivationPrecision::F32), x);
    }
}
