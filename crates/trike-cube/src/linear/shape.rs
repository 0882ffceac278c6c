//! Shapes of quantized activations, and the order of their columns in memory.

use trike_core::ActivationPrecision;

use crate::error::{Result, check_range, check_shape};

/// Columns per block: 32 lanes read a block of 16 rows of weights with one vector each.
pub const BLOCK: usize = 128;
/// Columns per segment, the unit of the partial sums.
pub const SEGMENT: usize = 32;
/// Maximum columns of a ternary matrix: integer sums of digits stay below `2^31`.
pub const MAX_COLS: usize = 1 << 17;
/// Entries after a row's segment sums: the sum of the row, and zeros that pad it to a vector.
const EXTRA: usize = 4;

/// Shape of activations: `tokens x cols` in a precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ActivationShape {
    /// Rows.
    pub tokens: usize,
    /// Columns.
    pub cols: usize,
    /// Quantization of the values.
    pub precision: ActivationPrecision,
}

impl ActivationShape {
    /// Code rows: one, two or four per token.
    #[must_use]
    pub fn code_rows(&self) -> usize {
        self.tokens * self.precision.slices()
    }

    /// Blocks of 128 columns per code row, the last one padded with zeros.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK)
    }

    /// Words of the codes: 32 per block.
    #[must_use]
    pub fn code_words(&self) -> usize {
        self.code_rows() * self.blocks() * (BLOCK / 4)
    }

    /// Sums per code row: one per segment of 32 columns, then the sum of the row and three zeros.
    #[must_use]
    pub fn sum_stride(&self) -> usize {
        self.blocks() * (BLOCK / SEGMENT) + EXTRA
    }

    /// Number of factors (activation scales): one per token, or one per segment of each token.
    #[must_use]
    pub fn factors(&self) -> usize {
        match self.precision.group() {
            None => self.tokens,
            Some(_) => self.tokens * self.blocks() * (BLOCK / SEGMENT),
        }
    }

    /// Index of the word of four columns in the codes of a row; `col` is a multiple of 4.
    #[must_use]
    pub fn word_of(col: usize) -> usize {
        let (block, i, h, t) = (col / BLOCK, col % BLOCK / 32, col % 32 / 16, col % 16 / 4);
        block * (BLOCK / 4) + t * 8 + i * 2 + h
    }

    /// Checks that kernels support the shape.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`](crate::CubeError::Range) for zero columns or more than [`MAX_COLS`],
    /// [`CubeError::Shape`](crate::CubeError::Shape) for zero tokens or too many.
    pub fn validate(&self) -> Result<()> {
        check_range("columns of activations", 1, MAX_COLS, self.cols)?;
        let rows = self.tokens.saturating_mul(self.precision.slices());
        check_shape("activations", rows, self.blocks() * BLOCK).map(|_| ())
    }
}
