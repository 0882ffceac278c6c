//! A row-compressed plane with edited rows.

use super::rows::{EditedRows, concatenate};
use crate::{
    BLOCK_TRITS, CHUNK_TRITS, Encoding, Trit, TritData, TritError,
    data::{
        compressed::{Encoder, entry_bytes, nonzeros},
        offset, span,
    },
};

/// Columns per segment: an edit moves nonzeros only within one segment, whatever the row length.
const SEGMENT: usize = CHUNK_TRITS;

/// [`TritData::RowCompressed`] whose edited rows store their nonzeros in sorted segments with spare capacity. The row
/// `+ 0 - +` has one segment:
///
/// ```text
/// bits     15 ... 1   0         column within the segment, sign
/// first        0      0         column 0, +
/// second       2      1         column 2, -
/// third        3      0         column 3, +
/// spare capacity                at most 2 * 3 + 8 more elements
/// ```
#[derive(Clone, Debug)]
pub(crate) struct EditedCompressed {
    offsets: Vec<u32>,
    entries: Vec<u8>,
    edited: EditedRows<Row>,
    /// Bytes of `entries` of the whole plane when packed.
    packed_len: usize,
}

impl EditedCompressed {
    pub(super) fn new(offsets: Vec<u32>, entries: Vec<u8>) -> Self {
        let (edited, packed_len) = (EditedRows::none(offsets.len() - 1), entries.len());
        Self { offsets, entries, edited, packed_len }
    }

    pub(super) fn data(&self) -> TritData {
        let rows = self.offsets.len() - 1;
        let mut entries = Vec::with_capacity(self.packed_len);
        let offsets = concatenate(rows, &mut entries, |row, out| match self.edited.get(row) {
            Some(row) => {
                let mut encoder = Encoder::new(out);
                row.nonzeros().for_each(|(col, negative)| encoder.push(col, negative));
            }
            None => out.extend_from_slice(span(&self.offsets, &self.entries, row)),
        });
        TritData::RowCompressed { offsets, entries }
    }

    pub(super) fn bytes(&self) -> usize {
        4 * self.offsets.len() + self.packed_len
    }

    pub(super) fn memory_bytes(&self) -> usize {
        4 * self.offsets.len() + self.entries.len() + self.edited.bytes(Row::memory_bytes)
    }

    pub(super) fn read(&self, row: usize, start: usize, out: &mut [i8]) {
        match self.edited.get(row) {
            Some(row) => row.read(start, out),
            None => crate::data::compressed::read(span(&self.offsets, &self.entries, row), start, out),
        }
    }

    pub(super) fn get(&self, row: usize, col: usize) -> Trit {
        match self.edited.get(row) {
            Some(row) => row.get(col),
            None => crate::data::compressed::get(span(&self.offsets, &self.entries, row), col),
        }
    }

    pub(super) fn set(
        &mut self,
        (row, col): (usize, usize),
        cols: usize,
        new: Trit,
    ) -> Result<(Trit, bool), TritError> {
        let row = self.edited.edit(row, || Row::new(span(&self.offsets, &self.entries, row), cols));
        let found = row.find(col);
        let [before, after] = row.neighbours(col, found);
        let old = match found {
            Ok(at) => trit(row.0[col / SEGMENT][at]),
            Err(_) => Trit::Z,
        };
        // Packed bytes from the previous nonzero to the next one, with and without a nonzero in the column.
        let start = before.map_or(0, |before| before + 1);
        let with = entry_bytes(col - start) + after.map_or(0, |after| entry_bytes(after - col - 1));
        let without = after.map_or(0, |after| entry_bytes(after - start));
        let bytes = |trit| if trit == Trit::Z { without } else { with };
        let packed_len = self.packed_len - bytes(old) + bytes(new);
        offset(Encoding::RowCompressed, packed_len)?;
        self.packed_len = packed_len;
        row.put(col, found, new);
        let block = |at: Option<usize>| at.is_some_and(|at| at / BLOCK_TRITS == col / BLOCK_TRITS);
        Ok((old, new == Trit::Z && !block(before) && !block(after)))
    }
}

/// An edited row: one sorted list of nonzeros per [`SEGMENT`] columns, `column within the segment << 1 | negative`.
#[derive(Clone, Debug)]
struct Row(Box<[Vec<u16>]>);

