//! Settings of the KV cache of a sequence.

use crate::{Eviction, KeySelector, KvPrecision, KvPrecisions, PromptKeys};

/// A bound on the memory of long sequences: a cache with fewer positions than the sequence, which evicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLimit {
    /// Maximum capacity of a cache in positions, at least [`Eviction::LEAST_CAPACITY`].
    pub positions: usize,
    /// The positions that a full cache forgets.
    pub eviction: Eviction,
}

/// Settings of the KV cache of a sequence, the same for generation and for measurements; each `with_` method changes one field of
/// the default: the model's precision, attention to all keys, no limit and no window.
///
/// A precision alone converts into these settings, so that a setter which takes `impl Into<KvOptions>` also takes a precision.
///
/// ```
/// use trike_core::{Eviction, KvLimit, KvOptions, KvPrecision};
///
/// let limit = KvLimit { positions: 1024, eviction: Eviction::Oldest };
/// let kv = KvOptions::from(KvPrecision::Int8).with_limit(limit);
/// assert_eq!((kv.precision, kv.limit, kv.window), (KvPrecision::Int8.into(), Some(limit), None));
/// assert_eq!(KvOptions::default().precision, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KvOptions {
    /// Precision of cached keys and values; the model's default when `None`.
    pub precision: Option<KvPrecisions>,
    /// Selection of the keys that each new token attends to.
    pub keys: KeySelector,
    /// Selection of the keys that prompts, in steps of several tokens, attend to.
    pub prompt_keys: PromptKeys,
    /// Bound on the positions of the cache, beyond which it evicts. Not with a window.
    pub limit: Option<KvLimit>,
    /// Rolling window, in tokens: the text may exceed the context length, and each token attends to this many tokens only.
    pub window: Option<usize>,
}

impl KvOptions {
    /// Sets [`precision`](Self::precision).
    #[must_use]
    pub fn with_precision(self, precision: impl Into<Option<KvPrecisions>>) -> Self {
        Self { precision: precision.into(), ..self }
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

    /// Sets [`limit`](Self::limit).
    #[must_use]
    pub fn with_limit(self, limit: impl Into<Option<KvLimit>>) -> Self {
        Self { limit: limit.into(), ..self }
    }

    /// Sets [`window`](Self::window).
    #[must_use]
    pub fn with_window(self, window: impl Into<Option<usize>>) -> Self {
        Self { window: window.into(), ..self }
    }
}

impl From<Option<KvPrecisions>> for KvOptions {
    fn from(precision: Option<KvPrecisions>) -> Self {
        Self { precision, ..Self::default() }
    }
}

impl From<KvPrecisions> for KvOptions {
    fn from(precision: KvPrecisions) -> Self {
        Some(precision).into()
    }
}

impl From<KvPrecision> for KvOptions {
    fn from(precision: KvPrecision) -> Self {
        KvPrecisions::from(precision).into()
    }
}
