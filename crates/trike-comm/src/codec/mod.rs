//! Gradients in fewer bytes.
//!
//! A codec replaces the gradient of each rank by an approximate mean over all ranks. The residual, which was not sent, is added to
//! the next gradient (error feedback), so over many steps nothing is lost. Compare codecs by the final loss of a run and the bytes
//! sent, not by the cosine of one step's gradient.
//!
//! | codec | sent | to | state |
//! |---|---|---|---|
//! | [`TernaryCodec`] | trits, one scale per 4,095 | owners, then all | residual |
//! | [`Sign`] | signs, one scale per 4,096 | owners, then all | residual |
//! | [`LowRank`] | two factors per matrix | owners, then all | residual, q |
//! | [`Sketch`] | sums of hashed elements | owners, then all | residual, step |
//! | [`TopK`] | the largest elements, 16 bits each | all | velocity, waiting |
//! | [`Demo`] | the largest cosine coefficients of the momentum, 16 bits each | all | momentum |
//! | [`SparseLoCo`] | the largest elements, 14 bits each | all | residual |
//!
//! With the first four, each element is owned by one rank, which adds the messages of all ranks and sends them the sum in as few
//! bytes: the bytes per rank are a fixed fraction of those of an exact sum, on any number of ranks. The largest elements differ
//! between ranks, and their union would not fit into one message of the same size. They are sent to all ranks, so the bytes per
//! rank grow with the number of ranks, as in the methods' reference implementations.
//!
//! [`TernaryCodec`] and [`Sign`] are [`Staged`] with a [`StagedQuantizer`] each. [`CodecConfig`] builds all of the codecs. All but
//! [`LowRank`] are also [`MessageCodec`]s: [`GradientCompressor`] encodes and decodes their messages without ranks, and
//! [`TernaryGradientAccumulator`] sums trits in any order. [`LocalExchange`] runs any codec between ranks of one process.

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
pub use sign::{Sign, SignQuantizer};
pub use sketch::Sketch;
pub use staged::{Staged, StagedQuantizer};
pub use state::{Carry, Saved, restore};
pub use ternary::{TernaryCodec, TernaryQuantizer};
pub use top::TopK;

/// A compressed exchange of gradients.
pub trait Codec: std::fmt::Debug + Send {
    /// Elements of the gradients.
    fn len(&self) -> usize;

    /// Whether gradients have no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that `rank` of `ranks` sends per exchange, without message headers; independent of the gradient.
    fn sent_bytes(&self, rank: usize, ranks: usize) -> usize;

    /// Whether the gradient of `rank` can be exchanged: its length matches, and it and the resulting state are finite and small
    /// enough that no sum overflows. The state does not change, so ranks can agree before any of them sends.
    ///
    /// # Errors
    ///
    /// [`CommError::Length`], [`CommError::NonFinite`], and [`CommError::TooLarge`].
    fn check(&self, rank: usize, gradient: &[f32]) -> Result<(), CommError>;

    /// Replaces this rank's gradient by the approximate mean over all ranks. All ranks get the same bits.
    ///
    /// # Errors
    ///
    /// Errors of [`check`](Self::check), with the state unchanged. After an error of a message the gradient is arbitrary and the
    /// state must be [restored](restore).
    fn exchange(&mut self, comm: &dyn Communicator, gradient: &mut [f32]) -> Result<(), CommError>;

    /// The state for a checkpoint, with which a run continues bit-identically. Lengths and order are constant over the life of a
    /// codec.
    fn state(&self) -> Vec<Saved<'_>>;

    /// The vectors of [`state`](Self::state) in the same order, to be overwritten.
    fn state_mut(&mut self) -> Vec<&mut [f32]>;
}

/// A codec whose messages can be encoded and decoded without ranks.
pub trait MessageCodec: Codec {
    /// Size of a gradient's message, in bytes.
    fn bytes(&self) -> usize;

    /// Encodes a gradient plus the state; the error stays in the state.
    ///
    /// # Errors
    ///
    /// Errors of [`check`](Codec::check), as rank 0, with the state unchanged.
    fn encode(&mut self, gradient: &[f32]) -> Result<Vec<u8>, CommError>;

    /// Adds `weight` times the decoded message of `rank` to `sum`.
    ///
    /// # Errors
    ///
    /// [`CommError::Length`] for sums of another length, [`CommError::Cut`] for a message whose length is not
    /// [`bytes`](Self::bytes), [`CommError::Damaged`] for one that no gradient encodes to; `sum` is then arbitrary.
    fn add(&self, rank: usize, message: &[u8], weight: f32, sum: &mut [f32]) -> Result<(), CommError>;
}

