//! Training objectives, and the rounding of weights and activations.

use std::ops::Range;

use trike_autodiff::{BitLinearSpec, GradError, TernarizeSpec};
use trike_trit::{Granularity, GroupSize};

/// Columns per f16 scale in the embedding and the head.
pub const EMBEDDING_GROUP: usize = 32;

/// Rounding of weights and activations in the forward pass.
#[derive(Clone, Debug)]
pub struct TernaryPolicy {
    /// Rounding of the matrices of the blocks; `None` leaves them dense.
    pub blocks: Option<BitLinearSpec>,
    /// Whether embedding and head are int8 in groups of [`EMBEDDING_GROUP`], as in packed models; otherwise they are f32.
    pub int8_embedding: bool,
}

impl Default for TernaryPolicy {
    /// One ternary plane with one absmean scale per 32 weights; int8 activations, embedding and head.
    fn default() -> Self {
        let weights = TernarizeSpec::default().with_granularity(Granularity::Group(GroupSize::G32));
        Self { blocks: Some(BitLinearSpec { weights, ..BitLinearSpec::default() }), int8_embedding: true }
    }
}

impl TernaryPolicy {
    /// A dense model.
    pub const DENSE: Self = Self { blocks: None, int8_embedding: false };

    /// The same with another interpolation factor: 0 is dense, 1 is ternary.
    #[must_use]
    pub fn with_lambda(mut self, lambda: f32) -> Self {
        if let Some(how) = &mut self.blocks {
            how.weights = TernarizeSpec { lambda, ..how.weights };
        }
        self
    }
}

/// Writes a teacher's logits of a range of tokens, `tokens x vocab`, into a view of the executor: a slice on the host.
pub type TeacherLogits<'t, V = [f32]> = dyn FnMut(Range<usize>, &mut V) -> Result<(), GradError> + 't;

/// The training objective.
pub enum Objective<'t, V: ?Sized = [f32]> {
    /// The cross-entropy of the targets.
    Text,
    /// The KL divergence from a teacher, plus a weighted cross-entropy.
    Distill {
        /// Weight of the cross-entropy.
        text: f32,
        /// The teacher.
        teacher: &'t mut TeacherLogits<'t, V>,
    },
}

impl<V: ?Sized> std::fmt::Debug for Objective<'_, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text => f.write_str("Text"),
            Self::Distill { text, .. } => {
                f.debug_struct("Distill").field("text", text).finish_non_exhaustive()
            }
        }
    }
}

/// The loss of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loss {
    /// Cross-entropy over all target tokens, in nats.
    pub sum: f64,
    /// KL divergence from the teacher at these tokens, in nats; 0 without a teacher.
    pub divergence: f64,
    /// Number of these tokens.
    pub tokens: usize,
}

impl Loss {
    /// Nats per token.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum / self.tokens.max(1) as f64
    }

    /// Adds the loss of another batch.
    pub(crate) fn add(&mut self, other: Self) {
        self.sum += other.sum;
        self.divergence += other.divergence;
        self.tokens += other.tokens;
    }
}
