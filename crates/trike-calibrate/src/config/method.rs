//! Quantization methods, and storage of a layer.

use trike_quant::{ColumnOrder, ScaleRule};
use trike_trit::Granularity;

/// Quantization method.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QuantizeMethod {
    /// Round to the nearest level, without calibration.
    Round(ScaleRule),
    /// Error compensation (GPTQ): the remaining weights of a row compensate the rounding error.
    Compensate(Compensation),
}

/// Options of error compensation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compensation {
    /// Order in which columns are rounded.
    pub order: ColumnOrder,
    /// Hessian damping, as a fraction of the mean diagonal.
    pub damping: f64,
    /// Rounds of refitting scales and improving codes.
    pub rounds: usize,
    /// Whether a layer is fitted to the outputs of the dense model's layer instead of only its own weights: its inputs
    /// contain the errors of the layers before it, some of which it can compensate.
    pub follow: bool,
    /// Whether tokens count by the squared gradient of the dense model's loss with respect to the outputs of a layer (GuidedQuant, Kim
    /// et al., 2505.07004, with one group of outputs).
    pub guided: bool,
}

impl Default for Compensation {
    fn default() -> Self {
        Self { order: ColumnOrder::Activation, damping: 0.01, rounds: 3, follow: true, guided: false }
    }
}

/// Hook points whose inputs are scaled before quantization.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScaledInputs {
    /// None.
    None,
    /// Hook points with outliers, a few inputs far larger than the others, where scales reduce the error by 15 % or more. They are
    /// detected on the first 4,096 tokens of the text if layers are compensated.
    #[default]
    Outliers,
    /// All.
    All,
}

/// Storage of one layer, overriding the layout of the configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum LayerChoice {
    /// As trits.
    Trits {
        /// Number of planes, 1 to 6.
        planes: usize,
        /// The weights that share a scale.
        granularity: Granularity,
    },
    /// As int8, in groups of 32.
    Int8,
    /// Unchanged.
    Dense {
        /// The reason, for reports.
        reason: String,
    },
}
