//! The least that an operation must do: multiply-adds and bytes.

use crate::{ActivationPrecision, Tensor};

/// Work of one call.
///
/// Divided by a measured time and by what a probe found, it gives the share of the machine that was used.
///
/// ```
/// use trike_core::Cost;
///
/// let both: Cost = [Cost { macs: 2, bytes: 10 }, Cost { macs: 1, bytes: 4 }].into_iter().sum();
/// assert_eq!(both, Cost { macs: 3, bytes: 14 });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Multiply-adds; a ternary weight counts one for each plane. Where an operation is not made of multiply-adds, two
    /// arithmetic operations count as one.
    pub macs: u64,
    /// Bytes that must pass at least once: weights as they lie in memory, inputs and outputs.
    pub bytes: u64,
}

impl Cost {
    /// The cost of `operations` arithmetic operations that are no multiply-adds: two count as one, rounded up.
    #[must_use]
    pub fn of_operations(operations: u64, bytes: u64) -> Self {
        Self { macs: operations.div_ceil(2), bytes }
    }

    /// Arithmetic operations: a multiply-add is two, as in the figures of vendors.
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
    /// Numbers in which ternary weights meet the activations; other weights always compute in f32.
    pub precision: ActivationPrecision,
}

impl LinearProblem {
    /// The problem of multiplying `tokens` tokens with a tensor that stays resident as it is stored.
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
