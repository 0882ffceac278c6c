//! Gradients in fewer bytes.
//!
//! A codec replaces the gradient of each rank by an approximate mean over all ranks. What a rank's message leaves out is added to
//! its next gradient (error feedback), so over many steps nothing is lost. Two codecs are compared by the loss at the end of a
//! run and the bytes sent, not by the angle of one step's gradient.

mod ternary;
mod top;

use crate::{CommError, Communicator};

pub use ternary::Ternary;
pub use top::TopK;

/// A way to write gradients in fewer bytes.
pub trait Codec: std::fmt::Debug + Send {
    /// Elements of the gradients.
    fn len(&self) -> usize;

    /// Whether gradients have no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of a message, which are the same for every gradient.
    fn bytes(&self) -> usize;

    /// The message of a gradient with what was left out before; what it leaves out is kept for the next. All elements are finite,
    /// which [`exchange`](Self::exchange) checks.
    ///
    /// # Errors
    ///
    /// [`CommError::Length`] for a gradient of another length.
    fn encode(&mut self, gradient: &[f32]) -> Result<Vec<u8>, CommError>;

    /// Adds `weight` times the gradient of a message from rank `rank` to `sum`.
    ///
    /// # Errors
    ///
    /// [`CommError::Length`] for sums of another length, [`CommError::Cut`] for a message of another length than
    /// [`bytes`](Self::bytes), [`CommError::Damaged`] for one that no gradient has; `sum` is then arbitrary.
    fn add(&self, rank: usize, message: &[u8], weight: f32, sum: &mut [f32]) -> Result<(), CommError>;

    /// What a run has to save to continue as if it had not stopped.
    fn state(&self) -> Vec<&[f32]>;

    /// The same, to be restored.
    fn state_mut(&mut self) -> Vec<&mut [f32]>;

    /// Replaces this rank's gradient by the mean over all ranks, as their messages have it. All ranks get the same bits.
    ///
    /// # Errors
    ///
    /// [`CommError::NonFinite`] for a gradient that is not finite, and those of [`encode`](Self::encode), of [`add`](Self::add) and
    /// of messages.
    fn exchange(&mut self, comm: &dyn Communicator, gradient: &mut [f32]) -> Result<(), CommError> {
        // Finite numbers times zero are zero; the sum of others is NaN.
        if gradient.iter().fold(0.0, |sum, g| sum + 0.0 * g) != 0.0 {
            return Err(CommError::NonFinite { rank: comm.rank() });
        }
        let message = self.encode(gradient)?;
        let weight = 1.0 / comm.size() as f32;
        gradient.fill(0.0);
        for (rank, message) in comm.all_gather(&message, self.bytes())?.iter().enumerate() {
            self.add(rank, message, weight, gradient)?;
        }
        Ok(())
    }
}

/// A codec by its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum CodecConfig {
    /// [`Ternary`].
    Ternary,
    /// [`TopK`].
    TopK {
        /// Share of the elements that are sent, over 0 up to 1.
        share: f32,
        /// Share of the velocity that is kept from step to step, 0 to less than 1.
        momentum: f32,
    },
}

impl CodecConfig {
    /// A codec for gradients of `len` elements.
    ///
    /// # Errors
    ///
    /// [`CommError::Range`].
    pub fn build(self, len: usize) -> Result<Box<dyn Codec>, CommError> {
        Ok(match self {
            Self::Ternary => Box::new(Ternary::new(len)),
            Self::TopK { share, momentum } => Box::new(TopK::new(len, share, momentum)?),
        })
    }
}

/// The first four bytes of a chunk, its largest or mean magnitude.
fn scale(rank: usize, header: &[u8]) -> Result<f32, CommError> {
    let scale = f32::from_le_bytes([header[0], header[1], header[2], header[3]]);
    let problem = "a scale that is not finite";
    if scale.is_finite() { Ok(scale) } else { Err(CommError::Damaged { rank, problem }) }
}

fn check_len(what: &'static str, expected: usize, got: usize) -> Result<(), CommError> {
    if expected == got { Ok(()) } else { Err(CommError::Length { what, expected, got }) }
}

fn check_bytes(rank: usize, expected: usize, got: usize) -> Result<(), CommError> {
    if expected == got { Ok(()) } else { Err(CommError::Cut { rank, expected, got }) }
}
