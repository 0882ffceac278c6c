//! A borrowed, validated matrix.

use crate::{QuantError, error::check_finite};

/// A row-major `rows x cols` (output x input features) matrix of finite numbers.
///
/// ```
/// use trike_quant::MatrixView;
///
/// let view = MatrixView::new(2, 3, &[0.0; 6])?;
/// assert_eq!((view.rows(), view.cols(), view.row(1)), (2, 3, &[0.0; 3][..]));
/// assert!(MatrixView::new(2, 3, &[0.0; 5]).is_err());
/// assert!(MatrixView::new(1, 1, &[f32::NAN]).is_err());
/// # Ok::<(), trike_quant::QuantError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MatrixView<'a> {
    rows: usize,
    cols: usize,
    values: &'a [f32],
}

impl<'a> MatrixView<'a> {
    /// A view of `values`, after a check of the length and of every number.
    ///
    /// # Errors
    ///
    /// [`QuantError::Shape`] for a side of zero, [`QuantError::Length`], [`QuantError::NonFinite`].
    pub fn new(rows: usize, cols: usize, values: &'a [f32]) -> Result<Self, QuantError> {
        let expected = rows.checked_mul(cols).filter(|&n| n > 0).ok_or(QuantError::Shape {
            what: "matrix",
            rows,
            cols,
        })?;
        crate::error::check_len("weights", expected, values.len())?;
        check_finite("weights", values)?;
        Ok(Self { rows, cols, values })
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All numbers, row-major.
    pub fn values(&self) -> &'a [f32] {
        self.values
    }

    /// One row, of `cols` numbers.
    ///
    /// # Panics
    ///
    /// If `row` is out of range.
    pub fn row(&self, row: usize) -> &'a [f32] {
        &self.values[row * self.cols..(row + 1) * self.cols]
    }
}
