//! Work of one thread of [`CpuOps::linear`](crate::CpuOps::linear) for dense weights.

use std::ops::Range;

use crate::kernels::{FloatKernels, with_float_kernels};
use crate::line::TILE;
use crate::matrix::DenseMatrix;
use crate::piece::Piece;
use trike_core::DenseData;
use trike_host::Isa;

pub(crate) fn dense_piece(isa: Isa, m: &DenseMatrix, x: &[f32], piece: &mut Piece<'_>) {
    let rows = rows(piece, m.rows());
    let out = &mut piece.out;
    with_float_kernels!(isa, kernels => match m.data() {
        DenseData::F32(w) => kernels.product(m.slice(w, rows), x, out),
        DenseData::F16(w) => kernels.product(m.slice(w, rows), x, out),
        DenseData::Bf16(w) => kernels.product(m.slice(w, rows), x, out),
    });
}

/// The rows of a piece; the last tile of a matrix may be partial.
fn rows(piece: &Piece<'_>, count: usize) -> Range<usize> {
    piece.tiles.start * TILE..(piece.tiles.end * TILE).min(count)
}
