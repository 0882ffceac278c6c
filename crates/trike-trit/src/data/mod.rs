//! The raw parts of one plane of trits, in each encoding, and how a row is read from and written to them.

mod base3;
pub(crate) mod bitmap;
pub(crate) mod compressed;
pub(crate) mod planes;
mod two_bit;

use crate::{Encoding, Trit, TritError};

/// One plane of `rows x cols` trits as it is stored: what goes into [`TritTensor::new`] and what
/// [`TritTensor::data`] gives back.
///
/// Rows are stored one after the other and each starts on its own word (byte for base-3), so that a row is a
/// slice. Words are u64, element 0 in the lowest bits. There is one way to write a plane in an encoding, without gaps or room
/// for more: a tensor whose rows were edited brings them together again for these parts. Whatever lies after the last column of a row is **always
/// zero trits**: zero bits, code 1, digit 1. The drawings show a row of four trits, `+ 0 - +`.
///
/// [`TritTensor::new`]: crate::TritTensor::new
/// [`TritTensor::data`]: crate::TritTensor::data
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TritData {
    /// Two bit planes, `ceil(cols / 64)` words per row each. Trit `j` is bit `j % 64` of word `j / 64`, and
    /// `pos & neg == 0`.
    ///
    /// ```text
    /// bit   63 ... 4 3 2 1 0
    /// pos    0 ... 0 1 0 0 1
    /// neg    0 ... 0 0 1 0 0
    /// ```
    Planes {
        /// Set where the trit is +1.
        pos: Vec<u64>,
        /// Set where the trit is -1.
        neg: Vec<u64>,
    },
    /// Codes `trit + 1`, `ceil(cols / 32)` words per row. Trit `j` is the two bits from `2 (j % 32)` of word
    /// `j / 32`; code 3 is invalid and the tail is code 1.
    ///
    /// ```text
    /// bits  63-62 ... 9-8  7-6 5-4 3-2 1-0
    /// code    01  ...  01   10  00  01  10
    /// ```
    TwoBit(Vec<u64>),
    /// Five trits per byte, `ceil(cols / 5)` bytes per row. A byte is `sum (trit_i + 1) 3^i` for `i` = 0..4, so at
    /// most 242, and the tail digits are 1. The row `+ 0 - +` is `2 + 1*3 + 0*9 + 2*27 + 1*81 = 140`.
    Base3(Vec<u8>),
    /// One bit per trit, set if it is nonzero, laid out as a plane, and a sign bit per nonzero in the
    /// order of the columns. The signs of a row start on their own word.
    ///
    /// ```text
    /// bit       63 ... 4 3 2 1 0
    /// nonzero    0 ... 0 1 1 0 1
    /// negative   0 ... 0 0 0 1 0     (bits 0..3 belong to columns 0, 2, 3)
    /// ```
    Bitmap {
        /// `ceil(cols / 64)` words per row.
        nonzero: Vec<u64>,
        /// Index into `negative` where a row's signs start; `rows + 1` of them.
        offsets: Vec<u32>,
        /// `ceil(nonzeros / 64)` words for each row; unused bits are zero.
        negative: Vec<u64>,
    },
    /// A byte per nonzero: the low seven bits are the number of zeros before it since the last nonzero of the
    /// row, 0 to 126, and the high bit is its sign. The byte 127 stands for 127 zeros and no trit; 255 is
    /// invalid. Zeros after the last nonzero are not stored. The row `+ 0 - +` is `00 81 00` in hexadecimal.
    RowCompressed {
        /// Index into `entries` where a row starts; `rows + 1` of them.
        offsets: Vec<u32>,
        /// The gaps and signs.
        entries: Vec<u8>,
    },
}

/// Words of 64 bits that a row of bit planes takes.
pub(crate) fn bit_words(cols: usize) -> usize {
    cols.div_ceil(64)
}

/// Bits of word `word` that belong to a row of `cols`.
pub(crate) fn live_bits(cols: usize, word: usize) -> u64 {
    match cols - word * 64 {
        0..64 => (1 << (cols - word * 64)) - 1,
        _ => u64::MAX,
    }
}

impl TritData {
    /// How the trits are packed.
    pub fn encoding(&self) -> Encoding {
        match self {
            Self::Planes { .. } => Encoding::Planes,
            Self::TwoBit(_) => Encoding::TwoBit,
            Self::Base3(_) => Encoding::Base3,
            Self::Bitmap { .. } => Encoding::Bitmap,
            Self::RowCompressed { .. } => Encoding::RowCompressed,
        }
    }

