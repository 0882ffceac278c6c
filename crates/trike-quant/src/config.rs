//! Options of the quantization of a matrix.

use trike_core::{Bounds, OptionError};
use trike_trit::{Coupling, Encoding, Granularity, MAX_DEPTH};

use crate::QuantError;

/// Calibration of the range of a grid, that is, the magnitude of its outermost level, from the weights that share a scale.
/// Larger weights are clipped.
///
/// ```
/// use trike_quant::CalibrationMethod;
///
/// let w = [1.0, -2.0, 3.0, -10.0];
/// assert_eq!(CalibrationMethod::AbsMax.range(&w), 10.0);
/// assert_eq!(CalibrationMethod::Percentile(75.0).range(&w), 3.0);
/// assert_eq!(CalibrationMethod::MeanStd(0.0).range(&w), 4.0);
/// assert_eq!(CalibrationMethod::Manual(0.5).range(&w), 0.5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CalibrationMethod {
    /// The largest magnitude. Nothing is clipped; with one plane, most weights become zero.
    AbsMax,
    /// A percentile of the magnitudes, greater than 0 and at most 100: the smallest magnitude with at least that percentage
    /// of the weights at or below it.
    Percentile(f32),
    /// The mean magnitude plus this many standard deviations of the magnitudes.
    MeanStd(f32),
    /// A range given by the caller.
    Manual(f32),
}

impl CalibrationMethod {
    /// The range of `weights`; 0 if empty (except for [`Manual`](Self::Manual)).
    pub fn range(self, weights: &[f32]) -> f32 {
        let n = weights.len().max(1) as f64;
        match self {
            Self::AbsMax => weights.iter().fold(0.0, |m, w| m.max(w.abs())),
            Self::Percentile(percent) => {
                let mut sizes: Vec<f32> = weights.iter().map(|w| w.abs()).collect();
                sizes.sort_by(f32::total_cmp);
                let rank = (f64::from(percent) / 100.0 * n).ceil() as usize;
                sizes.get(rank.clamp(1, sizes.len().max(1)) - 1).copied().unwrap_or(0.0)
            }
            Self::MeanStd(k) => {
                let mean = weights.iter().map(|w| f64::from(w.abs())).sum::<f64>() / n;
                let variance = weights.iter().map(|w| (f64::from(w.abs()) - mean).powi(2)).sum::<f64>() / n;
                (mean + f64::from(k) * variance.sqrt()).max(0.0) as f32
            }
            Self::Manual(range) => range,
        }
    }

    fn validate(self) -> Result<(), OptionError> {
        match self {
            Self::AbsMax => Ok(()),
            Self::Percentile(p) => OptionError::check("percentile", Bounds::over(0.0).at_most(100.0), p),
            Self::MeanStd(k) => OptionError::check("mean_std", Bounds::finite(), k),
            Self::Manual(range) => OptionError::check("range", Bounds::over(0.0), range),
        }
    }
}

/// Rule that fits the grid of the weights that share a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScaleRule {
    /// BitNet b1.58 (2402.17764): the scale is the mean magnitude, and a weight is rounded to the nearest of -1, 0, 1 times the
    /// scale. Each further plane applies the same rule to the residual, so planes are free.
    AbsMean,
    /// Ternary weight networks (1605.04711): weights below 0.7 times the mean magnitude are zero, the scale is the mean
    /// magnitude of the others. Further planes as for [`AbsMean`](Self::AbsMean).
    Twn,
    /// The outermost level is at a calibrated range, and a weight is rounded to the nearest level. Planes are tied.
    Calibrated(CalibrationMethod),
    /// The least-squares grid; all planes are fitted jointly.
    LeastSquares,
}

/// Rounding of a weight between two levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// Round to nearest.
    #[default]
    Nearest,
    /// Stochastic rounding: the expected value is the weight (within the outermost levels). The same seed gives the same
    /// trits.
    Stochastic {
        /// RNG seed.
        seed: u64,
    },
}

/// Number format of stored scales and means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScaleType {
    /// Two bytes if all scales and means of a tensor round to f16 with normal precision, otherwise as [`F32`](Self::F32).
    #[default]
    F16,
    /// Four bytes.
    F32,
}

/// Layout of the result: planes, scale granularity and storage formats.
///
/// ```
/// use trike_quant::TritLayout;
/// use trike_trit::Granularity;
///
/// let layout = TritLayout::default().with_depth(2).with_granularity(Granularity::Row);
/// assert_eq!((layout.depth, layout.with_mean), (2, false));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct TritLayout {
    /// Planes, 1 to 6.
    pub depth: usize,
    /// Coupling of the planes.
    pub coupling: Coupling,
    /// Scale granularity.
    pub granularity: Granularity,
    /// Whether means are stored, in the granularity of the scales (asymmetric fit).
    pub with_mean: bool,
    /// Packing of the trits.
    pub encoding: Encoding,
    /// Number format of scales and means.
    pub scales: ScaleType,
}

