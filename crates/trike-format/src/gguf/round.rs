//! Rounding of floats to integer block types: the encoders beside the decoders of [`quants`](super::quants).

use half::f16;

use super::quants::{self, block_scales};
use super::types::GgufType;
use crate::{FormatError, Tensor};

/// Rounds a matrix to a block type of llama.cpp: encodes its weights and returns what loads from those blocks. The types are `Q8_0`,
/// `Q4_0` and `Q4_K`.
///
/// No writer calls it by itself, because writers change no value.
///
/// ```
/// use trike_format::{DenseData, DenseTensor, GgufType, round_to_blocks};
///
/// let weights = DenseTensor::new(vec![1, 32], DenseData::F32((0..32).map(|i| i as f32 / 31.0).collect()))?;
/// let rounded = round_to_blocks(GgufType::Q8_0, &weights.into())?;
/// assert!((rounded.to_f32()[16] - 16.0 / 31.0).abs() < 0.5 / 127.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`FormatError::Rounding`] for another type, for rows of another number of weights than whole blocks, and for weights beyond the range
/// of the scales.
pub fn round_to_blocks(kind: GgufType, tensor: &Tensor) -> Result<Tensor, FormatError> {
    let refusal = |expected: String, got: String| FormatError::Rounding { kind, expected, got };
    let encode: fn(&[f32], &mut Vec<u8>) = match kind {
        GgufType::Q8_0 => q8_0,
        GgufType::Q4_0 => q4_0,
        GgufType::Q4K => q4_k,
        _ => return Err(refusal("Q8_0, Q4_0 or Q4_K".to_owned(), kind.to_string())),
    };
    let (rows, cols) = (tensor.rows(), tensor.cols());
    if !cols.is_multiple_of(kind.block()) {
        let expected = format!("rows of a multiple of {} weights", kind.block());
        return Err(refusal(expected, format!("rows of {cols}")));
    }
    let weights = tensor.to_f32();
    let mut blocks = Vec::with_capacity(weights.len() / kind.block() * kind.block_bytes());
    weights.chunks_exact(kind.block()).for_each(|block| encode(block, &mut blocks));
    quants::decode(kind, rows, cols, &blocks)
        .map_err(|error| refusal("weights within the range of the scales".to_owned(), error.to_string()))
}

fn q8_0(block: &[f32], out: &mut Vec<u8>) {
    let largest = block.iter().fold(0f32, |most, w| most.max(w.abs()));
    let step = largest / 127.0;
    out.extend(f16::from_f32(step).to_le_bytes());
    out.extend(codes(block, step, -127.0, 127.0).map(|q| q as i8 as u8));
}

fn q4_0(block: &[f32], out: &mut Vec<u8>) {
    // The largest magnitude becomes -8, whatever its sign.
    let largest = block.iter().copied().fold(0f32, |most, w| if w.abs() > most.abs() { w } else { most });
    let step = largest / -8.0;
    out.extend(f16::from_f32(step).to_le_bytes());
    out.extend(joined(codes(block, step, -8.0, 7.0).map(|q| (q + 8.0) as u8)));
}

/// Multiples of a step, from `least` to `most`, to the nearest.
fn codes(block: &[f32], step: f32, least: f32, most: f32) -> impl Iterator<Item = f32> {
    let inverse = if step == 0.0 { 0.0 } else { 1.0 / step };
    block.iter().map(move |w| (w * inverse).round().clamp(least, most))
}

/// Codes of four bits: those of the first half in the low nibbles, those of the second in the high ones.
fn joined(codes: impl Iterator<Item = u8>) -> impl Iterator<Item = u8> {
    let codes: Vec<u8> = codes.collect();
    let half = codes.len() / 2;
    (0..half).map(move |i| codes[i] | codes[half + i] << 4)
}

/// Eight times 32 weights: `s q - m` with `q` from 0 to 15, where `s` and `m` are stored in 6 bits each.
fn q4_k(block: &[f32], out: &mut Vec<u8>) {
    let fits: Vec<(f32, f32)> = block.chunks_exact(32).map(fit_q4_k).collect();
    let largest = |of: fn(&(f32, f32)) -> f32| fits.iter().map(of).fold(0f32, f32::max);
    let units = [largest(|fit| fit.0), largest(|fit| fit.1)].map(|most| f16::from_f32(most / 63.0));
    out.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
    let [step, offset] = units.map(f16::to_f32);
    let six = |value: f32, unit: f32| if unit == 0.0 { 0 } else { (value / unit).round().min(63.0) as u8 };
    let stored: Vec<(u8, u8)> = fits.iter().map(|&(s, m)| (six(s, step), six(m, offset))).collect();
    out.extend(block_scales(&stored));
    let of = |(weights, &(s, m)): (&[f32], &(u8, u8))| {
        let (s, m) = (step * f32::from(s), offset * f32::from(m));
        let inverse = if s == 0.0 { 0.0 } else { 1.0 / s };
        weights.iter().map(|w| ((w + m) * inverse).round().clamp(0.0, 15.0) as u8).collect::<Vec<u8>>()
    };
    let all: Vec<u8> = block.chunks_exact(32).zip(&stored).flat_map(of).collect();
    all.chunks_exact(64).for_each(|run| out.extend(joined(run.iter().copied())));
}

