//! What one thread does for [`Cpu::linear`](crate::Cpu::linear): some tiles of one matrix, all tokens.

use std::ops::Range;

use crate::kernels::{Element, Kernels};
use crate::line::TILE;
use crate::linear::Piece;
use crate::matrix::{DenseData, DenseMatrix, Int8Matrix};

/// Tokens that share one unpacking of the weights.
const TOKENS: usize = 4;
/// Weights that stay in a core's second cache while all tokens pass.
const RESIDENT_BYTES: usize = 256 << 10;

/// Calls `f` with runs of tiles that stay in the cache, and within each with the tokens in groups.
fn for_runs(tiles: Range<usize>, tile_bytes: usize, mut f: impl FnMut(Range<usize>)) {
    let step = (RESIDENT_BYTES / tile_bytes.max(1)).max(1);
    for start in tiles.clone().step_by(step) {
        f(start..(start + step).min(tiles.end));
    }
}

pub(crate) fn int8_piece<K: Kernels>(kernels: K, m: &Int8Matrix, x: &[f32], piece: &mut Piece<'_>) {
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

pub(crate) fn dense_piece<K: Kernels>(kernels: K, m: &DenseMatrix, x: &[f32], piece: &mut Piece<'_>) {
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
