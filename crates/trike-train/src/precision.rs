//! Mixed precision: the rounding of product operands, and the loss scale that keeps f16 gradients in range.

use serde::{Deserialize, Serialize};
use trike_autodiff::{MixedPrecision, ProductPrecision};
use trike_core::{Bounds, OptionError};

/// Rounding of the operands of a product; accumulation is in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Nothing.
    #[default]
    F32,
    /// bf16.
    Bf16,
    /// f16; a [`LossScaler`] keeps gradients in range.
    F16,
}

impl From<Precision> for ProductPrecision {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::F32,
            Precision::Bf16 => Self::Bf16,
            Precision::F16 => Self::F16,
        }
    }
}

/// Precision of each kind of product. Weights, gradients, the optimizer's moments and all other operations are f32; so are
/// evaluation and the teacher.
///
/// ```
/// use trike_train::{Precision, PrecisionPolicy};
///
/// let policy = PrecisionPolicy { head: Precision::F32, ..PrecisionPolicy::all(Precision::Bf16) };
/// assert!(policy.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PrecisionPolicy {
    /// Outputs of linear layers: `y = x W^T`.
    pub outputs: Precision,
    /// Gradients of their inputs: `dx = dy W`.
    pub input_gradients: Precision,
    /// Gradients of their weights: `dW = dy^T x`.
    pub weight_gradients: Precision,
    /// The products of the output head.
    pub head: Precision,
    /// The loss scale, used if any product is f16.
    pub loss_scale: LossScale,
}

impl PrecisionPolicy {
    /// The same for all products.
    #[must_use]
    pub fn all(precision: Precision) -> Self {
        Self {
            outputs: precision,
            input_gradients: precision,
            weight_gradients: precision,
            head: precision,
            loss_scale: LossScale::default(),
        }
    }

    /// Checks that the loss scale is in range.
    ///
    /// # Errors
    ///
    /// [`OptionError::OutOfRange`].
    pub fn validate(&self) -> Result<(), OptionError> {
        self.loss_scale.validate()
    }

    pub(crate) fn products(&self) -> MixedPrecision {
        MixedPrecision {
            outputs: self.outputs.into(),
            input_gradients: self.input_gradients.into(),
            weight_gradients: self.weight_gradients.into(),
            head: self.head.into(),
        }
    }

    pub(crate) fn scaler(&self) -> Option<LossScaler> {
        self.products().has_f16().then(|| LossScaler::start(self.loss_scale))
    }
}

/// Settings of a [`LossScaler`]. Powers of two introduce no rounding.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LossScale {
    /// The scale of the first step.
    pub initial: f32,
    /// The smallest scale: an overflow at this scale ends the run.
    pub minimum: f32,
    /// The largest scale.
    pub maximum: f32,
    /// Steps without an overflow after which the scale doubles, at least 1.
    pub interval: usize,
}

impl Default for LossScale {
    fn default() -> Self {
        Self { initial: 65536.0, minimum: 1.0, maximum: 16_777_216.0, interval: 2000 }
    }
}

impl LossScale {
    fn validate(&self) -> Result<(), OptionError> {
        // Doubling the largest scale must stay finite.
        let most = f32::MAX / 2.0;
        OptionError::check("minimum", Bounds::at_least(f32::MIN_POSITIVE).at_most(most), self.minimum)?;
        OptionError::check("maximum", Bounds::at_least(self.minimum).at_most(most), self.maximum)?;
        OptionError::check("initial", Bounds::at_least(self.minimum).at_most(self.maximum), self.initial)?;
        OptionError::check("interval", Bounds::at_least(1usize), self.interval)
    }
}

/// Dynamic loss scaling: halved when gradients overflow, in which case the step is skipped; doubled after many steps without an
/// overflow (Micikevicius et al., 1710.03740).
///
/// ```
/// use trike_train::{LossScale, LossScaler};
///
/// let mut scaler = LossScaler::new(LossScale { initial: 4.0, interval: 2, ..LossScale::default() })?;
/// assert!(scaler.overflowed());
/// assert_eq!(scaler.scale(), 2.0);
/// scaler.accepted();
/// scaler.accepted();
/// assert_eq!(scaler.scale(), 4.0);
/// # Ok::<(), trike_train::TrainError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScaler {
    config: LossScale,
    scale: f32,
    /// Steps since the last change of the scale.
    accepted: usize,
}

impl LossScaler {
    /// A scaler before the first step.
    ///
    /// # Errors
    ///
    /// [`OptionError::OutOfRange`].
    pub fn new(config: LossScale) -> Result<Self, OptionError> {
        config.validate()?;
        Ok(Self::start(config))
    }

    fn start(config: LossScale) -> Self {
        Self { config, scale: config.initial, accepted: 0 }
    }

    /// The factor of the loss.
    #[must_use]
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Records a step with finite gradients.
    pub fn accepted(&mut self) {
        self.accepted += 1;
        if self.accepted >= self.config.interval {
            self.accepted = 0;
            self.scale = (2.0 * self.scale).min(self.config.maximum);
        }
    }

    /// Records gradients that are not finite. Returns false if the scale is already the smallest: then scaling cannot help.
    #[must_use]
    pub fn overflowed(&mut self) -> bool {
        let lower = self.scale > self.config.minimum;
        self.accepted = 0;
        self.scale = (0.5 * self.scale).max(self.config.minimum);
        lower
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_stays_in_its_bounds() {
        let config = LossScale { initial: 2.0, minimum: 0.5, maximum: 8.0, interval: 1 };
        let mut scaler = LossScaler::new(config).expect("it is valid");
        let ups: Vec<f32> = (0..4)
            .map(|_| {
                scaler.accepted();
                scaler.scale()
            })
            .collect();
        assert_eq!(ups, [4.0, 8.0, 8.0, 8.0]);
        let downs: Vec<(bool, f32)> = (0..5).map(|_| (scaler.overflowed(), scaler.scale())).collect();
        assert_eq!(downs, [(true, 4.0), (true, 2.0), (true, 1.0), (true, 0.5), (false, 0.5)]);
    }

    #[test]
    fn what_is_out_of_range_is_refused() {
        let valid = LossScale::default();
        for (config, field) in [
            (LossScale { minimum: 0.0, ..valid }, "minimum"),
            (LossScale { maximum: 0.5, ..valid }, "maximum"),
            (LossScale { initial: f32::NAN, ..valid }, "initial"),
            (LossScale { initial: 0.5, ..valid }, "initial"),
            (LossScale { interval: 0, ..valid }, "interval"),
        ] {
            let error = LossScaler::new(config).expect_err(field).to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
