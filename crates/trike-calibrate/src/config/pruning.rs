//! Which weights of a model become zero first.

use trike_quant::{Hessian, HessianFactor, MatrixView, PrunePattern, PruneScore, QuantError, prune};

use super::QuantizeMethod;
use crate::ConfigError;

/// The criterion by which weights are pruned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Importance {
    /// Its magnitude.
    Magnitude,
    /// Its magnitude times the norm of its input on the calibration text (Wanda, Sun et al., 2306.11695).
    Wanda,
    /// The error of the layer's output that remains after compensation by the rest of the row (SparseGPT, Frantar and Alistarh,
    /// 2301.00774).
    Compensated,
}

/// Weights that are set to zero before the rest is quantized, and stay zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pruning {
    /// The criterion.
    pub importance: Importance,
    /// The weights that are pruned together.
    pub pattern: PrunePattern,
    /// Fraction of each layer's weights, or blocks, that become zero. Weights that round to zero come on top.
    pub share: f64,
}

impl Pruning {
    /// Checks that it goes together with the rest of the options.
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

    /// Says of each weight whether it is kept.
    pub(crate) fn keep(
        &self,
        weights: MatrixView<'_>,
        hessian: &Hessian,
        factor: &HessianFactor,
    ) -> Result<Vec<bool>, QuantError> {
        let score = match self.importance {
            Importance::Magnitude => PruneScore::Magnitude,
            Importance::Wanda => PruneScore::Wanda(hessian.diagonal()),
            Importance::Compensated => PruneScore::Compensated(factor),
        };
        prune(weights, score, self.pattern, self.share)
    }
}
