//! How codes and scales are tuned.

use crate::ConfigError;

/// More epochs than anybody wants: a mistyped number should not run for a year.
const MOST_EPOCHS: usize = 10_000;

/// How codes and scales are tuned after compensation, on the same calibration text.
///
/// A pass over the text takes about three times what the model takes to read it. In memory are, for the model's blocks that are
/// tuned at once (one, then all), 24 bytes a weight, the head both ways, and the activations and logits of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// Passes over the text for each block against the dense block's output; 0 for none.
    pub block_epochs: usize,
    /// Passes over the text for the whole model against the dense model's probabilities; 0 for none.
    pub model_epochs: usize,
    /// Tokens of a step, unless one sequence is longer.
    pub batch_tokens: usize,
    /// How far a latent weight goes in a step at most, in steps between levels; a third of it with every further plane.
    pub rate: f32,
    /// How far a scale goes in a step at most, as a share of it; a third of it with every further plane.
    pub scale_rate: f32,
    /// Models with more weights than this in their blocks are not tuned, and a note says so: time grows with weights times tokens.
    pub most_weights: u64,
    /// Whether weights that compensation made zero stay zero, as those of a pruned model should.
    pub keep_zeros: bool,
    /// Where chance starts: the order of the sequences.
    pub seed: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            block_epochs: 4,
            model_epochs: 8,
            batch_tokens: 1024,
            rate: 0.02,
            scale_rate: 2e-3,
            most_weights: 8 << 20,
            keep_zeros: false,
            seed: 0,
        }
    }
}

impl Tuning {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        if !(self.rate > 0.0 && self.rate <= 1.0) {
            return Err(ConfigError::TuningRate { got: self.rate });
        }
        if !(self.scale_rate >= 0.0 && self.scale_rate <= 0.5) {
            return Err(ConfigError::TuningScaleRate { got: self.scale_rate });
        }
        if self.batch_tokens == 0 {
            return Err(ConfigError::TuningTokens);
        }
        let epochs = self.block_epochs.max(self.model_epochs);
        if epochs > MOST_EPOCHS {
            return Err(ConfigError::TuningEpochs { got: epochs, most: MOST_EPOCHS });
        }
        Ok(())
    }
}
