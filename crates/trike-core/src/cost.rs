//! Minimum cost of an operation: multiply-adds and bytes moved.

use crate::{ActivationPrecision, Tensor};

/// Work of one call.
///
/// Divided by the measured time and by the peak rate of the machine (from a probe), it gives the utilization.
///
/// ```
/// use trike_core::Cost;
///
/// let both: Cost = [Cost { macs: 2, bytes: 10 }, Cost { macs: 1, bytes: 4 }].into_iter().sum();
/// assert_eq!(both, Cost { macs: 3, bytes: 14 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Multiply-adds; a ternary weight counts as one per plane. In operations without multiply-adds, two arithmetic
    /// operations count as one.
    pub macs: u64,
    /// Compulsory memory traffic in bytes: weights as stored in memory, inputs and outputs, each moved once.
    pub bytes: u64,
}

impl Cost {
    /// The cost of `operations` arithmetic operations that are not multiply-adds: two count as one, rounded up.
    #[must_use]
    pub fn of_operations(operations: u64, bytes: u64) -> Self {
        Self { macs: operations.div_ceil(2), bytes }
    }

    /// Arithmetic operations: a multiply-add counts as two, as in vendors' peak figures.
    pub fn operations(self) -> u64 {
        self.macs.saturating_mul(2)
    }
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

/// One linear layer: activations of `tokens x cols` times weights of `rows x cols`.
///
/// ```
/// use trike_core::{ActivationPrecision, LinearProblem};
///
/// let problem = LinearProblem {
///     tokens: 2, rows: 8, cols: 16, depth: 1, weight_bytes: 512, precision: ActivationPrecision::F32,
/// };
/// let cost = problem.cost();
/// assert_eq!((cost.macs, cost.bytes), (2 * 8 * 16, 512 + 4 * (2 * 16 + 2 * 8)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearProblem {
    /// Rows of the activations.
    pub tokens: usize,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Ternary planes; 1 for other weights.
    pub depth: usize,
    /// Bytes of the resident weights.
    pub weight_bytes: usize,
    /// Activation precision for ternary weights; other weights always compute in f32.
    pub precision: ActivationPrecision,
}

impl LinearProblem {
    /// The problem of multiplying the activations of `tokens` tokens with `w`, resident in its stored encoding.
    #[must_use]
    pub fn of(tokens: usize, w: &Tensor, precision: ActivationPrecision) -> Self {
        let (depth, precision) = match w {
            Tensor::Ternary(t) => (t.depth(), precision),
            Tensor::Int8(_) | Tensor::Dense(_) => (1, ActivationPrecision::F32),
        };
        Self { tokens, rows: w.rows(), cols: w.cols(), depth, weight_bytes: w.bytes(), precision }
    }

    /// Multiply-adds and compulsory bytes; activations and outputs are counted as f32.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_add_without_overflow() {
        let big = Cost { macs: u64::MAX, bytes: 3 };
        assert_eq!(big + Cost { macs: 1, bytes: 4 }, Cost { macs: u64::MAX, bytes: 7 });
        assert_eq!(big.operations(), u64::MAX);
        assert_eq!(Cost::of_operations(5, 1), Cost { macs: 3, bytes: 1 });
    }
}
