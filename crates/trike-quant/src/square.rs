//! Square matrices.

use crate::{QuantError, error::check_len};

/// A row-major square matrix, such as the Hessian of a layer's inputs.
///
/// ```
/// use trike_quant::SquareMatrix;
///
/// let matrix = SquareMatrix::new(2, vec![1.0, 2.0, 3.0, 4.0])?;
/// assert_eq!((matrix.side(), matrix.row(1)), (2, &[3.0, 4.0][..]));
/// assert!(SquareMatrix::new(2, vec![1.0; 5]).is_err());
/// # Ok::<(), trike_quant::QuantError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SquareMatrix {
    side: usize,
    values: Vec<f32>,
}

impl SquareMatrix {
    /// A matrix of `side` rows.
    ///
    /// # Errors
    ///
    /// [`QuantError::Shape`] for a side of zero, [`QuantError::Length`] unless there are `side * side` values.
    pub fn new(side: usize, values: Vec<f32>) -> Result<Self, QuantError> {
        let len = side.checked_mul(side).filter(|n| *n > 0).ok_or(QuantError::Shape {
            what: "square matrix",
            rows: side,
            cols: side,
        })?;
        check_len("square matrix", len, values.len())?;
        Ok(Self { side, values })
    }

    /// Number of rows (= number of columns).
    pub fn side(&self) -> usize {
        self.side
    }

    /// All elements, row-major.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// One row, of `side` elements.
    ///
    /// # Panics
    ///
    /// If `row` is out of range.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.side..(row + 1) * self.side]
    }

    /// The diagonal.
    pub fn diagonal(&self) -> impl Iterator<Item = f32> + '_ {
        self.values.iter().step_by(self.side + 1).copied()
    }
}
