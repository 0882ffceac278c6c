//! Single tokens of several sequences with caches in one allocation: one launch for all of them.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::device::{Buffer, CubeDevice};
use crate::error::{CubeError, Result, check_len, check_range};

use super::cache::{CacheShape, CubeKvCache};
use super::positions::MAX_POSITION;

impl CubeKvCache {
    /// Caches of one shape in as few allocations as the device allows, so that tokens of their sequences can be processed
    /// [together](TokenBatch). An allocation is freed when all of its caches are dropped.
    ///
    /// # Errors
    ///
    /// As [`CubeKvCache::empty`].
    pub fn several(device: &CubeDevice, shape: CacheShape, count: usize) -> Result<Vec<Self>> {
        let len = shape.elements()?;
        let bytes = shape.precision.bytes_per_position(shape.head_dim) / (2 * shape.head_dim);
        // Views start at multiples of the alignment.
        let stride = len.next_multiple_of(shape.unit(device.capabilities().alignment as usize));
        let largest = usize::try_from(device.capabilities().max_buffer_bytes).unwrap_or(usize::MAX);
        let most = (largest / bytes.max(1)).min(u32::MAX as usize) / stride;
        let mut caches = Vec::with_capacity(count);
        while caches.len() < count {
            let together = (count - caches.len()).min(most.max(1));
            // If a single cache is too large, the error reports its own size.
            let elements = if together == 1 { len } else { together * stride };
            let all = Self::of_elements(device, shape, elements)?;
            for i in 0..together {
                caches.push(all.part(i * stride, len)?);
            }
        }
        Ok(caches)
    }

    /// Returns true if both have the same shape and allocation, so that one launch can process their tokens.
    #[must_use]
    pub fn is_beside(&self, other: &Self) -> bool {
        // Key selection supports one sequence at a time.
        let all = self.index.is_none() && other.index.is_none();
        all && self.shape() == other.shape() && self.k.is_beside(&other.k) && self.v.is_beside(&other.v)
    }
}

/// A single token of a sequence, in a batch of several sequences.
#[derive(Clone, Copy, Debug)]
pub struct CacheToken<'a> {
    /// Row of the batch.
    pub row: usize,
    /// Position in its sequence.
    pub position: u32,
    /// The sequence's cache of a layer.
    pub cache: &'a CubeKvCache,
}

impl CacheToken<'_> {
    /// The table entry for kernels: row, first element of the cache, position.
    fn place(&self) -> Result<[u32; 3]> {
        check_range("row of a token", 0, u32::MAX as usize, self.row)?;
        check_range("position", 0, MAX_POSITION - 1, self.position as usize)?;
        // An allocation has fewer than 2^32 elements.
        Ok([self.row as u32, self.cache.k.start() as u32, self.position])
    }
}

/// Rows of a batch that are single tokens of several sequences, with the position of each token and the offset of its sequence's
/// cache, on the host and on the device.
///
/// Caches of other layers that were created in the same way have the same offsets, so one upload suffices for a step. A recorded
/// launch reads what was last [written](Self::write).
#[derive(Debug)]
pub struct TokenTable {
    places: Vec<[u32; 3]>,
    table: Buffer<u32>,
    /// Exclusive bounds of positions and of first elements of caches for which recorded launches stay within their memory.
    below: AtomicU32,
    last_start: AtomicU32,
}

