//! Shapes of activations, and how columns lie in them.

use trike_core::ActivationPrecision;

use crate::error::{Result, check_range, check_shape};

/// Columns of a block: what 32 lanes read of sixteen rows of weights in one vector each.
pub const BLOCK: usize = 128;
/// Columns that share an entry of the sums.
pub const SEGMENT: usize = 32;
/// Columns of a ternary matrix, at most: integer sums of digits stay below `2^31`.
pub const MAX_COLS: usize = 1 << 17;
/// Entries of the sums of a row after those of its segments: the sum of the row, and zeros up to a vector.
const EXTRA: usize = 4;

/// Shape of some activations: `tokens x cols` in a precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ActivationShape {
    /// Rows.
    pub tokens: usize,
    /// Columns.
    pub cols: usize,
    /// The numbers.
    pub precision: ActivationPrecision,
}

impl ActivationShape {
    /// Rows of codes: one, two or four a token.
    #[must_use]
    pub fn code_rows(&self) -> usize {
        self.tokens * self.precision.slices()
    }

    /// Blocks of 128 columns of a row of codes, the last one padded with zeros.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.cols.div_ceil(BLOCK)
    }

    /// Words of the codes: 32 a block.
    #[must_use]
    pub fn code_words(&self) -> usize {
        self.code_rows() * self.blocks() * (BLOCK / 4)
    }

    /// Sums of a row of codes: one for each segment of 32 columns, then the sum of the row and three zeros.
    #[must_use]
    pub fn sum_stride(&self) -> usize {
        self.blocks() * (BLOCK / SEGMENT) + EXTRA
    }

    /// Factors: one a token, or one for each segment of each token.
    #[must_use]
    pub fn factors(&self) -> usize {
        match self.precision.group() {
            None => self.tokens,
            Some(_) => self.tokens * self.blocks() * (BLOCK / SEGMENT),
        }
    }

    /// Where the word of four columns lies in the codes of a row; `col` is a multiple of 4.
    #[must_use]
    pub fn word_of(col: usize) -> usize {
        let (block, i, h, t) = (col / BLOCK, col % BLOCK / 32, col % 32 / 16, col % 16 / 4);
        block * (BLOCK / 4) + t * 8 + i * 2 + h
    }

    /// Refuses shapes that no kernel takes.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`](crate::CubeError::Range) for no columns or more than [`MAX_COLS`],
    /// [`CubeError::Shape`](crate::CubeError::Shape) for no tokens or too many.
    pub fn validate(&self) -> Result<()> {
        check_range("columns of activations", 1, MAX_COLS, self.cols)?;
        let rows = self.tokens.saturating_mul(self.precision.slices());
        check_shape("activations", rows, self.blocks() * BLOCK).map(|_| ())
    }
}
