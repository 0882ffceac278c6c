//! Ternarization with error compensation.
//!
//! Rounding one column of a layer's weights changes its output; because inputs are correlated, the columns that are not rounded
//! yet can compensate most of that change. That is the column update of GPTQ (Frantar et al., 2210.17323), with three
//! extensions: the grid of a group is fitted to the updated weights when its first column is reached; after all columns are
//! rounded, scales and means are refitted jointly against the Hessian, and codes are changed one at a time while that lowers the
//! error (coordinate descent); and both steps are repeated.

use std::ops::Range;

use trike_core::OptionError;
use trike_cpu::{Cpu, CpuError, Loop, MatrixRef, Store, matmul, vectorized};
use trike_trit::{Coupling, TritTensor};

use crate::{
    Grid, HessianFactor, MatrixView, QuantError, SquareMatrix, TritLayout,
    error::{check_len, check_whole},
    fit::{fit_free, fit_tied, fit_tied_mean},
    linalg::{product, solve_spd},
    quantize::RoundingStats,
    tensor::{scales, stored_grids, tensor},
};

/// Maximum number of rows that are rounded together, so that each row of the factor is read once for all of them.
const ROWS: usize = 192;
/// The rows per thread are a multiple of this, the row tile of the matrix products.
const TILE_ROWS: usize = 12;
/// Columns per block: the errors of a block are propagated to the columns after it at once. A group of up to twice as many columns is
/// one block.
const BLOCK: usize = 128;
/// Columns of a matrix product that stay in the cache while they are used.
const PANEL: usize = 1024;
/// Maximum size in bytes of the normal equations of the rows that are refitted together.
const NORMAL_BYTES: usize = 32 << 20;
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
/// let cpu = Cpu::new(1)?;
/// let factor = HessianFactor::new(&cpu, &hessian, layout.granularity, ColumnOrder::Stored, 0.01)?;
/// let w = [0.6, 0.5];
/// let config = CompensateConfig::default().with_layout(layout);
/// let (trits, _) = compensate(&cpu, MatrixView::new(1, 2, &w)?, &factor, None, &config)?;
/// assert!(hessian_error(&cpu, &w, &trits.dequantize(), &hessian)? < 0.01);
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
) -> Result<(TritTensor, RoundingStats), QuantError> {
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
    let share = rows.div_ceil(cpu.threads()).next_multiple_of(TILE_ROWS).min(ROWS);
    let starts: Vec<usize> = (0..rows).step_by(share).collect();
    // The threads divide the rows; each matrix product runs on one thread.
    let alone = Cpu::with_isa(cpu.isa(), 1).map_err(CpuError::from)?;
    let chunks = cpu.pool().map(starts, |start| {
        let rows = start..(start + share).min(rows);
        let target: Vec<f32> =
            rows.flat_map(|r| factor.order.iter().map(move |&c| weights.row(r)[c])).collect();
        let rows = start..start + target.len() / cols;
        let keep = keep.map_or(Vec::new(), |keep| {
            rows.flat_map(|r| factor.order.iter().map(move |&c| keep[r * cols + c])).collect()
        });
        let mut chunk = by_columns(&alone, target, keep, factor, layout)?;
        if config.rounds > 0 {
            let hessian = MatrixRef::new(&factor.hessian, cols)?;
            let image = product(&alone, MatrixRef::new(&chunk.target, cols)?, hessian)?;
            for _ in 0..config.rounds {
                refit(&alone, &mut chunk, &image, factor, layout)?;
                descend(&alone, &mut chunk, factor)?;
            }
            refit(&alone, &mut chunk, &image, factor, layout)?;
        }
        Ok::<_, QuantError>(chunk)
    });
    let mut chunks = chunks.into_iter().collect::<Result<Vec<Chunk>, _>>()?;

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
            descend(&alone, &mut chunk, factor)?;
        }
        Ok::<_, QuantError>(chunk)
    });
    let chunks = chunks.into_iter().collect::<Result<Vec<Chunk>, _>>()?;
    let mut codes = vec![0i16; rows * cols];
    let done = chunks.iter().flat_map(|c| c.codes.chunks_exact(cols));
    for (out, row) in codes.chunks_exact_mut(cols).zip(done) {
        for (&column, &code) in factor.order.iter().zip(row) {
            out[column] = code;
        }
    }
    let result = tensor(rows, cols, &codes, scales, layout)?;
    let stats = RoundingStats::of(weights.values(), &result, 0);
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

