//! Activation quantization on the host: the reference for the device quantizers.

use super::shape::{ActivationShape, BLOCK, SEGMENT};

/// Lower bound of the magnitude that an int8 scale is computed from, so that a token of zeros stays zero.
const SMALLEST: f32 = 1e-5;

/// The three buffers of [`Activations`](super::Activations).
pub(super) struct Codes {
    pub(super) codes: Vec<u32>,
    pub(super) sums: Vec<i32>,
    pub(super) factors: Vec<f32>,
}

/// `x` has the length given by `shape`.
pub(super) fn quantize(shape: ActivationShape, x: &[f32]) -> Codes {
    let (slices, stride) = (shape.precision.slices(), shape.sum_stride());
    let segments = shape.blocks() * (BLOCK / SEGMENT);
    let words = shape.blocks() * (BLOCK / 4);
    let mut codes = vec![0; shape.code_words()];
    let mut sums = vec![0; shape.code_rows() * stride];
    let mut factors = vec![1.0; shape.factors()];
    for (token, x) in x.chunks_exact(shape.cols).enumerate() {
        let mut digits = vec![vec![0i8; segments * SEGMENT]; slices];
        match (slices, shape.precision.group()) {
            (1, None) => factors[token] = int8(x, &mut digits[0]),
            (1, Some(group)) => {
                for (g, (x, digits)) in x.chunks(group).zip(digits[0].chunks_mut(group)).enumerate() {
                    let factor = int8(x, digits);
                    let first = token * segments + g * group / SEGMENT;
                    let last = (first + group / SEGMENT).min((token + 1) * segments);
                    factors[first..last].fill(factor);
                }
            }
            _ => factors[token] = fixed_point(x, &mut digits),
        }
        for (slice, digits) in digits.iter().enumerate() {
            let row = token * slices + slice;
            for (quad, four) in digits.as_chunks::<4>().0.iter().enumerate() {
                codes[row * words + ActivationShape::word_of(4 * quad)] =
                    u32::from_le_bytes(four.map(|d| d as u8));
            }
            let sums = &mut sums[row * stride..][..stride];
            for (sum, digits) in sums.iter_mut().zip(digits.as_chunks::<SEGMENT>().0) {
                *sum = digits.iter().map(|&d| i32::from(d)).sum();
            }
            sums[segments] = digits.iter().map(|&d| i32::from(d)).sum();
        }
    }
    Codes { codes, sums, factors }
}

/// Quantizes to one byte per value; returns the step size.
fn int8(x: &[f32], digits: &mut [i8]) -> f32 {
    let largest = largest(x);
    if !largest.is_finite() {
        return f32::NAN;
    }
    let scale = 127.0 / largest.max(SMALLEST);
    for (digit, x) in digits.iter_mut().zip(x) {
        *digit = (x * scale).round_ties_even() as i8;
    }
    1.0 / scale
}

/// Quantizes to fixed point with one byte per value and row of digits, least significant first; returns the step size.
fn fixed_point(x: &[f32], digits: &mut [Vec<i8>]) -> f32 {
    let largest = largest(x);
    if !largest.is_finite() {
        return f32::NAN;
    }
    let bits = 8 * digits.len() as i32 - 3;
    // The largest magnitude is below `2^(exponent + 1)`, so integers stay below `2^(bits + 1)`; powers of two are exact.
    let exponent = ((largest.to_bits() >> 23) as i32 - 127).max(bits - 120);
    let scale = f32::from_bits(((127 + bits - exponent) as u32) << 23);
    // 128 in each byte except the highest: carries each byte's sign into the next.
    let offset = (0..digits.len() - 1).fold(0i32, |o, byte| o | 0x80 << (8 * byte));
    for (col, x) in x.iter().enumerate() {
        let int = ((x * scale).round_ties_even() as i32 + offset) ^ offset;
        for (byte, digits) in digits.iter_mut().enumerate() {
            digits[col] = (int >> (8 * byte)) as i8;
        }
    }
    f32::from_bits(((127 - bits + exponent) as u32) << 23)
}