/// The step and the offset of least squared error, with errors of large weights counted more, among those of several widths.
fn fit_q4_k(weights: &[f32]) -> (f32, f32) {
    let mean = weights.iter().map(|w| w * w).sum::<f32>() / weights.len() as f32;
    let importance: Vec<f32> = weights.iter().map(|w| mean.sqrt() + w.abs()).collect();
    let least = weights.iter().copied().fold(0f32, f32::min);
    let most = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if most <= least {
        return (0.0, -least);
    }
    let error = |(s, m): (f32, f32)| -> f32 {
        let of = |(w, i): (&f32, &f32)| {
            let q = ((w + m) / s).round().clamp(0.0, 15.0);
            i * (s * q - m - w) * (s * q - m - w)
        };
        weights.iter().zip(&importance).map(of).sum()
    };
    let whole = ((most - least) / 15.0, -least);
    let mut best = (error(whole), whole);
    for width in 0..=20 {
        let inverse = (14.0 + 0.1 * width as f32) / (most - least);
        // Least squares of `s q - m` for the codes that this width gives.
        let mut sums = [0f32; 5];
        for (w, i) in weights.iter().zip(&importance) {
            let q = ((w - least) * inverse).round().clamp(0.0, 15.0);
            let terms = [*i, i * q, i * q * q, i * w, i * w * q];
            sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
        }
        let [n, q, qq, w, wq] = sums;
        let determinant = n * qq - q * q;
        if determinant <= 0.0 {
            continue;
        }
        let (mut s, mut m) = ((n * wq - w * q) / determinant, (q * wq - qq * w) / determinant);
        if m < 0.0 {
            (s, m) = (wq / qq, 0.0);
        }
        if s <= 0.0 {
            continue;
        }
        let error = error((s, m));
        if error < best.0 {
            best = (error, (s, m));
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use trike_testkit::{Rng, assert_all_near};

    use super::*;
    use crate::{DenseData, DenseTensor};

    const ALL: [GgufType; 3] = [GgufType::Q8_0, GgufType::Q4_0, GgufType::Q4K];

    fn matrix(rows: usize, weights: &[f32]) -> Tensor {
        let shape = vec![rows, weights.len() / rows];
        DenseTensor::new(shape, DenseData::F32(weights.to_vec())).unwrap().into()
    }

    fn rounded(kind: GgufType, weights: &[f32]) -> Vec<f32> {
        round_to_blocks(kind, &matrix(1, weights)).unwrap().into_f32()
    }

    #[test]
    fn errors_are_those_of_the_formats() {
        let weights = Rng::new(3).normals(64 * 256);
        let error = |to: GgufType, weights: &[f32]| {
            let lost: f32 = rounded(to, weights).iter().zip(weights).map(|(a, b)| (a - b).powi(2)).sum();
            (lost / weights.iter().map(|w| w * w).sum::<f32>()).sqrt()
        };
        // Of normal weights: a step is a 127th of the largest of 32, or an eighth, and a fifteenth of their range.
        let [q8, q4, q4k] = ALL.map(|to| error(to, &weights));
        assert!((0.004..0.007).contains(&q8), "{q8}");
        assert!((0.07..0.11).contains(&q4), "{q4}");
        assert!((0.06..0.085).contains(&q4k) && q4k < 0.9 * q4, "{q4k}");
        // Sixteen evenly spaced levels with a shift are held but for the six bits.
        let even: Vec<f32> = (0..256).map(|i| (i % 16) as f32 - 5.0).collect();
        assert!(error(GgufType::Q4K, &even) < 1e-3);
        // Nothing becomes anything else, and a constant stays.
        for to in ALL {
            assert_eq!(rounded(to, &[0.0; 256]), [0.0; 256]);
            for value in [-0.5f32, 0.5] {
                assert_all_near!(&rounded(to, &[value; 256]), &[value; 256], abs = 0.01, "{to:?}");
            }
        }
    }

    #[test]
    fn other_types_rows_and_ranges_are_refused() {
        for (to, weights, part) in [
            (GgufType::F16, vec![0.0; 64], "expected Q8_0, Q4_0 or Q4_K, got F16"),
            (GgufType::Q4K, vec![0.0; 128], "a multiple of 256 weights, got rows of 64"),
            (GgufType::Q8_0, vec![1e30; 64], "cannot round to Q8_0: expected weights within the range"),
        ] {
            let error = round_to_blocks(to, &matrix(2, &weights)).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
