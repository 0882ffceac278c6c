//! What a kernel must do at least: operations and bytes.

use crate::activations::ActivationPrecision;
use crate::matrix::Matrix;

/// Work of one call.
///
/// Divided by a measured time and by what [`probe`](crate::probe) found, it gives the share of the machine that was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Multiply-adds; a ternary weight counts one for each plane.
    pub macs: u64,
    /// Bytes that must pass at least once: weights as they lie in memory, inputs and outputs as f32.
    pub bytes: u64,
}

impl std::ops::Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { macs: self.macs.saturating_add(other.macs), bytes: self.bytes.saturating_add(other.bytes) }
    }
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), std::ops::Add::add)
    }
}

/// One [`CpuOps::linear`](crate::CpuOps::linear): `tokens x cols` times `rows x cols`.
///
/// ```
/// use trike_cpu::{ActivationPrecision, DenseData, DenseMatrix, LinearProblem};
///
/// let w = DenseMatrix::new(8, 16, DenseData::F32(vec![0.0; 128]))?.into();
/// let cost = LinearProblem::new(2, &w, ActivationPrecision::F32).cost();
/// assert_eq!((cost.macs, cost.bytes), (2 * 8 * 16, 4 * (8 * 16 + 2 * 16 + 2 * 8)));
/// # Ok::<(), trike_cpu::CpuError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearProblem {
    /// Rows of the activations.
    pub tokens: usize,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Ternary planes, 1 for other weights.
    pub depth: usize,
    /// Bytes of the resident weights.
    pub weight_bytes: usize,
    /// Numbers in which ternary weights meet the activations; other weights always compute in f32.
    pub precision: ActivationPrecision,
}

impl LinearProblem {
    /// The problem of multiplying `tokens` tokens with a matrix.
    #[must_use]
    pub fn new(tokens: usize, w: &Matrix, precision: ActivationPrecision) -> Self {
        let (depth, precision) = match w {
            Matrix::Ternary(m) => (m.depth(), precision),
            Matrix::Int8(_) | Matrix::Dense(_) => (1, ActivationPrecision::F32),
        };
        Self { tokens, rows: w.rows(), cols: w.cols(), depth, weight_bytes: w.bytes(), precision }
    }

    /// Multiply-adds and compulsory bytes.
    #[must_use]
    pub fn cost(&self) -> Cost {
        let [tokens, rows, cols, depth] = [self.tokens, self.rows, self.cols, self.depth].map(|n| n as u64);
        let weights = rows.saturating_mul(cols);
        let activations = tokens.saturating_mul(rows.saturating_add(cols));
        Cost {
            macs: tokens.saturating_mul(weights).saturating_mul(depth),
            bytes: (self.weight_bytes as u64).saturating_add(activations.saturating_mul(4)),
        }
    }
}
