//! Ternarization with error compensation.
//!
//! Rounding one column of a layer's weights changes its output; because inputs are correlated, the columns that are not rounded
//! yet can compensate most of that change. That is the column update of GPTQ (Frantar et al., 2210.17323), with three
//! extensions: the grid of a group is fitted to the updated weights when its first column is reached; after all columns are
//! rounded, scales and means are refitted jointly against the Hessian, and codes are changed one at a time while that lowers the
//! error (coordinate descent); and both steps are repeated.

use trike_core::OptionError;
use trike_cpu::Cpu;
use trike_trit::{Coupling, TritTensor};

use crate::{
    Grid, HessianFactor, MatrixView, QuantError, SquareMatrix, TritLayout,
    error::{check_len, check_whole},
    fit::{fit_free, fit_tied, fit_tied_mean},
    linalg::solve_spd,
    quantize::QuantizationStats,
    tensor::{scales, stored_grids, tensor},
};

/// Rows that are rounded together, so that a row of the factor is read once for all of them.
const ROWS: usize = 16;
/// Maximum number of coordinate descent passes over a row; most rows converge after two.
const PASSES: usize = 4;

/// Options of [`compensate`].
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct CompensateConfig {
    /// The layout of the result.
    pub layout: TritLayout,
    /// Rounds of refitting scales and improving codes after the column updates; 0 = column updates only.
    pub rounds: usize,
}

impl Default for CompensateConfig {
    fn default() -> Self {
        Self { layout: TritLayout::default(), rounds: 3 }
    }
}

impl CompensateConfig {
    /// Sets [`layout`](Self::layout).
    #[must_use]
    pub fn with_layout(self, layout: TritLayout) -> Self {
        Self { layout, ..self }
    }

    /// Sets [`rounds`](Self::rounds).
    #[must_use]
    pub fn with_rounds(self, rounds: usize) -> Self {
        Self { rounds, ..self }
    }
}

/// State of a chunk of rows.
struct Chunk {
    /// Target weights, columns in rounding order.
    target: Vec<f32>,
    codes: Vec<i16>,
    /// Pruning mask, columns in rounding order: `false` forces a zero. Empty without pruning.
    keep: Vec<bool>,
    /// `[row][group]`, groups in stored order.
    grids: Vec<Grid>,
}

