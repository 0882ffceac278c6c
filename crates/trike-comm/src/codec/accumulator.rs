//! Sums of ternary gradients, independent of their order.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::CommError;
use crate::codec::check_len;
use crate::codec::ternary::{DIGITS, read};

/// Number of exponents that share an integer sum.
const WIDTH: u32 = 16;
/// Maximum number of messages in a sum: a trit times its scale has less than `24 + WIDTH` bits, so this many fit in an i64.
const MOST: u64 = 1 << (63 - 24 - WIDTH);

/// Adds messages of [`TernaryCodec`](crate::codec::TernaryCodec); the result has the same bits for every order.
///
/// Each rank has its own scale per chunk, so trits of different ranks cannot be added directly. A common scale would take a round
/// of messages before each step and fit few ranks well, and one fixed point for all chunks would lose small gradients. An f32 scale
/// is a 24-bit integer times a power of two. Scales whose exponents lie in the same range of 16 share an i64 sum of scale times
/// trit, which is exact and therefore independent of the order. A chunk whose ranks have gradients of similar size needs one or two
/// such sums. The mean adds the sums from the smallest exponent to the largest.
///
/// Memory is 8 bytes per element and range of exponents in use.
///
/// ```
/// use trike_comm::codec::{MessageCodec, TernaryCodec, TernaryGradientAccumulator};
///
/// let one = TernaryCodec::new(3).encode(&[2.0, 0.0, -2.0])?;
/// let two = TernaryCodec::new(3).encode(&[0.5, 0.5, 0.5])?;
/// let mut sum = TernaryGradientAccumulator::new(3);
/// sum.add(1, &two)?;
/// sum.add(0, &one)?;
/// assert_eq!(sum.mean()?, [1.25, 0.25, -0.75]);
/// # Ok::<(), trike_comm::CommError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TernaryGradientAccumulator {
    len: usize,
    count: u64,
    /// By the first element of a chunk and the range of exponents: its elements, in units of the range's lowest power of two.
    sums: BTreeMap<(usize, u32), Vec<i64>>,
}

impl TernaryGradientAccumulator {
    /// An empty sum of gradients of `len` elements.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { len, count: 0, sums: BTreeMap::new() }
    }

    /// Elements of the gradients.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether gradients have no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Messages added.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Adds a message from `rank`, which errors name.
    ///
    /// # Errors
    ///
    /// Errors of [`MessageCodec::add`](crate::codec::MessageCodec::add) and, after 8,388,608 messages, [`CommError::Range`]; the
    /// sum is then unchanged.
    pub fn add(&mut self, rank: usize, message: &[u8]) -> Result<(), CommError> {
        if self.count == MOST {
            let got = MOST as f64 + 1.0;
            return Err(CommError::Range { what: "messages of a sum", expected: "at most 8388608", got });
        }
        let chunks: Result<Vec<_>, CommError> = read(rank, message, self.len)?.collect();
        for (range, scale, trits) in chunks?.into_iter().filter(|(_, scale, _)| *scale > 0.0) {
            let (powers, integer) = split(scale);
            let Range { start, .. } = range;
            let sums = self.sums.entry((start, powers)).or_insert_with(|| vec![0; range.len()]);
            for (digit, sums) in sums.chunks_mut(trits.len()).enumerate() {
                let values = DIGITS[digit].map(|trit| integer * trit as i64);
                sums.iter_mut().zip(trits).for_each(|(sum, byte)| *sum += values[usize::from(*byte)]);
            }
        }
        self.count += 1;
        Ok(())
    }

    /// The mean of all messages.
    ///
    /// # Errors
    ///
    /// [`CommError::Length`] for an empty sum.
    pub fn mean(&self) -> Result<Vec<f32>, CommError> {
        if self.count == 0 {
            check_len("list of messages", 1, 0)?;
        }
        let mut sum = vec![0f64; self.len];
        // The keys of a chunk are in ascending order of exponents.
        for ((start, powers), integers) in &self.sums {
            // 2^-149 is the smallest positive f32.
            let unit = 2f64.powi((WIDTH * powers) as i32 - 149);
            sum[*start..].iter_mut().zip(integers).for_each(|(sum, x)| *sum += *x as f64 * unit);
        }
        Ok(sum.into_iter().map(|sum| (sum / self.count as f64) as f32).collect())
    }
}

/// The exponent range of a positive scale, and the scale in units of the range's lowest power of two.
fn split(scale: f32) -> (u32, i64) {
    let (exponent, fraction) = (scale.to_bits() >> 23, scale.to_bits() & 0x7f_ffff);
    // Subnormal numbers have the exponent of the smallest normal ones, and no implicit bit.
    let (power, integer) = if exponent == 0 { (0, fraction) } else { (exponent - 1, fraction | 1 << 23) };
    (power / WIDTH, i64::from(integer) << (power % WIDTH))
}
