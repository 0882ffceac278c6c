//! The largest values of each chunk, each as an index, a sign and a quantized magnitude.

use std::marker::PhantomData;

use crate::CommError;
use crate::codec::{check_bytes, check_share, chunked, count, scale};

/// Values per chunk; every chunk sends the same number of values.
pub(super) const CHUNK: usize = 4096;
/// Bits of an index in a chunk.
const PLACE: u32 = CHUNK.ilog2();

/// The quantized magnitudes of a chunk.
pub(super) trait Magnitudes: Sized {
    /// Bits of a magnitude's level.
    const BITS: u32;
    /// Bytes of a chunk before its entries.
    const HEADER: usize;

    /// Fits the magnitudes to `values`, at least one, which may be reordered.
    fn fit(values: &mut [f32]) -> Self;
    /// The level whose magnitude is nearest to `value`, which is not negative.
    fn level(&self, value: f32) -> u32;
    /// The magnitude of a level below `2^BITS`.
    fn magnitude(&self, level: u32) -> f32;
    fn write(&self, message: &mut Vec<u8>);
    fn read(rank: usize, header: &[u8]) -> Result<Self, CommError>;
}

/// The largest values of each chunk, as a fraction of the chunk.
///
/// A chunk is its magnitudes and its entries in ascending order of index. Entries are packed from the least significant bit of the
/// first byte on: the level of the magnitude, the sign bit, the index in 12 bits. The last byte is padded with zeros.
#[derive(Clone, Debug)]
pub(super) struct Sparse<M> {
    share: f32,
    magnitudes: PhantomData<M>,
}

/// Memory reused for every chunk.
#[derive(Default)]
pub(super) struct Scratch {
    /// Magnitudes and places.
    keys: Vec<u64>,
    /// Indices of the values that are sent, ascending.
    order: Vec<u16>,
    sizes: Vec<f32>,
    /// Indices and decoded values of the last chunk.
    pub(super) sent: Vec<(usize, f32)>,
}

impl<M: Magnitudes> Sparse<M> {
    const BITS: u32 = PLACE + 1 + M::BITS;

    pub(super) fn new(share: f32) -> Result<Self, CommError> {
        check_share(share)?;
        Ok(Self { share, magnitudes: PhantomData })
    }

    /// Bytes of the chunks of `len` values.
    pub(super) fn bytes(&self, len: usize) -> usize {
        chunked(len, CHUNK, |len| self.chunk_bytes(len))
    }

    fn chunk_bytes(&self, len: usize) -> usize {
        M::HEADER + (count(self.share, len) * Self::BITS as usize).div_ceil(8)
    }

    /// Encodes a chunk of finite values and appends it to the message.
    pub(super) fn write(&self, values: &[f32], message: &mut Vec<u8>, scratch: &mut Scratch) {
        let Scratch { keys, order, sizes, sent } = scratch;
        // Nonnegative floats are ordered like their bits; sorted in descending order, ties by index.
        let key = |(place, value): (u64, &f32)| u64::from(!value.abs().to_bits()) << PLACE | place;
        keys.clear();
        keys.extend((0..).zip(values).map(key));
        let count = count(self.share, values.len());
        if count < keys.len() {
            keys.select_nth_unstable(count - 1);
            keys.truncate(count);
        }
        order.clear();
        order.extend(keys.iter().map(|key| *key as u16 & (CHUNK - 1) as u16));
        order.sort_unstable();
        sizes.clear();
        sizes.extend(order.iter().map(|place| values[usize::from(*place)].abs()));
        let magnitudes = M::fit(sizes);
        magnitudes.write(message);
        sent.clear();
        let (mut bits, mut used) = (0u64, 0);
        for place in order.iter().copied() {
            let value = values[usize::from(place)];
            let level = magnitudes.level(value.abs());
            let is_negative = value.is_sign_negative();
            let entry = u64::from(place) << (M::BITS + 1) | u64::from(is_negative) << M::BITS;
            bits |= (entry | u64::from(level)) << used;
            used += Self::BITS;
            while used >= 8 {
                message.push(bits as u8);
                bits >>= 8;
                used -= 8;
            }
            sent.push((usize::from(place), signed(magnitudes.magnitude(level), is_negative)));
        }
        if used > 0 {
            message.push(bits as u8);
        }
    }

