//! Columns of nonzeros: listed by sign, and added for 64 tokens at a time.

use crate::activations::{INTERLEAVE, Interleaved};
use crate::line::{CodeLine, ROWS};
use crate::matrix::sparse::{EMPTY, Entry, NEGATIVE, SparseTile};

/// The two loops over columns that AVX-512 accelerates.
pub(crate) trait Columns: Copy {
    /// Lists the columns addressed by the slots of one row; the lists have room for four columns per line plus 16.
    #[inline(always)]
    fn list(
        self,
        lines: &[CodeLine],
        row: usize,
        origins: &[[u32; 4]],
        positive: &mut [u32],
        negative: &mut [u32],
    ) -> (usize, usize) {
        list_slots(lines, row, origins, (positive, negative), (0, 0))
    }

    /// Adds some columns of activations and subtracts others, for 64 interleaved rows.
    #[inline(always)]
    fn add_columns(
        self,
        x: &[[i8; INTERLEAVE]],
        positive: &[u32],
        negative: &[u32],
        sums: &mut Interleaved<i32>,
    ) {
        for &col in positive {
            for (sum, x) in sums.0.iter_mut().zip(&x[col as usize]) {
                *sum += i32::from(*x);
            }
        }
        for &col in negative {
            for (sum, x) in sums.0.iter_mut().zip(&x[col as usize]) {
                *sum -= i32::from(*x);
            }
        }
    }
}

impl Columns for trike_host::isa::Scalar {}
#[cfg(target_arch = "x86_64")]
impl Columns for trike_host::isa::Sse41 {}
#[cfg(target_arch = "x86_64")]
impl Columns for trike_host::isa::Avx2 {}
#[cfg(target_arch = "x86_64")]
impl Columns for trike_host::isa::AvxVnni {}

/// Appends the columns addressed by the slots of one row of some lines to the positive and negative lists, and returns
/// their new lengths.
#[inline(always)]
pub(super) fn list_slots(
    lines: &[CodeLine],
    row: usize,
    origins: &[[u32; 4]],
    (positive, negative): (&mut [u32], &mut [u32]),
    (mut plus, mut minus): (usize, usize),
) -> (usize, usize) {
    let origins = &origins[..lines.len()];
    for i in 0..lines.len() {
        let (bytes, origins) = (lines[i].0.as_chunks::<4>().0[row % ROWS], origins[i]);
        for s in 0..4 {
            let index = bytes[s] & !NEGATIVE;
            let col = origins[s] + u32::from(index);
            let (set, sign) = (usize::from(index != EMPTY), usize::from(bytes[s] >> 7));
            // Written to the ends of both lists, but only one length is incremented: branch-free.
            positive[plus] = col;
            negative[minus] = col;
            minus += set & sign;
            plus += set & (sign ^ 1);
        }
    }
    (plus, minus)
}

/// The columns of the nonzeros of one row of a plane, by sign, sorted if `sorted`; `origins` are
/// [`Sparse::origins`](crate::matrix::sparse::Sparse::origins).
#[inline(always)]
pub(super) fn list_row<'a, C: Columns>(
    columns: C,
    tile: SparseTile<'_>,
    row: usize,
    origins: &[[u32; 4]],
    sorted: bool,
    (positive, negative): (&'a mut Vec<u32>, &'a mut Vec<u32>),
) -> (&'a [u32], &'a [u32]) {
    // The vectors are only buffers: one entry per slot, plus one vector.
    let room = 4 * tile.lines.len() + ROWS;
    for list in [&mut *positive, &mut *negative] {
        if list.len() < room {
            list.resize(room, 0);
        }
    }
    let (mut plus, mut minus) = columns.list(tile.lines, row, origins, positive, negative);
    let slotted = (plus, minus);
    for &word in tile.spills {
        let entry = Entry::spilled(word);
        if entry.row == row {
            let (list, len) =
                if entry.negative { (&mut *negative, &mut minus) } else { (&mut *positive, &mut plus) };
            if *len == list.len() {
                list.push(0);
            }
            list[*len] = entry.col as u32;
            *len += 1;
        }
    }
    // With a single unit the order does not matter.
    if sorted && plus > slotted.0 {
        positive[..plus].sort_unstable();
    }
    if sorted && minus > slotted.1 {
        negative[..minus].sort_unstable();
    }
    (&positive[..plus], &negative[..minus])
}