/// Ternarizes `weights` so that the outputs of the layer change little on the calibration inputs of `factor`. Where the mask
/// `keep` (from [`prune`](crate::prune)) is false, every trit is zero, and the remaining weights compensate for that as well.
///
/// ```
/// use trike_cpu::Cpu;
/// use trike_quant::{
///     ColumnOrder, CompensateConfig, HessianFactor, MatrixView, SquareMatrix, TritLayout, compensate, hessian_error,
/// };
/// use trike_trit::Granularity;
///
/// // Two strongly correlated inputs.
/// let hessian = SquareMatrix::new(2, vec![1.0, 0.9, 0.9, 1.0])?;
/// let layout = TritLayout::default().with_granularity(Granularity::Row);
/// let factor = HessianFactor::new(&hessian, layout.granularity, ColumnOrder::Stored, 0.01)?;
/// let w = [0.6, 0.5];
/// let config = CompensateConfig::default().with_layout(layout);
/// let (trits, _) = compensate(&Cpu::new(1)?, MatrixView::new(1, 2, &w)?, &factor, None, &config)?;
/// assert!(hessian_error(&w, &trits.dequantize(), &hessian)? < 0.01);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`QuantError::Length`] if the width of the factor differs, [`QuantError::Option`] if its granularity differs, for an invalid
/// number of planes, or for means with pruning, [`QuantError::Trit`].
pub fn compensate(
    cpu: &Cpu,
    weights: MatrixView<'_>,
    factor: &HessianFactor,
    keep: Option<&[bool]>,
    config: &CompensateConfig,
) -> Result<(TritTensor, QuantizationStats), QuantError> {
    let layout = &config.layout;
    layout.validate()?;
    let (rows, cols) = (weights.rows(), weights.cols());
    if let Some(keep) = keep {
        check_len("pruning mask", rows * cols, keep.len())?;
        if layout.with_mean {
            // A zero trit would not be a zero weight.
            return Err(OptionError::Conflict { field: "with_mean", other: "keep" }.into());
        }
    }
    check_len("columns of the factor", cols, factor.width)?;
    if layout.granularity != factor.granularity {
        let (accepted, got) = (&["the granularity of the factor"], layout.granularity.to_string());
        return Err(OptionError::Unknown { field: "granularity", accepted, got }.into());
    }
    let starts: Vec<usize> = (0..rows).step_by(ROWS).collect();
    let mut chunks: Vec<Chunk> = cpu.pool().map(starts, |start| {
        let rows = start..(start + ROWS).min(rows);
        let target: Vec<f32> =
            rows.flat_map(|r| factor.order.iter().map(move |&c| weights.row(r)[c])).collect();
        let rows = start..start + target.len() / cols;
        let keep = keep.map_or(Vec::new(), |keep| {
            rows.flat_map(|r| factor.order.iter().map(move |&c| keep[r * cols + c])).collect()
        });
        let mut chunk = by_columns(target, keep, factor, layout);
        for _ in 0..config.rounds {
            refit(&mut chunk, factor, layout);
            descend(&mut chunk, factor);
        }
        if config.rounds > 0 {
            refit(&mut chunk, factor, layout);
        }
        chunk
    });

    // Scales may be rounded when stored, so the codes are refined once more against the stored grids.
    let grids: Vec<Grid> = chunks.iter_mut().flat_map(|c| std::mem::take(&mut c.grids)).collect();
    let scales = scales(&grids, layout);
    let mut stored = stored_grids(&scales, layout, grids.len()).into_iter();
    let groups = factor.groups.len();
    for chunk in &mut chunks {
        let rows = chunk.target.len() / cols;
        chunk.grids = stored.by_ref().take(rows * groups).collect();
    }
    let polish = config.rounds > 0;
    let chunks = cpu.pool().map(chunks, |mut chunk| {
        if polish {
            descend(&mut chunk, factor);
        }
        chunk
    });
    let mut codes = vec![0i16; rows * cols];
    let done = chunks.iter().flat_map(|c| c.codes.chunks_exact(cols));
    for (out, row) in codes.chunks_exact_mut(cols).zip(done) {
        for (&column, &code) in factor.order.iter().zip(row) {
            out[column] = code;
        }
    }
    let result = tensor(rows, cols, &codes, scales, layout)?;
    let stats = QuantizationStats::of(weights.values(), &result, 0);
    Ok((result, stats))
}

/// Fits a grid for the coupling, depth and mean of the layout.
fn fit(weights: &[f32], importance: &[f32], layout: &TritLayout) -> Grid {
    match layout.coupling {
        Coupling::Free => fit_free(weights, Some(importance), layout.depth, layout.with_mean),
        Coupling::Tied if layout.with_mean => fit_tied_mean(weights, Some(importance), layout.depth),
        Coupling::Tied => fit_tied(weights, Some(importance), layout.depth),
    }
}

/// Rounds column by column; each error is compensated by the columns that follow (GPTQ).
fn by_columns(target: Vec<f32>, keep: Vec<bool>, factor: &HessianFactor, layout: &TritLayout) -> Chunk {
    let n = factor.width;
    let groups = factor.groups.len();
    let rows = target.len() / n;
    let mut current = target.clone();
    let mut codes = vec![0i16; target.len()];
    let mut grids = vec![Grid::tied(layout.depth, 0.0, 0.0); rows * groups];
    let mut errors = vec![0f32; rows];
    for &(start, end, group) in &factor.groups {
        // Cost of an error in a column after compensation by the columns that follow: 1 / U_jj^2.
        let importance: Vec<f32> =
            (start..end).map(|j| factor.upper[j * n + j].max(f32::MIN_POSITIVE).powi(-2)).collect();
        let largest = importance.iter().fold(f32::MIN_POSITIVE, |m, v| m.max(*v));
        let importance: Vec<f32> = importance.iter().map(|v| v / largest).collect();
        for r in 0..rows {
            let span = r * n + start..r * n + end;
            // Pruned weights are zeros here, so that they do not affect the scale.
            let zeroed = |i: usize| !keep.is_empty() && !keep[i];
            let weights: Vec<f32> = span.map(|i| if zeroed(i) { 0.0 } else { current[i] }).collect();
            grids[r * groups + group] = fit(&weights, &importance, layout);
        }
        for j in start..end {
            let upper = &factor.upper[j * n..(j + 1) * n];
            for (r, error) in errors.iter_mut().enumerate() {
                let grid = &grids[r * groups + group];
                let w = current[r * n + j];
                let code = if keep.is_empty() || keep[r * n + j] { grid.nearest(w) } else { 0 };
                codes[r * n + j] = code;
                *error = (w - grid.value(code)) / upper[j];
            }
            for (row, &error) in current.chunks_exact_mut(n).zip(&errors) {
                add_scaled(&mut row[j + 1..], -error, &upper[j + 1..]);
            }
        }
    }
    Chunk { target, codes, keep, grids }
}

