//! Rounding of every weight to a level of its group's grid, without statistics of the layer's inputs.

use trike_core::absmean;
use trike_trit::{Coupling, TritTensor};

use crate::{
    Grid, MatrixView, QuantError, QuantizeConfig, Rounding, ScaleRule, TritLayout,
    fit::{fit_free, fit_tied, fit_tied_mean},
    tensor::{scales, spans, stored_grids, tensor},
};

/// Statistics of a quantized matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundingStats {
    /// Fraction of nonzero trits over all planes.
    pub density: f64,
    /// `||w - w_ternary|| / ||w||`, Frobenius norms; 0 if exact.
    pub relative_error: f64,
    /// Fraction of the weights beyond the outermost levels of their grid.
    pub clipped: f64,
}

impl RoundingStats {
    /// Compares a tensor with the weights that it was quantized from.
    pub(crate) fn of(weights: &[f32], tensor: &TritTensor, clipped: usize) -> Self {
        let (mut error, mut norm) = (0f64, 0f64);
        for (&w, v) in weights.iter().zip(tensor.dequantize()) {
            error += f64::from(w - v).powi(2);
            norm += f64::from(w).powi(2);
        }
        let trits = (tensor.rows() * tensor.cols() * tensor.depth()) as f64;
        Self {
            density: 1.0 - tensor.zeros() as f64 / trits,
            relative_error: if norm == 0.0 { error.sqrt() } else { (error / norm).sqrt() },
            clipped: clipped as f64 / weights.len().max(1) as f64,
        }
    }
}

/// Rounds a matrix to trits.
///
/// ```
/// use trike_quant::{MatrixView, QuantizeConfig, quantize_matrix};
///
/// let w = [0.9, -1.1, 0.1, 0.0, 0.05, 1.0];
/// let (trits, stats) = quantize_matrix(MatrixView::new(2, 3, &w)?, &QuantizeConfig::default())?;
/// assert_eq!(trits.dequantize(), [1.0, -1.0, 0.0, 0.0, 0.0, 1.0]);
/// assert_eq!(stats.density, 0.5);
/// assert!(stats.relative_error < 0.11);
/// # Ok::<(), trike_quant::QuantError>(())
/// ```
///
/// # Errors
///
/// The errors of [`QuantizeConfig::validate`], and [`QuantError::Trit`] if scales overflow or the matrix is larger than
/// the encoding allows.
pub fn quantize_matrix(
    matrix: MatrixView<'_>,
    config: &QuantizeConfig,
) -> Result<(TritTensor, RoundingStats), QuantError> {
    config.validate()?;
    let layout = &config.layout;
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let spans = spans(rows, cols, layout.granularity);
    let fitted: Vec<(Grid, Option<Vec<i16>>)> =
        spans.iter().map(|&(start, end)| fit(&matrix.values()[start..end], config)).collect();
    let (grids, rule_codes): (Vec<Grid>, Vec<Option<Vec<i16>>>) = fitted.into_iter().unzip();
    let scales = scales(&grids, layout);
    let mut rng = match config.rounding {
        Rounding::Nearest => None,
        Rounding::Stochastic { seed } => Some(SplitMix64(seed)),
    };
    let mut codes = Vec::with_capacity(rows * cols);
    let mut clipped = 0;
    let stored = stored_grids(&scales, layout, grids.len());
    for ((&(start, end), grid), rule_codes) in spans.iter().zip(&stored).zip(rule_codes) {
        let weights = &matrix.values()[start..end];
        let [low, high] = [f32::MIN, f32::MAX].map(|end| grid.value(grid.nearest(end)));
        clipped += weights.iter().filter(|w| **w < low || **w > high).count();
        match (&mut rng, rule_codes) {
            (Some(rng), _) => codes.extend(weights.iter().map(|&w| rng.round(grid, w))),
            (None, Some(rule_codes)) => codes.extend(rule_codes),
            (None, None) => codes.extend(weights.iter().map(|&w| grid.nearest(w))),
        }
    }
    let result = tensor(rows, cols, &codes, scales, layout)?;
    let stats = RoundingStats::of(matrix.values(), &result, clipped);
    Ok((result, stats))
}

/// The grid of a group of weights, and their codes if the rule has its own zero threshold, which can differ from rounding to
/// nearest.
fn fit(weights: &[f32], config: &QuantizeConfig) -> (Grid, Option<Vec<i16>>) {
    let TritLayout { depth, with_mean, coupling, .. } = config.layout;
    // With one plane the coupling makes no difference.
    let tied = |step: f32| match coupling {
        Coupling::Free => Grid::free(&[step], 0.0),
        Coupling::Tied => Grid::tied(depth, step, 0.0),
    };
    match config.rule {
        ScaleRule::AbsMean | ScaleRule::Twn => {
            let (scales, codes) = by_residual(weights, depth, config.rule);
            (if depth == 1 { tied(scales[0]) } else { Grid::free(&scales, 0.0) }, Some(codes))
        }
        ScaleRule::Calibrated(method) => {
            (tied(method.range(weights) / f32::from(Grid::max_code(depth))), None)
        }
        ScaleRule::LeastSquares if coupling == Coupling::Free => {
            (fit_free(weights, None, depth, with_mean), None)
        }
        ScaleRule::LeastSquares if with_mean => (fit_tied_mean(weights, None, depth), None),
        ScaleRule::LeastSquares => (fit_tied(weights, None, depth), None),
    }
}

/// The scale of each plane and the codes, where each plane ternarizes the residual of the previous ones.
fn by_residual(weights: &[f32], depth: usize, rule: ScaleRule) -> (Vec<f32>, Vec<i16>) {
    let mut rest = weights.to_vec();
    let mut codes = vec![0i16; weights.len()];
    let scales = (0..depth).map(|_| {
        let (threshold, scale) = threshold_and_scale(&rest, rule);
        for (w, code) in rest.iter_mut().zip(&mut codes) {
            let trit = if w.abs() > threshold { w.signum() } else { 0.0 };
            *w -= scale * trit;
            *code = 3 * *code + trit as i16;
        }
        scale
    });
    (scales.collect(), codes)
}

/// The magnitude up to which a weight is zero under a rule, and the scale of the others.
fn threshold_and_scale(weights: &[f32], rule: ScaleRule) -> (f32, f32) {
    let mean = absmean(weights);
    if rule == ScaleRule::AbsMean {
        return (0.5 * mean, mean);
    }
    let threshold = 0.7 * mean;
    let kept: Vec<f64> = weights.iter().map(|w| w.abs()).filter(|w| *w > threshold).map(f64::from).collect();
    (threshold, (kept.iter().sum::<f64>() / kept.len().max(1) as f64) as f32)
}

/// SplitMix64 generator, reproducible on every platform.
pub(crate) struct SplitMix64(pub(crate) u64);

impl SplitMix64 {
    /// 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `[0, 1)`.
    fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Stochastic rounding: the level above, with a probability equal to the relative position of `w` between the two levels.
    fn round(&mut self, grid: &Grid, w: f32) -> i16 {
        let (below, above, share) = grid.between(w);
        if self.unit() < share { above } else { below }
    }
}
