//! Rows that were taken out of their plane's buffers.

/// The edited rows of a plane, each in a form `R` of its own.
#[derive(Clone, Debug)]
pub(super) struct EditedRows<R> {
    /// For each row of the plane 0, or one more than its index in `rows`.
    slots: Vec<u32>,
    /// In the order of their first edits.
    rows: Vec<R>,
}

impl<R> EditedRows<R> {
    /// None of `rows` rows.
    pub(super) fn none(rows: usize) -> Self {
        Self { slots: vec![0; rows], rows: Vec::new() }
    }

    pub(super) fn get(&self, row: usize) -> Option<&R> {
        self.rows.get((self.slots[row] as usize).checked_sub(1)?)
    }

    /// The row, taken out of the buffers by `take` if this is its first edit.
    #[inline]
    pub(super) fn edit(&mut self, row: usize, take: impl FnOnce() -> R) -> &mut R {
        let slot = &mut self.slots[row];
        if *slot == 0 {
            self.rows.push(take());
            // A tensor has at most 2^32 - 1 rows.
            *slot = self.rows.len() as u32;
        }
        &mut self.rows[*slot as usize - 1]
    }

    /// Bytes held, `held` being those that a row keeps elsewhere.
    pub(super) fn bytes(&self, held: impl Fn(&R) -> usize) -> usize {
        let apart: usize = self.rows.iter().map(held).sum();
        4 * self.slots.capacity() + size_of::<R>() * self.rows.capacity() + apart
    }
}

/// Appends every row to `buffer` by `push` and returns where each starts. The caller knows that offsets of 32 bits reach.
pub(super) fn concatenate<T>(
    rows: usize,
    buffer: &mut Vec<T>,
    mut push: impl FnMut(usize, &mut Vec<T>),
) -> Vec<u32> {
    let mut offsets = Vec::with_capacity(rows + 1);
    offsets.push(0);
    for row in 0..rows {
        push(row, buffer);
        offsets.push(buffer.len() as u32);
    }
    offsets
}