    /// Bytes of the buffers, row offsets included.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Planes { pos, neg } => 8 * (pos.len() + neg.len()),
            Self::TwoBit(words) => 8 * words.len(),
            Self::Base3(bytes) => bytes.len(),
            Self::Bitmap { nonzero, offsets, negative } => {
                8 * (nonzero.len() + negative.len()) + 4 * offsets.len()
            }
            Self::RowCompressed { offsets, entries } => 4 * offsets.len() + entries.len(),
        }
    }

    /// An empty plane with room for `rows` rows where the encoding has a fixed row length.
    pub(crate) fn empty(encoding: Encoding, rows: usize, cols: usize) -> Self {
        match encoding {
            Encoding::Planes => {
                let n = rows * bit_words(cols);
                Self::Planes { pos: Vec::with_capacity(n), neg: Vec::with_capacity(n) }
            }
            Encoding::TwoBit => Self::TwoBit(Vec::with_capacity(rows * cols.div_ceil(32))),
            Encoding::Base3 => Self::Base3(Vec::with_capacity(rows * cols.div_ceil(5))),
            Encoding::Bitmap => Self::Bitmap {
                nonzero: Vec::with_capacity(rows * bit_words(cols)),
                offsets: vec![0],
                negative: Vec::new(),
            },
            Encoding::RowCompressed => Self::RowCompressed { offsets: vec![0], entries: Vec::new() },
        }
    }

    /// Checks the lengths of all buffers and the shape of the offsets.
    pub(crate) fn check_lengths(&self, plane: usize, rows: usize, cols: usize) -> Result<(), TritError> {
        let need = |what, got: usize, per_row: usize| {
            let expected = rows.checked_mul(per_row).ok_or(TritError::Shape { rows, cols })?;
            if got == expected { Ok(()) } else { Err(TritError::Length { what, expected, got }) }
        };
        match self {
            Self::Planes { pos, neg } => {
                need("words of the positive plane", pos.len(), bit_words(cols))?;
                need("words of the negative plane", neg.len(), bit_words(cols))
            }
            Self::TwoBit(words) => need("words of 2-bit codes", words.len(), cols.div_ceil(32)),
            Self::Base3(bytes) => need("base-3 bytes", bytes.len(), cols.div_ceil(5)),
            Self::Bitmap { nonzero, offsets, negative } => {
                need("words of the bitmap", nonzero.len(), bit_words(cols))?;
                check_offsets(plane, rows, offsets, negative.len())
            }
            Self::RowCompressed { offsets, entries } => check_offsets(plane, rows, offsets, entries.len()),
        }
    }

    /// Checks row `row` and writes a bit per column, set where the trit is nonzero, to `nonzero`
    /// (`ceil(cols / 64)` zeroed words).
    pub(crate) fn scan_row(
        &self,
        at: (usize, usize),
        cols: usize,
        nonzero: &mut [u64],
    ) -> Result<(), TritError> {
        let row = at.1;
        match self {
            Self::Planes { pos, neg } => planes::scan(
                words(pos, row, bit_words(cols)),
                words(neg, row, bit_words(cols)),
                at,
                cols,
                nonzero,
            ),
            Self::TwoBit(codes) => two_bit::scan(words(codes, row, cols.div_ceil(32)), at, cols, nonzero),
            Self::Base3(bytes) => base3::scan(words(bytes, row, cols.div_ceil(5)), at, cols, nonzero),
            Self::Bitmap { nonzero: map, offsets, negative } => bitmap::scan(
                words(map, row, bit_words(cols)),
                span(offsets, negative, row),
                at,
                cols,
                nonzero,
            ),
            Self::RowCompressed { offsets, entries } => {
                compressed::scan(span(offsets, entries, row), at, cols, nonzero)
            }
        }
    }

    /// Decodes the trits of row `row` from column `start` into `out`; the range lies within the row.
    pub(crate) fn read(&self, row: usize, cols: usize, start: usize, out: &mut [i8]) {
        match self {
            Self::Planes { pos, neg } => {
                planes::read(words(pos, row, bit_words(cols)), words(neg, row, bit_words(cols)), start, out);
            }
            Self::TwoBit(codes) => two_bit::read(words(codes, row, cols.div_ceil(32)), start, out),
            Self::Base3(bytes) => base3::read(words(bytes, row, cols.div_ceil(5)), start, out),
            Self::Bitmap { nonzero, offsets, negative } => {
                bitmap::read(words(nonzero, row, bit_words(cols)), span(offsets, negative, row), start, out);
            }
            Self::RowCompressed { offsets, entries } => {
                compressed::read(span(offsets, entries, row), start, out);
            }
        }
    }

    /// The trit at a place within the plane.
    pub(crate) fn get(&self, row: usize, cols: usize, col: usize) -> Trit {
        match self {
            Self::Planes { pos, neg } => planes::get(pos, neg, row * bit_words(cols) + col / 64, col % 64),
            Self::TwoBit(codes) => two_bit::get(codes, row * cols.div_ceil(32) + col / 32, col % 32),
            Self::Base3(bytes) => base3::get(bytes[row * cols.div_ceil(5) + col / 5], col % 5),
            Self::Bitmap { nonzero, offsets, negative } => {
                bitmap::get(words(nonzero, row, bit_words(cols)), span(offsets, negative, row), col)
            }
            Self::RowCompressed { offsets, entries } => compressed::get(span(offsets, entries, row), col),
        }
    }

    /// Appends a row of -1, 0 and 1.
    pub(crate) fn push_row(&mut self, trits: &[i8]) -> Result<(), TritError> {
        match self {
            Self::Planes { pos, neg } => planes::push(pos, neg, trits),
            Self::TwoBit(codes) => two_bit::push(codes, trits),
            Self::Base3(bytes) => base3::push(bytes, trits),
            Self::Bitmap { nonzero, offsets, negative } => {
                bitmap::push(nonzero, negative, trits);
                offsets.push(offset(Encoding::Bitmap, negative.len())?);
            }
            Self::RowCompressed { offsets, entries } => {
                compressed::push(entries, trits);
                offsets.push(offset(Encoding::RowCompressed, entries.len())?);
            }
        }
        Ok(())
    }

    /// Changes a trit where an encoding can do so in place; returns the old trit and whether the block of 32 trits
    /// around it is all zero now.
    #[inline]
    pub(crate) fn swap(&mut self, row: usize, cols: usize, col: usize, trit: Trit) -> Option<(Trit, bool)> {
        Some(match self {
            Self::Planes { pos, neg } => {
                let (word, bit) = (row * bit_words(cols) + col / 64, col % 64);
                let (p, n) = (&mut pos[word], &mut neg[word]);
                let old = planes::trit(*p, *n, bit);
                let keep = !(1u64 << bit);
                *p = *p & keep | u64::from(trit == Trit::P) << bit;
                *n = *n & keep | u64::from(trit == Trit::N) << bit;
                (old, ((*p | *n) >> (bit & 32)) as u32 == 0)
            }
            Self::TwoBit(codes) => {
                let word = &mut codes[row * cols.div_ceil(32) + col / 32];
                let at = 2 * (col % 32);
                let old = two_bit::trit(*word, at);
                *word = *word & !(3 << at) | u64::from(trit.code()) << at;
                (old, *word == two_bit::ZEROS)
            }
            Self::Base3(bytes) => {
                let bytes = words_mut(bytes, row, cols.div_ceil(5));
                let old = base3::swap(&mut bytes[col / 5], col % 5, trit);
                (old, base3::block_is_zero(bytes, col / 32 * 32))
            }
            Self::Bitmap { .. } | Self::RowCompressed { .. } => return None,
        })
    }
}

