//! Trits changed in place.

use trike_trit::{Edit, Trit};

use super::blocks::{BLOCK, Blocks, LINE};
use super::layout::{Fixed, Shape};
use super::sparse::{EMPTY, NEGATIVE, Sparse, WINDOW};
use super::ternary::{Store, TernaryMatrix, kept};
use crate::error::{CpuError, check_range};
use crate::line::{CodeLine, ROWS};

/// How [`TernaryMatrix::edit`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum EditOutcome {
    /// The matrix holds the edited weights.
    InPlace,
    /// The layout has no place for an edited weight. The matrix is unchanged; pack the edited tensor to replace it.
    NeedsRepack,
}

/// There is no place for a nonzero, or a nonzero that cannot be taken out of its place.
struct NoPlace;

/// Where a weight is within its plane of its tile.
#[derive(Clone, Copy)]
struct Place {
    /// The plane, counted through all tiles.
    index: usize,
    /// The row of the tile.
    row: usize,
    col: usize,
}

impl TernaryMatrix {
    /// Changes single trits, each named by its plane, row and column in the tensor that was packed; of two edits of one place
    /// the later one counts. All are made or none, and products are afterwards those of the edited tensor packed anew, to the
    /// bit.
    ///
    /// In [`Layout::TwoBit`](crate::Layout::TwoBit) and [`Layout::Base3`](crate::Layout::Base3) every weight of a packed plane
    /// has a place. [`Layout::Sparse`](crate::Layout::Sparse) has places for the nonzeros of a row and some unused ones,
    /// [`Layout::Blocks`](crate::Layout::Blocks) for the weights of blocks that were not zero. In all of them a plane that was
    /// left out cannot get a nonzero, and the last nonzero of a plane stays.
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
    /// [`CpuError::Range`] for a place that does not exist; nothing is changed then.
    pub fn edit(&mut self, edits: &[Edit]) -> Result<EditOutcome, CpuError> {
        for edit in edits {
            check_range("plane of an edit", 0, self.depth() - 1, edit.plane)?;
            check_range("row of an edit", 0, self.rows - 1, edit.row)?;
            check_range("column of an edit", 0, self.cols - 1, edit.col)?;
        }
        let packed = kept(self.coupling, &self.nonzeros);
        let mut undo = Vec::with_capacity(edits.len());
        let made = edits.iter().try_for_each(|edit| {
            let trit = self.put(&packed, edit)?;
            undo.push(Edit { trit, ..*edit });
            Ok::<_, NoPlace>(())
        });
        if made.is_ok() && kept(self.coupling, &self.nonzeros) == packed {
            return Ok(EditOutcome::InPlace);
        }
        for edit in undo.iter().rev() {
            // The place that the edit found is there on the way back.
            let _ = self.put(&packed, edit);
        }
        Ok(EditOutcome::NeedsRepack)
    }

    /// Makes one edit, given the planes that are packed, and returns the old trit.
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
        let count = &mut self.nonzeros[edit.plane];
        *count = *count + u64::from(edit.trit != Trit::Z) - u64::from(old != Trit::Z);
        Ok(old)
    }
}

/// The trit of a code.
fn trit(code: u8) -> Trit {
    match code {
        0 => Trit::N,
        1 => Trit::Z,
        _ => Trit::P,
    }
}

/// Replaces the two bits of a byte from bit `shift`, and returns the trit that they were.
fn swap_two_bits(byte: &mut u8, shift: usize, new: Trit) -> Trit {
    let old = trit(*byte >> shift & 3);
    *byte = *byte & !(3 << shift) | new.code() << shift;
    old
}

/// Changes a weight in the lines of its plane of its tile; [`Shape`] says where it is.
fn swap_fixed(shape: &Shape, lines: &mut [CodeLine], Place { row, col, .. }: Place, new: Trit) -> Trit {
    match shape.layout() {
        Fixed::TwoBit => swap_two_bits(&mut lines[col / 16].0[4 * row + col % 4], 2 * (col % 16 / 4), new),
        Fixed::Base3 => {
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

/// Changes a weight of a block that is there.
fn swap_block(blocks: &mut Blocks, Place { index, row, col }: Place, new: Trit) -> Result<Trit, NoPlace> {
    let range = blocks.start(index)..blocks.ends[index];
    // At most 2^20 columns, `MAX_COLS`, so the number of a block fits.
    match blocks.places[range.clone()].binary_search(&((col / BLOCK) as u16)) {
        Ok(at) => {
            let line = &mut blocks.lines[range.start + at][col % BLOCK / LINE];
            Ok(swap_two_bits(&mut line.0[4 * row + col % 4], 2 * (col % LINE / 4), new))
        }
        Err(_) if new == Trit::Z => Ok(Trit::Z),
        Err(_) => Err(NoPlace),
    }
}

/// Changes a nonzero in its slot or among those that were spilled, empties its slot, or fills one that is empty.
fn swap_sparse(sparse: &mut Sparse, Place { index, row, col }: Place, new: Trit) -> Result<Trit, NoPlace> {
    let sign = |negative: bool| if negative { Trit::N } else { Trit::P };
    let start = if index == 0 { 0 } else { sparse.ends[index - 1] };
    let spills = &mut sparse.spills[start..sparse.ends[index]];
    // The order of spilled nonzeros is that of their columns, then rows, then signs.
    let wanted = (col as u32) << 5 | (row as u32) << 1;
    let at = spills.partition_point(|&word| word < wanted);
    if let Some(word) = spills.get_mut(at).filter(|word| **word & !1 == wanted) {
        let old = sign(*word & 1 == 1);
        return match new {
            // What was spilled behind it would have to move.
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
    // The cells whose windows hold the column; the last windows end with the unit.
    let all = cells.lines_for(len) * cells.per_line();
    let first = (col + 1).saturating_sub(WINDOW).div_ceil(cells.step);
    let end = if col >= len.saturating_sub(WINDOW) { all } else { col / cells.step + 1 };
    let mut empty = None;
    'slots: for cell in first..end {
        let window = cells.window(cell, len);
        for slot in 0..slots {
            let byte = (line + cell / cells.per_line(), 4 * row + cell % cells.per_line() * slots + slot);
            let held = &mut sparse.lines[byte.0].0[byte.1];
            // A window of the cell begins at or before the column and reaches it.
            let pointer = (col - window) as u8;
            match *held & !NEGATIVE {
                EMPTY => empty = empty.or(Some((byte, pointer))),
                // Slots stay in the order of their columns: an empty one before a smaller column is of no use.
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

/// What a slot holds for a trit at a place of its window.
fn slot_of(pointer: u8, trit: Trit) -> u8 {
    match trit {
        Trit::Z => EMPTY,
        Trit::P => pointer,
        Trit::N => pointer | NEGATIVE,
    }
}
