//! The raw buffers of one plane of trits in each encoding, with reading and writing of rows.

mod base3;
pub(crate) mod bitmap;
pub(crate) mod compressed;
pub(crate) mod planes;
mod two_bit;

use crate::{Encoding, Trit, TritError};

/// One plane of `rows x cols` trits as stored: the input of [`TritTensor::new`] and the output of [`TritTensor::data`].
///
/// Rows are stored one after the other and each starts on a word boundary (a byte boundary for base-3), so that a row is a
/// slice. Words are u64, element 0 in the lowest bits. The representation of a plane in an encoding is unique, without gaps or
/// spare capacity; a tensor with edited rows is repacked to produce it. The padding after the last column of a row is
/// **always zero trits**: zero bits, code 1, digit 1. The diagrams show a row of four trits, `+ 0 - +`.
///
/// [`TritTensor::new`]: crate::TritTensor::new
/// [`TritTensor::data`]: crate::TritTensor::data
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TritData {
    /// Two bit planes of `ceil(cols / 64)` words per row. Trit `j` is bit `j % 64` of word `j / 64` in both, and
    /// `pos & neg == 0`.
    ///
    /// ```text
    /// bit   63 ... 4 3 2 1 0
    /// pos    0 ... 0 1 0 0 1
    /// neg    0 ... 0 0 1 0 0
    /// ```
    Planes {
        /// Bits of the trits +1.
        pos: Vec<u64>,
        /// Bits of the trits -1.
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
    /// One bit per trit, set if it is nonzero, laid out like a bit plane, and one sign bit per nonzero in column
    /// order. The signs of a row start on a word boundary.
    ///
    /// ```text
    /// bit       63 ... 4 3 2 1 0
    /// nonzero    0 ... 0 1 1 0 1
    /// negative   0 ... 0 0 0 1 0     (bits 0..3 belong to columns 0, 2, 3)
    /// ```
    Bitmap {
        /// `ceil(cols / 64)` words per row.
        nonzero: Vec<u64>,
        /// Start of the signs of each row in `negative`; `rows + 1` offsets.
        offsets: Vec<u32>,
        /// `ceil(nonzeros / 64)` words per row; unused bits are zero.
        negative: Vec<u64>,
    },
    /// One byte per nonzero: the low seven bits are the number of zeros since the previous nonzero of the row,
    /// 0 to 126, and the high bit is its sign. The byte 127 encodes 127 zeros without a nonzero; 255 is
    /// invalid. Zeros after the last nonzero are not stored. The row `+ 0 - +` is `00 81 00` in hexadecimal.
    RowCompressed {
        /// Start of each row in `entries`; `rows + 1` offsets.
        offsets: Vec<u32>,
        /// The gaps and signs.
        entries: Vec<u8>,
    },
}

/// 64-bit words per row of a bit plane.
pub(crate) fn bit_words(cols: usize) -> usize {
    cols.div_ceil(64)
}

/// Mask of the bits of word `word` that belong to a row of `cols` columns.
pub(crate) fn live_bits(cols: usize, word: usize) -> u64 {
    match cols - word * 64 {
        0..64 => (1 << (cols - word * 64)) - 1,
        _ => u64::MAX,
    }
}

impl TritData {
    /// The encoding.
    pub fn encoding(&self) -> Encoding {
        match self {
            Self::Planes { .. } => Encoding::Planes,
            Self::TwoBit(_) => Encoding::TwoBit,
            Self::Base3(_) => Encoding::Base3,
            Self::Bitmap { .. } => Encoding::Bitmap,
            Self::RowCompressed { .. } => Encoding::RowCompressed,
        }
    }

    /// Size of the buffers in bytes, including row offsets.
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

    /// An empty plane with capacity for `rows` rows if the row length of the encoding is fixed.
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

    /// Checks the lengths of all buffers and the order of the offsets.
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

    /// Checks row `at.1` of plane `at.0` and writes one bit per column to `nonzero` (`ceil(cols / 64)` zeroed words), set
    /// if the trit is nonzero.
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

    /// Decodes the trits of row `row` from column `start` into `out`; the range must lie within the row.
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

    /// The trit at `(row, col)`, which must lie within the plane.
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

    /// Appends a row of trits -1, 0 and 1.
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

    /// Replaces a trit in place; returns the old trit and whether its block of 32 trits is all zero now. `None` if the
    /// encoding has no in-place edits.
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

/// Mutable variant of [`words`].
fn words_mut<T>(buffer: &mut [T], row: usize, per_row: usize) -> &mut [T] {
    &mut buffer[row * per_row..(row + 1) * per_row]
}

/// Row `row` of a buffer with `per_row` elements per row.
fn words<T>(buffer: &[T], row: usize, per_row: usize) -> &[T] {
    &buffer[row * per_row..(row + 1) * per_row]
}

/// Row `row` of a buffer with offsets that [`check_offsets`] has validated.
pub(crate) fn span<'a, T>(offsets: &[u32], buffer: &'a [T], row: usize) -> &'a [T] {
    &buffer[offsets[row] as usize..offsets[row + 1] as usize]
}

/// A row offset as u32, or [`TritError::TooLarge`].
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