/// Refits the scales and means of every row against the Hessian, all groups jointly, with fixed codes.
fn refit(chunk: &mut Chunk, factor: &HessianFactor, layout: &TritLayout) {
    let n = factor.width;
    let groups = factor.groups.len();
    let planes = if layout.coupling == Coupling::Free { layout.depth } else { 1 };
    let per_group = planes + usize::from(layout.with_mean);
    let unknowns = groups * per_group;
    let mut image = vec![0f32; n];
    let mut basis = vec![0f32; per_group * n];
    for (r, target) in chunk.target.chunks_exact(n).enumerate() {
        let codes = &mut chunk.codes[r * n..(r + 1) * n];
        let grids = &mut chunk.grids[r * groups..(r + 1) * groups];
        for (j, &code) in codes.iter().enumerate() {
            if layout.coupling == Coupling::Free {
                for (p, &t) in Grid::trits(code, layout.depth)[..layout.depth].iter().enumerate() {
                    basis[p * n + j] = f32::from(t);
                }
            } else {
                basis[j] = f32::from(code);
            }
        }
        if layout.with_mean {
            basis[planes * n..].fill(1.0);
        }
        let mut normal = vec![0f64; unknowns * unknowns];
        let mut right = vec![0f64; unknowns];
        for (g, &(start, end, _)) in factor.groups.iter().enumerate() {
            for b in 0..per_group {
                image.fill(0.0);
                for j in start..end {
                    let v = basis[b * n + j];
                    if v != 0.0 {
                        add_scaled(&mut image, v, &factor.hessian[j * n..(j + 1) * n]);
                    }
                }
                let k = g * per_group + b;
                right[k] = dot(&image, target);
                for (g2, &(start, end, _)) in factor.groups.iter().enumerate().take(g + 1) {
                    for b2 in 0..per_group {
                        let l = g2 * per_group + b2;
                        normal[k * unknowns + l] =
                            dot(&image[start..end], &basis[b2 * n + start..b2 * n + end]);
                        normal[l * unknowns + k] = normal[k * unknowns + l];
                    }
                }
            }
        }
        // A group whose codes are all zero would make the system singular; with a unit diagonal its solution is 0.
        for k in 0..unknowns {
            if normal[k * unknowns + k] <= 0.0 {
                normal[k * unknowns + k] = 1.0;
            }
        }
        let Some(solution) = solve_spd(&mut normal, &right, 1e-9) else { continue };
        for (g, &(start, end, group)) in factor.groups.iter().enumerate() {
            let own = &solution[g * per_group..(g + 1) * per_group];
            if own[..planes].iter().all(|s| *s == 0.0) && !layout.with_mean {
                continue;
            }
            let mean = if layout.with_mean { own[planes] as f32 } else { 0.0 };
            grids[group] = if layout.coupling == Coupling::Free {
                let sizes: Vec<f32> = own[..planes].iter().map(|s| s.abs() as f32).collect();
                Grid::free(&sizes, mean)
            } else {
                Grid::tied(layout.depth, own[0].abs() as f32, mean)
            };
            // A negative scale becomes positive by flipping the signs of its trits.
            if own[..planes].iter().any(|s| *s < 0.0) {
                for code in &mut codes[start..end] {
                    *code = flipped(*code, own, planes, layout.depth);
                }
            }
        }
    }
}