impl Row {
    fn new(entries: &[u8], cols: usize) -> Self {
        let mut segments = vec![Vec::new(); cols.div_ceil(SEGMENT)];
        let mut counts = vec![0; segments.len()];
        nonzeros(entries).for_each(|(col, _)| counts[col / SEGMENT] += 1);
        segments.iter_mut().zip(counts).for_each(|(segment, count)| segment.reserve_exact(count));
        for (col, trit) in nonzeros(entries) {
            segments[col / SEGMENT].push(element(col, trit < 0));
        }
        Self(segments.into())
    }

    /// The nonzeros in column order, as `(column, is negative)`.
    fn nonzeros(&self) -> impl Iterator<Item = (usize, bool)> + '_ {
        (0..).zip(&self.0).flat_map(|(segment, elements)| {
            elements.iter().map(move |&element| (column(segment, element), element & 1 == 1))
        })
    }

    /// Binary search for a column in its segment: the index of its nonzero, or the insertion index.
    fn find(&self, col: usize) -> Result<usize, usize> {
        let wanted = (col % SEGMENT) as u16;
        self.0[col / SEGMENT].binary_search_by_key(&wanted, |element| element >> 1)
    }

    fn get(&self, col: usize) -> Trit {
        self.find(col).map_or(Trit::Z, |at| trit(self.0[col / SEGMENT][at]))
    }

    fn read(&self, start: usize, out: &mut [i8]) {
        out.fill(0);
        let end = start + out.len();
        for (segment, elements) in (0..).zip(&self.0).take(end.div_ceil(SEGMENT)).skip(start / SEGMENT) {
            let first = elements.partition_point(|&element| column(segment, element) < start);
            for &element in &elements[first..] {
                let col = column(segment, element);
                if col >= end {
                    return;
                }
                out[col - start] = trit(element).value();
            }
        }
    }

    /// The columns of the nearest nonzeros before and after a column, given the result of [`find`](Self::find).
    fn neighbours(&self, col: usize, found: Result<usize, usize>) -> [Option<usize>; 2] {
        let (segment, own) = (col / SEGMENT, &self.0[col / SEGMENT]);
        let (below, above) = match found {
            Ok(at) => (&own[..at], &own[at + 1..]),
            Err(at) => own.split_at(at),
        };
        let last = |(segment, elements): (usize, &[u16])| Some(column(segment, *elements.last()?));
        let first = |(segment, elements): (usize, &[u16])| Some(column(segment, *elements.first()?));
        let others = || self.0.iter().map(Vec::as_slice).enumerate();
        let before = last((segment, below)).or_else(|| others().take(segment).rev().find_map(last));
        let after = first((segment, above)).or_else(|| others().skip(segment + 1).find_map(first));
        [before, after]
    }

    /// Writes a trit at the result of [`find`](Self::find).
    ///
    /// A full segment grows to `1.5 len + 8` elements, and one with a capacity above `3 len + 8` shrinks to that, so that
    /// reallocation is amortized over the edits and capacities do not exceed `3 len + 8`.
    fn put(&mut self, col: usize, found: Result<usize, usize>, trit: Trit) {
        let segment = &mut self.0[col / SEGMENT];
        let room = |len: usize| len + len / 2 + 8;
        match (found, trit) {
            (Ok(at), Trit::Z) => {
                segment.remove(at);
                if segment.capacity() > 3 * segment.len() + 8 {
                    segment.shrink_to(room(segment.len()));
                }
            }
            (Ok(at), _) => segment[at] = element(col, trit == Trit::N),
            (Err(_), Trit::Z) => {}
            (Err(at), _) => {
                if segment.len() == segment.capacity() {
                    segment.reserve_exact(room(segment.len()) - segment.len());
                }
                segment.insert(at, element(col, trit == Trit::N));
            }
        }
    }

    fn memory_bytes(&self) -> usize {
        self.0.iter().map(|segment| size_of::<Vec<u16>>() + 2 * segment.capacity()).sum()
    }
}

fn element(col: usize, negative: bool) -> u16 {
    // A column within a segment has 11 bits.
    ((col % SEGMENT) << 1) as u16 | u16::from(negative)
}

fn column(segment: usize, element: u16) -> usize {
    segment * SEGMENT + usize::from(element >> 1)
}

fn trit(element: u16) -> Trit {
    if element & 1 == 1 { Trit::N } else { Trit::P }
}
