//! Sign codes of the keys of a cache.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use trike_core::KeySelector;

use crate::device::{Buffer, CubeDevice};
use crate::error::{CubeError, Result, check_range};

/// Minimum `head_dim`: smaller heads do not fill a word of a code.
const LEAST: usize = 64;
/// Maximum `head_dim`: one unit per element, and every device supports this many.
const MOST: usize = 256;
/// Sign codes of the keys of a cache.
#[derive(Clone, Debug)]
pub(super) struct KeyIndex {
    pub(super) selector: KeySelector,
    /// `[kv head][slot][words]`
    pub(super) codes: Buffer<u32>,
    /// `[kv head][slot]`
    pub(super) lengths: Buffer<u32>,
    /// `[kv head][channels + 1]`
    pub(super) centers: Buffer<f32>,
    /// The [`horizon`](super::horizon) of the first step whose keys were all coded, or 0. Shared by clones.
    pub(super) coded: Arc<AtomicUsize>,
}

/// Words of a code.
pub(super) fn words_of(head_dim: usize) -> usize {
    head_dim.div_ceil(32)
}

impl KeyIndex {
    /// Sign codes for a cache with a checked shape: KV heads, head dimension, capacity.
    pub(super) fn new(
        device: &CubeDevice,
        [kv_heads, head_dim, capacity]: [usize; 3],
        selector: KeySelector,
    ) -> Result<Self> {
        check_range("head_dim of keys that are selected", LEAST, MOST, head_dim)?;
        if !head_dim.is_multiple_of(2) {
            let (what, got) = ("head_dim of keys that are selected", head_dim);
            return Err(CubeError::NotMultiple { what, unit: 2, got });
        }
        // A cache of this shape has fewer than 2^32 elements.
        let slots = kv_heads * capacity;
        let codes = device.empty(slots * words_of(head_dim))?;
        let lengths = device.empty(slots)?;
        let centers = device.empty(kv_heads * (head_dim + 1))?;
        device.confirm("allocating codes of keys", &[&codes, &lengths, &centers])?;
        Ok(Self { selector, codes, lengths, centers, coded: Arc::new(AtomicUsize::new(0)) })
    }

    /// Whether a tensor shares memory with the codes.
    pub(super) fn overlaps(&self, other: &Buffer<f32>) -> bool {
        self.codes.overlaps(other) || self.lengths.overlaps(other) || self.centers.overlaps(other)
    }
}
