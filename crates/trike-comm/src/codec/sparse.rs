//! The largest values of chunks, each as a place, a sign and one of a few magnitudes.

use std::marker::PhantomData;

use crate::CommError;
use crate::codec::{check_bytes, check_share, chunked, count, scale};

/// Values of a chunk, from each of which as many are sent.
pub(super) const CHUNK: usize = 4096;
/// Bits of a place in a chunk.
const PLACE: u32 = CHUNK.ilog2();

/// The magnitudes that the values of a chunk may have.
pub(super) trait Magnitudes: Sized {
    /// Bits of the number of a magnitude.
    const BITS: u32;
    /// Bytes of a chunk before its entries.
    const HEADER: usize;

    /// Magnitudes for these values, at least one, which may be reordered.
    fn fit(values: &mut [f32]) -> Self;
    /// The number of the magnitude nearest to `value`, which is not negative.
    fn level(&self, value: f32) -> u32;
    /// The magnitude of a number below `2^BITS`.
    fn magnitude(&self, level: u32) -> f32;
    fn write(&self, message: &mut Vec<u8>);
    fn read(rank: usize, header: &[u8]) -> Result<Self, CommError>;
}

/// A share of the values of each chunk, the largest.
///
/// A chunk is its magnitudes and the entries, by ascending place: bits from the lowest of the first byte on, each entry the number of
/// its magnitude, then the sign bit, then the place in 12 bits. The rest of the last byte is zero.
#[derive(Clone, Debug)]
pub(super) struct Sparse<M> {
    share: f32,
    magnitudes: PhantomData<M>,
}

/// Memory that is used again for each chunk.
#[derive(Default)]
pub(super) struct Scratch {
    /// Magnitudes and places.
    keys: Vec<u64>,
    /// Places of the values that are sent, ascending.
    order: Vec<u16>,
    sizes: Vec<f32>,
    /// Places and values of the last chunk, as its receivers read them.
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

    /// Appends a chunk, whose values are finite.
    pub(super) fn write(&self, values: &[f32], message: &mut Vec<u8>, scratch: &mut Scratch) {
        let Scratch { keys, order, sizes, sent } = scratch;
        // Magnitudes are ordered as their bits are, here the largest first; of equal ones, the first.
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

    /// Gives each entry of the chunks of `len` values to `each`: the number of its value and the value.
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
                    let problem = "a place that is not between the one before and the end";
                    return Err(CommError::Damaged { rank, problem });
                }
                least = place + 1;
                each(start + place, signed(magnitudes.magnitude(level), is_negative));
            }
            if bits != 0 {
                return Err(CommError::Damaged { rank, problem: "bits behind the last entry" });
            }
        }
        Ok(())
    }
}

fn signed(magnitude: f32, is_negative: bool) -> f32 {
    if is_negative { -magnitude } else { magnitude }
}

/// Eight magnitudes, the first the largest of the chunk, each `1 / sqrt(2)` of the one before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometric(f32);

const LEVELS: [f32; 8] = [1.0, 0.707_106_77, 0.5, 0.353_553_38, 0.25, 0.176_776_69, 0.125, 0.088_388_346];

impl Magnitudes for Geometric {
    const BITS: u32 = 3;
    const HEADER: usize = 4;

    fn fit(values: &mut [f32]) -> Self {
        Self(values.iter().fold(0f32, |most, value| most.max(*value)))
    }

    /// The nearest as a ratio. None is zero: what is sent in place of a zero waits with the opposite sign.
    fn level(&self, value: f32) -> u32 {
        // Between two levels, the geometric mean: 2^(-1/4) of the upper one.
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

/// Two magnitudes with the least squared error: the means of the smaller and of the larger values at the best border.
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
        // With `a` values of the sum `s` and `b` of the sum `t`, the error is the sum of squares less `s^2 / a + t^2 / b`.
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
        // Not half of the sum, which may be infinite.
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