    /// Decodes the chunks of `len` values and calls `each` with the index and the value of each entry.
    pub(super) fn read(
        &self,
        rank: usize,
        message: &[u8],
        len: usize,
        mut each: impl FnMut(usize, f32),
    ) -> Result<(), CommError> {
        check_bytes(rank, self.bytes(len), message.len())?;
        let mut rest = message;
        for start in (0..len).step_by(CHUNK) {
            let len = (len - start).min(CHUNK);
            let (chunk, after) = rest.split_at(self.chunk_bytes(len));
            rest = after;
            let (header, entries) = chunk.split_at(M::HEADER);
            let magnitudes = M::read(rank, header)?;
            let mut bytes = entries.iter();
            let (mut bits, mut filled, mut least) = (0u64, 0, 0);
            for _ in 0..count(self.share, len) {
                while filled < Self::BITS {
                    bits |= u64::from(*bytes.next().unwrap_or(&0)) << filled;
                    filled += 8;
                }
                let level = (bits & ((1 << M::BITS) - 1)) as u32;
                let is_negative = bits >> M::BITS & 1 == 1;
                let place = (bits >> (M::BITS + 1)) as usize & (CHUNK - 1);
                bits >>= Self::BITS;
                filled -= Self::BITS;
                if !(least..len).contains(&place) {
                    let problem = "an index that does not ascend or is past the end";
                    return Err(CommError::Damaged { rank, problem });
                }
                least = place + 1;
                each(start + place, signed(magnitudes.magnitude(level), is_negative));
            }
            if bits != 0 {
                return Err(CommError::Damaged { rank, problem: "nonzero padding after the last entry" });
            }
        }
        Ok(())
    }
}

fn signed(magnitude: f32, is_negative: bool) -> f32 {
    if is_negative { -magnitude } else { magnitude }
}

/// Eight magnitudes in geometric progression, from the largest of the chunk down by factors of `1 / sqrt(2)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometric(f32);

const LEVELS: [f32; 8] = [1.0, 0.707_106_77, 0.5, 0.353_553_38, 0.25, 0.176_776_69, 0.125, 0.088_388_346];

impl Magnitudes for Geometric {
    const BITS: u32 = 3;
    const HEADER: usize = 4;

    fn fit(values: &mut [f32]) -> Self {
        Self(values.iter().fold(0f32, |most, value| most.max(*value)))
    }

    /// The nearest level by ratio. No level is zero: a zero that is sent as nonzero leaves its negative as residual.
    fn level(&self, value: f32) -> u32 {
        // The border between two levels, their geometric mean: 2^(-1/4) of the upper one.
        const BORDER: f32 = 0.840_896_4;
        LEVELS[..7].iter().take_while(|level| value < self.0 * *level * BORDER).count() as u32
    }

    fn magnitude(&self, level: u32) -> f32 {
        self.0 * LEVELS[level as usize & 7]
    }

    fn write(&self, message: &mut Vec<u8>) {
        message.extend(self.0.to_le_bytes());
    }

    fn read(rank: usize, header: &[u8]) -> Result<Self, CommError> {
        Ok(Self(scale(rank, header)?))
    }
}

/// Two magnitudes with the least squared error: the means of the smaller and of the larger values at the best split.
#[derive(Clone, Copy, Debug)]
pub(super) struct Two {
    low: f32,
    high: f32,
}

impl Magnitudes for Two {
    const BITS: u32 = 1;
    const HEADER: usize = 8;

    fn fit(values: &mut [f32]) -> Self {
        values.sort_unstable_by(f32::total_cmp);
        let all: f64 = values.iter().copied().map(f64::from).sum();
        let len = values.len();
        let mean = (all / len as f64) as f32;
        let (mut best, mut below) = (f64::MIN, 0.0);
        let mut fit = Self { low: mean, high: mean };
        // With `a` values of sum `s` and `b` values of sum `t`, the squared error is the sum of squares minus `s^2 / a + t^2 / b`.
        for (value, (a, b)) in values.iter().zip((1..len).zip((1..len).rev())) {
            below += f64::from(*value);
            let (low, high) = (below / a as f64, (all - below) / b as f64);
            let explained = low * below + high * (all - below);
            if explained > best {
                best = explained;
                fit = Self { low: low as f32, high: high as f32 };
            }
        }
        fit
    }

    fn level(&self, value: f32) -> u32 {
        // Halved before adding, since the sum may be infinite.
        u32::from(value > 0.5 * self.low + 0.5 * self.high)
    }

    fn magnitude(&self, level: u32) -> f32 {
        if level == 0 { self.low } else { self.high }
    }

    fn write(&self, message: &mut Vec<u8>) {
        message.extend(self.low.to_le_bytes());
        message.extend(self.high.to_le_bytes());
    }

    fn read(rank: usize, header: &[u8]) -> Result<Self, CommError> {
        Ok(Self { low: scale(rank, header)?, high: scale(rank, &header[4..])? })
    }
}
