//! Reading and editing single trits in place.

use crate::{Encoding, Trit, TritError, TritTensor, tensor::check_index};

/// One edit for [`TritTensor::edit`]: the trit at `(plane, row, col)` becomes `trit`.
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

    /// The trit at `(plane, row, col)`. Reads a constant number of words or bytes in the planes, 2-bit and base-3 encodings and
    /// in edited bitmap rows, and searches one segment in edited row-compressed rows. In the two compressed encodings, a row
    /// without edits is scanned up to the column.
    ///
    /// # Errors
    ///
    /// [`TritError::OutOfRange`].
    pub fn get(&self, plane: usize, row: usize, col: usize) -> Result<Trit, TritError> {
        self.check_place(plane, row, col)?;
        Ok(self.planes[plane].get(row, self.cols, col))
    }

    /// Replaces the trit at `(plane, row, col)`, updates the sparsity index and returns the old trit.
    ///
    /// An edit writes two words in the planes encoding, one word in 2-bit and one byte in base-3. In the two compressed
    /// encodings, the first edit of a row moves it out of the packed buffers, in time linear in the row length. Later edits
    /// write two words of a bitmap row, or move nonzeros within 2048 columns of a row-compressed row:
    ///
    /// ```text
    /// bitmap          [row 0][row 1][row 2]   row 1, edited: [map, in place] [one sign bit per column]
    /// row-compressed  [row 0][row 1][row 2]   row 1, edited: [nonzeros of 2048 columns][spare] [of the next 2048][spare] ...
    /// ```
    ///
    /// ```
    /// use trike_trit::{Encoding, Scales, Trit, TritTensor};
    ///
    /// let fresh = TritTensor::from_trits(1, 4, &[1, 0, -1, 1], Encoding::RowCompressed, Scales::tensor(0.5))?;
    /// let mut edited = fresh.clone();
    /// edited.set(0, 0, 1, Trit::N)?;
    /// assert_eq!((edited.bytes(), edited.memory_bytes() > edited.bytes()), (fresh.bytes() + 1, true));
    /// edited.set(0, 0, 1, Trit::Z)?;
    /// assert_eq!(edited, fresh);
    /// edited.compact();
    /// assert_eq!(edited.memory_bytes(), fresh.bytes());
    /// # Ok::<(), trike_trit::TritError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TritError::OutOfRange`]; [`TritError::TooLarge`] when a compressed plane exceeds 32-bit row offsets. On
    /// error the trits are unchanged.
    pub fn set(&mut self, plane: usize, row: usize, col: usize, trit: Trit) -> Result<Trit, TritError> {
        self.check_place(plane, row, col)?;
        let (data, sparsity) = (&mut self.planes[plane], &mut self.sparsity[plane]);
        let nonzeros = sparsity.row_nonzeros(row, self.cols);
        let (old, block_is_zero) = data.set((row, col), self.cols, nonzeros, trit)?;
        sparsity.update(row, col, old, trit, block_is_zero);
        Ok(old)
    }

    /// Applies edits in order (for the same trit, the last one wins), all or none.
    ///
    /// # Errors
    ///
    /// See [`set`](Self::set).
    pub fn edit(&mut self, edits: &[Edit]) -> Result<(), TritError> {
        edits.iter().try_for_each(|e| self.check_place(e.plane, e.row, e.col))?;
        let compressed = matches!(self.encoding(), Encoding::Bitmap | Encoding::RowCompressed);
        let mut undo = Vec::new();
        for e in edits {
            match self.set(e.plane, e.row, e.col, e.trit) {
                // Only a compressed encoding can reject an edit whose indices are in range.
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