impl Default for TritLayout {
    /// One tied plane, one scale per 128 weights, no means, 2-bit encoding, f16 scales.
    fn default() -> Self {
        Self {
            depth: 1,
            coupling: Coupling::Tied,
            granularity: Granularity::Group(trike_trit::GroupSize::G128),
            with_mean: false,
            encoding: Encoding::TwoBit,
            scales: ScaleType::F16,
        }
    }
}

impl TritLayout {
    /// Sets [`depth`](Self::depth).
    #[must_use]
    pub fn with_depth(self, depth: usize) -> Self {
        Self { depth, ..self }
    }

    /// Sets [`coupling`](Self::coupling).
    #[must_use]
    pub fn with_coupling(self, coupling: Coupling) -> Self {
        Self { coupling, ..self }
    }

    /// Sets [`granularity`](Self::granularity).
    #[must_use]
    pub fn with_granularity(self, granularity: Granularity) -> Self {
        Self { granularity, ..self }
    }

    /// Sets [`with_mean`](field@Self::with_mean).
    #[must_use]
    pub fn with_mean(self, with_mean: bool) -> Self {
        Self { with_mean, ..self }
    }

    /// Sets [`encoding`](Self::encoding).
    #[must_use]
    pub fn with_encoding(self, encoding: Encoding) -> Self {
        Self { encoding, ..self }
    }

    /// Sets [`scales`](Self::scales).
    #[must_use]
    pub fn with_scales(self, scales: ScaleType) -> Self {
        Self { scales, ..self }
    }

    pub(crate) fn validate(&self) -> Result<(), OptionError> {
        OptionError::check("depth", Bounds::at_least(1usize).at_most(MAX_DEPTH), self.depth)
    }

    /// Bits per weight of a `rows x cols` matrix, including scales and means. A trit counts as 1.6 bits for
    /// [`Encoding::Base3`] and as 2 bits for the other encodings, plus the padding of the rows.
    pub fn bits_per_weight(&self, rows: usize, cols: usize) -> f64 {
        let weights = rows as f64 * cols as f64;
        let trits = match self.encoding {
            Encoding::Base3 => 8.0 * cols.div_ceil(5) as f64 * rows as f64,
            Encoding::TwoBit => 64.0 * cols.div_ceil(32) as f64 * rows as f64,
            _ => 128.0 * cols.div_ceil(64) as f64 * rows as f64,
        };
        let sets = if self.coupling == Coupling::Free { self.depth } else { 1 } + usize::from(self.with_mean);
        let places = self.granularity.count(rows, cols).unwrap_or(usize::MAX) as f64;
        let scale_bits = if self.scales == ScaleType::F16 { 16.0 } else { 32.0 };
        (self.depth as f64 * trits + sets as f64 * places * scale_bits) / weights
    }
}

/// Options of [`quantize_matrix`](crate::quantize_matrix).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct QuantizeConfig {
    /// Rule that fits the grid.
    pub rule: ScaleRule,
    /// Rounding of the weights to the grid.
    pub rounding: Rounding,
    /// Layout of the result.
    pub layout: TritLayout,
}

impl Default for QuantizeConfig {
    /// Least squares, round to nearest, default layout.
    fn default() -> Self {
        Self { rule: ScaleRule::LeastSquares, rounding: Rounding::Nearest, layout: TritLayout::default() }
    }
}

impl QuantizeConfig {
    /// Sets [`rule`](Self::rule).
    #[must_use]
    pub fn with_rule(self, rule: ScaleRule) -> Self {
        Self { rule, ..self }
    }

    /// Sets [`rounding`](Self::rounding).
    #[must_use]
    pub fn with_rounding(self, rounding: Rounding) -> Self {
        Self { rounding, ..self }
    }

    /// Sets [`layout`](Self::layout).
    #[must_use]
    pub fn with_layout(self, layout: TritLayout) -> Self {
        Self { layout, ..self }
    }

    /// Checks that the options are valid and compatible.
    ///
    /// # Errors
    ///
    /// [`QuantError::Option`], which names the field.
    pub fn validate(&self) -> Result<(), QuantError> {
        self.layout.validate()?;
        let refuse = |other| Err(OptionError::Conflict { field: "rule", other }.into());
        match self.rule {
            ScaleRule::Calibrated(method) => {
                method.validate()?;
                if self.layout.coupling == Coupling::Free && self.layout.depth > 1 {
                    return refuse("coupling free");
                }
            }
            ScaleRule::AbsMean | ScaleRule::Twn => {
                if self.layout.coupling == Coupling::Tied && self.layout.depth > 1 {
                    return refuse("coupling tied");
                }
            }
            ScaleRule::LeastSquares => return Ok(()),
        }
        if self.layout.with_mean {
            return refuse("with_mean");
        }
        Ok(())
    }
}
