//! Tuning options.

use trike_core::{Bounds, OptionError};

use super::text::affordable;

/// Tokens that a block passes by default, in as many passes over the text as that takes.
const BLOCK: u64 = 1 << 18;
/// Tokens that the whole model passes: if it is large, and if it is small.
const MODEL: [u64; 2] = [1 << 19, 3 << 20];
/// Most passes over a text by default, for a block and for the whole model. Of a short text more gain little: three planes of
/// stories260K on 270 stories are left 0.0105 nats by 6 passes of the whole model and 0.0102 by 12, in 63 s and 132 s.
const PASSES: [u64; 2] = [4, 6];
/// Upper limit of epochs, to catch mistyped numbers.
const MOST_EPOCHS: usize = 10_000;

/// Tuning of codes, scales and norms after compensation, on the same calibration text.
///
/// An epoch takes about three times as long as a forward pass over the text. Memory for the blocks that are tuned at
/// once (one, then all): 20 bytes per weight, the head, and the activations and logits of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// Epochs over the text per block, against the dense block's output; 0 = none. By default so many that about 262,144 tokens are
    /// passed, 1 to 4.
    pub block_epochs: Option<usize>,
    /// Epochs over the text for the whole model, against the dense model's probabilities; 0 = none. By default so many that about
    /// 524,288 tokens are passed, or up to six times that in a model with fewer than two million weights in its blocks, 1 to 6; where
    /// only scales and norms are tuned, 131,072 tokens at most.
    pub model_epochs: Option<usize>,
    /// Minutes after the epochs in which the whole model is tuned on text that the dense model writes; 0 = none. A quarter of them
    /// is for writing at most. What can be done in that time depends on the machine, and so does the result.
    /// A search for a quality spends them on every trial.
    pub recover: f64,
    /// Tokens per step, unless one sequence is longer.
    pub batch_tokens: usize,
    /// Learning rate of latent weights, in units of the distance between levels; divided by nine for two and three planes, and by three
    /// for each one more.
    pub rate: f32,
    /// Learning rate of scales, relative to the scale; divided by three for each additional plane.
    pub scale_rate: f32,
    /// Of models with more weights than this in their blocks only the scales and norms are tuned for the whole model, with one block
    /// at a time in memory, and a note is added.
    pub max_weights: u64,
    /// Whether weights that compensation made zero stay zero, as required for pruned models.
    pub keep_zeros: bool,
    /// RNG seed for the order of the sequences.
    pub seed: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            block_epochs: None,
            model_epochs: None,
            recover: 0.0,
            batch_tokens: 1024,
            rate: 0.02,
            scale_rate: 2e-3,
            max_weights: 400_000_000,
            keep_zeros: false,
            seed: 0,
        }
    }
}

impl Tuning {
    /// Whether blocks are tuned.
    pub(crate) fn tunes_blocks(&self) -> bool {
        self.block_epochs != Some(0)
    }

    /// Whether the whole model is tuned on the calibration text.
    pub(crate) fn tunes_model(&self) -> bool {
        self.model_epochs != Some(0)
    }

    /// Epochs over a text of so many tokens, for a block and for a whole model with so many weights in its blocks.
    pub(crate) fn epochs(&self, tokens: usize, weights: u64) -> [usize; 2] {
        let tokens = tokens as u64;
        let passes = |passed: u64, most: u64| ((passed + tokens / 2) / tokens.max(1)).clamp(1, most) as usize;
        let [block, model] = [passes(BLOCK, PASSES[0]), passes(affordable(weights, MODEL), PASSES[1])];
        [self.block_epochs.unwrap_or(block), self.model_epochs.unwrap_or(model)]
    }

    pub(crate) fn validate(&self) -> Result<(), OptionError> {
        let epochs = Bounds::at_least(0usize).at_most(MOST_EPOCHS);
        OptionError::check("tuning.rate", Bounds::over(0.0).at_most(1.0), self.rate)?;
        OptionError::check("tuning.scale_rate", Bounds::at_least(0.0).at_most(0.5), self.scale_rate)?;
        OptionError::check("tuning.recover", Bounds::at_least(0.0).at_most(1e5), self.recover)?;
        OptionError::check("tuning.batch_tokens", Bounds::at_least(1usize), self.batch_tokens)?;
        OptionError::check("tuning.block_epochs", epochs, self.block_epochs.unwrap_or(0))?;
        OptionError::check("tuning.model_epochs", epochs, self.model_epochs.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_fall_with_text_and_weights() {
        let default = Tuning::default();
        for (tokens, weights, passes) in [
            (1 << 18, 1 << 30, [1, 2]),
            (1 << 18, 1 << 20, [1, 4]),
            (1 << 19, 1 << 10, [1, 6]),
            (1 << 21, 1 << 30, [1, 1]),
            (1 << 17, 1 << 30, [2, 4]),
            (1000, 1, [4, 6]),
            (0, 0, [4, 6]),
        ] {
            assert_eq!(default.epochs(tokens, weights), passes, "{tokens} {weights}");
        }
        let set = Tuning { block_epochs: Some(0), model_epochs: Some(7), ..default };
        assert_eq!(set.epochs(10, 10), [0, 7]);
    }
}
