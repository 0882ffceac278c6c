//! Read-only views of one row of one plane.

use crate::{Trit, TritError, plane::Plane};

/// One row of one plane, borrowed from a tensor.
///
/// ```
/// use trike_trit::{Encoding, Scales, Trit, TritTensor};
///
/// let tensor = TritTensor::from_trits(1, 4, &[1, 0, -1, 1], Encoding::Base3, Scales::tensor(0.5))?;
/// let row = tensor.row(0, 0)?;
/// assert_eq!(row.get(2), Some(Trit::N));
/// assert_eq!(row.iter().map(Trit::value).collect::<Vec<_>>(), [1, 0, -1, 1]);
/// # Ok::<(), trike_trit::TritError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TritRow<'a> {
    data: &'a Plane,
    row: usize,
    cols: usize,
}

impl<'a> TritRow<'a> {
    pub(crate) fn new(data: &'a Plane, row: usize, cols: usize) -> Self {
        Self { data, row, cols }
    }

    /// Number of trits, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a row is never empty")]
    pub fn len(&self) -> usize {
        self.cols
    }

    /// The trit of a column; `None` if out of range.
    pub fn get(&self, col: usize) -> Option<Trit> {
        (col < self.cols).then(|| self.data.get(self.row, self.cols, col))
    }

    /// Decodes the columns `start .. start + out.len()` as -1, 0 and 1.
    ///
    /// # Errors
    ///
    /// [`TritError::OutOfRange`] if the range exceeds the row.
    pub fn read(&self, start: usize, out: &mut [i8]) -> Result<(), TritError> {
        match start.checked_add(out.len()) {
            Some(end) if end <= self.cols => {
                self.data.read(self.row, self.cols, start, out);
                Ok(())
            }
            end => Err(TritError::OutOfRange {
                what: "column",
                index: end.unwrap_or(usize::MAX),
                limit: self.cols,
            }),
        }
    }

    /// The trits in column order.
    pub fn iter(&self) -> Trits<'a> {
        Trits { row: *self, next: 0, buffer: [0; 64], filled: 0 }
    }
}

impl<'a> IntoIterator for TritRow<'a> {
    type Item = Trit;
    type IntoIter = Trits<'a>;

    fn into_iter(self) -> Trits<'a> {
        self.iter()
    }
}

/// Iterator over a [`TritRow`]; decodes 64 trits at a time.
#[derive(Clone, Debug)]
pub struct Trits<'a> {
    row: TritRow<'a>,
    next: usize,
    buffer: [i8; 64],
    filled: usize,
}

impl Iterator for Trits<'_> {
    type Item = Trit;

    fn next(&mut self) -> Option<Trit> {
        if self.next == self.row.cols {
            return None;
        }
        if self.next == self.filled {
            let n = (self.row.cols - self.next).min(64);
            self.row.data.read(self.row.row, self.row.cols, self.next, &mut self.buffer[..n]);
            self.filled += n;
        }
        let trit = Trit::from_value(self.buffer[self.next % 64]);
        self.next += 1;
        trit
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.row.cols - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Trits<'_> {}
