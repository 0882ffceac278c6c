//! Edited rows, stored outside the packed buffers of their plane.

/// The edited rows of a plane, each in its own representation `R`.
#[derive(Clone, Debug)]
pub(super) struct EditedRows<R> {
    /// Per row of the plane: 0 if not edited, otherwise its index in `rows` plus 1.
    slots: Vec<u32>,
    /// The edited rows, in the order of their first edits.
    rows: Vec<R>,
}

impl<R> EditedRows<R> {
    /// No edits in a plane of `rows` rows.
    pub(super) fn none(rows: usize) -> Self {
        Self { slots: vec![0; rows], rows: Vec::new() }
    }

    pub(super) fn get(&self, row: usize) -> Option<&R> {
        self.rows.get((self.slots[row] as usize).checked_sub(1)?)
    }

    /// The edited row; at its first edit, `take` extracts it from the packed buffers.
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

    /// Memory size in bytes; `held` returns the heap bytes of one row.
    pub(super) fn bytes(&self, held: impl Fn(&R) -> usize) -> usize {
        let apart: usize = self.rows.iter().map(held).sum();
        4 * self.slots.capacity() + size_of::<R>() * self.rows.capacity() + apart
    }
}

/// Appends every row to `buffer` with `push` and returns the row offsets. The caller guarantees that they fit in 32 bits.
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
