//! `y = x W^T`: which kernel computes which part, on which thread.

use std::ops::Range;

use trike_trit::GroupSize;

use crate::activations::{ActivationPrecision, Activations, Tokens};
use crate::cost::LinearProblem;
use crate::error::{CpuError, Result, check_len, check_rows};
use crate::isa::with_kernels;
use crate::kernels::{Element, Kernels};
use crate::line::{BLOCK, CodeLine, TILE};
use crate::matrix::{DenseData, DenseMatrix, Int8Matrix, Matrix, TernaryMatrix};
use crate::pool::Cpu;

/// Tokens that share one unpacking of the weights.
const TOKENS: usize = 4;
/// Weights that stay in a core's second cache while all tokens pass.
const RESIDENT_BYTES: usize = 256 << 10;

impl Cpu {
    /// `out = x W^T`: `x` is `m x k`, `w` is `n x k`, `out` is `m x n`, all row-major; `m` is `x.len() / k`.
    ///
    /// With f32 activations a value that is not finite reaches every output of its token, as in dense arithmetic.
    ///
    /// # Errors
    ///
    /// [`CpuError::NotMultiple`] and [`CpuError::Length`] for wrong lengths; [`CpuError::NonFinite`] when ternary weights
    /// meet int8 activations and one of them is not finite. Nothing has been written then.
    ///
    /// ```
    /// use trike_cpu::{ActivationPrecision, Cpu, TernaryMatrix};
    /// use trike_trit::{Encoding, Scales, TritTensor};
    ///
    /// let tensor = TritTensor::from_trits(2, 3, &[1, 0, -1, 1, 1, 1], Encoding::TwoBit, Scales::tensor(0.5))?;
    /// let w = TernaryMatrix::pack(&tensor)?.into();
    /// let mut y = [f32::NAN; 2];
    /// Cpu::new(1)?.linear(&[1.0, 2.0, 4.0], &w, ActivationPrecision::F32, &mut y)?;
    /// assert_eq!(y, [-1.5, 3.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn linear(
        &self,
        x: &[f32],
        w: &Matrix,
        precision: ActivationPrecision,
        out: &mut [f32],
    ) -> Result<()> {
        self.linear_many(x, &[w], precision, &mut [out])
    }

    /// [`Cpu::linear`] for several matrices with the same input (q/k/v, gate/up): the activations are prepared once,
    /// and the rows of all matrices are one range that the threads share.
    ///
    /// # Errors
    ///
    /// As [`Cpu::linear`], and [`CpuError::Length`] when the lists differ in length or the matrices in columns.
    pub fn linear_many(
        &self,
        x: &[f32],
        ws: &[&Matrix],
        precision: ActivationPrecision,
        outs: &mut [&mut [f32]],
    ) -> Result<()> {
        check_len("outputs of linear_many", ws.len(), outs.len())?;
        let Some(first) = ws.first() else { return Ok(()) };
        let cols = first.cols();
        let tokens = check_rows("activations", cols, x.len())?;
        let mut work = 0usize;
        for (w, out) in ws.iter().zip(outs.iter()) {
            check_len("columns of the matrices of linear_many", cols, w.cols())?;
            let expected = tokens.checked_mul(w.rows());
            let overflow = CpuError::Shape { what: "output of linear", rows: tokens, cols: w.rows() };
            check_len("output of linear", expected.ok_or(overflow)?, out.len())?;
            work = work.saturating_add(LinearProblem::new(tokens, w, precision).cost().macs as usize);
        }
        if tokens == 0 {
            return Ok(());
        }
        with_kernels!(self.isa(), kernels => self.linear_with(kernels, x, ws, precision, outs, work))
    }

    fn linear_with<K: Kernels>(
        &self,
        kernels: K,
        x: &[f32],
        ws: &[&Matrix],
        precision: ActivationPrecision,
        outs: &mut [&mut [f32]],
        work: usize,
    ) -> Result<()> {
        let ternary = ws.iter().any(|w| matches!(w, Matrix::Ternary(_)));
        let means = ws.iter().any(|w| matches!(w, Matrix::Ternary(m) if m.has_means()));
        let cols = ws[0].cols();
        let prepared = if ternary {
            Some(Activations::prepare(kernels, self.pool(), x, cols, precision, means)?)
        } else {
            None
        };
        let tasks = cut(ws, outs, self.pool().parts(work));
        self.pool().run(tasks, |pieces| {
            for mut piece in pieces {
                match (piece.w, &prepared) {
                    (Matrix::Ternary(m), Some(prepared)) => {
                        ternary_piece(kernels, m, prepared, precision, &mut piece);
                    }
                    // Ternary weights always come with prepared activations.
                    (Matrix::Ternary(_), None) => {}
                    (Matrix::Int8(m), _) => int8_piece(kernels, m, x, &mut piece),
                    (Matrix::Dense(m), _) => dense_piece(kernels, m, x, &mut piece),
                }
            }
        });
        Ok(())
    }

    /// Row lookup: `out[i] = table[ids[i]]` as f32, `out` is `ids.len() x cols`.
    ///
    /// # Errors
    ///
    /// [`CpuError::IdOutOfRange`], or [`CpuError::Length`] for a wrong output; nothing has been written then.
    pub fn embed(&self, table: &Matrix, ids: &[u32], out: &mut [f32]) -> Result<()> {
        let (rows, cols) = (table.rows(), table.cols());
        let overflow = CpuError::Shape { what: "output of embed", rows: ids.len(), cols };
        check_len("output of embed", ids.len().checked_mul(cols).ok_or(overflow)?, out.len())?;
        if let Some((position, &id)) = ids.iter().enumerate().find(|&(_, &id)| id as usize >= rows) {
            return Err(CpuError::IdOutOfRange { position, id, rows });
        }
        with_kernels!(self.isa(), kernels => {
            for (&id, out) in ids.iter().zip(out.chunks_exact_mut(cols)) {
                table.dequantize_row(kernels, id as usize, out);
            }
        });
        Ok(())
    }
}

