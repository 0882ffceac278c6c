//! The text that a model is calibrated on.

use trike_llm::Split;

/// Most sequences of a text by default.
pub(crate) const SEQUENCES: usize = 4096;
/// Tokens that they have together at most: of a large model, and of a small one, whose time is short.
const TOKENS: [u64; 2] = [1 << 18, 1 << 20];
/// What tokens times the weights of the blocks are, between the least and the most tokens.
const PRODUCTS: u64 = 1 << 40;

/// Tokens of a text by default, for a model with so many weights in its blocks: distinct text helps more than anything else.
pub(crate) fn tokens(weights: u64) -> usize {
    affordable(weights, TOKENS) as usize
}

/// Tokens that take about as long in every model that can have more than the least and fewer than the most.
pub(super) fn affordable(weights: u64, [least, most]: [u64; 2]) -> u64 {
    (PRODUCTS / weights.max(1)).clamp(least, most)
}

/// The calibration text.
#[derive(Clone, Copy, Debug)]
pub enum Calibration<'a> {
    /// A text, split into sequences.
    Text {
        /// How it is split into sequences.
        text: &'a str,
        /// How it is split.
        split: Split,
        /// Maximum number of sequences. By default as many as have 262,144 tokens together, or up to four times that in a model with
        /// fewer than four million weights in its blocks.
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
    /// Sequences that a model generates where no number is given: writing takes longer than calibrating.
    pub const GENERATED: usize = 128;

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
