//! Latent weights: ternary weights trained with the straight-through estimator.
//!
//! Gradients do not pass through rounding. The straight-through estimator (Bengio et al., 1308.3432) passes them unchanged to one
//! latent weight per code; when a latent weight crosses the boundary between two levels, the code changes. Step sizes are
//! learned as in LSQ (Esser et al., 1902.08153), here with latent weights in units of their step, so that codes and steps are
//! learned independently.

use trike_core::OptionError;
use trike_trit::{Coupling, Granularity, ScaleValues, TritTensor};

use crate::{
    Adam, Grid, MatrixView, QuantError, ScaleType, TritLayout,
    error::{check_finite, check_len},
    tensor::{scales, tensor},
};

/// Minimum initial distance of a latent weight from the boundary of its cell, in steps: below it, noise alone could move the
/// weight across.
const MARGIN: f32 = 0.05;

/// Learning rates of [`LatentWeights::update`]: the approximate maximum change per step, 0 by default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LatentLearningRates {
    /// For latent weights, in steps between levels.
    pub codes: f32,
    /// For scales, as a fraction of the scale; for means, as a fraction of the step.
    pub scales: f32,
}

impl LatentLearningRates {
    /// Sets [`codes`](Self::codes).
    #[must_use]
    pub fn with_codes(self, codes: f32) -> Self {
        Self { codes, ..self }
    }

    /// Sets [`scales`](Self::scales).
    #[must_use]
    pub fn with_scales(self, scales: f32) -> Self {
        Self { scales, ..self }
    }
}

/// A trainable ternary matrix with tied planes: one latent weight per code, and the scales.
///
/// ```
/// use trike_quant::{LatentWeights, LatentLearningRates, MatrixView, QuantizeConfig, quantize_matrix};
///
/// let w = [0.9, -1.0, 0.3, 0.0];
/// let view = MatrixView::new(1, 4, &w)?;
/// let config = QuantizeConfig::default();
/// let (trits, _) = quantize_matrix(view, &config)?;
/// let mut latent = LatentWeights::new(view, &trits, None)?;
/// assert_eq!(latent.tensor()?, trits);
/// // A loss that falls as the third weight grows.
/// for _ in 0..60 {
///     latent.update(&[0.0, 0.0, -1.0, 0.0], LatentLearningRates::default().with_codes(0.02))?;
/// }
/// assert!(trits.dequantize()[2] == 0.0 && latent.tensor()?.dequantize()[2] > 0.9);
/// # Ok::<(), trike_quant::QuantError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LatentWeights {
    rows: usize,
    cols: usize,
    layout: TritLayout,
    /// Latent weights minus the mean, in steps of their grid.
    at: Vec<f32>,
    /// Pruning mask: codes with `false` do not change. Empty without pruning.
    keep: Vec<bool>,
    /// Step of each grid, in the order of means.
    steps: Vec<f32>,
    means: Vec<f32>,
    of_codes: Adam,
    of_steps: Adam,
    of_means: Adam,
}

