//! Settings of KV caches: selection of keys, eviction.

use clap::Args;
use trike::{Eviction, KeySelector, PromptKeys};

use super::{
    KeysChoice,
    names::{EVICTIONS, KEYS, kv_limit, one_of, positive, prompt_keys},
};

/// Selection of the keys that tokens attend to.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct KeyArgs {
    /// Cached keys that each generated token attends to: all, or at long contexts the top-k keys by sign-bit similarity with the
    /// query, the attention sinks and the most recent keys (signs). Prompts and the first two layers attend to all keys. On devices
    /// for heads of 64 to 256 elements
    #[arg(long, default_value = "all", value_parser = one_of(KEYS))]
    pub(crate) keys: KeysChoice,
    /// With `--keys signs`: number of keys selected by sign codes, per head; contexts below about five times that use full
    /// attention [default: 1024]
    #[arg(long, value_name = "COUNT", value_parser = positive)]
    pub(crate) keys_top_k: Option<usize>,
    /// Block-sparse prefill: fraction of key blocks that each 64-token query block attends to, 0.001 to 1: those with the most
    /// attention from a sample of its queries, plus the first block and its own. The first two layers attend to all keys. CPU only
    #[arg(long, value_name = "SHARE", default_value = "1", value_parser = prompt_keys)]
    pub(crate) prompt_keys: PromptKeys,
}

/// Eviction of keys and values.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct EvictArgs {
    /// Maximum number of positions in the KV cache, 64 or more: a full cache evicts a quarter of them, but never the attention
    /// sinks and the most recent ones. CPU only [default: the whole text]
    #[arg(long, value_name = "POSITIONS", value_parser = kv_limit)]
    pub(crate) kv_limit: Option<usize>,
    /// With `--kv-limit`: eviction policy of a full cache: the oldest positions or, per head, those with the least attention from
    /// the last 32 tokens (attention)
    #[arg(long, default_value = "oldest", requires = "kv_limit", value_parser = one_of(EVICTIONS))]
    pub(crate) evict: Eviction,
}

/// Settings of the KV cache other than its precision.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct KvArgs {
    #[command(flatten)]
    pub(crate) keys: KeyArgs,
    #[command(flatten)]
    pub(crate) evict: EvictArgs,
}

/// Default number of keys selected by sign codes.
pub(crate) const TOP_K: usize = 1024;

impl KeysChoice {
    /// The selector of `top_k` keys.
    pub(crate) fn selector(self, top_k: usize) -> Result<KeySelector, trike::core::OptionError> {
        match self {
            Self::All => Ok(KeySelector::All),
            Self::Signs => KeySelector::signs(top_k),
        }
    }
}