/// Some tiles of one matrix, and their outputs: for each token the rows of those tiles.
struct Piece<'a> {
    w: &'a Matrix,
    tiles: Range<usize>,
    out: Vec<&'a mut [f32]>,
}

/// Cuts the tiles of all matrices, in order, into contiguous shares of about the same number of bytes.
fn cut<'a>(ws: &[&'a Matrix], outs: &'a mut [&mut [f32]], parts: usize) -> Vec<Vec<Piece<'a>>> {
    let per_tile = |w: &Matrix| w.bytes() / w.tiles();
    let total: usize = ws.iter().map(|w| per_tile(w) * w.tiles()).sum();
    let mut tasks: Vec<Vec<Piece<'a>>> = (0..parts).map(|_| Vec::new()).collect();
    let (mut part, mut done) = (0, 0);
    for (&w, out) in ws.iter().zip(outs) {
        let mut rest: Vec<&mut [f32]> = out.chunks_exact_mut(w.rows()).collect();
        let mut tile = 0;
        while tile < w.tiles() {
            let bytes = per_tile(w).max(1);
            // In u128: the product of two sizes may not fit a usize.
            let goal = (total as u128 * (part as u128 + 1) / parts as u128) as usize;
            let left = w.tiles() - tile;
            let take = if part + 1 == parts { left } else { (goal.saturating_sub(done) + bytes / 2) / bytes };
            let take = take.min(left);
            if take == 0 {
                part += 1;
                continue;
            }
            let rows = (take * TILE).min(w.rows() - tile * TILE);
            let out = rest.iter_mut().map(|rest| rest.split_off_mut(..rows).unwrap_or_default()).collect();
            tasks[part].push(Piece { w, tiles: tile..tile + take, out });
            tile += take;
            done += take * bytes;
        }
    }
    tasks.retain(|pieces| !pieces.is_empty());
    tasks
}

/// Calls `f` with runs of tiles that stay in the cache, and within each with the tokens in groups.
fn for_runs(tiles: Range<usize>, tile_bytes: usize, mut f: impl FnMut(Range<usize>)) {
    let step = (RESIDENT_BYTES / tile_bytes.max(1)).max(1);
    for start in tiles.clone().step_by(step) {
        f(start..(start + step).min(tiles.end));
    }
}

/// What a thread needs beside its piece.
struct Scratch {
    /// Scales or means of a tile, one for each group.
    groups: Vec<[f32; TILE]>,
    /// Scales of a tile, one for each unit.
    units: Vec<[f32; TILE]>,
    /// Sums of the activations, `[token][group]`; empty without means.
    sums: Vec<f64>,
}