/// An exchange of one message from each rank to all others; messages are added in rank order.
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

/// Total number of elements of all tensors, checked to fit in memory.
fn elements(shapes: &[[usize; 2]]) -> Result<usize, CommError> {
    let mut sum = 0usize;
    for (tensor, [rows, cols]) in shapes.iter().copied().enumerate() {
        let too_large = CommError::Shape { tensor, rows, cols, before: sum };
        let with = rows.checked_mul(cols).and_then(|elements| sum.checked_add(elements));
        // An allocation failure inside a codec would abort the process.
        sum = with.filter(|len| Vec::<f32>::new().try_reserve_exact(*len).is_ok()).ok_or(too_large)?;
    }
    Ok(sum)
}

/// Size in bytes of a vector of `len` elements in chunks of `chunk`; `of` gives the size of a chunk of a given length.
fn chunked(len: usize, chunk: usize, of: impl Fn(usize) -> usize) -> usize {
    let rest = len % chunk;
    (len / chunk) * of(chunk) + if rest > 0 { of(rest) } else { 0 }
}

/// Parses a finite f32 from the first four bytes.
fn number(rank: usize, bytes: &[u8]) -> Result<f32, CommError> {
    let number = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let problem = "a number that is not finite";
    if number.is_finite() { Ok(number) } else { Err(CommError::Damaged { rank, problem }) }
}

/// Parses a nonnegative scale from the first four bytes.
fn scale(rank: usize, bytes: &[u8]) -> Result<f32, CommError> {
    let scale = number(rank, bytes)?;
    let problem = "a negative scale";
    if scale >= 0.0 { Ok(scale) } else { Err(CommError::Damaged { rank, problem }) }
}

/// Largest magnitude of an element of a gradient: 2^104, about 2e31.
const LARGEST: f32 = f32::from_bits((127 + 104) << 23);
/// Largest magnitude of an element of the state, which adds up a few gradients: 2^108. A sum of 2^19 of them is still finite: a
/// chunk (2^12 elements) of 128 ranks, and the norm of a row.
const LARGEST_STATE: f32 = f32::from_bits((127 + 108) << 23);

/// Refuses a gradient whose length is not `len`, or that is not finite or too large; `states` are the elements of the resulting
/// state.
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

/// The largest magnitude; infinity exceeds all numbers, and NaN exceeds infinity.
fn magnitude(values: impl Iterator<Item = f32>) -> f32 {
    // Nonnegative floats are ordered like their bits. Compared as signed integers, whose vector maximum every instruction set has,
    // and without a branch per element.
    let most = values.fold(0, |most, x| x.abs().to_bits().cast_signed().max(most));
    f32::from_bits(most.cast_unsigned())
}

/// Residual plus gradient, elementwise.
fn sums<'a>(residual: &'a [f32], gradient: &'a [f32]) -> impl Iterator<Item = f32> + 'a {
    residual.iter().zip(gradient).map(|(r, g)| r + g)
}

fn check_len(what: &'static str, expected: usize, got: usize) -> Result<(), CommError> {
    if expected == got { Ok(()) } else { Err(CommError::Length { what, expected, got }) }
}

fn check_bytes(rank: usize, expected: usize, got: usize) -> Result<(), CommError> {
    if expected == got { Ok(()) } else { Err(CommError::Cut { rank, expected, got }) }
}

/// A fraction in (0, 1].
fn check_share(share: f32) -> Result<(), CommError> {
    let expected = "over 0 up to 1";
    let is_share = share > 0.0 && share <= 1.0;
    if is_share { Ok(()) } else { Err(CommError::Range { what: "share", expected, got: f64::from(share) }) }
}

/// A decay factor of the state, in [0, 1].
fn check_decay(what: &'static str, decay: f32) -> Result<(), CommError> {
    let is_decay = (0.0..=1.0).contains(&decay);
    if is_decay { Ok(()) } else { Err(CommError::Range { what, expected: "0 to 1", got: f64::from(decay) }) }
}

/// Number of elements in a fraction `share` of `len`, at least one.
fn count(share: f32, len: usize) -> usize {
    ((share * len as f32).round() as usize).clamp(1, len.max(1))
}

/// A hash whose bits depend on all bits of `x` (Wellons' `lowbias32`, a bijection).
#[inline(always)]
fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ x >> 16
}
