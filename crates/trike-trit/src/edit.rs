//! Reading and changing single trits in place.

use crate::{Encoding, Trit, TritError, TritTensor, tensor::check_index};

/// One change for [`TritTensor::edit`]: the trit at a place becomes `trit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Plane of the trit.
    pub plane: usize,
    /// Row of the trit.
    pub row: usize,
    /// Column of the trit.
    pub col: usize,
    /// New value.
    pub trit: Trit,
}

impl TritTensor {
    fn check_place(&self, plane: usize, row: usize, col: usize) -> Result<(), TritError> {
        self.check_plane(plane)?;
        self.check_row(row)?;
        check_index("column", col, self.cols)
    }

    /// The trit at a place. Touches one word or byte of the planes, 2-bit and base-3 encodings and of edited rows; rows of the
    /// two compressed encodings that were not edited are walked up to the column.
    ///
    /// # Errors
    ///
    /// [`TritError::OutOfRange`].
    pub fn get(&self, plane: usize, row: usize, col: usize) -> Result<Trit, TritError> {
        self.check_place(plane, row, col)?;
        Ok(self.planes[plane].get(row, self.cols, col))
    }

    /// Changes the trit at a place and returns the old one; the sparsity index stays true.
    ///
    /// Planes change in two words, 2-bit in one word and base-3 in one byte. In the two compressed encodings the first edit of
    /// a row takes it out of the packed buffers, in time that grows with the row. From then on an edit of a bitmap touches
    /// two words, and one of a row-compressed plane moves nonzeros within 2048 columns:
    ///
    /// ```text
    /// bitmap          [row 0][row 1][row 2]   row 1, edited: [map, in place] [a sign bit for each column]
    /// row-compressed  [row 0][row 1][row 2]   row 1, edited: [nonzeros of 2048 columns][spare] [of the next 2048][spare] ...
    /// ```
    ///
    /// ```
    /// use trike_trit::{Encoding, Scales, Trit, TritTensor};
    ///
    /// let fresh = TritTensor::from_trits(1, 4, &[1, 0, -1, 1], Encoding::RowCompressed, Scales::tensor(0.5))?;
    /// let mut edited = fresh.clone();
    /// edited.set(0, 0, 1, Trit::N)?;
    /// assert_eq!((edited.bytes(), edited.held_bytes() > edited.bytes()), (fresh.bytes() + 1, true));
    /// edited.set(0, 0, 1, Trit::Z)?;
    /// assert_eq!(edited, fresh);
    /// edited.compact();
    /// assert_eq!(edited.held_bytes(), fresh.bytes());
    /// # Ok::<(), trike_trit::TritError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TritError::OutOfRange`]; [`TritError::TooLarge`] when a compressed plane outgrows its row offsets. The
    /// trits are unchanged then.
    pub fn set(&mut self, plane: usize, row: usize, col: usize, trit: Trit) -> Result<Trit, TritError> {
        self.check_place(plane, row, col)?;
        let (data, sparsity) = (&mut self.planes[plane], &mut self.sparsity[plane]);
        let nonzeros = sparsity.row_nonzeros(row, self.cols);
        let (old, block_is_zero) = data.set((row, col), self.cols, nonzeros, trit)?;
        sparsity.update(row, col, old, trit, block_is_zero);
        Ok(old)
    }

    /// Applies many changes in order (a later one to the same place wins), all or none.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set).
    pub fn edit(&mut self, edits: &[Edit]) -> Result<(), TritError> {
        edits.iter().try_for_each(|e| self.check_place(e.plane, e.row, e.col))?;
        let compressed = matches!(self.encoding(), Encoding::Bitmap | Encoding::RowCompressed);
        let mut undo = Vec::new();
        for e in edits {
            match self.set(e.plane, e.row, e.col, e.trit) {
                // Only a compressed encoding can refuse an edit of a place that exists.
                Ok(trit) if compressed => undo.push(Edit { trit, ..*e }),
                Ok(_) => {}
                Err(error) => {
                    for e in undo.iter().rev() {
                        self.set(e.plane, e.row, e.col, e.trit)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}
