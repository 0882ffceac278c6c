//! Sparsity index of a plane.

use crate::Trit;

/// Trits per bit of a chunk's bitmap.
pub const BLOCK_TRITS: usize = 32;

/// Trits per 64-bit bitmap.
pub const CHUNK_TRITS: usize = 64 * BLOCK_TRITS;

/// Sparsity index of one plane: the number of zeros in total and per row, and one 64-bit bitmap per chunk of 2048 trits of a
/// row, whose bit `b` is set if the 32 trits from `32 b` of the chunk contain a nonzero.
///
/// It is computed when the tensor is created and updated by edits. It takes 1/32 bit per trit and four bytes per row, which
/// [`TritTensor::bytes`](crate::TritTensor::bytes) does not count, because the index is derived and not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparsityMetadata {
    zeros: u64,
    row_zeros: Vec<u32>,
    chunks: Vec<u64>,
    chunks_per_row: usize,
}

impl SparsityMetadata {
    pub(crate) fn with_capacity(rows: usize, cols: usize) -> Self {
        let chunks_per_row = cols.div_ceil(CHUNK_TRITS);
        Self {
            zeros: 0,
            row_zeros: Vec::with_capacity(rows),
            chunks: Vec::with_capacity(rows * chunks_per_row),
            chunks_per_row,
        }
    }

    /// Appends a row given as one bit per column, set if the trit is nonzero.
    pub(crate) fn push_row(&mut self, cols: usize, nonzero: &[u64]) {
        let ones: u32 = nonzero.iter().map(|w| w.count_ones()).sum();
        // Both fit in u32: the shape check limits `cols` to u32.
        let zeros = cols as u32 - ones;
        self.zeros += u64::from(zeros);
        self.row_zeros.push(zeros);
        self.chunks.extend(nonzero.chunks(CHUNK_TRITS / 64).map(|chunk| {
            chunk.iter().enumerate().fold(0, |bits, (i, &word)| {
                let low = u64::from(word as u32 != 0);
                let high = u64::from(word >> 32 != 0);
                bits | (low | high << 1) << (2 * i)
            })
        }));
    }

    /// Number of zeros in the plane.
    pub fn zeros(&self) -> u64 {
        self.zeros
    }

    /// Number of zeros in a row; `None` if out of range.
    pub fn row_zeros(&self, row: usize) -> Option<u32> {
        self.row_zeros.get(row).copied()
    }

    /// Number of nonzeros in a row of `cols` trits; `row` must be in range.
    pub(crate) fn row_nonzeros(&self, row: usize, cols: usize) -> usize {
        cols - self.row_zeros[row] as usize
    }

    /// The bitmap of a chunk of a row: bit `b` is set if trits `32 b .. 32 b + 32` of the chunk contain a
    /// nonzero. `None` if row or chunk are out of range.
    pub fn chunk(&self, row: usize, chunk: usize) -> Option<u64> {
        self.row_chunks(row)?.get(chunk).copied()
    }

    /// The bitmaps of all chunks of a row; `None` if out of range.
    pub fn row_chunks(&self, row: usize) -> Option<&[u64]> {
        let start = row.checked_mul(self.chunks_per_row)?;
        self.chunks.get(start..start.checked_add(self.chunks_per_row)?)
    }

    /// Chunks of 2048 trits per row; the last one may be shorter.
    pub fn chunks_per_row(&self) -> usize {
        self.chunks_per_row
    }

    /// Size of the counts and bitmaps in bytes.
    pub fn bytes(&self) -> usize {
        8 + 4 * self.row_zeros.len() + 8 * self.chunks.len()
    }

    /// Updates the index for an edit from `old` to `new`; `block_is_zero` tells if the block of 32 trits is all zero now.
    ///
    /// Branchless: a branch would depend on a load that often misses the cache, and a misprediction would wait for it.
    #[inline]
    pub(crate) fn update(&mut self, row: usize, col: usize, old: Trit, new: Trit, block_is_zero: bool) {
        let (was, is) = (u32::from(old == Trit::Z), u32::from(new == Trit::Z));
        let zeros = &mut self.row_zeros[row];
        *zeros = *zeros - was + is;
        self.zeros = self.zeros - u64::from(was) + u64::from(is);
        let word = &mut self.chunks[row * self.chunks_per_row + col / CHUNK_TRITS];
        let at = col % CHUNK_TRITS / BLOCK_TRITS;
        *word = *word & !(1 << at) | u64::from(!block_is_zero) << at;
    }
}
