//! Iteration of a cube over the key blocks of a [`BlockMask`](super::BlockMask).
//!
//! The rows of a cube are in one or a few query blocks. The cube iterates over the union of their key blocks in ascending order,
//! one mask word at a time, so that finding the next block takes a few register operations, and the mask is read once per 32 key
//! blocks. Everything here depends only on scalars and the cube, so that barriers stay in uniform control flow.

use cubecl::prelude::*;

use super::mask::BlockBitmap;

/// Positions per block.
pub(super) const BLOCK: usize = BlockBitmap::BLOCK;
/// Key blocks per word.
const WORD: u32 = u32::BITS;
/// Positions covered by a mask word.
const WORD_KEYS: u32 = BLOCK as u32 * WORD;

/// The mask as an argument of kernels.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Mask {
    /// `[head][query block][word]`.
    bits: Box<[u32]>,
    /// The first query block of the mask.
    first_block: u32,
    /// Words per query block.
    words: u32,
    /// Words per KV head; 0 if all heads share the bits.
    head_words: u32,
}

/// The rows of the mask that a cube reads.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Rows {
    /// First word of the first row.
    at: u32,
    /// Number of rows.
    pub(super) count: u32,
    /// Words per row.
    words: u32,
}

/// Words of the iteration state: an array, because variables that only kernels with masks have could not be declared for both.
pub(super) const STATE: usize = 3;
/// Index of the current mask word.
const AT: usize = 0;
/// Its bits of unvisited key blocks.
const LEFT: usize = 1;
/// First position of the current block.
const FIRST: usize = 2;

/// The mask rows of the queries at `first_position..end`.
#[cube]
pub(super) fn rows_of(mask: &ComptimeOption<Mask>, kv_head: u32, first_position: u32, end: u32) -> Rows {
    #[comptime]
    match mask {
        ComptimeOption::Some(mask) => {
            let first = first_position / comptime!(BLOCK as u32);
            Rows {
                at: kv_head * mask.head_words + (first - mask.first_block) * mask.words,
                count: (end - 1) / comptime!(BLOCK as u32) - first + 1,
                words: mask.words,
            }
        }
        ComptimeOption::None => Rows { at: 0u32.runtime(), count: 0u32.runtime(), words: 0u32.runtime() },
    }
}

#[cube]
fn word_at(mask: &ComptimeOption<Mask>, at: u32) -> u32 {
    #[comptime]
    match mask {
        ComptimeOption::Some(mask) => mask.bits[at as usize],
        ComptimeOption::None => 0u32.runtime(),
    }
}

/// The union of a word over the rows.
#[cube]
fn union(mask: &ComptimeOption<Mask>, rows: &Rows, word: u32) -> u32 {
    let mut bits = 0u32;
    for row in 0..rows.count {
        bits |= word_at(mask, rows.at + row * rows.words + word);
    }
    bits
}

/// Starts the iteration at the block of position `first_key`.
#[cube]
pub(super) fn start(mask: &ComptimeOption<Mask>, rows: &Rows, walk: &mut Array<u32>, first_key: u32) {
    let word = first_key / WORD_KEYS;
    walk[AT] = word;
    walk[LEFT] = union(mask, rows, word) & (u32::MAX << (first_key / comptime!(BLOCK as u32) % WORD));
}

/// Advances to the next block and returns its first position; `end` or more if there is none before `end`.
#[cube]
pub(super) fn next_block(mask: &ComptimeOption<Mask>, rows: &Rows, walk: &mut Array<u32>, end: u32) -> u32 {
    let last = (end - 1) / WORD_KEYS;
    while walk[LEFT] == 0 && walk[AT] < last {
        walk[AT] += 1;
        walk[LEFT] = union(mask, rows, walk[AT]);
    }
    let left = walk[LEFT];
    // Number of zeros below the lowest set bit; 32 if no bit is set.
    let zeros = (!left & (left - 1)).count_ones();
    walk[LEFT] = left & (left - 1);
    let first = select(left == 0, end, (walk[AT] * WORD + zeros) * comptime!(BLOCK as u32));
    walk[FIRST] = first;
    first
}

/// The last result of [`next_block`].
#[cube]
pub(super) fn block_of(walk: &Array<u32>) -> u32 {
    // Forces a value: the state changes while the result is in use.
    walk[FIRST] + 0u32.runtime()
}

/// Whether the query at a position attends to the key block of position `key`.
#[cube]
pub(super) fn is_set(mask: &ComptimeOption<Mask>, kv_head: u32, position: u32, key: u32) -> bool {
    let row = rows_of(mask, kv_head, position, position + 1);
    let word = word_at(mask, row.at + key / WORD_KEYS);
    word >> (key / comptime!(BLOCK as u32) % WORD) & 1 == 1
}
