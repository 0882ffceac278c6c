//! Block-sparse masks: the key blocks that each block of queries attends to.

use std::ops::Range;

/// Positions of a sequence are below this.
const MAX_POSITION: usize = 1 << 30;

type Result<T, E = BlockError> = std::result::Result<T, E>;

/// A [`BlockBitmap`] that does not fit its positions, or an attention that does not fit the bitmap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockError {
    /// A number outside its range.
    #[error("{what}: expected {minimum} to {maximum}, got {got}")]
    Range {
        /// Name of the number.
        what: &'static str,
        /// The smallest accepted value.
        minimum: usize,
        /// The largest accepted value.
        maximum: usize,
        /// The value given.
        got: usize,
    },
    /// A list of the wrong length.
    #[error("{what}: expected {expected}, got {got}")]
    Length {
        /// Name of the list.
        what: &'static str,
        /// The required length.
        expected: usize,
        /// The length given.
        got: usize,
    },
    /// No words, or `2^32` or more.
    #[error("words of a mask: {rows} rows of {cols}, expected a product of 1 to 4294967295")]
    Words {
        /// Query blocks of all heads.
        rows: usize,
        /// Words of each.
        cols: usize,
    },
    /// A query block that does not attend to its own key block: one of its queries might attend to nothing.
    #[error(
        "query block {block} of head {head} of a mask: expected key block {block} to be set, so that each query sees itself"
    )]
    OwnBlock {
        /// The head of the mask.
        head: usize,
        /// The query block, counted from position 0.
        block: usize,
    },
}

fn check_range(what: &'static str, minimum: usize, maximum: usize, got: usize) -> Result<()> {
    if (minimum..=maximum).contains(&got) {
        Ok(())
    } else {
        Err(BlockError::Range { what, minimum, maximum, got })
    }
}

fn check_len(what: &'static str, expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(BlockError::Length { what, expected, got }) }
}

/// Key blocks per word.
const WORD: usize = u32::BITS as usize;

/// A bitmap of key blocks per query block, on the host.
///
/// Blocks are [`BlockBitmap::BLOCK`] positions, counted from position 0 of the sequence for queries and for keys: block `b` is
/// positions `64 b .. 64 b + 64`, wherever a prompt begins. So a query block's own positions are the key block of its number, and
/// that block is always set: every query attends at least to itself.
///
/// A query attends to a key if the bit of their blocks is set and the key is visible to it, that is, causal and within the window.
/// Bits of key blocks after the query block have no effect.
///
/// ```text
/// words    [head][query block][word]
/// bit i    of word w: key block 32 w + i; bits past the last key block are zero
/// ```
///
/// There is one bitmap for all heads, or one per KV head. Query heads that share keys also share a bitmap, because a cube reads
/// each tile of keys once for all of them.
///
/// ```
/// use trike_core::BlockBitmap;
///
/// // Positions 100 to 299 are query blocks 1 to 4.
/// let mut blocks = BlockBitmap::diagonal(1, 100..300)?;
/// blocks.insert(0, 3, 0)?;
/// assert_eq!((blocks.query_blocks(), blocks.key_blocks()), (1..5, 5));
/// assert_eq!(blocks.words(), [0b00010, 0b00100, 0b01001, 0b10000]);
/// # Ok::<(), trike_core::BlockError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockBitmap {
    heads: usize,
    query_blocks: Range<usize>,
    words: Vec<u32>,
}

/// The remaining work of a masked attention, in total over the KV heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MaskedWork {
    /// Pairs of a query token and a key that it attends to.
    pub pairs: u64,
    /// Keys that at least one token attends to.
    pub keys: u64,
}

impl BlockBitmap {
    /// Positions per block, of queries and of keys: the key tile of the matrix-instruction kernel, and the query tile of its cubes
    /// if each query head has its own keys. If query heads share keys, a cube has a fraction of these tokens.
    pub const BLOCK: usize = 64;

