//! Matrices of trits, laid out for streaming.

use trike_trit::{Encoding, TritData, TritTensor};

use crate::error::{PopcountError, check_len, check_range};
use crate::lanes::LINE_WORDS;
use crate::planes::{MAX_TRITS, TritPlanes, TritPlanesMut, WordLine, as_words, as_words_mut};
use trike_host::Lines;

/// Rows of trits in bit planes, in one allocation: the queries or the stored vectors of a search.
///
/// A row is its positive plane followed by its negative plane, so that a pass over the rows reads memory sequentially. A plane is
/// zero-padded to whole cache lines if that adds at most 1/16; 10,000 trits then take 2,560 bytes.
///
/// ```text
/// row 0: pos words | neg words | row 1: pos words | neg words | ...
/// ```
///
/// ```
/// use trike_popcount::{Cpu, PlaneMatrix, PlaneVector, TritOps};
///
/// let mut stored = PlaneMatrix::new(3)?;
/// stored.push(PlaneVector::from_trits(&[1, 0, -1])?.view())?;
/// stored.push(PlaneVector::from_trits(&[1, 1, 0])?.view())?;
/// let mut queries = PlaneMatrix::new(3)?;
/// queries.push(PlaneVector::from_trits(&[1, -1, -1])?.view())?;
/// let mut out = [i32::MAX; 2];
/// Cpu::new(1)?.trit_matmul(&queries, &stored, &mut out)?;
/// assert_eq!(out, [2, 0]);
/// # Ok::<(), trike_popcount::PopcountError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PlaneMatrix {
    /// May have capacity for more rows; the memory past the last row is never read.
    lines: Lines<WordLine>,
    rows: usize,
    cols: usize,
    /// Distance between consecutive planes, in words.
    stride: usize,
}

impl PlaneMatrix {
    /// A matrix without rows.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Range`] for no columns or more than [`MAX_TRITS`].
    pub fn new(cols: usize) -> Result<Self, PopcountError> {
        Self::with_capacity(0, cols)
    }

    /// A matrix without rows, with capacity for `rows`.
    ///
    /// # Errors
    ///
    /// As [`PlaneMatrix::new`], and [`PopcountError::Shape`] or [`HostError::Memory`](trike_host::HostError::Memory) if it is too
    /// large.
    pub fn with_capacity(rows: usize, cols: usize) -> Result<Self, PopcountError> {
        check_range("columns of trit planes", 1, MAX_TRITS, cols)?;
        let words = cols.div_ceil(64);
        let padded = words.next_multiple_of(LINE_WORDS);
        let stride = if padded - words <= words / 16 { padded } else { words };
        let mut matrix = Self { lines: Lines::default(), rows: 0, cols, stride };
        matrix.lines = Lines::zeroed(matrix.lines_of(rows)?)?;
        Ok(matrix)
    }

    /// Rows of zero trits, to be written through [`PlaneMatrix::row_mut`].
    ///
    /// # Errors
    ///
    /// As [`PlaneMatrix::with_capacity`].
    pub fn zeros(rows: usize, cols: usize) -> Result<Self, PopcountError> {
        Ok(Self { rows, ..Self::with_capacity(rows, cols)? })
    }

    /// The trits of a tensor of one plane, of any encoding. The caller has to handle its scales and a rotation of its inputs.
    ///
    /// # Errors
    ///
    /// [`PopcountError::MultiplePlanes`] for a tensor of several planes, and as [`PlaneMatrix::with_capacity`].
    pub fn from_tensor(tensor: &TritTensor) -> Result<Self, PopcountError> {
        if tensor.depth() != 1 {
            return Err(PopcountError::MultiplePlanes { planes: tensor.depth() });
        }
        let mut matrix = Self::zeros(tensor.rows(), tensor.cols())?;
        let words = matrix.words();
        let converted;
        let tensor = if tensor.encoding() == Encoding::Planes {
            tensor
        } else {
            converted = tensor.to_encoding(Encoding::Planes)?;
            &converted
        };
        if let Some(TritData::Planes { pos, neg }) = tensor.data(0).as_deref() {
            // The tensor has checked the same invariants of its planes.
            for (row, (pos, neg)) in pos.chunks_exact(words).zip(neg.chunks_exact(words)).enumerate() {
                let [to_pos, to_neg] = matrix.planes_mut(row);
                to_pos.copy_from_slice(pos);
                to_neg.copy_from_slice(neg);
            }
        }
        Ok(matrix)
    }