fn ternary_piece<K: Kernels>(
    kernels: K,
    m: &TernaryMatrix,
    x: &Activations,
    precision: ActivationPrecision,
    piece: &mut Piece<'_>,
) {
    let tokens = piece.out.len();
    let unit = match (m.group(), precision) {
        (Some(weights), ActivationPrecision::Int8PerGroup(x)) => {
            Some(if x.get() < weights.get() { x } else { weights })
        }
        (Some(size), _) | (None, ActivationPrecision::Int8PerGroup(size)) => Some(size),
        (None, _) => None,
    };
    let units = unit.map_or(0, |unit| m.blocks() * BLOCK / unit.get());
    let groups = m.groups();
    let mut scratch =
        Scratch { groups: vec![[0.0; TILE]; groups], units: vec![[0.0; TILE]; units], sums: Vec::new() };
    if m.has_means() {
        scratch.sums = vec![0.0; tokens * groups];
        for (token, sums) in scratch.sums.chunks_exact_mut(groups).enumerate() {
            x.group_sums(token, m.group().map_or(m.cols(), GroupSize::get), sums);
        }
    }
    let first_row = piece.tiles.start * TILE;
    for_runs(piece.tiles.clone(), m.blocks() * m.depth() * TILE * 64, |tiles| {
        let mut token = 0;
        while token < tokens {
            let together = if tokens - token >= TOKENS { TOKENS } else { 1 };
            for tile in tiles.clone() {
                let row = tile * TILE - first_row;
                let rows = TILE.min(m.rows() - tile * TILE);
                let mut write = |t: usize, values: &[f32; TILE]| {
                    piece.out[token + t][row..row + rows].copy_from_slice(&values[..rows]);
                };
                if together == TOKENS {
                    let values = ternary_tile::<K, TOKENS>(kernels, m, x, unit, tile, token, &mut scratch);
                    values.iter().enumerate().for_each(|(t, values)| write(t, values));
                } else {
                    write(0, &ternary_tile::<K, 1>(kernels, m, x, unit, tile, token, &mut scratch)[0]);
                }
            }
            token += together;
        }
    });
}

/// Four rows times `T` tokens: all planes, means and factors.
fn ternary_tile<K: Kernels, const T: usize>(
    kernels: K,
    m: &TernaryMatrix,
    x: &Activations,
    unit: Option<GroupSize>,
    tile: usize,
    token: usize,
    scratch: &mut Scratch,
) -> [[f32; TILE]; T] {
    let mut values = [[0.0; TILE]; T];
    let tokens = x.tokens::<T>(token);
    let groups = m.groups();
    for plane in 0..m.depth() {
        let lines = m.tile(tile, plane);
        let part = match unit {
            None => {
                m.scales(kernels, tile, plane, &mut scratch.groups);
                let dots = match tokens {
                    Tokens::Floats(x) => kernels.ternary_rows_f32(lines, x),
                    Tokens::Bytes { tokens, .. } => {
                        kernels.ternary_rows_i8(lines, tokens).map(|d| d.map(|d| d as f32))
                    }
                };
                dots.map(|dots| std::array::from_fn(|r| scratch.groups[0][r] * dots[r]))
            }
            Some(unit) => {
                if m.group() == Some(unit) {
                    // Units past the last group stay zero.
                    m.scales(kernels, tile, plane, &mut scratch.units[..groups]);
                } else {
                    m.scales(kernels, tile, plane, &mut scratch.groups);
                    spread(m, unit, &scratch.groups, &mut scratch.units);
                }
                match unit {
                    GroupSize::G32 => ternary_units::<K, T, 32>(kernels, lines, &scratch.units, tokens),
                    GroupSize::G64 => ternary_units::<K, T, 64>(kernels, lines, &scratch.units, tokens),
                    GroupSize::G128 => ternary_units::<K, T, 128>(kernels, lines, &scratch.units, tokens),
                    GroupSize::G256 => ternary_units::<K, T, 256>(kernels, lines, &scratch.units, tokens),
                }
            }
        };
        for (values, part) in values.as_flattened_mut().iter_mut().zip(part.as_flattened()) {
            *values += part;
        }
    }
    if m.means(kernels, tile, &mut scratch.groups) {
        for (t, values) in values.iter_mut().enumerate() {
            let mut add = [0f64; TILE];
            for (means, sum) in scratch.groups.iter().zip(&scratch.sums[(token + t) * groups..]) {
                for (add, mean) in add.iter_mut().zip(means) {
                    *add += f64::from(*mean) * sum;
                }
            }
            for (value, add) in values.iter_mut().zip(add) {
                *value += add as f32;
            }
        }
    }
    for (t, values) in values.iter_mut().enumerate() {
        let factor = x.factor(token + t);
        for value in values {
            *value *= factor;
        }
    }
    values
}