    /// The mask of queries at `positions` in which each query block attends only to its own positions.
    ///
    /// # Errors
    ///
    /// [`BlockError::Range`] for no heads or positions or for positions above `2^30`; [`BlockError::Words`] for `2^32` words or
    /// more.
    pub fn diagonal(heads: usize, positions: Range<usize>) -> Result<Self> {
        check_range("end of the positions of a mask", 1, MAX_POSITION, positions.end)?;
        check_range("start of the positions of a mask", 0, positions.end - 1, positions.start)?;
        check_range("heads of a mask", 1, 1 << 16, heads)?;
        let query_blocks = positions.start / Self::BLOCK..positions.end.div_ceil(Self::BLOCK);
        let words = query_blocks.end.div_ceil(WORD);
        let rows = heads.saturating_mul(query_blocks.len());
        let count = rows.checked_mul(words).filter(|&count| u32::try_from(count).is_ok());
        let count = count.ok_or(BlockError::Words { rows, cols: words })?;
        let mut all = Self { heads, query_blocks, words: vec![0; count] };
        for head in 0..heads {
            for block in all.query_blocks.clone() {
                all.insert(head, block, block)?;
            }
        }
        Ok(all)
    }

    /// The mask of queries at `positions` with the blocks for which `is_set(head, query_block, key_block)` holds, and the
    /// diagonal.
    ///
    /// # Errors
    ///
    /// As [`BlockBitmap::diagonal`].
    pub fn from_fn(
        heads: usize,
        positions: Range<usize>,
        mut is_set: impl FnMut(usize, usize, usize) -> bool,
    ) -> Result<Self> {
        let mut all = Self::diagonal(heads, positions)?;
        for head in 0..heads {
            for query_block in all.query_blocks.clone() {
                for key_block in (0..query_block).filter(|&key_block| is_set(head, query_block, key_block)) {
                    all.insert(head, query_block, key_block)?;
                }
            }
        }
        Ok(all)
    }

    /// The mask with these words, in the order of the type's description.
    ///
    /// # Errors
    ///
    /// As [`BlockBitmap::diagonal`]; [`BlockError::Length`] for another number of words, [`BlockError::Range`] for a bit past the
    /// last key block, and [`BlockError::OwnBlock`] for a query block without its own key block.
    pub fn from_words(heads: usize, positions: Range<usize>, words: Vec<u32>) -> Result<Self> {
        let all = Self { words, ..Self::diagonal(heads, positions.clone())? };
        let (per_row, blocks) = (all.row_words(), all.key_blocks());
        check_len("words of a mask", heads * all.query_blocks.len() * per_row, all.words.len())?;
        for (at, row) in all.words.chunks_exact(per_row).enumerate() {
            let last = per_row - 1;
            let highest = (last * WORD + WORD - 1).saturating_sub(row[last].leading_zeros() as usize);
            if row[last] != 0 {
                check_range("key block of a mask", 0, blocks - 1, highest)?;
            }
            let head = at / all.query_blocks.len();
            let block = all.query_blocks.start + at % all.query_blocks.len();
            if !all.contains(head, block, block) {
                return Err(BlockError::OwnBlock { head, block });
            }
        }
        Ok(all)
    }

    /// Sets the bit of a key block in a query block. Both are counted from position 0.
    ///
    /// # Errors
    ///
    /// [`BlockError::Range`] for a head or a block that the mask does not have.
    pub fn insert(&mut self, head: usize, query_block: usize, key_block: usize) -> Result<()> {
        check_range("head of a mask", 0, self.heads - 1, head)?;
        let Range { start, end } = self.query_blocks;
        check_range("query block of a mask", start, end - 1, query_block)?;
        check_range("key block of a mask", 0, self.key_blocks() - 1, key_block)?;
        let at = self.row_of(head, query_block) + key_block / WORD;
        self.words[at] |= 1 << (key_block % WORD);
        Ok(())
    }

    /// Whether a query block attends to a key block; `false` for heads and blocks that the mask does not have.
    #[must_use]
    #[inline]
    pub fn contains(&self, head: usize, query_block: usize, key_block: usize) -> bool {
        let exists = head < self.heads && self.query_blocks.contains(&query_block);
        exists && key_block < self.key_blocks() && is_set(self.row(head, query_block), key_block)
    }

    /// Number of bitmaps: one, or one per KV head.
    #[must_use]
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Query blocks, counted from position 0.
    #[must_use]
    pub fn query_blocks(&self) -> Range<usize> {
        self.query_blocks.clone()
    }

    /// Number of key blocks: those up to the end of the last query block.
    #[must_use]
    pub fn key_blocks(&self) -> usize {
        self.query_blocks.end
    }

    /// The words, in the order of the type's description.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Words per query block.
    #[must_use]
    pub fn row_words(&self) -> usize {
        self.key_blocks().div_ceil(WORD)
    }

    /// Words from one KV head to the next; 0 if all of them share the bitmap.
    #[must_use]
    pub fn head_words(&self) -> usize {
        if self.heads == 1 { 0 } else { self.query_blocks.len() * self.row_words() }
    }

