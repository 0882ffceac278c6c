//! Gradients as signs.

use std::ops::Range;

use crate::codec::parts::{self, Parts};
use crate::codec::{Carry, Codec, MessageCodec, Saved, check_bytes, chunked, scale};
use crate::sum::sum_of;
use crate::{CommError, Communicator};

/// Elements that share a scale.
const CHUNK: usize = 4096;

/// Signs with one scale per 4,096 of them (Seide et al., 2014): 31.8 times fewer bytes than f32.
///
/// An element becomes the mean magnitude of its chunk with its own sign, that of zero is plus. The error goes to the next step. For
/// normal numbers the cosine between one step and its gradient is 0.80; that of [`Ternary`](crate::codec::Ternary) is 0.90.
///
/// A chunk of `n` elements is its scale as f32 and `ceil(n / 8)` bytes of a bit per element, the first element lowest, 1 for minus.
/// Bits behind the last element are zero.
#[derive(Clone, Debug)]
pub struct Sign {
    residual: Vec<f32>,
}

impl Sign {
    /// A codec for gradients of `len` elements.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { residual: vec![0.0; len] }
    }
}

impl Codec for Sign {
    fn len(&self) -> usize {
        self.residual.len()
    }

    fn sent_bytes(&self, rank: usize, ranks: usize) -> usize {
        parts::sent_bytes(self, rank, ranks)
    }

    fn exchange(&mut self, comm: &dyn Communicator, gradient: &mut [f32]) -> Result<(), CommError> {
        parts::exchange(self, comm, gradient)
    }

    fn state(&self) -> Vec<Saved<'_>> {
        vec![Saved { name: "residual", carry: Carry::Mean, values: &self.residual }]
    }

    fn state_mut(&mut self) -> Vec<&mut [f32]> {
        vec![&mut self.residual]
    }
}

impl MessageCodec for Sign {
    fn bytes(&self) -> usize {
        self.part_bytes(self.len())
    }

    fn encode(&mut self, gradient: &[f32]) -> Result<Vec<u8>, CommError> {
        parts::encode(self, gradient)
    }

    fn add(&self, rank: usize, message: &[u8], weight: f32, sum: &mut [f32]) -> Result<(), CommError> {
        parts::add(self, rank, message, weight, sum)
    }
}

impl Parts for Sign {
    fn elements(&self) -> usize {
        self.len()
    }

    fn part_bytes(&self, elements: usize) -> usize {
        chunked(elements, CHUNK, |len| 4 + len.div_ceil(8))
    }

    fn take_up(&mut self, range: Range<usize>, gradient: &[f32]) {
        self.residual[range].iter_mut().zip(gradient).for_each(|(r, g)| *r += g);
    }

    fn waiting(&mut self, range: Range<usize>) -> &mut [f32] {
        &mut self.residual[range]
    }

    fn write(&mut self, range: Range<usize>) -> Vec<u8> {
        let mut message = Vec::with_capacity(self.part_bytes(range.len()));
        for residual in self.residual[range].chunks_mut(CHUNK) {
            let scale = sum_of(residual, f32::abs) / residual.len() as f32;
            message.extend(scale.to_le_bytes());
            for eight in residual.chunks_mut(8) {
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

    fn read(&self, rank: usize, message: &[u8], weight: f32, sum: &mut [f32]) -> Result<(), CommError> {
        check_bytes(rank, self.part_bytes(sum.len()), message.len())?;
        let mut rest = message;
        for sum in sum.chunks_mut(CHUNK) {
            let (header, after) = rest.split_at(4);
            let (bytes, after) = after.split_at(sum.len().div_ceil(8));
            rest = after;
            let scale = weight * scale(rank, header)?;
            for (eight, byte) in sum.chunks_mut(8).zip(bytes) {
                if eight.len() < 8 && byte >> eight.len() != 0 {
                    return Err(CommError::Damaged { rank, problem: "bits behind the last sign" });
                }
                for (bit, sum) in eight.iter_mut().enumerate() {
                    *sum += if byte >> bit & 1 == 1 { -scale } else { scale };
                }
            }
        }
        Ok(())
    }
}