/// The largest magnitude; non-finite if any value is.
fn largest(x: &[f32]) -> f32 {
    let bits = x.iter().fold(0, |m: u32, v| m.max(v.to_bits() & 0x7FFF_FFFF));
    f32::from_bits(bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::ActivationPrecision::{self, F32, Int8PerGroup, Int8PerToken, Int16};
    use trike_testkit::{Rng, assert_near};
    use trike_trit::GroupSize;

    /// The value that some codes stand for.
    fn value(shape: ActivationShape, made: &Codes, token: usize, col: usize) -> f64 {
        let slices = shape.precision.slices();
        let words = shape.blocks() * (BLOCK / 4);
        let digit = |slice: usize| {
            let word = made.codes[(token * slices + slice) * words + ActivationShape::word_of(col / 4 * 4)];
            f64::from(word.to_le_bytes()[col % 4] as i8)
        };
        let factor = match shape.precision.group() {
            None => made.factors[token],
            Some(_) => made.factors[token * shape.blocks() * 4 + col / SEGMENT],
        };
        (0..slices).map(|s| digit(s) * 256f64.powi(s as i32)).sum::<f64>() * f64::from(factor)
    }

    #[test]
    fn values_come_back_within_a_step() {
        let mut rng = Rng::new(3);
        let table: [(ActivationPrecision, f64); 5] = [
            (F32, 2f64.powi(-29)),
            (Int16, 2f64.powi(-13)),
            (Int8PerToken, 0.5 / 127.0 * 1.0001),
            (Int8PerGroup(GroupSize::G32), 0.5 / 127.0 * 1.0001),
            (Int8PerGroup(GroupSize::G256), 0.5 / 127.0 * 1.0001),
        ];
        for (precision, step) in table {
            for cols in [1, 4, 31, 128, 129, 300] {
                let shape = ActivationShape { tokens: 3, cols, precision };
                let mut x = rng.normals(3 * cols);
                x[..cols].fill(0.0);
                x[cols] = -30.0;
                let made = quantize(shape, &x);
                for (token, x) in x.chunks(cols).enumerate() {
                    let group = precision.group().unwrap_or(cols);
                    for (g, x) in x.chunks(group).enumerate() {
                        let max = x.iter().fold(1e-5f32, |m, v| m.max(v.abs()));
                        for (i, &want) in x.iter().enumerate() {
                            let got = value(shape, &made, token, g * group + i);
                            let bound = step * f64::from(max);
                            assert_near!(got, f64::from(want), abs = bound, "{precision:?}, {cols} columns");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn sums_are_those_of_the_codes_and_padding_is_zero() {
        let x: Vec<f32> = (0..2 * 200).map(|i| (i % 11) as f32 - 5.0).collect();
        let shape = ActivationShape { tokens: 2, cols: 200, precision: F32 };
        let made = quantize(shape, &x);
        for row in 0..8 {
            let sums = &made.sums[row * 12..][..12];
            let words = &made.codes[row * 64..][..64];
            let bytes = |word: &u32| word.to_le_bytes().map(|b| i32::from(b as i8)).iter().sum::<i32>();
            assert_eq!(sums[8], words.iter().map(bytes).sum::<i32>());
            assert_eq!(sums[8], sums[..8].iter().sum::<i32>());
            assert_eq!((sums[7], &sums[9..]), (0, &[0; 3][..]));
            for segment in 0..8 {
                let of = (0..8).map(|quad| bytes(&words[ActivationShape::word_of(32 * segment + 4 * quad)]));
                assert_eq!(sums[segment], of.sum::<i32>());
            }
        }
    }

    #[test]
    fn what_is_not_finite_makes_the_factor_nan() {
        for precision in [F32, Int16, Int8PerToken, Int8PerGroup(GroupSize::G32)] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = vec![1.0; 80];
                x[50] = bad;
                let made = quantize(ActivationShape { tokens: 2, cols: 40, precision }, &x);
                assert!(made.factors.iter().any(|f| f.is_nan()), "{precision:?} {bad}");
                assert!(!made.factors[0].is_nan(), "the first token is fine");
            }
        }
    }
}
