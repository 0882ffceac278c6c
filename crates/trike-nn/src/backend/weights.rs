//! Resident weights.

use std::ops::Range;

use trike_core::{Layout, RopeSpec, Tensor};
use trike_cpu::{FileRange, Tiles};
use trike_trit::{Edit, TritTensor};

use super::BackendBase;
use crate::NnError;

/// The way in which [`BackendWeights::edit`](crate::BackendWeights::edit) changed a resident matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixEdit {
    /// In its memory: recordings that refer to the matrix read the edited weights.
    InPlace,
    /// The tensor was packed again into new memory.
    Replaced,
}

/// Resident weights of a backend.
pub trait BackendWeights: BackendBase {
    /// Loads some rows of a matrix for products and row lookups, in the layout that the whole matrix would have.
    ///
    /// # Errors
    ///
    /// [`NnError::Tensor`] for no rows or rows past the last, and as [`load_matrix`](Self::load_matrix).
    fn load_part(&self, whole: Tensor, rows: Range<usize>) -> Result<Self::Matrix, NnError> {
        self.load_matrix(whole.select_rows(&rows.collect::<Vec<_>>())?)
    }

    /// Loads a matrix for products.
    ///
    /// # Errors
    ///
    /// When the backend does not support the matrix or has too little memory.
    fn load_matrix(&self, weight: Tensor) -> Result<Self::Matrix, NnError>;

    /// Loads a matrix for row lookups and products: an embedding, which may also be the LM head.
    ///
    /// # Errors
    ///
    /// As [`load_matrix`](Self::load_matrix).
    fn load_table(&self, weight: Tensor) -> Result<Self::Matrix, NnError> {
        self.load_matrix(weight)
    }

    /// Loads matrices that are always multiplied with the same tensor, so that a backend can fuse them into one.
    /// Each is taken from `weights` after the previous one has been loaded, unless the backend needs them together.
    ///
    /// # Errors
    ///
    /// Errors of `weights`, and as [`load_matrix`](Self::load_matrix).
    fn load_matrices(
        &self,
        weights: &mut dyn Iterator<Item = Result<Tensor, NnError>>,
    ) -> Result<Vec<Self::Matrix>, NnError> {
        weights.map(|weight| self.load_matrix(weight?)).collect()
    }

    /// A matrix in a mapped file, used in place; `None` if the backend needs it in its own memory or another layout.
    ///
    /// # Errors
    ///
    /// When its contents are invalid.
    fn load_tiles(&self, tiles: &Tiles<FileRange>) -> Result<Option<Self::Matrix>, NnError> {
        let _ = tiles;
        Ok(None)
    }

    /// Applies `edits` to a resident matrix of [`load_matrix`](Self::load_matrix) or [`load_matrices`](Self::load_matrices).
    /// `edited` is the resulting tensor, which must differ from the loaded one by `edits` only. A backend changes the weights in
    /// place if the layout of the matrix supports it.
    ///
    /// # Errors
    ///
    /// When a position of `edits` is outside the tensor ([`check::edit`](crate::check::edit)); as
    /// [`load_matrix`](Self::load_matrix) when the tensor is packed again.
    fn edit(
        &self,
        matrix: &mut Self::Matrix,
        edits: &[Edit],
        edited: &TritTensor,
    ) -> Result<MatrixEdit, NnError> {
        let _ = edits;
        *matrix = self.load_matrix(Tensor::Ternary(edited.clone()))?;
        Ok(MatrixEdit::Replaced)
    }

    /// Bytes of a resident matrix.
    fn matrix_bytes(&self, matrix: &Self::Matrix) -> usize;

    /// The layout of a resident ternary matrix; `None` for other matrices, and for backends that store floats.
    fn matrix_layout(&self, matrix: &Self::Matrix) -> Option<Layout> {
        let _ = matrix;
        None
    }

    /// Loads a vector.
    ///
    /// # Errors
    ///
    /// When the backend has too little memory.
    fn load_vector(&self, values: Vec<f32>) -> Result<Self::Vector, NnError>;

    /// Prepares a rotary embedding over heads of `head_dim`, usually used for positions below `context`.
    ///
    /// # Errors
    ///
    /// When the backend does not support the spec.
    fn load_rope(&self, spec: &RopeSpec, head_dim: usize, context: usize) -> Result<Self::Rope, NnError>;
}
