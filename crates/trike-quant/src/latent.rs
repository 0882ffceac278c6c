//! Latent weights: ternary weights trained with the straight-through estimator.
//!
//! Gradients do not pass through rounding. The straight-through estimator (Bengio et al., 1308.3432) passes them unchanged to one
//! latent weight per code; when a latent weight crosses the boundary between two levels, the code changes. Step sizes are
//! learned as in LSQ (Esser et al., 1902.08153), here with latent weights in units of their step, so that codes and steps are
//! learned independently.

use trike_core::OptionError;
use trike_cpu::{Cpu, Loop, vectorized};
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
/// use trike_cpu::Cpu;
/// use trike_quant::{LatentWeights, LatentLearningRates, MatrixView, QuantizeConfig, quantize_matrix};
///
/// let w = [0.9, -1.0, 0.3, 0.0];
/// let view = MatrixView::new(1, 4, &w)?;
/// let config = QuantizeConfig::default();
/// let (trits, _) = quantize_matrix(view, &config)?;
/// let mut latent = LatentWeights::new(view, &trits, None)?;
/// assert_eq!(latent.tensor()?, trits);
/// // A loss that falls as the third weight grows.
/// let cpu = Cpu::new(1)?;
/// for _ in 0..60 {
///     latent.update(&cpu, &[0.0, 0.0, -1.0, 0.0], LatentLearningRates::default().with_codes(0.02))?;
/// }
/// assert!(trits.dequantize()[2] == 0.0 && latent.tensor()?.dequantize()[2] > 0.9);
/// # Ok::<(), Box<dyn std::error::Error>>(())
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

    /// Number of weights of a row that share a grid, and number of such spans per row.
    fn spans(&self) -> (usize, usize) {
        let len = self.layout.granularity.group_len(self.cols).max(1);
        (len, self.cols.div_ceil(len))
    }

    /// Rows per thread.
    fn share(&self, cpu: &Cpu) -> usize {
        // About eight operations per weight.
        self.rows.div_ceil(cpu.pool().parts(self.at.len().saturating_mul(8))).max(1)
    }

    /// The current rounded weights, row-major. They do not depend on the number of threads.
    pub fn values(&self, cpu: &Cpu) -> Vec<f32> {
        let mut out = vec![0.0; self.at.len()];
        if out.is_empty() {
            return out;
        }
        let (most, (len, each), cols) = (self.most(), self.spans(), self.cols);
        let share = self.share(cpu);
        let tasks = out.chunks_mut(share * cols).zip(self.at.chunks(share * cols)).enumerate().collect();
        cpu.pool().run(tasks, |(part, (out, at)): (usize, (&mut [f32], &[f32]))| {
            for (row, (out, at)) in
                (part * share..).zip(out.chunks_exact_mut(cols).zip(at.chunks_exact(cols)))
            {
                for (i, (out, at)) in out.chunks_mut(len).zip(at.chunks(len)).enumerate() {
                    let grid = grid_of_span(self.layout.granularity, row * each + i);
                    let (step, mean) = (self.steps[grid], self.means[grid]);
                    vectorized(cpu, Round { at, step, mean, most, out });
                }
            }
        });
        out
    }

    /// Performs one Adam step; `gradient` is the gradient of a loss with respect to the weights [`values`](Self::values). The
    /// result does not depend on the number of threads.
    ///
    /// # Errors
    ///
    /// [`QuantError::Length`], [`QuantError::NonFinite`]; in both cases nothing changes.
    pub fn update(
        &mut self,
        cpu: &Cpu,
        gradient: &[f32],
        rates: LatentLearningRates,
    ) -> Result<(), QuantError> {
        check_len("gradient", self.at.len(), gradient.len())?;
        check_finite("gradient", gradient)?;
        let unbias = self.of_codes.begin();
        let (most, (len, each), cols) = (self.most(), self.spans(), self.cols);
        let granularity = self.layout.granularity;
        // Per span: the gradients with respect to its step and its mean.
        let mut sums = vec![[0f32; 2]; self.rows * each];
        if !self.at.is_empty() {
            let share = self.share(cpu);
            let (steps, keep) = (&self.steps, &self.keep);
            let places = self.at.chunks_mut(share * cols).zip(gradient.chunks(share * cols));
            let moments = self.of_codes.mean.chunks_mut(share * cols);
            let moments = moments.zip(self.of_codes.square.chunks_mut(share * cols));
            let tasks = places.zip(moments).zip(sums.chunks_mut(share * each)).enumerate().collect();
            cpu.pool().run(tasks, |(part, (((at, gradient), (mean, square)), sums)): (usize, Part<'_>)| {
                let mut start = 0;
                for (i, sums) in sums.iter_mut().enumerate() {
                    let end = (start + len).min((i / each + 1) * cols);
                    let step = steps[grid_of_span(granularity, part * share * each + i)];
                    let keep = match keep.len() {
                        0 => &[][..],
                        _ => &keep[part * share * cols..][start..end],
                    };
                    let span = Span {
                        at: &mut at[start..end],
                        gradient: &gradient[start..end],
                        mean: &mut mean[start..end],
                        square: &mut square[start..end],
                        keep,
                        step,
                        most,
                        rate: rates.codes,
                        unbias,
                    };
                    *sums = vectorized(cpu, span);
                    start = end;
                }
            });
        }
        let mut by_step = vec![0f32; self.steps.len()];
        let mut by_mean = vec![0f32; self.of_means.mean.len()];
        for (i, [of_step, of_mean]) in sums.into_iter().enumerate() {
            let grid = grid_of_span(granularity, i);
            by_step[grid] += of_step;
            if let Some(sum) = by_mean.get_mut(grid) {
                *sum += of_mean;
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

/// The latent weights of some rows with their gradients, their two Adam moments, and the gradient sums of their spans.
type Part<'a> = (((&'a mut [f32], &'a [f32]), (&'a mut [f32], &'a mut [f32])), &'a mut [[f32; 2]]);

/// Rounds latent weights of one grid.
struct Round<'a> {
    at: &'a [f32],
    step: f32,
    mean: f32,
    most: f32,
    out: &'a mut [f32],
}

impl Loop for Round<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (out, at) in self.out.iter_mut().zip(self.at) {
            *out = self.mean + self.step * at.round_ties_even().clamp(-self.most, self.most);
        }
    }
}

