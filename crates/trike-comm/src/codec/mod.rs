//! Gradients in fewer bytes.
//!
//! A codec replaces the gradient of each rank by an approximate mean over all ranks. What is not sent is added to the next gradient
//! (error feedback), so over many steps nothing is lost. Two codecs are compared by the loss at the end of a run and the bytes sent,
//! not by the angle of one step's gradient.
//!
//! | codec | sent | to | state |
//! |---|---|---|---|
//! | [`Ternary`] | trits, one scale per 4,095 | owners, then all | residual |
//! | [`Sign`] | signs, one scale per 4,096 | owners, then all | residual |
//! | [`LowRank`] | two factors per matrix | owners, then all | residual, q |
//! | [`Sketch`] | sums of hashed elements | owners, then all | residual, step |
//! | [`TopK`] | the largest elements, 16 bits each | all | velocity, waiting |
//! | [`Demo`] | the largest cosine coefficients of the momentum, 16 bits each | all | momentum |
//! | [`SparseLoCo`] | the largest elements, 14 bits each | all | residual |
//!
//! Each element of the first four goes to the rank that owns it, which adds what all ranks have sent and gives the sum to all in as
//! few bytes: a rank sends the same part of the bytes of an exact sum on any number of ranks. The largest elements of different ranks
//! are different ones, and would not fit into one message of their size. They go to all ranks, so what a rank sends grows with their
//! number, as with the methods' own implementations.
//!
//! [`Ternary`] and [`Sign`] are [`Staged`] with a [`Rounding`] each. [`CodecConfig`] builds all of the codecs. All but [`LowRank`] are also
//! [`MessageCodec`]s: their messages can be written and read without ranks, by [`GradientCompressor`], and trits be summed in any
//! order, by [`TernaryGradientAccumulator`]. [`LocalExchange`] runs any codec between ranks of one process.

mod accumulator;
mod compressor;
mod config;
mod demo;
mod local;
mod loco;
mod low_rank;
mod sign;
mod sketch;
mod sparse;
mod staged;
mod state;
mod ternary;
mod top;

use crate::{CommError, Communicator};

pub use accumulator::TernaryGradientAccumulator;
pub use compressor::{CompressedGradient, CompressionStats, GradientCompressor};
pub use config::CodecConfig;
pub use demo::Demo;
pub use local::LocalExchange;
pub use loco::SparseLoCo;
pub use low_rank::LowRank;
pub use sign::{Sign, Signs};
pub use sketch::Sketch;
pub use staged::{Rounding, Staged};
pub use state::{Carry, Saved, restore};
pub use ternary::{Ternary, Trits};
pub use top::TopK;

/// A way to exchange gradients in fewer bytes.
pub trait Codec: std::fmt::Debug + Send {
    /// Elements of the gradients.
    fn len(&self) -> usize;

    /// Whether gradients have no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that rank `rank` of `ranks` sends per exchange, without headers of messages; the same for every gradient.
    fn sent_bytes(&self, rank: usize, ranks: usize) -> usize;

    /// Whether the gradient of rank `rank` can be exchanged now: its length, and whether it and what the state would become are finite
    /// and small enough for all sums of them to be. The state does not change, so ranks can agree before one of them sends.
    ///
    /// # Errors
    ///
    /// [`CommError::Length`], [`CommError::NonFinite`], and [`CommError::TooLarge`].
    fn check(&self, rank: usize, gradient: &[f32]) -> Result<(), CommError>;

    /// Replaces this rank's gradient by the approximate mean over all ranks. All ranks get the same bits.
    ///
    /// # Errors
    ///
    /// Those of [`check`](Self::check), with the state unchanged. Errors of messages, after which the gradient is arbitrary and the
    /// state has to be [restored](restore).
    fn exchange(&mut self, comm: &dyn Communicator, gradient: &mut [f32]) -> Result<(), CommError>;

    /// The state that a run saves to continue with the same bits. Lengths and order do not change over the life of a codec.
    fn state(&self) -> Vec<Saved<'_>>;

    /// The vectors of [`state`](Self::state) in the same order, to be overwritten.
    fn state_mut(&mut self) -> Vec<&mut [f32]>;
}

/// A codec whose messages can be written and read without ranks.
pub trait MessageCodec: Codec {
    /// Bytes of the message of a gradient.
    fn bytes(&self) -> usize;

    /// The message of a gradient plus the state; what is not sent stays in the state.
    ///
    /// # Errors
    ///
    /// Those of [`check`](Codec::check), of rank 0, with the state unchanged.
    fn encode(&mut self, gradient: &[f32]) -> Result<Vec<u8>, CommError>;

    /// Adds `weight` times the gradient of a message from rank `rank` to `sum`.
    ///
    /// # Errors
    ///
    /// [`CommError::Length`] for sums of another length, [`CommError::Cut`] for a message of another length than
    /// [`bytes`](Self::bytes), [`CommError::Damaged`] for one that no gradient has; `sum` is then arbitrary.
    fn add(&self, rank: usize, message: &[u8], weight: f32, sum: &mut [f32]) -> Result<(), CommError>;
}