fn flipped(code: i16, own: &[f64], planes: usize, depth: usize) -> i16 {
    if planes == 1 {
        return -code;
    }
    let trits = Grid::trits(code, depth);
    trits[..depth].iter().zip(own).fold(0, |sum, (&t, s)| 3 * sum + i16::from(if *s < 0.0 { -t } else { t }))
}

/// Coordinate descent: changes one code at a time to its best level with all others fixed, until nothing changes or
/// [`PASSES`] is reached.
fn descend(chunk: &mut Chunk, factor: &HessianFactor) {
    let n = factor.width;
    let groups = factor.groups.len();
    let rows = chunk.target.len() / n;
    let mut values = vec![0f32; rows * n];
    for r in 0..rows {
        for &(start, end, group) in &factor.groups {
            let grid = &chunk.grids[r * groups + group];
            for j in start..end {
                values[r * n + j] = grid.value(chunk.codes[r * n + j]);
            }
        }
    }
    // (target - values) H for all rows, row-major.
    let mut gradient = vec![0f32; rows * n];
    for (k, hessian) in factor.hessian.chunks_exact(n).enumerate() {
        for r in 0..rows {
            let error = chunk.target[r * n + k] - values[r * n + k];
            if error != 0.0 {
                add_scaled(&mut gradient[r * n..(r + 1) * n], error, hessian);
            }
        }
    }
    for r in 0..rows {
        let gradient = &mut gradient[r * n..(r + 1) * n];
        for _ in 0..PASSES {
            let mut changed = false;
            for &(start, end, group) in &factor.groups {
                let grid = &chunk.grids[r * groups + group];
                for j in (start..end).filter(|&j| chunk.keep.is_empty() || chunk.keep[r * n + j]) {
                    let hessian = &factor.hessian[j * n..(j + 1) * n];
                    let old = values[r * n + j];
                    let code = grid.nearest(old + gradient[j] / hessian[j]);
                    if code != chunk.codes[r * n + j] {
                        let new = grid.value(code);
                        chunk.codes[r * n + j] = code;
                        values[r * n + j] = new;
                        add_scaled(gradient, old - new, hessian);
                        changed = true;
                    }
                }
            }
            if !changed {
                break;
            }
        }
    }
}

#[inline]
fn add_scaled(to: &mut [f32], factor: f32, from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

/// Accumulates in f32 lanes: the sums determine scales, which are stored with 11 significant bits.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut lanes = [0f32; 16];
    let (heads_a, tail_a) = a.as_chunks::<16>();
    let (heads_b, tail_b) = b.as_chunks::<16>();
    for (a, b) in heads_a.iter().zip(heads_b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    let tail: f64 = tail_a.iter().zip(tail_b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    lanes.iter().map(|v| f64::from(*v)).sum::<f64>() + tail
}

/// `sum_rows (w - v) H (w - v)^T`: the squared change of the layer's outputs over the calibration tokens.
///
/// # Errors
///
/// [`QuantError::Length`] and [`QuantError::Partial`] if the lengths do not match.
pub fn hessian_error(weights: &[f32], quantized: &[f32], hessian: &SquareMatrix) -> Result<f64, QuantError> {
    let n = hessian.side();
    check_len("quantized weights", weights.len(), quantized.len())?;
    check_whole("weights", n, weights.len())?;
    let mut total = 0f64;
    let mut image = vec![0f32; n];
    for (w, v) in weights.chunks_exact(n).zip(quantized.chunks_exact(n)) {
        let error: Vec<f32> = w.iter().zip(v).map(|(w, v)| w - v).collect();
        image.fill(0.0);
        for (k, &e) in error.iter().enumerate().filter(|(_, e)| **e != 0.0) {
            add_scaled(&mut image, e, hessian.row(k));
        }
        total += dot(&image, &error);
    }
    Ok(total.max(0.0))
}
