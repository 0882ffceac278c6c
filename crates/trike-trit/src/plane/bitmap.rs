//! A bitmap plane with edited rows.

use super::rows::{EditedRows, concatenate};
use crate::{
    Encoding, Trit, TritData, TritError,
    data::{bit_words, offset, planes, span},
};

/// [`TritData::Bitmap`] with `nonzero` always up to date. An edited row has one sign bit per column, so that no bits move when
/// a trit becomes zero or nonzero. The row `+ 0 - +`:
///
/// ```text
/// bit             63 ... 4 3 2 1 0
/// nonzero          0 ... 0 1 1 0 1
/// negative, packed 0 ... 0 0 0 1 0     (bits 0..3 belong to columns 0, 2, 3)
/// negative, edited 0 ... 0 0 1 0 0     (bit j belongs to column j; zero where the trit is zero and in the tail)
/// ```
#[derive(Clone, Debug)]
pub(crate) struct EditedBitmap {
    nonzero: Vec<u64>,
    offsets: Vec<u32>,
    negative: Vec<u64>,
    edited: EditedRows<Box<[u64]>>,
    /// Sign words of the whole plane when packed.
    packed_len: usize,
}

impl EditedBitmap {
    pub(super) fn new(nonzero: Vec<u64>, offsets: Vec<u32>, negative: Vec<u64>) -> Self {
        let (edited, packed_len) = (EditedRows::none(offsets.len() - 1), negative.len());
        Self { nonzero, offsets, negative, edited, packed_len }
    }

    fn map(&self, row: usize, words: usize) -> &[u64] {
        &self.nonzero[row * words..(row + 1) * words]
    }

    pub(super) fn data(&self) -> TritData {
        let rows = self.offsets.len() - 1;
        let mut negative = Vec::with_capacity(self.packed_len);
        let offsets = concatenate(rows, &mut negative, |row, out| match self.edited.get(row) {
            Some(signs) => gather(self.map(row, signs.len()), signs, out),
            None => out.extend_from_slice(span(&self.offsets, &self.negative, row)),
        });
        TritData::Bitmap { nonzero: self.nonzero.clone(), offsets, negative }
    }

    pub(super) fn bytes(&self) -> usize {
        8 * (self.nonzero.len() + self.packed_len) + 4 * self.offsets.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let buffers = 8 * (self.nonzero.len() + self.negative.len()) + 4 * self.offsets.len();
        buffers + self.edited.bytes(|signs| 8 * signs.len())
    }

    pub(super) fn read(&self, row: usize, cols: usize, start: usize, out: &mut [i8]) {
        let map = self.map(row, bit_words(cols));
        let Some(signs) = self.edited.get(row) else {
            return crate::data::bitmap::read(map, span(&self.offsets, &self.negative, row), start, out);
        };
        for (col, trit) in (start..).zip(out) {
            let bit = |words: &[u64]| (words[col / 64] >> (col % 64) & 1) as i8;
            *trit = bit(map) - 2 * bit(signs);
        }
    }

    pub(super) fn get(&self, row: usize, cols: usize, col: usize) -> Trit {
        let map = self.map(row, bit_words(cols));
        match self.edited.get(row) {
            Some(signs) => trit(map[col / 64], signs[col / 64], col % 64),
            None => crate::data::bitmap::get(map, span(&self.offsets, &self.negative, row), col),
        }
    }

    pub(super) fn set(
        &mut self,
        (row, col): (usize, usize),
        cols: usize,
        nonzeros: usize,
        new: Trit,
    ) -> Result<(Trit, bool), TritError> {
        let words = bit_words(cols);
        let map = &mut self.nonzero[row * words..(row + 1) * words];
        let signs = self.edited.edit(row, || spread(map, span(&self.offsets, &self.negative, row)));
        let (map, sign, bit) = (&mut map[col / 64], &mut signs[col / 64], col % 64);
        let old = trit(*map, *sign, bit);
        let count = nonzeros - usize::from(old != Trit::Z) + usize::from(new != Trit::Z);
        let packed_len = self.packed_len - bit_words(nonzeros) + bit_words(count);
        offset(Encoding::Bitmap, packed_len)?;
        self.packed_len = packed_len;
        let keep = !(1u64 << bit);
        *map = *map & keep | u64::from(new != Trit::Z) << bit;
        *sign = *sign & keep | u64::from(new == Trit::N) << bit;
        Ok((old, (*map >> (bit & 32)) as u32 == 0))
    }
}

/// The trit at a bit of a word of the map and of the per-column signs.
fn trit(map: u64, sign: u64, bit: usize) -> Trit {
    planes::trit(map & !sign, sign, bit)
}

/// Expands packed signs (one per nonzero) to one sign bit per column.
fn spread(map: &[u64], negative: &[u64]) -> Box<[u64]> {
    let mut rank = 0;
    let word = |&map: &u64| {
        let (mut left, mut out) = (map, 0);
        while left != 0 {
            out |= (negative[rank / 64] >> (rank % 64) & 1) << left.trailing_zeros();
            rank += 1;
            left &= left - 1;
        }
        out
    };
    map.iter().map(word).collect()
}

/// Packs signs per column to one per nonzero and appends them to `negative`.
fn gather(map: &[u64], signs: &[u64], negative: &mut Vec<u64>) {
    let (mut word, mut used) = (0u64, 0);
    for (&map, &signs) in map.iter().zip(signs) {
        let mut left = map;
        while left != 0 {
            word |= (signs >> left.trailing_zeros() & 1) << used;
            used += 1;
            left &= left - 1;
            if used == 64 {
                negative.push(word);
                (word, used) = (0, 0);
            }
        }
    }
    if used > 0 {
        negative.push(word);
    }
}
