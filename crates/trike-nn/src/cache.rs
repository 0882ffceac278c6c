//! Shape and capacity of KV caches.

use crate::{KvPrecision, NnError};

/// Shape of the cache of one layer of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Capacity in positions; position `p` is stored in slot `p % capacity`.
    pub capacity: usize,
    /// Type of the elements.
    pub precision: KvPrecision,
}

/// Configuration of a sequence's KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSpec {
    /// Type of the elements.
    pub precision: KvPrecision,
    /// Capacity in positions. Without a window it is the maximum length of the sequence.
    pub capacity: usize,
    /// Rolling window: a query attends to this many positions, its own included, and older ones are overwritten, so the
    /// length is unlimited. A step has at most `capacity - window + 1` tokens.
    pub window: Option<usize>,
}

impl KvSpec {
    /// A cache of `capacity` positions that ends when it is full.
    pub fn new(precision: KvPrecision, capacity: usize) -> Self {
        Self { precision, capacity, window: None }
    }

    /// A rolling cache with a window of `window` positions, for steps of up to `step` tokens.
    pub fn rolling(precision: KvPrecision, window: usize, step: usize) -> Self {
        Self { precision, capacity: window.saturating_add(step.saturating_sub(1)), window: Some(window) }
    }

    pub(crate) fn validate(&self) -> Result<(), NnError> {
        let fail = |field, rule, got: usize| Err(NnError::Spec { field, rule, got: got.to_string() });
        if !(1..=1 << 24).contains(&self.capacity) {
            return fail("capacity", "must be 1 to 16777216", self.capacity);
        }
        match self.window {
            Some(0) => fail("window", "must be at least 1", 0),
            Some(w) if w > self.capacity => fail("window", "must be at most the capacity", w),
            _ => Ok(()),
        }
    }
}
