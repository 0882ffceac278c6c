//! The calibration text.

use trike_llm::Split;

/// Default maximum number of sequences.
pub(crate) const SEQUENCES: usize = 4096;
/// Default maximum number of tokens: for a large model, and for a small one, which is fast.
const TOKENS: [u64; 2] = [1 << 18, 1 << 20];
/// Product of tokens and weights of the blocks, between these limits.
const PRODUCTS: u64 = 1 << 40;

/// Default number of tokens for a model with that many weights in its blocks: more distinct text improves the result most.
pub(crate) fn tokens(weights: u64) -> usize {
    affordable(weights, TOKENS) as usize
}

/// The number of tokens for about equal time in every model, clamped to the limits.
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
        /// Maximum number of sequences. By default those of the first 262,144 tokens, or up to four times as many in a model with
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
    /// Default number of generated sequences: generation takes longer than calibration.
    pub const GENERATED: usize = 128;

    /// Maximum number of sequences.
    pub(crate) fn limit(&self) -> usize {
        match *self {
            Self::Text { limit, .. } => limit.unwrap_or(SEQUENCES),
            Self::Generated { sequences, .. } => sequences,
        }
    }

    /// A copy limited to `limit` sequences; generated text grows by at most a third, because generation is slow.
    pub(crate) fn with_limit(self, limit: usize) -> Self {
        match self {
            Self::Text { text, split, .. } => Self::Text { text, split, limit: Some(limit) },
            Self::Generated { sequences, seed } => {
                Self::Generated { sequences: limit.min(sequences + sequences.div_ceil(3)), seed }
            }
        }
    }
}
