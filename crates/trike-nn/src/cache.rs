//! Shape and capacity of KV caches.

use std::ops::Range;

use crate::{
    DecoderSpec, Eviction, KeySelector, KvLimit, KvOptions, KvPrecision, KvPrecisions, NnError, PromptKeys,
};

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
    /// What happens when the cache is full.
    pub eviction: Eviction,
}

/// Configuration of a sequence's KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSpec {
    /// Type of the elements in each layer. On the host only, unless it is the same in all layers.
    pub precision: KvPrecisions,
    /// Capacity in positions. Without a window it is the maximum length of the sequence.
    pub capacity: usize,
    /// Rolling window: a query attends to this many positions, its own included, and older ones are overwritten, so the
    /// length is unlimited. A step has at most `capacity - window + 1` tokens.
    pub window: Option<usize>,
    /// Selection of the keys that decode steps attend to; all by default. On devices for heads of 64 to 256 elements.
    pub keys: KeySelector,
    /// Selection of the keys that steps of several tokens attend to; all by default. On the host only.
    pub prompt_keys: PromptKeys,
    /// Eviction policy of a full cache; none by default. On the host only, and not with a window. A step of a full cache is limited
    /// to a quarter of the capacity in tokens.
    pub eviction: Eviction,
}

impl KvSpec {
    /// This cache, or an evicting one if its capacity would exceed `limit`.
    ///
    /// ```
    /// use trike_nn::{Eviction, KvLimit, KvPrecision, KvSpec};
    ///
    /// let limit = KvLimit { positions: 1024, eviction: Eviction::Unattended };
    /// let [short, long] = [500, 8000].map(|positions| KvSpec::new(KvPrecision::F16, positions).limited(limit));
    /// assert_eq!((short.capacity, short.eviction), (500, Eviction::Never));
    /// assert_eq!((long.capacity, long.eviction), (1024, Eviction::Unattended));
    /// ```
    #[must_use]
    pub fn limited(self, limit: impl Into<Option<KvLimit>>) -> Self {
        match limit.into() {
            Some(KvLimit { positions, eviction }) if self.capacity > positions => {
                self.with_capacity(positions).with_eviction(eviction)
            }
            _ => self,
        }
    }

    /// A cache of `capacity` positions without window or eviction.
    pub fn new(precision: impl Into<KvPrecisions>, capacity: usize) -> Self {
        let (precision, keys, prompt_keys) = (precision.into(), KeySelector::All, PromptKeys::All);
        Self { precision, capacity, window: None, keys, prompt_keys, eviction: Eviction::Never }
    }

    /// A rolling cache with a window of `window` positions, for steps of up to `step` tokens.
    pub fn rolling(precision: impl Into<KvPrecisions>, window: usize, step: usize) -> Self {
        let capacity = window.saturating_add(step.saturating_sub(1));
        Self { window: Some(window), ..Self::new(precision, capacity) }
    }

    /// The cache with the settings of `options` for a sequence of `positions` positions, or for steps of up to `step` tokens with a
    /// window; `default` is the precision if `options` has none.
    ///
    /// ```
    /// use trike_nn::{KvOptions, KvPrecision, KvSpec};
    ///
    /// let of = |options: KvOptions| KvSpec::of(&options, KvPrecision::F16, 500, 64);
    /// assert_eq!(of(KvOptions::default()), KvSpec::new(KvPrecision::F16, 500));
    /// assert_eq!(of(KvOptions::default().with_window(32)), KvSpec::rolling(KvPrecision::F16, 32, 64));
    /// ```
    #[must_use]
    pub fn of(options: &KvOptions, default: KvPrecision, positions: usize, step: usize) -> Self {
        let KvOptions { precision, keys, prompt_keys, limit, window, .. } = *options;
        let precision = precision.unwrap_or(default.into());
        let cache = match window {
            Some(window) => Self::rolling(precision, window, step),
            None => Self::new(precision, positions),
        };
        cache.with_keys(keys).with_prompt_keys(prompt_keys).limited(limit)
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

    /// Sets [`eviction`](Self::eviction).
    #[must_use]
    pub fn with_eviction(self, eviction: Eviction) -> Self {
        Self { eviction, ..self }
    }

    /// Sets [`capacity`](Self::capacity).
    #[must_use]
    pub fn with_capacity(self, capacity: usize) -> Self {
        Self { capacity, ..self }
    }

    /// Bytes of the key sign codes in all layers of a decoder.
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
        self.index_bytes_of(decoder, 0..decoder.layers)
    }

    fn index_bytes_of(&self, decoder: &DecoderSpec, layers: Range<usize>) -> u64 {
        let of_heads: usize =
            layers.map(|layer| self.keys.of_layer(layer).bytes_per_head(decoder.head_dim)).sum();
        self.of_positions(decoder, of_heads as u64)
    }

    /// Bytes of the caches of some layers: keys and values, and the codes of the keys.
    pub(crate) fn cache_bytes(&self, decoder: &DecoderSpec, layers: Range<usize>) -> u64 {
        let of_heads = self.precision.bytes_per_position(layers.clone(), decoder.head_dim);
        self.of_positions(decoder, of_heads).saturating_add(self.index_bytes_of(decoder, layers))
    }

    /// Total over all heads and positions, from the bytes per head and position.
    fn of_positions(&self, decoder: &DecoderSpec, bytes: u64) -> u64 {
        let sizes = [decoder.kv_heads, self.capacity];
        sizes.iter().fold(bytes, |bytes, &size| bytes.saturating_mul(size as u64))
    }

    /// The caches of a layer.
    pub(crate) fn cache(&self, decoder: &DecoderSpec, layer: usize) -> CacheSpec {
        CacheSpec {
            kv_heads: decoder.kv_heads,
            head_dim: decoder.head_dim,
            capacity: self.capacity,
            precision: self.precision.of_layer(layer),
            keys: self.keys.of_layer(layer),
            prompt_keys: self.prompt_keys.of_layer(layer),
            eviction: self.eviction,
        }
    }

    pub(crate) fn validate(&self) -> Result<(), NnError> {
        let fail = |field, rule, got: usize| Err(NnError::Spec { field, rule, got: got.to_string() });
        if !(1..=1 << 24).contains(&self.capacity) {
            return fail("capacity", "must be 1 to 16777216", self.capacity);
        }
        if self.eviction != Eviction::Never {
            if self.capacity < Eviction::LEAST_CAPACITY {
                return fail("capacity", "must be at least 64 for a cache that evicts", self.capacity);
            }
            if let Some(window) = self.window {
                return fail("window", "must not be set for a cache that evicts", window);
            }
        }
        match self.window {
            Some(0) => fail("window", "must be at least 1", 0),
            Some(w) if w > self.capacity => fail("window", "must be at most the capacity", w),
            _ => Ok(()),
        }
    }
}
