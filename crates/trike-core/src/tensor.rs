//! A weight tensor in memory.

use trike_trit::TritTensor;

use crate::{DenseTensor, Int8Tensor, TensorError, dense::check_row};

/// A tensor in memory: dense, int8 or ternary.
///
/// Matrices are `[rows, cols]`, that is, output features x input features.
#[derive(Clone, Debug, PartialEq)]
pub enum Tensor {
    /// f32, f16 or bf16 numbers.
    Dense(DenseTensor),
    /// Int8 codes with one scale per group.
    Int8(Int8Tensor),
    /// Trits with scales.
    Ternary(TritTensor),
}

impl Tensor {
    /// Product of all axes but the last.
    pub fn rows(&self) -> usize {
        match self {
            Self::Dense(t) => t.rows(),
            Self::Int8(t) => t.rows(),
            Self::Ternary(t) => t.rows(),
        }
    }

    /// Length of the last axis.
    pub fn cols(&self) -> usize {
        match self {
            Self::Dense(t) => t.cols(),
            Self::Int8(t) => t.cols(),
            Self::Ternary(t) => t.cols(),
        }
    }

    /// Length of each axis, slowest-varying first.
    pub fn shape(&self) -> Vec<usize> {
        match self {
            Self::Dense(t) => t.shape().to_vec(),
            Self::Int8(_) | Self::Ternary(_) => vec![self.rows(), self.cols()],
        }
    }

    /// Memory size in bytes, including scales.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Dense(t) => t.bytes(),
            Self::Int8(t) => t.bytes(),
            Self::Ternary(t) => t.bytes(),
        }
    }

    /// Every weight as f32 in row-major order: exact for dense tensors, code times scale for the others.
    pub fn to_f32(&self) -> Vec<f32> {
        match self {
            Self::Dense(t) => t.to_f32(),
            Self::Int8(t) => t.dequantize(),
            Self::Ternary(t) => t.dequantize(),
        }
    }

    /// Like [`to_f32`](Self::to_f32), but without a copy if the weights are dense f32.
    pub fn into_f32(self) -> Vec<f32> {
        match self {
            Self::Dense(t) => t.into_f32(),
            other => other.to_f32(),
        }
    }

    /// Writes row `row` to `out` as f32.
    ///
    /// # Errors
    ///
    /// [`TensorError::Row`] for a row out of range, [`TensorError::Length`] unless `out` has
    /// [`cols`](Self::cols) elements.
    pub fn read_row(&self, row: usize, out: &mut [f32]) -> Result<(), TensorError> {
        let rows = self.rows();
        check_row(row, rows, self.cols(), out)?;
        match self {
            Self::Dense(t) => t.read_row(row, out),
            Self::Int8(t) => t.dequantize_row(row, out),
            Self::Ternary(t) => t.dequantize_row(row, out).map_err(|_| TensorError::Row { row, rows }),
        }
    }
}

impl From<DenseTensor> for Tensor {
    fn from(tensor: DenseTensor) -> Self {
        Self::Dense(tensor)
    }
}

impl From<Int8Tensor> for Tensor {
    fn from(tensor: Int8Tensor) -> Self {
        Self::Int8(tensor)
    }
}

impl From<TritTensor> for Tensor {
    fn from(tensor: TritTensor) -> Self {
        Self::Ternary(tensor)
    }
}