    fn row_of(&self, head: usize, query_block: usize) -> usize {
        (head * self.query_blocks.len() + query_block - self.query_blocks.start) * self.row_words()
    }

    fn row(&self, head: usize, query_block: usize) -> &[u32] {
        &self.words[self.row_of(head, query_block)..][..self.row_words()]
    }

    /// Checks that the mask has all query blocks of these positions and as many bitmaps as attention needs.
    ///
    /// # Errors
    ///
    /// [`BlockError::Length`] for another number of heads, [`BlockError::Range`] for positions that the mask does not have.
    pub fn check(&self, kv_heads: usize, positions: &Range<usize>) -> Result<()> {
        if self.heads != 1 {
            check_len("heads of a mask", kv_heads, self.heads)?;
        }
        let Range { start, end } = self.query_blocks;
        let (start, end) = (start * Self::BLOCK, end * Self::BLOCK);
        check_range("first position of a masked segment", start, end - 1, positions.start)?;
        check_range("end of the positions of a masked segment", start + 1, end, positions.end)
    }

    /// The remaining work for queries at `positions` with `kv_heads` KV heads. The mask must have these positions.
    #[must_use]
    pub fn work(&self, kv_heads: usize, positions: &Range<usize>, window: Option<usize>) -> MaskedWork {
        let each = (0..self.heads).map(|head| self.work_of(head, positions, window.unwrap_or(usize::MAX)));
        let all = each.fold(MaskedWork { pairs: 0, keys: 0 }, |all, one| MaskedWork {
            pairs: all.pairs + one.pairs,
            keys: all.keys + one.keys,
        });
        let times = if self.heads == 1 { kv_heads as u64 } else { 1 };
        MaskedWork { pairs: times * all.pairs, keys: times * all.keys }
    }

    fn work_of(&self, head: usize, positions: &Range<usize>, window: usize) -> MaskedWork {
        let start_of = |position: usize| (position + 1).saturating_sub(window);
        let mut work = MaskedWork { pairs: 0, keys: 0 };
        let mut read = vec![0u32; self.row_words()];
        for block in self.query_blocks.clone() {
            let first = positions.start.max(block * Self::BLOCK);
            let end = positions.end.min((block + 1) * Self::BLOCK);
            if first >= end {
                continue;
            }
            let row = self.row(head, block);
            let (start, full_start) = (start_of(first), start_of(end - 1));
            // Blocks that are visible to all tokens need no check per token.
            let full = full_start.div_ceil(Self::BLOCK)..(first + 1) / Self::BLOCK;
            for key_block in (start / Self::BLOCK..=block).filter(|&key_block| is_set(row, key_block)) {
                let keys = key_block * Self::BLOCK..(key_block + 1) * Self::BLOCK;
                work.pairs += if full.contains(&key_block) {
                    ((end - first) * Self::BLOCK) as u64
                } else {
                    let seen = |p: usize| keys.end.min(p + 1).saturating_sub(keys.start.max(start_of(p)));
                    (first..end).map(|p| seen(p) as u64).sum()
                };
                // The first query block that attends to a key block sees most of it.
                if !is_set(&read, key_block) {
                    read[key_block / WORD] |= 1 << (key_block % WORD);
                    work.keys += (keys.end.min(positions.end) - keys.start.max(start)) as u64;
                }
            }
        }
        work
    }
}