/// Rounds column by column and propagates each error to the columns after it (GPTQ): to the rest of the block immediately, to a later
/// block when it is reached.
fn by_columns(
    cpu: &Cpu,
    target: Vec<f32>,
    keep: Vec<bool>,
    factor: &HessianFactor,
    layout: &TritLayout,
) -> Result<Chunk, QuantError> {
    let n = factor.width;
    let groups = factor.groups.len();
    let rows = target.len() / n;
    let upper = MatrixRef::new(&factor.upper, n)?;
    let mut current = target.clone();
    let mut codes = vec![0i16; target.len()];
    let mut grids = vec![Grid::tied(layout.depth, 0.0, 0.0); rows * groups];
    // Errors divided by the pivots: `columns x rows`.
    let mut errors = vec![0f32; target.len()];
    let mut starting = factor.groups.iter().peekable();
    let mut group = 0;
    for block in blocks(&factor.groups) {
        let (done, rest) = errors.split_at_mut(block.start * rows);
        if block.start > 0 {
            let above = upper.rows_of(0..block.start).columns(block.clone());
            let change = product(cpu, MatrixRef::new(done, rows)?.t(), above)?;
            for (row, change) in current.chunks_exact_mut(n).zip(change.chunks_exact(block.len())) {
                row[block.clone()].iter_mut().zip(change).for_each(|(w, change)| *w -= change);
            }
        }
        for (j, errors) in block.clone().zip(rest.chunks_exact_mut(rows)) {
            if let Some(&(start, end, next)) = starting.next_if(|(start, ..)| *start == j) {
                group = next;
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
            }
            let upper = &factor.upper[j * n..(j + 1) * n];
            for (r, error) in errors.iter_mut().enumerate() {
                let grid = &grids[r * groups + group];
                let w = current[r * n + j];
                let code = if keep.is_empty() || keep[r * n + j] { grid.nearest(w) } else { 0 };
                codes[r * n + j] = code;
                *error = (w - grid.value(code)) / upper[j];
            }
            let later = j + 1..block.end;
            vectorized(
                cpu,
                Spread { rows: &mut current, stride: n, later: later.clone(), errors, upper: &upper[later] },
            );
        }
    }
    Ok(Chunk { target, codes, keep, grids })
}

/// Subtracts a multiple of a row of the factor from columns of all rows.
struct Spread<'a> {
    rows: &'a mut [f32],
    stride: usize,
    later: Range<usize>,
    /// The multiple for each row.
    errors: &'a [f32],
    upper: &'a [f32],
}

impl Loop for Spread<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (row, error) in self.rows.chunks_exact_mut(self.stride).zip(self.errors) {
            for (w, u) in row[self.later.clone()].iter_mut().zip(self.upper) {
                *w -= error * u;
            }
        }
    }
}

/// Divides the columns into blocks. A group lies within one block; only a group that spans a whole row is longer, and it is fitted
/// before any error.
fn blocks(groups: &[(usize, usize, usize)]) -> Vec<Range<usize>> {
    let mut blocks: Vec<Range<usize>> = Vec::new();
    for &(start, end, _) in groups {
        match blocks.last_mut() {
            Some(block) if end - block.start <= BLOCK => block.end = end,
            _ if end - start <= 2 * BLOCK => blocks.push(start..end),
            _ => blocks.extend((start..end).step_by(BLOCK).map(|at| at..(at + BLOCK).min(end))),
        }
    }
    blocks
}

/// Refits the scales and means of every row against the Hessian, all groups jointly, with fixed codes. `image` is the target times the
/// Hessian.
fn refit(
    cpu: &Cpu,
    chunk: &mut Chunk,
    image: &[f32],
    factor: &HessianFactor,
    layout: &TritLayout,
) -> Result<(), QuantError> {
    let n = factor.width;
    let groups = factor.groups.len();
    let (_, per_group) = unknowns_of(layout);
    let unknowns = groups * per_group;
    let together = (NORMAL_BYTES / (8 * unknowns * unknowns)).clamp(TILE_ROWS, ROWS);
    let rows = image.chunks(together * n).zip(chunk.codes.chunks_mut(together * n));
    for ((image, codes), grids) in rows.zip(chunk.grids.chunks_mut(together * groups)) {
        refit_rows(cpu, image, codes, grids, factor, layout)?;
    }
    Ok(())
}

/// Number of scales of a group, and of scales and means.
fn unknowns_of(layout: &TritLayout) -> (usize, usize) {
    let planes = if layout.coupling == Coupling::Free { layout.depth } else { 1 };
    (planes, planes + usize::from(layout.with_mean))
}

