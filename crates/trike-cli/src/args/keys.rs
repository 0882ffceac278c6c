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
    /// Cached keys that each generated token attends to: all, or at long contexts those whose sign codes agree best with the query
    /// (signs), and always the first and the last ones. Prompts and the first two layers attend to all. On devices for heads
    /// of 64 to 256 elements
    #[arg(long, default_value = "all", value_parser = one_of(KEYS))]
    pub(crate) keys: KeysChoice,
    /// With `--keys signs`: number of keys selected by their codes, per head; below about five times as many positions, all keys are
    /// attended to [default: 1024]
    #[arg(long, value_name = "COUNT", value_parser = positive)]
    pub(crate) keys_top_k: Option<usize>,
    /// Share of the keys that each block of 64 tokens of a prompt attends to, 0.001 to 1: the blocks of keys that a sample of its
    /// tokens attends to most, and always the first block and its own. The first two layers attend to all. CPU only
    #[arg(long, value_name = "SHARE", default_value = "1", value_parser = prompt_keys)]
    pub(crate) prompt_keys: PromptKeys,
}

/// Eviction of keys and values.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct EvictArgs {
    /// Maximum number of positions in the KV cache, 64 or more: a full cache forgets a quarter of them, all but the first and the last
    /// ones, and they have no part in attention any more. CPU only [default: the whole text]
    #[arg(long, value_name = "POSITIONS", value_parser = kv_limit)]
    pub(crate) kv_limit: Option<usize>,
    /// With `--kv-limit`: the positions that a full cache forgets, the oldest or, for each head, those with the least attention of the
    /// last 32 tokens (attention)
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

/// Default number of keys selected by their codes.
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
