//! Where the zeros of a plane are.

use crate::Trit;

/// Trits per bit of a chunk's bitmap.
pub const BLOCK_TRITS: usize = 32;

/// Trits per 64-bit bitmap.
pub const CHUNK_TRITS: usize = 64 * BLOCK_TRITS;

/// Zeros of one plane: in all, in each row, and a 64-bit bitmap for each chunk of 2048 trits of a row, whose
/// bit `b` is set when the 32 trits from `32 b` of the chunk hold a nonzero.
///
/// It is computed when the tensor is made and kept true by edits. It takes 1/32 bit per trit and four bytes a
/// row, which [`TritTensor::bytes`](crate::TritTensor::bytes) does not count, since it is derived and not stored.
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

    /// Appends a row given as one bit per column, set where the trit is nonzero.
    pub(crate) fn push_row(&mut self, cols: usize, nonzero: &[u64]) {
        let ones: u32 = nonzero.iter().map(|w| w.count_ones()).sum();
        // Both fit: `cols` was found to be a u32 when the shape was checked.
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

    /// Zeros of the whole plane.
    pub fn zeros(&self) -> u64 {
        self.zeros
    }

    /// Zeros of a row; `None` past the last row.
    pub fn row_zeros(&self, row: usize) -> Option<u32> {
        self.row_zeros.get(row).copied()
    }

    /// Nonzeros of a row of `cols` trits that exists.
    pub(crate) fn row_nonzeros(&self, row: usize, cols: usize) -> usize {
        cols - self.row_zeros[row] as usize
    }

    /// The bitmap of a chunk of a row: bit `b` is set when trits `32 b .. 32 b + 32` of the chunk hold a
    /// nonzero. `None` past the last row or chunk.
    pub fn chunk(&self, row: usize, chunk: usize) -> Option<u64> {
        self.row_chunks(row)?.get(chunk).copied()
    }

    /// The bitmaps of all chunks of a row; `None` past the last row.
    pub fn row_chunks(&self, row: usize) -> Option<&[u64]> {
        let start = row.checked_mul(self.chunks_per_row)?;
        self.chunks.get(start..start.checked_add(self.chunks_per_row)?)
    }

    /// Chunks of 2048 trits in a row, the last of them possibly shorter.
    pub fn chunks_per_row(&self) -> usize {
        self.chunks_per_row
    }

    /// Bytes that the counts and bitmaps take.
    pub fn bytes(&self) -> usize {
        8 + 4 * self.row_zeros.len() + 8 * self.chunks.len()
    }

    /// Notes that a trit changed from `old` to `new`, and whether its block of 32 is all zero now.
    ///
    /// Without branches: which way they go hangs on a load that often misses the cache, and a wrong guess would
    /// wait for it.
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
