//! Shape and capacity of KV caches.

use crate::{DecoderSpec, KeySelector, KvPrecision, NnError, PromptKeys};

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
    /// Selection of the keys that decode steps attend to, for which the cache has an index.
    pub keys: KeySelector,
    /// Selection of the keys that steps of several tokens attend to.
    pub prompt_keys: PromptKeys,
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
    /// Selection of the keys that decode steps attend to; all by default. On the host only.
    pub keys: KeySelector,
    /// Selection of the keys that steps of several tokens attend to; all by default. On the host only.
    pub prompt_keys: PromptKeys,
}

impl KvSpec {
    /// A cache of `capacity` positions that ends when it is full.
    pub fn new(precision: KvPrecision, capacity: usize) -> Self {
        Self { precision, capacity, window: None, keys: KeySelector::All, prompt_keys: PromptKeys::All }
    }

    /// A rolling cache with a window of `window` positions, for steps of up to `step` tokens.
    pub fn rolling(precision: KvPrecision, window: usize, step: usize) -> Self {
        let capacity = window.saturating_add(step.saturating_sub(1));
        Self { window: Some(window), ..Self::new(precision, capacity) }
    }

    /// Sets [`keys`](Self::keys).
    #[must_use]
    pub fn with_keys(self, keys: KeySelector) -> Self {
        Self { keys, ..self }
    }

    /// Sets [`prompt_keys`](Self::prompt_keys).
    #[must_use]
    pub fn with_prompt_keys(self, prompt_keys: PromptKeys) -> Self {
        Self { prompt_keys, ..self }
    }

    /// Bytes of the codes of the keys, in all layers of a decoder.
    ///
    /// ```
    /// use trike_nn::{DecoderSpec, KeySelector, KvPrecision, KvSpec};
    ///
    /// // Two heads of 64: 18 bytes per position in each layer but the first two.
    /// let (spec, kv) = (DecoderSpec::llama(128, 6, 2, 1000), KvSpec::new(KvPrecision::F16, 512));
    /// assert_eq!(kv.index_bytes(&spec), 0);
    /// assert_eq!(kv.with_keys(KeySelector::signs(100)?).index_bytes(&spec), 4 * 512 * 18);
    /// # Ok::<(), trike_core::OptionError>(())
    /// ```
    #[must_use]
    pub fn index_bytes(&self, decoder: &DecoderSpec) -> u64 {
        let of_heads: usize =
            (0..decoder.layers).map(|layer| self.keys.of_layer(layer).bytes_per_head(decoder.head_dim)).sum();
        let sizes = [decoder.kv_heads, self.capacity];
        sizes.iter().fold(of_heads as u64, |bytes, &size| bytes.saturating_mul(size as u64))
    }

    /// The caches of a layer.
    pub(crate) fn cache(&self, decoder: &DecoderSpec, layer: usize) -> CacheSpec {
        CacheSpec {
            kv_heads: decoder.kv_heads,
            head_dim: decoder.head_dim,
            capacity: self.capacity,
            precision: self.precision,
            keys: self.keys.of_layer(layer),
            prompt_keys: self.prompt_keys.of_layer(layer),
        }
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
