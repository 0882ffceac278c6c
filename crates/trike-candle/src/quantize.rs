//! Ternarization of dense weights.

use candle_core::Tensor;
use trike_core::{DenseData, DenseTensor, absmean_trits, exact_trits};
use trike_trit::{Encoding, Granularity, GroupSize, TritTensor};

use crate::exec::to_f32;
use crate::{CandleError, NnError};

/// Rule for ternarizing a dense weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ternarize {
    /// Lossless: every weight must already be `-s`, `0` or `+s`, in the coarsest granularity that fits (tensor, row, groups
    /// of 256 down to 32). Otherwise an error.
    Exact,
    /// BitNet b1.58's rule ([`absmean_trits`]): `s = max(mean|w|, 1e-5)` over the weights that share a scale,
    /// `t = round(w / s)` with ties to even, clamped to -1..=1, and `w ~ s t`. The paper's granularity is the tensor. A
    /// dense model that was not trained for this rule becomes unusable.
    AbsMean(Granularity),
}

/// Options of ternarizing a dense weight: a rule, and the maximum error; above it the weight stays dense.
///
/// A [`Ternarize`] converts into one with the default bound.
///
/// ```
/// use trike_candle::{Ternarize, TernarizeOptions};
/// use trike_trit::Granularity;
///
/// let options = TernarizeOptions::new(Ternarize::AbsMean(Granularity::Row));
/// assert_eq!(options.max_error, 0.75);
/// assert_eq!(options.with_max_error(0.6).max_error, 0.6);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct TernarizeOptions {
    /// The rule.
    pub rule: Ternarize,
    /// Maximum [`relative_error`](QuantizationStats::relative_error) of ternary weights, at least 0; a weight with a larger error
    /// stays dense. [`f32::INFINITY`] makes every weight ternary.
    pub max_error: f32,
}

impl TernarizeOptions {
    /// The default of [`max_error`](Self::max_error). Under [`Ternarize::AbsMean`], normally distributed weights have an error
    /// of 0.51 and Laplace-distributed ones 0.63, so only weights dominated by a few outliers stay dense. An error of 1 is that
    /// of all-zero weights.
    pub const MAX_ERROR: f32 = 0.75;

    /// A rule with the default bound, [`MAX_ERROR`](Self::MAX_ERROR).
    #[must_use]
    pub const fn new(rule: Ternarize) -> Self {
        Self { rule, max_error: Self::MAX_ERROR }
    }

    /// Sets [`max_error`](Self::max_error).
    #[must_use]
    pub const fn with_max_error(self, max_error: f32) -> Self {
        Self { max_error, ..self }
    }

    pub(crate) fn validate(&self) -> Result<(), NnError> {
        if self.max_error >= 0.0 {
            return Ok(());
        }
        let (rule, got) = ("must be a number and at least 0", self.max_error.to_string());
        Err(NnError::Spec { field: "max_error", rule, got })
    }
}

impl From<Ternarize> for TernarizeOptions {
    fn from(rule: Ternarize) -> Self {
        Self::new(rule)
    }
}

/// Statistics of a ternarized weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantizationStats {
    /// Fraction of nonzero trits.
    pub density: f32,
    /// `||w - w_ternary|| / ||w||`, Frobenius norms; 0 when lossless.
    pub relative_error: f32,
}

/// Ternarizes a dense weight `out x in` on the CPU (f32, f16 or bf16) to one trit plane.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use trike_candle::{Ternarize, quantize_tensor};
/// use trike_trit::Granularity;
///
/// let w = Tensor::new(&[[0.75f32, -1.0, 0.125], [1.0, 0.0, -0.125]], &Device::Cpu)?;
/// let (trits, stats) = quantize_tensor(&w, Ternarize::AbsMean(Granularity::Tensor))?;
/// // mean|w| = 3 / 6
/// assert_eq!(trits.dequantize(), [0.5, -0.5, 0.0, 0.5, 0.0, 0.0]);
/// assert_eq!(stats.density, 0.5);
/// assert!((stats.relative_error - 0.478).abs() < 1e-3);
/// assert!(quantize_tensor(&w, Ternarize::Exact).is_err());
/// # Ok::<(), trike_candle::CandleError>(())
/// ```
///
/// # Errors
///
/// [`NnError::Spec`] for an unsupported device or dtype, a weight that is not finite, and for [`Ternarize::Exact`] a weight that
/// is not ternary; [`CandleError::Candle`] if the rank is not 2; [`NnError::Tensor`] for an empty axis; [`NnError::Trit`]
/// for weights so large that their scale overflows.
pub fn quantize_tensor(
    weight: &Tensor,
    how: Ternarize,
) -> Result<(TritTensor, QuantizationStats), CandleError> {
    let (trits, stats, _) = quantize(weight, how)?;
    Ok((trits, stats))
}

/// [`quantize_tensor`]; also returns the weight in f32.
pub(crate) fn quantize(
    weight: &Tensor,
    how: Ternarize,
) -> Result<(TritTensor, QuantizationStats, DenseTensor), CandleError> {
    let (rows, cols) = weight.dims2()?;
    let values: Vec<f32> = to_f32(weight)?.flatten_all()?.to_vec1()?;
    if let Some((i, value)) = values.iter().enumerate().find(|(_, v)| !v.is_finite()) {
        return Err(refuse("must be finite", i, cols, *value));
    }
    let dense = DenseTensor::new(vec![rows, cols], DenseData::F32(values))?;
    let trits = match how {
        Ternarize::AbsMean(granularity) => absmean_trits(&dense, granularity, Encoding::TwoBit)?,
        Ternarize::Exact => match exact_trits(&dense, Encoding::TwoBit)? {
            Some(trits) => trits,
            None => return Err(not_exact(&dense.into_f32(), cols)),
        },
    };
    let stats = stats(&dense, &trits);
    Ok((trits, stats, dense))
}

fn stats(dense: &DenseTensor, trits: &TritTensor) -> QuantizationStats {
    let all = (trits.rows() * trits.cols()) as u64;
    let (mut error, mut norm) = (0f64, 0f64);
    for (w, ternary) in dense.to_f32().iter().zip(trits.dequantize()) {
        error += f64::from(w - ternary).powi(2);
        norm += f64::from(*w).powi(2);
    }
    QuantizationStats {
        density: (all - trits.zeros()) as f32 / all as f32,
        relative_error: if norm == 0.0 { 0.0 } else { (error / norm).sqrt() as f32 },
    }
}

/// Error that names the first weight whose magnitude differs from the earlier ones in the smallest group.
fn not_exact(values: &[f32], cols: usize) -> CandleError {
    let group = GroupSize::ALL.map(GroupSize::get).into_iter().min().unwrap_or(1);
    let rule = "must be -s, 0 or +s exactly; use `Ternarize::AbsMean` to round";
    let starts = (0..values.len()).filter(|i| (i % cols).is_multiple_of(group));
    let misfit = starts.into_iter().find_map(|start| {
        let end = (start + group).min(start - start % cols + cols);
        let nonzero = || (start..end).filter(|&i| values[i] != 0.0);
        let first = values[nonzero().next()?].abs();
        nonzero().find(|&i| values[i].abs() != first)
    });
    let i = misfit.unwrap_or(0);
    refuse(rule, i, cols, values[i])
}

fn refuse(rule: &'static str, i: usize, cols: usize, value: f32) -> CandleError {
    let got = format!("{value} in row {}, column {}", i / cols.max(1), i % cols.max(1));
    NnError::Spec { field: "a weight", rule, got }.into()
}