/// An Adam step on the latent weights of one grid; returns the gradients with respect to the step and the mean of the grid.
struct Span<'a> {
    at: &'a mut [f32],
    gradient: &'a [f32],
    mean: &'a mut [f32],
    square: &'a mut [f32],
    /// Empty without pruning.
    keep: &'a [bool],
    step: f32,
    most: f32,
    rate: f32,
    unbias: (f32, f32),
}

impl Loop for Span<'_> {
    type Output = [f32; 2];

    #[inline(always)]
    fn run(self) -> [f32; 2] {
        let Self { at, gradient, mean, square, keep, step, most, rate, unbias } = self;
        // Sixteen accumulators each: a single one would serialize the additions on their latency.
        let (mut of_step, mut of_mean) = ([0f32; 16], [0f32; 16]);
        for (at, gradient) in at.chunks(16).zip(gradient.chunks(16)) {
            for (((at, g), of_step), of_mean) in at.iter().zip(gradient).zip(&mut of_step).zip(&mut of_mean) {
                *of_step += g * at.round_ties_even().clamp(-most, most);
                *of_mean += g;
            }
        }
        let moments = mean.iter_mut().zip(square);
        for (i, ((at, &g), (mean, square))) in at.iter_mut().zip(gradient).zip(moments).enumerate() {
            if keep.get(i) == Some(&false) {
                continue;
            }
            let direction = Adam::direction(mean, square, g * step, unbias);
            *at = (*at - rate * direction).clamp(-most - 0.5, most + 0.5);
        }
        [of_step.iter().sum(), of_mean.iter().sum()]
    }
}

/// The grid of a span, by the span's index over all rows.
fn grid_of_span(granularity: Granularity, span: usize) -> usize {
    if granularity == Granularity::Tensor { 0 } else { span }
}

/// Updates the steps and means of all grids; `means` have gradients only if they are stored.
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