fn is_set(row: &[u32], block: usize) -> bool {
    row[block / WORD] >> (block % WORD) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_numbered_by_head_query_block_and_key_block() {
        let mut mask = BlockBitmap::diagonal(2, 2100..2241).expect("fits");
        assert_eq!((mask.query_blocks(), mask.key_blocks(), mask.row_words()), (32..36, 36, 2));
        mask.insert(1, 34, 31).expect("there");
        mask.insert(0, 33, 0).expect("there");
        let expected = [0, 1, 1, 2, 0, 4, 0, 8, 0, 1, 0, 2, 1 << 31, 4, 0, 8];
        assert_eq!(mask.words(), expected);
        assert_eq!(BlockBitmap::from_words(2, 2100..2241, expected.to_vec()).expect("valid"), mask);
        let chosen = |head, query, key| (head, query, key) == (1, 34, 31) || (head, query, key) == (0, 33, 0);
        assert_eq!(BlockBitmap::from_fn(2, 2100..2241, chosen).expect("fits"), mask);
        assert!(mask.contains(1, 34, 31) && !mask.contains(0, 34, 31));
        assert!(!mask.contains(2, 34, 34) && !mask.contains(0, 31, 31) && !mask.contains(0, 35, 36));
        assert_eq!((mask.head_words(), BlockBitmap::diagonal(1, 0..64).expect("fits").head_words()), (8, 0));
    }

    #[test]
    fn limits_are_refused_at_their_edge() {
        let refused = |result: Result<BlockBitmap>| result.expect_err("refused").to_string();
        BlockBitmap::diagonal(1, MAX_POSITION - 1..MAX_POSITION).expect("the last position");
        for (positions, what) in [
            (0..0, "end of the positions of a mask: expected 1 to 1073741824, got 0"),
            (5..5, "start of the positions of a mask: expected 0 to 4, got 5"),
            (0..MAX_POSITION + 1, "end of the positions of a mask: expected 1 to 1073741824, got 1073741825"),
        ] {
            assert_eq!(refused(BlockBitmap::diagonal(1, positions)), what);
        }
        assert_eq!(refused(BlockBitmap::diagonal(0, 0..1)), "heads of a mask: expected 1 to 65536, got 0");
        assert!(matches!(BlockBitmap::diagonal(1, 0..MAX_POSITION), Err(BlockError::Words { .. })));

        let words = |words: &[u32]| BlockBitmap::from_words(1, 64..192, words.to_vec());
        words(&[0b110, 0b100]).expect("valid");
        for spoiled in [&[0b110][..], &[0b110, 0b100, 0b100]] {
            assert!(matches!(words(spoiled), Err(BlockError::Length { expected: 2, .. })), "{spoiled:?}");
        }
        assert_eq!(refused(words(&[0b110, 0b1100])), "key block of a mask: expected 0 to 2, got 3");
        assert!(matches!(words(&[0b101, 0b100]), Err(BlockError::OwnBlock { head: 0, block: 1 })));
        assert!(matches!(words(&[0b010, 0b011]), Err(BlockError::OwnBlock { head: 0, block: 2 })));

        let mut mask = BlockBitmap::diagonal(2, 64..192).expect("fits");
        for (head, query, key, fits) in [
            (1, 1, 0, true),
            (2, 1, 0, false),
            (0, 0, 0, false),
            (0, 2, 2, true),
            (0, 3, 2, false),
            (0, 2, 3, false),
        ] {
            assert_eq!(mask.insert(head, query, key).is_ok(), fits, "{head} {query} {key}");
        }
    }

    #[test]
    fn segments_outside_of_a_mask_are_refused_at_their_edge() {
        let mask = BlockBitmap::diagonal(3, 70..130).expect("fits");
        for (kv_heads, positions, fits) in [
            (3, 64..192, true),
            (3, 63..192, false),
            (3, 65..191, true),
            (3, 64..193, false),
            (3, 191..192, true),
            (3, 192..193, false),
            (2, 64..192, false),
            (4, 64..192, false),
        ] {
            assert_eq!(mask.check(kv_heads, &positions).is_ok(), fits, "{kv_heads} {positions:?}");
        }
        BlockBitmap::diagonal(1, 70..130).expect("fits").check(5, &(70..71)).expect("shared by all heads");
    }

    #[test]
    fn work_counts_visible_keys_of_set_blocks() {
        let mut state = 7u32;
        let mut random = |_: usize, _: usize, _: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 30 == 0
        };
        for positions in [0..1, 0..64, 0..200, 63..65, 130..500, 1000..1001] {
            for window in [None, Some(1), Some(64), Some(100), Some(1000)] {
                let mask = BlockBitmap::from_fn(2, positions.clone(), &mut random).expect("fits");
                let (mut pairs, mut keys) = (0, 0);
                for head in 0..2 {
                    let attends = |query: usize, key: usize| {
                        let near = key <= query && window.is_none_or(|window| key + window > query);
                        near && mask.contains(head, query / 64, key / 64)
                    };
                    for key in 0..positions.end {
                        let count = positions.clone().filter(|&query| attends(query, key)).count() as u64;
                        pairs += count;
                        keys += u64::from(count > 0);
                    }
                }
                assert_eq!(
                    mask.work(2, &positions, window),
                    MaskedWork { pairs, keys },
                    "{positions:?} {window:?}"
                );
            }
        }
        let shared = BlockBitmap::diagonal(1, 0..64).expect("fits");
        assert_eq!(shared.work(3, &(0..64), None), MaskedWork { pairs: 3 * 2080, keys: 3 * 64 });
    }
}
