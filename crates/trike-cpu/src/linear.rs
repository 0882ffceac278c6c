//! `y = x W^T`: choice of kernels, and distribution over threads.

use trike_trit::Hadamard;

use trike_core::{ActivationPrecision, LinearProblem};

use crate::activations::{Activations, Wanted};
use crate::dense_pieces::dense_piece;
use crate::error::{CpuError, check_len, check_rows};
use crate::int8::{Pairs, int8_piece};
use crate::matrix::Matrix;
use crate::piece::Piece;
use crate::ternary::ternary_piece;
use trike_core::Layout;
use trike_core::Spread;
use trike_host::Cpu;

/// [`CpuOps::linear`](crate::CpuOps::linear).
pub(crate) fn linear(
    cpu: &Cpu,
    x: &[f32],
    w: &Matrix,
    precision: ActivationPrecision,
    out: &mut [f32],
) -> Result<(), CpuError> {
    linear_many(cpu, x, &[w], precision, &mut [out])
}

/// [`CpuOps::linear_many`](crate::CpuOps::linear_many).
pub(crate) fn linear_many(
    cpu: &Cpu,
    x: &[f32],
    ws: &[&Matrix],
    precision: ActivationPrecision,
    outs: &mut [&mut [f32]],
) -> Result<(), CpuError> {
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
        work = work.saturating_add(weight_of(&w.problem(tokens, precision)));
    }
    if tokens == 0 {
        return Ok(());
    }
    let rotation = rotation_of(first);
    let mut spreads = ws.iter().filter_map(|w| spread_of(w));
    let spread = spreads.next();
    if ws.iter().any(|w| rotation_of(w) != rotation) || spreads.any(|other| Some(other) != spread) {
        // Codes are shared only between matrices with the same rotation and padding. Ternary matrices come first, because they may
        // reject `x`.
        for ternary in [true, false] {
            for (&w, out) in ws.iter().zip(outs.iter_mut()) {
                if matches!(w, Matrix::Ternary(_)) == ternary {
                    linear_many(cpu, x, &[w], precision, &mut [&mut **out])?;
                }
            }
        }
        return Ok(());
    }
    let padded = ws.iter().filter_map(|w| match w {
        Matrix::Ternary(m) => Some(m.shape().padded_cols()),
        Matrix::Int8(_) | Matrix::Dense(_) => None,
    });
    let isa = cpu.isa();
    let prepared = match padded.max() {
        Some(padded) => {
            let sparse = |w: &&Matrix| matches!(w, Matrix::Ternary(m) if m.layout() == Layout::Sparse);
            let fixed = |w: &&Matrix| matches!(w, Matrix::Ternary(m) if m.layout() != Layout::Sparse);
            let wanted = Wanted { panels: ws.iter().any(fixed), interleaved: ws.iter().any(sparse) };
            Activations::prepare(isa, cpu.pool(), x, cols, padded, precision, rotation, wanted)?
        }
        None => Activations::default(),
    };
    let pairs = match spread {
        Some(spread) => Pairs::prepare(isa, cpu.pool(), x, cols, spread, precision),
        None => Pairs::default(),
    };
    let tasks = cut(ws, outs, cpu.pool().parts(work));
    cpu.pool().run(tasks, |pieces| {
        for mut piece in pieces {
            match piece.w {
                Matrix::Ternary(m) => ternary_piece(isa, m, &prepared, precision, &mut piece),
                Matrix::Int8(m) => int8_piece(isa, m, &pairs, &mut piece),
                Matrix::Dense(m) => dense_piece(isa, m, x, &mut piece),
            }
        }
    });
    prepared.recycle();
    Ok(())
}

/// [`CpuOps::embed`](crate::CpuOps::embed).
pub(crate) fn embed(cpu: &Cpu, table: &Matrix, ids: &[u32], out: &mut [f32]) -> Result<(), CpuError> {
    let (rows, cols) = (table.rows(), table.cols());
    let overflow = CpuError::Shape { what: "output of embed", rows: ids.len(), cols };
    check_len("output of embed", ids.len().checked_mul(cols).ok_or(overflow)?, out.len())?;
    if let Some((position, &id)) = ids.iter().enumerate().find(|&(_, &id)| id as usize >= rows) {
        return Err(CpuError::IdOutOfRange { position, id, rows });
    }
    for (&id, out) in ids.iter().zip(out.chunks_exact_mut(cols)) {
        table.dequantize_row(cpu.isa(), id as usize, out);
    }
    Ok(())
}

/// The rotation of the activations of a matrix.
fn rotation_of(w: &Matrix) -> Option<Hadamard> {
    match w {
        Matrix::Ternary(m) => m.rotation(),
        Matrix::Int8(_) | Matrix::Dense(_) => None,
    }
}

/// The padding of the activations of a matrix, if it requires padding.
fn spread_of(w: &Matrix) -> Option<Spread> {
    match w {
        Matrix::Int8(m) => Some(m.spread()),
        Matrix::Ternary(_) | Matrix::Dense(_) => None,
    }
}

/// Cost of a problem in f32 multiply-adds; integer ones are about four times as fast.
fn weight_of(problem: &LinearProblem) -> usize {
    let share = if problem.precision == ActivationPrecision::F32 { 1 } else { 4 };
    usize::try_from(problem.cost().macs / share).unwrap_or(usize::MAX)
}

/// Splits the tiles of all matrices, in order, into contiguous shares of similar cost.
fn cut<'a>(ws: &[&'a Matrix], outs: &'a mut [&mut [f32]], parts: usize) -> Vec<Vec<Piece<'a>>> {
    let total: usize = ws.iter().map(|w| w.cost_before(w.tiles())).sum();
    let mut tasks: Vec<Vec<Piece<'a>>> = (0..parts).map(|_| Vec::new()).collect();
    let (mut part, mut done) = (0, 0);
    for (&w, out) in ws.iter().zip(outs) {
        let mut rest: Vec<&mut [f32]> = out.chunks_exact_mut(w.rows()).collect();
        let mut tile = 0;
        while tile < w.tiles() {
            // In u128: the product of two sizes may not fit a usize.
            let goal = (total as u128 * (part as u128 + 1) / parts as u128) as usize;
            let take =
                if part + 1 == parts { w.tiles() - tile } else { up_to(w, tile, goal.saturating_sub(done)) };
            if take == 0 {
                part += 1;
                continue;
            }
            let rows = (take * w.tile_rows()).min(w.rows() - tile * w.tile_rows());
            let out = rest.iter_mut().map(|rest| rest.split_off_mut(..rows).unwrap_or_default()).collect();
            tasks[part].push(Piece { w, tiles: tile..tile + take, out });
            done += w.cost_before(tile + take) - w.cost_before(tile);
            tile += take;
        }
    }
    tasks.retain(|pieces| !pieces.is_empty());
    tasks
}

/// Number of tiles from `tile` with a total cost of about `goal`; a tile counts if its midpoint is reached.
fn up_to(w: &Matrix, tile: usize, goal: usize) -> usize {
    let (start, left) = (w.cost_before(tile), w.tiles() - tile);
    let (mut low, mut high) = (0, left);
    while low < high {
        let middle = (low + high) / 2;
        let [before, after] = [middle, middle + 1].map(|n| w.cost_before(tile + n) - start);
        if before + (after - before).div_ceil(2) <= goal {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}
