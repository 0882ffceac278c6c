//! Activation quantization on the host: the reference for the device quantizers.

use super::shape::{ActivationShape, BLOCK, SEGMENT};

/// Lower bound of the magnitude that an int8 scale is computed from, so that a token of zeros stays zero.
const SMALLEST: f32 = 1e-5;

/// The three buffers of [`Activations`](super::Activations).
pub struct Codes {
    /// Four digits per word.
    pub codes: Vec<u32>,
    /// Sums of the digits of each segment and row.
    pub sums: Vec<i32>,
    /// Factors of the digits.
    pub factors: Vec<f32>,
}

/// Quantizes `x`, which has the length given by `shape`.
pub fn quantize(shape: ActivationShape, x: &[f32]) -> Codes {
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

/// The absolute maximum; non-finite if any value is.
fn largest(x: &[f32]) -> f32 {
    let bits = x.iter().fold(0, |m: u32, v| m.max(v.to_bits() & 0x7FFF_FFFF));
    f32::from_bits(bits)
}