/// The table entries of all tokens; rows and caches must be distinct.
fn places_of(tokens: &[CacheToken<'_>]) -> Result<Vec<[u32; 3]>> {
    let places = tokens.iter().map(CacheToken::place).collect::<Result<Vec<_>>>()?;
    check_range("tokens of several sequences", 2, u32::MAX as usize, places.len())?;
    for column in 0..2 {
        let mut values: Vec<u32> = places.iter().map(|place| place[column]).collect();
        values.sort_unstable();
        if values.windows(2).any(|two| two[0] == two[1]) {
            return Err(CubeError::Overlap { what: "tokens of several sequences" });
        }
    }
    Ok(places)
}

impl TokenTable {
    /// Uploads rows, positions and offsets of caches.
    ///
    /// # Errors
    ///
    /// [`CubeError::Range`] for fewer than two tokens, a row of `2^32` or more or a position of `2^30` or more,
    /// [`CubeError::Overlap`] for two tokens with the same cache or row, and errors of [`CubeDevice::upload`].
    pub fn upload(device: &CubeDevice, tokens: &[CacheToken<'_>]) -> Result<Self> {
        let places = places_of(tokens)?;
        let table = device.upload(places.as_flattened())?;
        Ok(Self { places, table, below: AtomicU32::new(MAX_POSITION as u32), last_start: u32::MAX.into() })
    }

    /// Overwrites them with other tokens in the same rows; their caches must be in the same allocation as the previous ones.
    ///
    /// # Errors
    ///
    /// As [`TokenTable::upload`]; [`CubeError::Length`] for another number of tokens, and [`CubeError::Range`] for other rows, for
    /// a position that is not [below](Self::bound) the bound and for a cache past the memory of a recorded launch.
    pub fn write(&mut self, device: &CubeDevice, tokens: &[CacheToken<'_>]) -> Result<()> {
        let places = places_of(tokens)?;
        let (below, last_start) = (self.bound(), self.last_start.load(Ordering::Relaxed));
        device.write_checked(&self.table, places.as_flattened(), || {
            for (new, old) in places.iter().zip(&self.places) {
                check_range("row of a token", old[0] as usize, old[0] as usize, new[0] as usize)?;
                check_range("first element of a cache", 0, last_start as usize, new[1] as usize)?;
                check_range("position", 0, below as usize - 1, new[2] as usize)?;
            }
            Ok(())
        })?;
        self.places = places;
        Ok(())
    }

    /// Exclusive bound of positions that may be written: `2^30`, or the length of the shortest RoPE table that a
    /// [recorded](CubeDevice::capture) launch uses with these tokens.
    #[must_use]
    pub fn bound(&self) -> u32 {
        self.below.load(Ordering::Relaxed)
    }

    /// Number of tokens, at least two.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns true if an upload of these tokens would be identical.
    #[must_use]
    pub fn are(&self, tokens: &[CacheToken<'_>]) -> bool {
        let same = |(place, token): (&[u32; 3], &CacheToken<'_>)| token.place().is_ok_and(|of| of == *place);
        self.places.len() == tokens.len() && self.places.iter().zip(tokens).all(same)
    }

    pub(crate) fn table(&self) -> &Buffer<u32> {
        &self.table
    }
}

/// Single tokens of several sequences with their caches of one layer.
#[derive(Clone, Copy, Debug)]
pub struct TokenBatch<'a> {
    /// Rows, positions and offsets of the caches.
    pub tokens: &'a TokenTable,
    /// The sequences' caches of this layer, in the order of the tokens, in [one allocation](CubeKvCache::is_beside).
    pub caches: &'a [&'a CubeKvCache],
}

impl TokenBatch<'_> {
    /// The first cache, whose shape all share. Checks that the tokens can be processed together, and that their rows are within a
    /// tensor of `elements` elements, with `heads` heads per row.
    pub(crate) fn first(&self, what: &'static str, elements: usize, heads: usize) -> Result<&CubeKvCache> {
        let Self { tokens, caches } = self;
        check_len("caches of several sequences", tokens.places.len(), caches.len())?;
        let first = caches[0];
        let unit = heads.saturating_mul(first.shape().head_dim).max(1);
        if !elements.is_multiple_of(unit) {
            return Err(CubeError::NotMultiple { what, unit, got: elements });
        }
        for (place, cache) in tokens.places.iter().zip(*caches) {
            check_range("rows of a batch", place[0] as usize + 1, u32::MAX as usize, elements / unit)?;
            if !cache.is_beside(first) || [cache.k.start(), cache.v.start()] != [place[1] as usize; 2] {
                return Err(CubeError::Apart);
            }
        }
        Ok(first)
    }

    /// Checks new keys and values (`rows x kv_heads x head_dim`) before they are stored; returns the first cache.
    pub(crate) fn check_new(&self, k: &Buffer<f32>, v: &Buffer<f32>) -> Result<&CubeKvCache> {
        let heads = self.caches.first().map_or(1, |cache| cache.shape().kv_heads);
        let cache = self.first("new keys", k.len(), heads)?;
        check_len("new values", k.len(), v.len())?;
        if self.caches.iter().any(|cache| cache.overlaps(k) || cache.overlaps(v)) {
            return Err(CubeError::Overlap { what: "new keys or values and the cache" });
        }
        Ok(cache)
    }

    /// Lowers the bounds of later writes, for a recorded launch with a RoPE table of `positions`.
    pub(crate) fn keep_within(&self, cache: &CubeKvCache, positions: usize) {
        let least = |bound: &AtomicU32, to: usize| {
            bound.fetch_min(u32::try_from(to).unwrap_or(u32::MAX), Ordering::Relaxed);
        };
        least(&self.tokens.below, positions);
        for part in [&cache.k, &cache.v] {
            // A view is not longer than its allocation.
            least(&self.tokens.last_start, part.all().len() - part.len());
        }
    }

    /// Number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.tokens.places.len()
    }

    /// The largest position.
    pub(crate) fn last(&self) -> usize {
        self.tokens.places.iter().map(|place| place[2] as usize).max().unwrap_or(0)
    }
}
