//! Gradients as signs.

use crate::CommError;
use crate::codec::staged::{Staged, StagedQuantizer};
use crate::codec::{check_bytes, chunked, scale};
use crate::sum::sum_of;

/// Elements that share a scale.
const CHUNK: usize = 4096;

/// Signs with one scale per 4,096 of them (Seide et al., 2014): 31.8 times fewer bytes than f32.
///
/// An element becomes the mean magnitude of its chunk with the element's sign; zero counts as positive. The error is added to the
/// next step. For normally distributed gradients the cosine between one step and its gradient is 0.80; for
/// [`TernaryCodec`](crate::codec::TernaryCodec) it is 0.90.
///
/// A chunk of `n` elements is its scale as f32 and `ceil(n / 8)` bytes of sign bits, least significant bit first, 1 = negative.
/// Padding bits are zero.
pub type Sign = Staged<SignQuantizer>;

/// The rounding of [`Sign`].
#[derive(Clone, Copy, Debug)]
pub struct SignQuantizer;

impl StagedQuantizer for SignQuantizer {
    fn bytes(len: usize) -> usize {
        chunked(len, CHUNK, |len| 4 + len.div_ceil(8))
    }

    fn write(values: &mut [f32]) -> Vec<u8> {
        let mut message = Vec::with_capacity(Self::bytes(values.len()));
        for values in values.chunks_mut(CHUNK) {
            let scale = sum_of(values, f32::abs) / values.len() as f32;
            message.extend(scale.to_le_bytes());
            for eight in values.chunks_mut(8) {
                let mut byte = 0;
                for (bit, value) in eight.iter_mut().enumerate() {
                    let is_minus = *value < 0.0;
                    byte |= u8::from(is_minus) << bit;
                    *value -= if is_minus { -scale } else { scale };
                }
                message.push(byte);
            }
        }
        message
    }

    fn read(rank: usize, message: &[u8], weight: f32, sum: &mut [f32]) -> Result<(), CommError> {
        check_bytes(rank, Self::bytes(sum.len()), message.len())?;
        let mut rest = message;
        for sum in sum.chunks_mut(CHUNK) {
            let (header, after) = rest.split_at(4);
            let (bytes, after) = after.split_at(sum.len().div_ceil(8));
            rest = after;
            let scale = weight * scale(rank, header)?;
            for (eight, byte) in sum.chunks_mut(8).zip(bytes) {
                if eight.len() < 8 && byte >> eight.len() != 0 {
                    return Err(CommError::Damaged { rank, problem: "nonzero padding after the last sign" });
                }
                for (bit, sum) in eight.iter_mut().enumerate() {
                    *sum += if byte >> bit & 1 == 1 { -scale } else { scale };
                }
            }
        }
        Ok(())
    }
}