    /// Appends a row; a full buffer doubles its capacity.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`] if its length is not [`PlaneMatrix::cols`], [`HostError::Memory`](trike_host::HostError::Memory).
    pub fn push(&mut self, row: TritPlanes<'_>) -> Result<(), PopcountError> {
        check_len("trits of a row", self.cols, row.len())?;
        let needed = self.lines_of(self.rows + 1)?;
        if needed > self.lines.len() {
            let mut lines = Lines::zeroed(needed.max(self.lines.len().saturating_mul(2)))?;
            lines[..self.lines.len()].copy_from_slice(&self.lines);
            self.lines = lines;
        }
        self.rows += 1;
        let [pos, neg] = self.planes_mut(self.rows - 1);
        pos.copy_from_slice(row.pos());
        neg.copy_from_slice(row.neg());
        Ok(())
    }

    /// Removes a row by moving the last one into its place, and returns whether the row existed.
    pub fn swap_remove(&mut self, row: usize) -> bool {
        if row >= self.rows {
            return false;
        }
        self.rows -= 1;
        let (len, last) = (2 * self.stride, self.rows);
        as_words_mut(&mut self.lines).copy_within(last * len..(last + 1) * len, row * len);
        true
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of trits per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Size of all rows in bytes, including padding.
    pub fn bytes(&self) -> usize {
        self.rows * 2 * self.stride * size_of::<u64>()
    }

    /// A row; `None` if out of range.
    #[inline]
    pub fn row(&self, row: usize) -> Option<TritPlanes<'_>> {
        (row < self.rows).then(|| {
            let [pos, neg] = self.planes(row);
            TritPlanes::trusted(pos, neg, self.cols)
        })
    }

    /// A row as the output of an operation; `None` if out of range.
    #[inline]
    pub fn row_mut(&mut self, row: usize) -> Option<TritPlanesMut<'_>> {
        let len = self.cols;
        (row < self.rows).then(|| {
            let [pos, neg] = self.planes_mut(row);
            TritPlanesMut { pos, neg, len }
        })
    }

    /// Words of a plane, without padding.
    pub(crate) fn words(&self) -> usize {
        self.cols.div_ceil(64)
    }

    /// The two planes of a row, which must exist.
    #[inline]
    pub(crate) fn planes(&self, row: usize) -> [&[u64]; 2] {
        let row = &as_words(&self.lines)[2 * self.stride * row..][..2 * self.stride];
        let (pos, neg) = row.split_at(self.stride);
        [&pos[..self.words()], &neg[..self.words()]]
    }

    #[inline]
    fn planes_mut(&mut self, row: usize) -> [&mut [u64]; 2] {
        let (stride, words) = (self.stride, self.words());
        let row = &mut as_words_mut(&mut self.lines)[2 * stride * row..][..2 * stride];
        let (pos, neg) = row.split_at_mut(stride);
        [&mut pos[..words], &mut neg[..words]]
    }

    /// Number of cache lines for `rows` rows.
    fn lines_of(&self, rows: usize) -> Result<usize, PopcountError> {
        let words = rows.checked_mul(2 * self.stride).filter(|words| *words <= isize::MAX as usize / 8);
        let words = words.ok_or(PopcountError::Shape { what: "trit planes", rows, cols: self.cols })?;
        Ok(words.div_ceil(LINE_WORDS))
    }
}

impl PartialEq for PlaneMatrix {
    fn eq(&self, other: &Self) -> bool {
        self.rows == other.rows
            && self.cols == other.cols
            && (0..self.rows).all(|row| self.planes(row) == other.planes(row))
    }
}

impl Eq for PlaneMatrix {}