impl LatentWeights {
    /// Starts from the codes and scales of `trits`. Each latent weight is the value in `weights` if that rounds to the code,
    /// otherwise (compensation changed the code) the nearest value that does. Where the mask `keep` (from
    /// [`prune`](crate::prune)) is false, codes do not change.
    ///
    /// # Errors
    ///
    /// [`QuantError::Length`] if the shapes differ, [`QuantError::Option`] for free planes and for a tensor with a rotation.
    pub fn new(
        weights: MatrixView<'_>,
        trits: &TritTensor,
        keep: Option<&[bool]>,
    ) -> Result<Self, QuantError> {
        let (rows, cols, depth) = (weights.rows(), weights.cols(), trits.depth());
        if trits.coupling() == Coupling::Free && depth > 1 {
            let got = "free".to_owned();
            return Err(OptionError::Unknown { field: "coupling", accepted: &["tied"], got }.into());
        }
        if trits.rotation().is_some() {
            return Err(OptionError::Conflict { field: "rotation", other: "latent weights" }.into());
        }
        check_len("rows of the trits", rows, trits.rows())?;
        check_len("columns of the trits", cols, trits.cols())?;
        let keep = keep.unwrap_or_default().to_vec();
        if !keep.is_empty() {
            check_len("pruning mask", rows * cols, keep.len())?;
        }
        let granularity = trits.scales().granularity();
        let layout = TritLayout {
            depth,
            coupling: trits.coupling(),
            granularity,
            with_mean: trits.scales().means().is_some(),
            encoding: trits.encoding(),
            scales: match trits.scales().values() {
                ScaleValues::F16(_) => ScaleType::F16,
                ScaleValues::F32(_) => ScaleType::F32,
            },
        };
        let fraction = 3f32.powi(depth as i32 - 1);
        let steps: Vec<f32> = trits.scales().values().iter().map(|s| s / fraction).collect();
        let means: Vec<f32> =
            trits.scales().means().map_or_else(|| vec![0.0; steps.len()], |m| m.iter().collect());
        let mut at = Vec::with_capacity(rows * cols);
        let mut codes = vec![0i16; cols];
        let mut plane = vec![0i8; cols];
        for row in 0..rows {
            codes.fill(0);
            for p in 0..depth {
                trits.read_row(p, row, &mut plane)?;
                for (code, &trit) in codes.iter_mut().zip(&plane) {
                    *code = 3 * *code + i16::from(trit);
                }
            }
            for (column, (&w, &code)) in weights.row(row).iter().zip(&codes).enumerate() {
                let grid = grid_of(granularity, cols, row, column);
                let code = f32::from(code);
                let wanted = if steps[grid] == 0.0 { code } else { (w - means[grid]) / steps[grid] };
                at.push(wanted.clamp(code - 0.5 + MARGIN, code + 0.5 - MARGIN));
            }
        }
        let (of_codes, of_steps) = (Adam::new(at.len()), Adam::new(steps.len()));
        let of_means = Adam::new(if layout.with_mean { steps.len() } else { 0 });
        Ok(Self { rows, cols, layout, at, keep, steps, means, of_codes, of_steps, of_means })
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Number of planes.
    pub fn depth(&self) -> usize {
        self.layout.depth
    }

    fn most(&self) -> f32 {
        f32::from(Grid::max_code(self.layout.depth))
    }

    /// Length of the spans of a row that share a grid, and the grid index of the first span.
    fn spans(&self, row: usize) -> (usize, usize) {
        (self.layout.granularity.group_len(self.cols), grid_of(self.layout.granularity, self.cols, row, 0))
    }

    /// The current rounded weights, row-major.
    pub fn values(&self) -> Vec<f32> {
        let most = self.most();
        let mut out = Vec::with_capacity(self.at.len());
        for (row, at) in self.at.chunks_exact(self.cols).enumerate() {
            let (len, first) = self.spans(row);
            for (at, grid) in at.chunks(len.max(1)).zip(first..) {
                let (step, mean) = (self.steps[grid], self.means[grid]);
                out.extend(at.iter().map(|at| mean + step * at.round_ties_even().clamp(-most, most)));
            }
        }
        out
    }

    /// Takes one Adam step, where `gradient` is the gradient of a loss with respect to the weights [`values`](Self::values).
    ///
    /// # Errors
    ///
    /// [`QuantError::Length`], [`QuantError::NonFinite`]; in both cases nothing changes.
    pub fn update(&mut self, gradient: &[f32], rates: LatentLearningRates) -> Result<(), QuantError> {
        check_len("gradient", self.at.len(), gradient.len())?;
        check_finite("gradient", gradient)?;
        let unbias = self.of_codes.begin();
        let most = self.most();
        let mut by_step = vec![0f32; self.steps.len()];
        let mut by_mean = vec![0f32; self.of_means.mean.len()];
        let cols = self.cols;
        for row in 0..self.rows {
            let (len, first) = self.spans(row);
            for (start, grid) in (row * cols..(row + 1) * cols).step_by(len.max(1)).zip(first..) {
                let span = start..(start + len).min((row + 1) * cols);
                let step = self.steps[grid];
                let (mut of_step, mut of_mean) = (0f32, 0f32);
                let moments = self.of_codes.mean[span.clone()].iter_mut();
                let moments = moments.zip(&mut self.of_codes.square[span.clone()]);
                let places = self.at[span.clone()].iter_mut().zip(&gradient[span.clone()]);
                for ((i, (at, &g)), (mean, square)) in span.zip(places).zip(moments) {
                    of_step += g * at.round_ties_even().clamp(-most, most);
                    of_mean += g;
                    if !self.keep.is_empty() && !self.keep[i] {
                        continue;
                    }
                    let direction = Adam::direction(mean, square, g * step, unbias);
                    *at = (*at - rates.codes * direction).clamp(-most - 0.5, most + 0.5);
                }
                by_step[grid] += of_step;
                if let Some(sum) = by_mean.get_mut(grid) {
                    *sum += of_mean;
                }
            }
        }
        move_scales(
            [&mut self.steps, &mut self.means],
            [&mut self.of_steps, &mut self.of_means],
            [&by_step, &by_mean],
            rates.scales,
        )
    }

    /// The current weights as a packed tensor.
    ///
    /// # Errors
    ///
    /// [`QuantError::Trit`] for an invalid tensor, for example if a scale is not finite.
    pub fn tensor(&self) -> Result<TritTensor, QuantError> {
        let depth = self.layout.depth;
        let most = self.most();
        let codes: Vec<i16> =
            self.at.iter().map(|at| at.round_ties_even().clamp(-most, most) as i16).collect();
        let grid = |(&step, &mean): (&f32, &f32)| Grid::tied(depth, step, mean);
        let grids: Vec<Grid> = self.steps.iter().zip(&self.means).map(grid).collect();
        tensor(self.rows, self.cols, &codes, scales(&grids, &self.layout), &self.layout)
    }
}

/// Steps of the steps and means of all grids; `means` have gradients only where they are stored.
pub(crate) fn move_scales(
    [steps, means]: [&mut [f32]; 2],
    [of_steps, of_means]: [&mut Adam; 2],
    [by_step, by_mean]: [&[f32]; 2],
    rate: f32,
) -> Result<(), QuantError> {
    of_means.update(by_mean, |i, direction| means[i] -= rate * steps[i] * direction)?;
    of_steps.update(by_step, |i, direction| steps[i] *= (1.0 - rate * direction).clamp(0.5, 2.0))
}

/// The grid index of a weight, in the order of means.
pub(crate) fn grid_of(granularity: Granularity, cols: usize, row: usize, column: usize) -> usize {
    match granularity {
        Granularity::Tensor => 0,
        _ => {
            let len = granularity.group_len(cols);
            row * cols.div_ceil(len.max(1)) + column / len.max(1)
        }
    }
}
