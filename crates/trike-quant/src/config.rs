//! How a matrix becomes trits.

use trike_core::{Bounds, OptionError};
use trike_trit::{Coupling, Encoding, Granularity, MAX_DEPTH};

use crate::QuantError;

/// Where the outermost level of a grid lies: the range that calibration finds in the weights that share a scale. Larger
/// weights are clipped to it.
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
    /// The largest magnitude. With one plane nearly everything becomes zero; with many planes nothing is clipped.
    AbsMax,
    /// The magnitude that this many percent of the weights do not exceed, over 0 to 100: the smallest one that has at
    /// least that share at or below it.
    Percentile(f32),
    /// The mean magnitude plus so many standard deviations of the magnitudes.
    MeanStd(f32),
    /// A number that the caller knows.
    Manual(f32),
}

impl CalibrationMethod {
    /// The range over `weights`; 0 for none.
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

/// Which grid the weights that share a scale get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScaleRule {
    /// BitNet b1.58 (2402.17764): the scale is the mean magnitude and a weight goes to the nearest of -1, 0, 1 times it.
    /// Further planes do the same to what is left, so they are free.
    AbsMean,
    /// Ternary weight networks (1605.04711): weights under 0.7 times the mean magnitude are zero, the scale is the mean
    /// of the others. Further planes as for [`AbsMean`](Self::AbsMean).
    Twn,
    /// The outermost level lies at a calibrated range and a weight goes to the nearest level. Planes are tied.
    Calibrated(CalibrationMethod),
    /// The grid that is nearest in least squares; all planes are fitted together.
    LeastSquares,
}

/// How a weight between two levels is rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest.
    #[default]
    Nearest,
    /// Up or down by chance, so that the expected value is the weight (within the outermost levels). The same seed gives the
    /// same trits.
    Stochastic {
        /// Where chance starts.
        seed: u64,
    },
}

/// How scales and means are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScaleType {
    /// Two bytes, where every one of a tensor's scales fits an f16 to within its usual rounding; else as [`F32`](Self::F32).
    #[default]
    F16,
    /// Four bytes.
    F32,
}

/// The shape of the result: planes, what shares a scale, how both are stored.
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
    /// How planes add up.
    pub coupling: Coupling,
    /// What shares a scale.
    pub granularity: Granularity,
    /// Whether a mean is stored beside every scale.
    pub with_mean: bool,
    /// How trits are packed.
    pub encoding: Encoding,
    /// How scales and means are stored.
    pub scales: ScaleType,
}

impl Default for TritLayout {
    /// One tied plane, a scale for 128 weights, no means, 2-bit, f16.
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

    /// Bits of a weight of a `rows x cols` matrix: trits at the rate of the encoding (for [`Encoding::Base3`] 1.6, for the others
    /// 2), and the scales and means, over all weights.
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

/// How [`quantize_matrix`](crate::quantize_matrix) works.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct QuantizeConfig {
    /// Which grid.
    pub rule: ScaleRule,
    /// How weights are rounded to it.
    pub rounding: Rounding,
    /// The shape of the result.
    pub layout: TritLayout,
}

impl Default for QuantizeConfig {
    /// Least squares, to the nearest, in the default layout.
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

    /// Checks that the options go together.
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
