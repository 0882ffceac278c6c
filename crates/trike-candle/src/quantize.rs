//! Dense weights to trits.

use candle_core::Tensor;
use trike_trit::{Encoding, Granularity, GroupSize, ScaleValues, Scales, TritTensor};

use crate::exec::to_f32;
use crate::{CandleError, NnError};

/// How a dense weight becomes ternary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ternarize {
    /// Only when every weight is `-s`, `0` or `+s` already, in the coarsest granularity that fits (tensor, row, groups
    /// of 256 down to 32). Anything else is an error and not a change of the model.
    Exact,
    /// BitNet b1.58's rule: `s = max(mean|w|, 1e-5)` over the weights that share a scale, `t = round(w / s)` with
    /// halves to even, clamped to -1..=1, and `w ~ s t`. The paper's granularity is the tensor. A dense model
    /// that was not trained for this does not survive it.
    AbsMean(Granularity),
}

/// What ternarizing did to a weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantizationStats {
    /// Share of the trits that are not zero.
    pub density: f32,
    /// `||w - w_ternary|| / ||w||`, Frobenius norms; 0 when nothing was lost.
    pub relative_error: f32,
}

/// The smallest scale that the rule of b1.58 gives, so that a matrix of zeros has one.
const SMALLEST: f32 = 1e-5;

/// One plane of trits for a dense weight `out x in` on the CPU (f32, f16 or bf16).
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
/// [`NnError::Spec`] for another device or dtype, a weight that is not finite, and for [`Ternarize::Exact`] a weight that
/// is not ternary; [`CandleError::Candle`] for another rank than two; [`NnError::Trit`] for an empty side.
pub fn quantize_tensor(
    weight: &Tensor,
    how: Ternarize,
) -> Result<(TritTensor, QuantizationStats), CandleError> {
    let (rows, cols) = weight.dims2()?;
    let values: Vec<f32> = to_f32(weight)?.flatten_all()?.to_vec1()?;
    if let Some((i, value)) = values.iter().enumerate().find(|(_, v)| !v.is_finite()) {
        return Err(refuse("must be finite", i, cols, *value));
    }
    let (granularity, scales) = match how {
        Ternarize::AbsMean(granularity) => (granularity, scales(&values, cols, granularity, abs_mean)),
        Ternarize::Exact => exact(&values, cols)?,
    };
    let group = group_len(values.len(), cols, granularity);
    // A row of groups is not a multiple of the group where the last one is shorter, so rows are walked one by one.
    let mut trits = Vec::with_capacity(values.len());
    let (mut error, mut norm) = (0f64, 0f64);
    let row_len = if granularity == Granularity::Tensor { values.len() } else { cols };
    let groups = values.chunks(row_len.max(1)).flat_map(|row| row.chunks(group));
    for (weights, &scale) in groups.zip(&scales) {
        for &w in weights {
            let trit = if scale == 0.0 { 0.0 } else { (w / scale).round_ties_even().clamp(-1.0, 1.0) };
            trits.push(trit as i8);
            error += f64::from(w - scale * trit).powi(2);
            norm += f64::from(w).powi(2);
        }
    }
    let nonzero = trits.iter().filter(|t| **t != 0).count();
    let stats = QuantizationStats {
        density: nonzero as f32 / trits.len().max(1) as f32,
        relative_error: if norm == 0.0 { 0.0 } else { (error / norm).sqrt() as f32 },
    };
    let scales = Scales::new(granularity, ScaleValues::exact(&scales), None);
    Ok((TritTensor::from_trits(rows, cols, &trits, Encoding::TwoBit, scales)?, stats))
}

/// Weights of a chunk that share a scale, at least 1 so that chunks can be made.
fn group_len(count: usize, cols: usize, granularity: Granularity) -> usize {
    let len = if granularity == Granularity::Tensor { count } else { granularity.group_len(cols) };
    len.max(1)
}

/// A scale for each group, in the order of [`Scales`].
fn scales(values: &[f32], cols: usize, granularity: Granularity, rule: fn(&[f32]) -> f32) -> Vec<f32> {
    if granularity == Granularity::Tensor {
        return vec![rule(values)];
    }
    let group = group_len(values.len(), cols, granularity);
    values.chunks(cols.max(1)).flat_map(|row| row.chunks(group).map(rule)).collect()
}

fn abs_mean(weights: &[f32]) -> f32 {
    let sum: f64 = weights.iter().map(|w| f64::from(w.abs())).sum();
    ((sum / weights.len().max(1) as f64) as f32).max(SMALLEST)
}

fn largest(weights: &[f32]) -> f32 {
    weights.iter().fold(0.0, |m, w| m.max(w.abs()))
}

/// The coarsest granularity in which every weight is 0 or its group's largest magnitude.
fn exact(values: &[f32], cols: usize) -> Result<(Granularity, Vec<f32>), CandleError> {
    let groups = GroupSize::ALL.into_iter().rev().filter(|g| g.get() < cols).map(Granularity::Group);
    let mut first_misfit = 0;
    for granularity in [Granularity::Tensor, Granularity::Row].into_iter().chain(groups) {
        let scales = scales(values, cols, granularity, largest);
        let group = granularity.group_len(cols).max(1);
        let per_row = granularity.groups_per_row(cols);
        let scale = |i: usize| match granularity {
            Granularity::Tensor => scales[0],
            _ => scales[i / cols * per_row + i % cols / group],
        };
        match values.iter().enumerate().position(|(i, w)| *w != 0.0 && w.abs() != scale(i)) {
            None => return Ok((granularity, scales)),
            Some(i) => first_misfit = i,
        }
    }
    let rule = "must be -s, 0 or +s exactly; ask for `Ternarize::AbsMean` to round";
    Err(refuse(rule, first_misfit, cols, values[first_misfit]))
}

fn refuse(rule: &'static str, i: usize, cols: usize, value: f32) -> CandleError {
    let got = format!("{value} in row {}, column {}", i / cols.max(1), i % cols.max(1));
    NnError::Spec { field: "a weight", rule, got }.into()
}
