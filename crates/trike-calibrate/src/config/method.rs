//! How weights become trits, and how a layer is stored.

use trike_quant::{ColumnOrder, ScaleRule};
use trike_trit::Granularity;

/// How weights become trits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QuantizeMethod {
    /// To the nearest level, without looking at inputs. Needs no calibration.
    Round(ScaleRule),
    /// With error compensation.
    Compensate(Compensation),
}

/// How error compensation works.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compensation {
    /// In which order columns are rounded.
    pub order: ColumnOrder,
    /// Share of the Hessian's mean diagonal that is added to its diagonal.
    pub damping: f64,
    /// Rounds of refitting scales and improving codes.
    pub rounds: usize,
    /// Whether a layer aims at what the dense model's layer puts out, or only at its own weights: its inputs differ by what the
    /// layers before lost, and part of that can be made up for.
    pub follow: bool,
}

impl Default for Compensation {
    fn default() -> Self {
        Self { order: ColumnOrder::Activation, damping: 0.01, rounds: 3, follow: true }
    }
}

/// How one layer is stored, in place of what the configuration says for all of them.
#[derive(Clone, Debug, PartialEq)]
pub enum LayerChoice {
    /// As trits, with so many planes and scales shared so.
    Trits {
        /// Planes, 1 to 6.
        planes: usize,
        /// What shares a scale.
        granularity: Granularity,
    },
    /// As int8 in groups of 32.
    Int8,
    /// As it is, and why.
    Dense {
        /// The reason, for reports.
        reason: String,
    },
}