/// An exchange of one message per rank to all others, added in the order of the ranks.
fn exchange_messages(
    codec: &mut impl MessageCodec,
    comm: &dyn Communicator,
    gradient: &mut [f32],
) -> Result<(), CommError> {
    let message = codec.encode(gradient).map_err(|error| error.of_rank(comm.rank()))?;
    let weight = 1.0 / comm.size() as f32;
    gradient.fill(0.0);
    for (rank, message) in comm.all_gather(&message, codec.bytes())?.iter().enumerate() {
        codec.add(rank, message, weight, gradient)?;
    }
    Ok(())
}

/// Elements of all tensors, for which there is memory.
fn elements(shapes: &[[usize; 2]]) -> Result<usize, CommError> {
    let mut sum = 0usize;
    for (tensor, [rows, cols]) in shapes.iter().copied().enumerate() {
        let too_large = CommError::Shape { tensor, rows, cols, before: sum };
        let with = rows.checked_mul(cols).and_then(|elements| sum.checked_add(elements));
        // A codec of a gradient that cannot be held would end the process when it takes its memory.
        sum = with.filter(|len| Vec::<f32>::new().try_reserve_exact(*len).is_ok()).ok_or(too_large)?;
    }
    Ok(sum)
}

/// Bytes of a vector of `len` elements in chunks of `chunk`, of which each takes `of` bytes by its length.
fn chunked(len: usize, chunk: usize, of: impl Fn(usize) -> usize) -> usize {
    let rest = len % chunk;
    (len / chunk) * of(chunk) + if rest > 0 { of(rest) } else { 0 }
}

/// The finite number in the first four bytes.
fn number(rank: usize, bytes: &[u8]) -> Result<f32, CommError> {
    let number = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let problem = "a number that is not finite";
    if number.is_finite() { Ok(number) } else { Err(CommError::Damaged { rank, problem }) }
}

/// The scale in the first four bytes, a magnitude.
fn scale(rank: usize, bytes: &[u8]) -> Result<f32, CommError> {
    let scale = number(rank, bytes)?;
    let problem = "a negative scale";
    if scale >= 0.0 { Ok(scale) } else { Err(CommError::Damaged { rank, problem }) }
}

/// Largest magnitude of an element of a gradient: 2^104, about 2e31.
const LARGEST: f32 = f32::from_bits((127 + 104) << 23);
/// Largest magnitude of an element of the state, which is a few gradients: 2^108. A sum of 2^19 of them is finite still: that of a
/// chunk (2^12 elements) of 128 ranks, and the root of all elements of a row.
const LARGEST_STATE: f32 = f32::from_bits((127 + 108) << 23);

/// Refuses a gradient of another length than `len`, and one that is not finite or too large; `states` are the elements that the state
/// would have with it.
fn check_gradient(
    rank: usize,
    len: usize,
    gradient: &[f32],
    states: impl Iterator<Item = f32>,
) -> Result<(), CommError> {
    check_len("gradient", len, gradient.len())?;
    let got = magnitude(gradient.iter().copied());
    if !got.is_finite() {
        return Err(CommError::NonFinite { rank });
    }
    let waits = magnitude(states);
    for (what, got, most) in
        [("gradient", got, LARGEST), ("gradient with its residual", waits, LARGEST_STATE)]
    {
        if got > most || got.is_nan() {
            return Err(CommError::TooLarge { what, rank, got, most });
        }
    }
    Ok(())
}

/// The largest magnitude; infinity is larger than all numbers, and NaN than infinity.
fn magnitude(values: impl Iterator<Item = f32>) -> f32 {
    // Magnitudes are ordered as their bits are. As signed integers, whose maximum every instruction set has for vectors, and without
    // a branch per element.
    let most = values.fold(0, |most, x| x.abs().to_bits().cast_signed().max(most));
    f32::from_bits(most.cast_unsigned())
}

/// What is added to a residual and sent with it, element by element.
fn sums<'a>(residual: &'a [f32], gradient: &'a [f32]) -> impl Iterator<Item = f32> + 'a {
    residual.iter().zip(gradient).map(|(r, g)| r + g)
}

fn check_len(what: &'static str, expected: usize, got: usize) -> Result<(), CommError> {
    if expected == got { Ok(()) } else { Err(CommError::Length { what, expected, got }) }
}

fn check_bytes(rank: usize, expected: usize, got: usize) -> Result<(), CommError> {
    if expected == got { Ok(()) } else { Err(CommError::Cut { rank, expected, got }) }
}

/// A share of something, over 0 up to 1.
fn check_share(share: f32) -> Result<(), CommError> {
    let expected = "over 0 up to 1";
    let is_share = share > 0.0 && share <= 1.0;
    if is_share { Ok(()) } else { Err(CommError::Range { what: "share", expected, got: f64::from(share) }) }
}

/// A factor by which the state of the last step is multiplied, 0 to 1.
fn check_decay(what: &'static str, decay: f32) -> Result<(), CommError> {
    let is_decay = (0.0..=1.0).contains(&decay);
    if is_decay { Ok(()) } else { Err(CommError::Range { what, expected: "0 to 1", got: f64::from(decay) }) }
}

/// How many of `len` elements a share is, at least one.
fn count(share: f32, len: usize) -> usize {
    ((share * len as f32).round() as usize).clamp(1, len.max(1))
}

/// A number whose bits depend on all bits of `x` (Wellons' `lowbias32`, a bijection).
#[inline(always)]
fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ x >> 16
}
