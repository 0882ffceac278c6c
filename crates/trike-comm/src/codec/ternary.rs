//! Gradients as trits.

use std::ops::Range;

use crate::CommError;
use crate::codec::staged::{Staged, StagedQuantizer};
use crate::codec::{check_bytes, chunked, scale};
use crate::sum::sum_of;

/// Elements per scale: a multiple of five, for whole bytes of trits.
const CHUNK: usize = 4095;
/// Trits of a byte.
const TRITS: usize = 5;
/// Values of a byte.
const VALUES: usize = 243;
/// The threshold of a nonzero trit in units of the mean magnitude, near the optimum for a normal distribution (Li et al.,
/// 1605.04711).
const THRESHOLD: f32 = 0.7;

/// Five zeros.
const ZEROS: u8 = 121;

/// The trits of each byte, lowest digit first; zero for invalid bytes.
pub(super) const DIGITS: [[f32; 256]; TRITS] = {
    let mut digits = [[0.0; 256]; TRITS];
    let mut value = 0;
    while value < VALUES {
        let (mut rest, mut digit) = (value, 0);
        while digit < TRITS {
            digits[digit][value] = (rest % 3) as f32 - 1.0;
            rest /= 3;
            digit += 1;
        }
        value += 1;
    }
    digits
};

/// Trits with one scale per 4,095 elements, 1.61 bits per element: 19.9 times fewer bytes than f32.
///
/// With `m` the mean magnitude of a chunk, elements above `0.7 m` in magnitude become the mean magnitude of all such elements, with
/// their sign; the rest become zero. The error is added to the next step.
///
/// A chunk of `n` elements is its scale as f32 and `b = ceil(n / 5)` bytes; byte `i` holds the trits of the elements `i`, `i + b`
/// up to `i + 4 b` as base-3 digits, lowest first, each digit the trit plus one.
pub type TernaryCodec = Staged<TernaryQuantizer>;

/// The rounding of [`TernaryCodec`].
#[derive(Clone, Copy, Debug)]
pub struct TernaryQuantizer;

/// Adds the trits of `values` to `bytes` as one base-3 digit; the values become the quantization errors.
#[inline(always)]
fn pack(bytes: &mut [u8], values: &mut [f32], digit: u8, threshold: f32, scale: f32) {
    for (byte, value) in bytes.iter_mut().zip(values) {
        let (up, down) = (*value > threshold, *value < -threshold);
        *byte = *byte + digit * u8::from(up) - digit * u8::from(down);
        *value -= if up { scale } else { 0.0 } - if down { scale } else { 0.0 };
    }
}

impl StagedQuantizer for TernaryQuantizer {
    fn bytes(len: usize) -> usize {
        chunked(len, CHUNK, |len| 4 + len.div_ceil(TRITS))
    }

    fn write(values: &mut [f32]) -> Vec<u8> {
        let mut message = Vec::with_capacity(Self::bytes(values.len()));
        for values in values.chunks_mut(CHUNK) {
            let threshold = THRESHOLD * sum_of(values, f32::abs) / values.len() as f32;
            let size = sum_of(values, |r| if r.abs() > threshold { r.abs() } else { 0.0 });
            let count = sum_of(values, |r| if r.abs() > threshold { 1.0 } else { 0.0 });
            let scale = size / count.max(1.0);
            message.extend(scale.to_le_bytes());
            let from = message.len();
            let stride = values.len().div_ceil(TRITS);
            message.resize(from + stride, ZEROS);
            let mut digit = 1;
            for part in values.chunks_mut(stride) {
                pack(&mut message[from..], part, digit, threshold, scale);
                digit *= 3;
            }
        }
        message
    }

    fn read(rank: usize, message: &[u8], weight: f32, sum: &mut [f32]) -> Result<(), CommError> {
        for chunk in read(rank, message, sum.len())? {
            let (range, scale, trits) = chunk?;
            let scale = weight * scale;
            for (digit, sum) in sum[range].chunks_mut(trits.len()).enumerate() {
                let values = DIGITS[digit].map(|trit| scale * trit);
                sum.iter_mut().zip(trits).for_each(|(sum, byte)| *sum += values[usize::from(*byte)]);
            }
        }
        Ok(())
    }
}

/// Elements, scale and bytes of a chunk.
type Chunk<'a> = (Range<usize>, f32, &'a [u8]);

/// The chunks of a message of `len` elements from rank `rank`.
pub(super) fn read(
    rank: usize,
    message: &[u8],
    len: usize,
) -> Result<impl Iterator<Item = Result<Chunk<'_>, CommError>>, CommError> {
    check_bytes(rank, TernaryQuantizer::bytes(len), message.len())?;
    let mut rest = message;
    Ok((0..len).step_by(CHUNK).map(move |start| {
        let range = start..len.min(start + CHUNK);
        let (header, after) = rest.split_at(4);
        let (trits, after) = after.split_at(range.len().div_ceil(TRITS));
        rest = after;
        if trits.iter().any(|byte| usize::from(*byte) >= VALUES) {
            return Err(CommError::Damaged { rank, problem: "a byte that does not encode five trits" });
        }
        Ok((range, scale(rank, header)?, trits))
    }))
}
