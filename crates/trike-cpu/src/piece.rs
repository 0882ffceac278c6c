//! A share of the work of a linear layer.

use std::ops::Range;

use crate::matrix::Matrix;

/// A range of tiles of one matrix and their outputs: per token, the rows of those tiles.
pub(crate) struct Piece<'a> {
    pub(crate) w: &'a Matrix,
    pub(crate) tiles: Range<usize>,
    pub(crate) out: Vec<&'a mut [f32]>,
}