/// [`refit`] of some rows.
fn refit_rows(
    cpu: &Cpu,
    target: &[f32],
    codes: &mut [i16],
    grids: &mut [Grid],
    factor: &HessianFactor,
    layout: &TritLayout,
) -> Result<(), QuantError> {
    let n = factor.width;
    let groups = factor.groups.len();
    let (planes, per_group) = unknowns_of(layout);
    let unknowns = groups * per_group;
    let rows = codes.len() / n;
    let mut bases = vec![vec![1f32; rows * n]; per_group];
    for (i, &code) in codes.iter().enumerate() {
        if layout.coupling == Coupling::Free {
            let trits = Grid::trits(code, layout.depth);
            bases.iter_mut().zip(&trits[..layout.depth]).for_each(|(basis, &t)| basis[i] = f32::from(t));
        } else {
            bases[0][i] = f32::from(code);
        }
    }
    let hessian = MatrixRef::new(&factor.hessian, n)?;
    let mut normal = vec![0f64; rows * unknowns * unknowns];
    let mut right = vec![0f64; rows * unknowns];
    let mut image = Vec::new();
    for (g, &(start, end, _)) in factor.groups.iter().enumerate() {
        for (b, basis) in bases.iter().enumerate() {
            let k = g * per_group + b;
            for r in 0..rows {
                let span = r * n + start..r * n + end;
                right[r * unknowns + k] = dot(&target[span.clone()], &basis[span]);
            }
            let own = MatrixRef::new(basis, n)?.columns(start..end);
            for first in (0..end).step_by(PANEL) {
                let panel = first..(first + PANEL).min(end);
                image.resize(rows * panel.len(), 0f32);
                let part = hessian.rows_of(start..end).columns(panel.clone());
                matmul(cpu, own, part, &mut image, Store::Overwrite)?;
                for (g2, &(start, end, _)) in factor.groups.iter().enumerate().take(g + 1) {
                    let span = start.max(panel.start)..end.min(panel.end);
                    if span.is_empty() {
                        continue;
                    }
                    for (r, image) in image.chunks_exact(panel.len()).enumerate() {
                        let image = &image[span.start - first..span.end - first];
                        for (b2, basis) in bases.iter().enumerate() {
                            let at = r * unknowns * unknowns + k * unknowns + g2 * per_group + b2;
                            normal[at] += dot(image, &basis[r * n + span.start..r * n + span.end]);
                        }
                    }
                }
            }
        }
    }
    let each = codes.chunks_exact_mut(n).zip(grids.chunks_exact_mut(groups));
    let systems = normal.chunks_exact_mut(unknowns * unknowns).zip(right.chunks_exact(unknowns));
    for ((codes, grids), (normal, right)) in each.zip(systems) {
        for k in 0..unknowns {
            // A group whose codes are all zero would make the system singular; with a unit diagonal its solution is 0.
            if normal[k * unknowns + k] <= 0.0 {
                normal[k * unknowns + k] = 1.0;
            }
        }
        let Some(solution) = solve_spd(normal, right, 1e-9) else { continue };
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
    Ok(())
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
fn descend(cpu: &Cpu, chunk: &mut Chunk, factor: &HessianFactor) -> Result<(), QuantError> {
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
    let error: Vec<f32> = chunk.target.iter().zip(&values).map(|(target, value)| target - value).collect();
    let mut gradient = product(cpu, MatrixRef::new(&error, n)?, MatrixRef::new(&factor.hessian, n)?)?;
    drop(error);
    let mut active = vec![true; rows];
    for _ in 0..PASSES {
        let mut changed = vec![false; rows];
        // All rows process a group before the next group, so that its part of the Hessian stays in the cache.
        for &(start, end, group) in &factor.groups {
            for r in (0..rows).filter(|&r| active[r]) {
                let gradient = &mut gradient[r * n..(r + 1) * n];
                let grid = &chunk.grids[r * groups + group];
                for j in (start..end).filter(|&j| chunk.keep.is_empty() || chunk.keep[r * n + j]) {
                    let hessian = &factor.hessian[j * n..(j + 1) * n];
                    let old = values[r * n + j];
                    let code = grid.nearest(old + gradient[j] / hessian[j]);
                    if code != chunk.codes[r * n + j] {
                        let new = grid.value(code);
                        chunk.codes[r * n + j] = code;
                        values[r * n + j] = new;
                        vectorized(cpu, AddScaled { to: gradient, factor: old - new, from: hessian });
                        changed[r] = true;
                    }
                }
            }
        }
        active = changed;
    }
    Ok(())
}

/// Adds a multiple of a row.
struct AddScaled<'a> {
    to: &'a mut [f32],
    factor: f32,
    from: &'a [f32],
}

impl Loop for AddScaled<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (to, from) in self.to.iter_mut().zip(self.from) {
            *to += self.factor * from;
        }
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
pub fn hessian_error(
    cpu: &Cpu,
    weights: &[f32],
    quantized: &[f32],
    hessian: &SquareMatrix,
) -> Result<f64, QuantError> {
    let n = hessian.side();
    check_len("quantized weights", weights.len(), quantized.len())?;
    check_whole("weights", n, weights.len())?;
    let matrix = MatrixRef::new(hessian.values(), n)?;
    let mut total = 0f64;
    let together = n * ROWS * cpu.threads();
    for (w, v) in weights.chunks(together).zip(quantized.chunks(together)) {
        let error: Vec<f32> = w.iter().zip(v).map(|(w, v)| w - v).collect();
        let image = product(cpu, MatrixRef::new(&error, n)?, matrix)?;
        image
            .chunks_exact(n)
            .zip(error.chunks_exact(n))
            .for_each(|(image, error)| total += dot(image, error));
    }
    Ok(total.max(0.0))
}
