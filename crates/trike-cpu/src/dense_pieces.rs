//! What one thread does for [`CpuOps::linear`](crate::CpuOps::linear) when the weights are not ternary.

use std::ops::Range;

use crate::kernels::Kernels;
use crate::line::TILE;
use crate::linear::Piece;
use crate::matrix::{DenseMatrix, Int8Matrix};
use trike_core::DenseData;

pub(crate) fn int8_piece<K: Kernels>(kernels: K, m: &Int8Matrix, x: &[f32], piece: &mut Piece<'_>) {
    kernels.product(m.slice(rows(piece, m.rows())), x, &mut piece.out);
}

pub(crate) fn dense_piece<K: Kernels>(kernels: K, m: &DenseMatrix, x: &[f32], piece: &mut Piece<'_>) {
    let rows = rows(piece, m.rows());
    match m.data() {
        DenseData::F32(w) => kernels.product(m.slice(w, rows), x, &mut piece.out),
        DenseData::F16(w) => kernels.product(m.slice(w, rows), x, &mut piece.out),
        DenseData::Bf16(w) => kernels.product(m.slice(w, rows), x, &mut piece.out),
    }
}

/// The rows of a piece; the last tile of a matrix may be broken.
fn rows(piece: &Piece<'_>, count: usize) -> Range<usize> {
    piece.tiles.start * TILE..(piece.tiles.end * TILE).min(count)
}