/// Writes the scale of every unit: that of the group it lies in, zero past the last column.
fn spread(m: &TernaryMatrix, unit: GroupSize, groups: &[[f32; TILE]], units: &mut [[f32; TILE]]) {
    let per_group = m.group().map_or(units.len(), |group| group.get() / unit.get());
    for (units, group) in
        units.chunks_mut(per_group).zip(groups.iter().chain(std::iter::repeat(&[0.0; TILE])))
    {
        units.fill(*group);
    }
}

fn ternary_units<K: Kernels, const T: usize, const UNIT: usize>(
    kernels: K,
    lines: &[CodeLine],
    scales: &[[f32; TILE]],
    tokens: Tokens<'_, T>,
) -> [[f32; TILE]; T] {
    match tokens {
        Tokens::Floats(x) => kernels.ternary_units_f32::<T, UNIT>(lines, scales, x),
        Tokens::Bytes { tokens, grouped: true } => {
            kernels.ternary_units_i8::<T, UNIT, true>(lines, scales, tokens)
        }
        Tokens::Bytes { tokens, grouped: false } => {
            kernels.ternary_units_i8::<T, UNIT, false>(lines, scales, tokens)
        }
    }
}

fn int8_piece<K: Kernels>(kernels: K, m: &Int8Matrix, x: &[f32], piece: &mut Piece<'_>) {
    let first_row = piece.tiles.start * TILE;
    for_runs(piece.tiles.clone(), TILE * m.cols(), |tiles| {
        let rows = tiles.start * TILE..(tiles.end * TILE).min(m.rows());
        for (outs, x) in piece.out.chunks_mut(TOKENS).zip(x.chunks(TOKENS * m.cols())) {
            for row in rows.clone() {
                let (codes, scales) = m.row(row);
                if let Some(x) = tokens_of(x, m.cols()) {
                    let values: [f32; TOKENS] = kernels.int8(codes, scales, m.group(), x);
                    outs.iter_mut().zip(values).for_each(|(out, value)| out[row - first_row] = value);
                } else {
                    for (out, x) in outs.iter_mut().zip(x.chunks(m.cols())) {
                        out[row - first_row] = kernels.int8(codes, scales, m.group(), [x])[0];
                    }
                }
            }
        }
    });
}

fn dense_piece<K: Kernels>(kernels: K, m: &DenseMatrix, x: &[f32], piece: &mut Piece<'_>) {
    match m.data() {
        DenseData::F32(w) => dense_rows(kernels, w, m, x, piece),
        DenseData::F16(w) => dense_rows(kernels, w, m, x, piece),
        DenseData::Bf16(w) => dense_rows(kernels, w, m, x, piece),
    }
}

fn dense_rows<K: Kernels, E: Element>(
    kernels: K,
    w: &[E],
    m: &DenseMatrix,
    x: &[f32],
    piece: &mut Piece<'_>,
) {
    let (k, first_row) = (m.cols(), piece.tiles.start * TILE);
    for_runs(piece.tiles.clone(), TILE * k * size_of::<E>(), |tiles| {
        let rows = tiles.start * TILE..(tiles.end * TILE).min(m.rows());
        let w = &w[rows.start * k..rows.end * k];
        let here = rows.start - first_row..rows.end - first_row;
        for (outs, x) in piece.out.chunks_mut(TOKENS).zip(x.chunks(TOKENS * k)) {
            let Some(xs) = tokens_of::<TOKENS>(x, k) else {
                for (out, x) in outs.iter_mut().zip(x.chunks(k)) {
                    kernels.dense_rows(w, x, &mut out[here.clone()]);
                }
                continue;
            };
            let tiled = here.len() / TILE * TILE;
            for (tile, w) in w.chunks_exact(TILE * k).enumerate() {
                let w = [&w[..k], &w[k..2 * k], &w[2 * k..3 * k], &w[3 * k..]];
                let values: [[f32; TILE]; TOKENS] = kernels.dense(w, xs);
                for (out, values) in outs.iter_mut().zip(values) {
                    out[here.start + tile * TILE..][..TILE].copy_from_slice(&values);
                }
            }
            for (out, x) in outs.iter_mut().zip(xs) {
                kernels.dense_rows(&w[tiled * k..], x, &mut out[here.start + tiled..here.end]);
            }
        }
    });
}

/// `T` tokens of `k` activations, or `None` when there are fewer.
fn tokens_of<const T: usize>(x: &[f32], k: usize) -> Option<[&[f32]; T]> {
    (x.len() == T * k).then(|| std::array::from_fn(|t| &x[t * k..(t + 1) * k]))
}
