//! The text that a model is calibrated on.

use trike_llm::Split;

/// Sequences of a text by default.
pub(crate) const SEQUENCES: usize = 512;
/// Tokens that they have together at most: a larger model takes longer sequences, and its time is what they cost.
pub(crate) const TOKENS: usize = 128 * 2048;

/// The calibration text.
#[derive(Clone, Copy, Debug)]
pub enum Calibration<'a> {
    /// A text, split into sequences.
    Text {
        /// How it is split into sequences.
        text: &'a str,
        /// How it is split.
        split: Split,
        /// Maximum number of sequences. By default 512, but not more than have 262,144 tokens together: distinct text helps more than
        /// passes over the same.
        limit: Option<usize>,
    },
    /// Text that the model generates itself, sampled at temperature 1 from the beginning-of-text token alone.
    Generated {
        /// Number of sequences.
        sequences: usize,
        /// RNG seed.
        seed: u64,
    },
}

impl Calibration<'_> {
    /// Maximum number of sequences.
    pub(crate) fn limit(&self) -> usize {
        match *self {
            Self::Text { limit, .. } => limit.unwrap_or(SEQUENCES),
            Self::Generated { sequences, .. } => sequences,
        }
    }

    /// The same with at most `limit` sequences; generated text grows by at most a third, because generation is slow.
    pub(crate) fn with_limit(self, limit: usize) -> Self {
        match self {
            Self::Text { text, split, .. } => Self::Text { text, split, limit: Some(limit) },
            Self::Generated { sequences, seed } => {
                Self::Generated { sequences: limit.min(sequences + sequences.div_ceil(3)), seed }
            }
        }
    }
}
