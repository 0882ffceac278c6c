//! In-place edits of trits.

use trike_core::{TileLayout, TritShape};
use trike_trit::{Edit, Trit};

use super::blocks::{BLOCK, Blocks, LINE};
use super::sparse::{EMPTY, NEGATIVE, Sparse, WINDOW};
use super::ternary::{Store, TernaryMatrix, kept};
use crate::error::{CpuError, check_range};
use crate::line::{CodeLine, ROWS};

/// Outcome of [`TernaryMatrix::edit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum EditOutcome {
    /// The matrix holds the edited weights.
    InPlace,
    /// The layout cannot store an edited weight. The matrix is unchanged; repack the edited tensor to replace it.
    NeedsRepack,
}

/// No free slot for a nonzero, or a nonzero that cannot be removed from its slot.
struct NoPlace;

/// Position of a weight within a plane of a tile.
#[derive(Clone, Copy)]
struct Place {
    /// The plane index over all tiles.
    index: usize,
    /// The row within the tile.
    row: usize,
    col: usize,
}

impl TernaryMatrix {
    /// Changes single trits, each identified by its plane, row and column in the packed tensor; of two edits of the same trit, the
    /// later one wins. Either all edits are applied or none. Products are then bit-identical to those of the repacked tensor.
    ///
    /// [`Layout::TwoBit`](crate::Layout::TwoBit) and [`Layout::Base3`](crate::Layout::Base3) store every weight of a packed plane.
    /// [`Layout::Sparse`](crate::Layout::Sparse) has slots for the nonzeros of a row and some free ones,
    /// [`Layout::Blocks`](crate::Layout::Blocks) stores the weights of nonzero blocks. In all layouts a plane that is not packed
    /// cannot get a nonzero, and the last nonzero of a plane cannot be removed. A matrix in a mapped file is not edited in place.
    ///
    /// ```
    /// use trike_cpu::{EditOutcome, Layout, TernaryMatrix};
    /// use trike_trit::{Edit, Encoding, Scales, Trit, TritTensor};
    ///
    /// let trits: Vec<i8> = (0..16 * 640).map(|i| i8::from(i % 64 == 0)).collect();
    /// let tensor = TritTensor::from_trits(16, 640, &trits, Encoding::TwoBit, Scales::tensor(0.5))?;
    /// let edit = |col, trit| [Edit { plane: 0, row: 3, col, trit }];
    ///
    /// let mut matrix = TernaryMatrix::pack(&tensor)?;
    /// assert_eq!(matrix.edit(&edit(5, Trit::N))?, EditOutcome::InPlace);
    /// let mut blocks = TernaryMatrix::pack_as(&tensor, Layout::Blocks)?;
    /// assert_eq!(blocks.edit(&edit(5, Trit::N))?, EditOutcome::InPlace);
    /// assert_eq!(blocks.edit(&edit(40, Trit::N))?, EditOutcome::NeedsRepack);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CpuError::Range`] for an index out of range; nothing is changed then.
    pub fn edit(&mut self, edits: &[Edit]) -> Result<EditOutcome, CpuError> {
        for edit in edits {
            check_range("plane of an edit", 0, self.depth() - 1, edit.plane)?;
            check_range("row of an edit", 0, self.rows - 1, edit.row)?;
            check_range("column of an edit", 0, self.cols - 1, edit.col)?;
        }
        let Some(counts) = &self.nonzeros else { return Ok(EditOutcome::NeedsRepack) };
        let packed = kept(self.coupling, counts);
        let mut undo = Vec::with_capacity(edits.len());
        let made = edits.iter().try_for_each(|edit| {
            let trit = self.put(&packed, edit)?;
            undo.push(Edit { trit, ..*edit });
            Ok::<_, NoPlace>(())
        });
        if made.is_ok() && self.nonzeros.as_ref().is_some_and(|counts| kept(self.coupling, counts) == packed)
        {
            return Ok(EditOutcome::InPlace);
        }
        for edit in undo.iter().rev() {
            // Undoing cannot fail: the slot that the edit used exists.
            let _ = self.put(&packed, edit);
        }
        Ok(EditOutcome::NeedsRepack)
    }

    /// Applies one edit, given the packed planes, and returns the old trit.
    fn put(&mut self, packed: &[usize], edit: &Edit) -> Result<Trit, NoPlace> {
        let Some(number) = packed.iter().position(|&plane| plane == edit.plane) else {
            return if edit.trit == Trit::Z { Ok(Trit::Z) } else { Err(NoPlace) };
        };
        let index = edit.row / ROWS * self.sets * self.planes + number;
        let place = Place { index, row: edit.row % ROWS, col: edit.col };
        let old = match &mut self.store {
            Store::Fixed(lines) => {
                let len = self.shape.lines();
                swap_fixed(&self.shape, &mut lines[index * len..][..len], place, edit.trit)
            }
            Store::Sparse(sparse) => swap_sparse(sparse, place, edit.trit)?,
            Store::Blocks(blocks) => swap_block(blocks, place, edit.trit)?,
        };
        if let Some(counts) = &mut self.nonzeros {
            let count = &mut counts[edit.plane];
            *count = *count + u64::from(edit.trit != Trit::Z) - u64::from(old != Trit::Z);
        }
        Ok(old)
    }
}

