//! Pruning before quantization.

use trike_quant::{HessianFactor, InputStatistics, MatrixView, PrunePattern, PruneScore, QuantError, prune};

use super::QuantizeMethod;
use crate::ConfigError;

/// The criterion by which weights are pruned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Importance {
    /// Magnitude of the weight.
    Magnitude,
    /// Magnitude times the norm of the input on the calibration text (Wanda, Sun et al., 2306.11695).
    Wanda,
    /// The error of the layer's output that remains after compensation by the rest of the row (SparseGPT, Frantar and Alistarh,
    /// 2301.00774).
    Compensated,
}

/// Weights that are set to zero before quantization, and stay zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pruning {
    /// The criterion.
    pub importance: Importance,
    /// The weights that are pruned together.
    pub pattern: PrunePattern,
    /// Fraction of each layer's weights, or blocks, set to zero. Weights that round to zero are additional.
    pub share: f64,
}

impl Pruning {
    /// Checks the compatibility with other options.
    pub(crate) fn validate(&self, method: &QuantizeMethod, with_mean: bool) -> Result<(), ConfigError> {
        if !(0.0..1.0).contains(&self.share) {
            return Err(ConfigError::PruneFraction { got: self.share });
        }
        if let PrunePattern::NOfM { keep, of } = self.pattern
            && !(keep >= 1 && keep < of)
        {
            return Err(ConfigError::PrunePattern { keep, of });
        }
        if matches!(method, QuantizeMethod::Round(_)) {
            return Err(ConfigError::PruneRounded);
        }
        if with_mean {
            return Err(ConfigError::PruneMeans);
        }
        Ok(())
    }

    /// Returns for each weight whether it is kept.
    pub(crate) fn keep(
        &self,
        weights: MatrixView<'_>,
        inputs: &InputStatistics,
        factor: &HessianFactor,
    ) -> Result<Vec<bool>, QuantError> {
        let score = match self.importance {
            Importance::Magnitude => PruneScore::Magnitude,
            Importance::Wanda => PruneScore::Wanda(inputs.diagonal()),
            Importance::Compensated => PruneScore::Compensated(factor),
        };
        prune(weights, score, self.pattern, self.share)
    }
}
