//! The linear problem of a resident matrix.

use trike_core::{ActivationPrecision, LinearProblem};

use crate::matrix::Matrix;

impl Matrix {
    /// The problem of multiplying `tokens` tokens by this matrix: shape, resident bytes and cost.
    ///
    /// ```
    /// use trike_cpu::{ActivationPrecision, DenseData, DenseMatrix, Matrix};
    ///
    /// let w = Matrix::from(DenseMatrix::new(8, 16, DenseData::F32(vec![0.0; 128]))?);
    /// let cost = w.problem(2, ActivationPrecision::F32).cost();
    /// assert_eq!((cost.macs, cost.bytes), (2 * 8 * 16, 4 * (8 * 16 + 2 * 16 + 2 * 8)));
    /// # Ok::<(), trike_cpu::CpuError>(())
    /// ```
    pub fn problem(&self, tokens: usize, precision: ActivationPrecision) -> LinearProblem {
        let (depth, precision) = match self {
            Self::Ternary(m) => (m.depth(), precision),
            // One row of 16-bit activations costs as much as two of int8.
            Self::Int8(_) if precision != ActivationPrecision::F32 => (1, ActivationPrecision::Int16),
            Self::Int8(_) | Self::Dense(_) => (1, ActivationPrecision::F32),
        };
        LinearProblem {
            tokens,
            rows: self.rows(),
            cols: self.cols(),
            depth,
            weight_bytes: self.bytes(),
            precision,
        }
    }
}