/// Decodes a trit.
fn trit(code: u8) -> Trit {
    match code {
        0 => Trit::N,
        1 => Trit::Z,
        _ => Trit::P,
    }
}

/// Replaces the two bits at `shift` and returns the old trit.
fn swap_two_bits(byte: &mut u8, shift: usize, new: Trit) -> Trit {
    let old = trit(*byte >> shift & 3);
    *byte = *byte & !(3 << shift) | new.code() << shift;
    old
}

/// Changes a weight in the lines of one plane of one tile; see [`TritShape`] for the layout.
fn swap_fixed(shape: &TritShape, lines: &mut [CodeLine], Place { row, col, .. }: Place, new: Trit) -> Trit {
    match shape.layout() {
        TileLayout::TwoBit => {
            swap_two_bits(&mut lines[col / 16].0[4 * row + col % 4], 2 * (col % 16 / 4), new)
        }
        TileLayout::Base3 => {
            let span = shape.span();
            let (period, rest) = (col / (5 * span), col % (5 * span));
            let (field, inner) = (rest / span, rest % span);
            let byte = &mut lines[period * span / 4 + inner / 4].0[4 * row + inner % 4];
            let weight = [1, 3, 9, 27, 81][field];
            let old = *byte / weight % 3;
            *byte = *byte - old * weight + new.code() * weight;
            trit(old)
        }
    }
}

/// Changes a weight of a stored block.
fn swap_block(blocks: &mut Blocks, Place { index, row, col }: Place, new: Trit) -> Result<Trit, NoPlace> {
    let range = blocks.start(index)..blocks.ends[index];
    // At most 2^20 columns (`MAX_COLS`), so a block number fits.
    match blocks.places[range.clone()].binary_search(&((col / BLOCK) as u16)) {
        Ok(at) => {
            let line = &mut blocks.lines[range.start + at][col % BLOCK / LINE];
            Ok(swap_two_bits(&mut line.0[4 * row + col % 4], 2 * (col % LINE / 4), new))
        }
        Err(_) if new == Trit::Z => Ok(Trit::Z),
        Err(_) => Err(NoPlace),
    }
}

/// Changes a nonzero in its slot or in the spill list, frees its slot, or fills a free one.
fn swap_sparse(sparse: &mut Sparse, Place { index, row, col }: Place, new: Trit) -> Result<Trit, NoPlace> {
    let sign = |negative: bool| if negative { Trit::N } else { Trit::P };
    let start = if index == 0 { 0 } else { sparse.ends[index - 1] };
    let spills = &mut sparse.spills[start..sparse.ends[index]];
    // Spilled nonzeros are sorted by column, then row, then sign.
    let wanted = (col as u32) << 5 | (row as u32) << 1;
    let at = spills.partition_point(|&word| word < wanted);
    if let Some(word) = spills.get_mut(at).filter(|word| **word & !1 == wanted) {
        let old = sign(*word & 1 == 1);
        return match new {
            // Removal would require moving all later spills.
            Trit::Z => Err(NoPlace),
            new => {
                *word = wanted | u32::from(new == Trit::N);
                Ok(old)
            }
        };
    }
    let cells = sparse.cells;
    let (unit, slots) = (cells.unit(), cells.slots);
    let (number, col) = (col / unit, col % unit);
    let len = cells.unit_len(number);
    let line = index * cells.lines() + cells.lines_of(number).0;
    // Cells whose windows contain the column; the last windows end with the unit.
    let all = cells.lines_for(len) * cells.per_line();
    let first = (col + 1).saturating_sub(WINDOW).div_ceil(cells.step);
    let end = if col >= len.saturating_sub(WINDOW) { all } else { col / cells.step + 1 };
    let mut empty = None;
    'slots: for cell in first..end {
        let window = cells.window(cell, len);
        for slot in 0..slots {
            let byte = (line + cell / cells.per_line(), 4 * row + cell % cells.per_line() * slots + slot);
            let held = &mut sparse.lines[byte.0].0[byte.1];
            // The window of the cell contains the column.
            let pointer = (col - window) as u8;
            match *held & !NEGATIVE {
                EMPTY => empty = empty.or(Some((byte, pointer))),
                // Slots are sorted by column: a free slot before a smaller column cannot be used.
                other if other < pointer => empty = None,
                other if other > pointer => break 'slots,
                _ => {
                    let old = sign(*held & NEGATIVE != 0);
                    *held = slot_of(pointer, new);
                    return Ok(old);
                }
            }
        }
    }
    match (new, empty) {
        (Trit::Z, _) => Ok(Trit::Z),
        (_, Some(((line, byte), pointer))) => {
            sparse.lines[line].0[byte] = slot_of(pointer, new);
            Ok(Trit::Z)
        }
        (_, None) => Err(NoPlace),
    }
}

/// The slot byte of a trit at an offset in the window.
fn slot_of(pointer: u8, trit: Trit) -> u8 {
    match trit {
        Trit::Z => EMPTY,
        Trit::P => pointer,
        Trit::N => pointer | NEGATIVE,
    }
}
