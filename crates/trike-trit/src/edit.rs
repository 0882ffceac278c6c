//! Reading and changing single trits in place.

use crate::{
    BLOCK_TRITS, Trit, TritData, TritError, TritTensor,
    tensor::{check_index, index},
};

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

    /// The trit at a place. Touches one word or byte of the planes, 2-bit and base-3 encodings; the two
    /// compressed ones walk the row up to the column.
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
    /// Planes change in two words, 2-bit in one word and base-3 in one byte; the two compressed encodings move
    /// what follows when a zero comes or goes, so many changes of those belong into one [`edit`](Self::edit).
    ///
    /// # Errors
    ///
    /// [`TritError::OutOfRange`]; [`TritError::TooLarge`] when a compressed plane outgrows its row offsets. The
    /// tensor is unchanged then.
    pub fn set(&mut self, plane: usize, row: usize, col: usize, trit: Trit) -> Result<Trit, TritError> {
        self.check_place(plane, row, col)?;
        let (cols, data) = (self.cols, &mut self.planes[plane]);
        let Some((old, block_is_zero)) = data.swap(row, cols, col, trit) else {
            return self.set_compressed(plane, row, col, trit);
        };
        self.sparsity[plane].update(row, col, old, trit, block_is_zero);
        Ok(old)
    }

    fn set_compressed(
        &mut self,
        plane: usize,
        row: usize,
        col: usize,
        trit: Trit,
    ) -> Result<Trit, TritError> {
        let (cols, data) = (self.cols, &mut self.planes[plane]);
        let old = data.get(row, cols, col);
        if old == trit {
            return Ok(old);
        }
        let mut trits = vec![0; cols];
        data.read(row, cols, 0, &mut trits);
        trits[col] = trit.value();
        data.replace_row(row, cols, &trits)?;
        let start = col / BLOCK_TRITS * BLOCK_TRITS;
        let zero = trits[start..(start + BLOCK_TRITS).min(cols)].iter().all(|&t| t == 0);
        self.sparsity[plane].update(row, col, old, trit, zero);
        Ok(old)
    }

    /// Applies many changes in order (a later one to the same place wins), all or none.
    ///
    /// A compressed plane is rewritten once for the whole batch.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set).
    pub fn edit(&mut self, edits: &[Edit]) -> Result<(), TritError> {
        edits.iter().try_for_each(|e| self.check_place(e.plane, e.row, e.col))?;
        if matches!(self.planes[0], TritData::Planes { .. } | TritData::TwoBit(_) | TritData::Base3(_)) {
            return edits.iter().try_for_each(|e| self.set(e.plane, e.row, e.col, e.trit).map(|_| ()));
        }
        let before = (self.planes.clone(), self.sparsity.clone());
        for plane in 0..self.depth() {
            let mut own: Vec<Edit> = edits.iter().filter(|e| e.plane == plane).copied().collect();
            own.sort_by_key(|e| e.row);
            if let Err(error) = self.rewrite(plane, &own) {
                (self.planes, self.sparsity) = before;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Encodes a compressed plane anew with `edits`, which are sorted by row.
    fn rewrite(&mut self, plane: usize, edits: &[Edit]) -> Result<(), TritError> {
        if edits.is_empty() {
            return Ok(());
        }
        let old = &self.planes[plane];
        let mut packed = TritData::empty(old.encoding(), self.rows, self.cols);
        let mut trits = vec![0; self.cols];
        let mut edits = edits.iter().peekable();
        for row in 0..self.rows {
            old.read(row, self.cols, 0, &mut trits);
            while let Some(e) = edits.next_if(|e| e.row == row) {
                trits[e.col] = e.trit.value();
            }
            packed.push_row(&trits)?;
        }
        let sparsity = index(&packed, plane, self.rows, self.cols)?;
        self.planes[plane] = packed;
        self.sparsity[plane] = sparsity;
        Ok(())
    }
}