/// [`words`], to be changed.
fn words_mut<T>(buffer: &mut [T], row: usize, per_row: usize) -> &mut [T] {
    &mut buffer[row * per_row..(row + 1) * per_row]
}

/// Row `row` of a buffer that has `per_row` elements a row.
fn words<T>(buffer: &[T], row: usize, per_row: usize) -> &[T] {
    &buffer[row * per_row..(row + 1) * per_row]
}

/// Row `row` of a buffer with offsets, which [`check_offsets`] found in order.
pub(crate) fn span<'a, T>(offsets: &[u32], buffer: &'a [T], row: usize) -> &'a [T] {
    &buffer[offsets[row] as usize..offsets[row + 1] as usize]
}

/// A row offset, when 32 bits hold it.
pub(crate) fn offset(encoding: Encoding, needed: usize) -> Result<u32, TritError> {
    u32::try_from(needed).map_err(|_| TritError::TooLarge { encoding, needed })
}

fn check_offsets(plane: usize, rows: usize, offsets: &[u32], len: usize) -> Result<(), TritError> {
    if offsets.len() != rows + 1 {
        return Err(TritError::Length { what: "row offsets", expected: rows + 1, got: offsets.len() });
    }
    let mut last = 0;
    for (row, &got) in offsets.iter().enumerate() {
        let got = got as usize;
        if (row == 0 && got != 0) || got < last {
            return Err(TritError::Offset { plane, row, expected: last, got });
        }
        last = got;
    }
    if last == len { Ok(()) } else { Err(TritError::Offset { plane, row: rows, expected: len, got: last }) }
}
