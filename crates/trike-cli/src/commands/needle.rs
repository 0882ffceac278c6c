//! Needle test of `trike eval --needle`.

use std::path::Path;

use serde::Serialize;
use trike::{KvOptions, Model, NeedleOptions, NeedleScore, eval::find_needles};

use super::{
    load::prompt_share,
    perplexity::{LimitOutcome, in_file},
};
use crate::{args::EvalArgs, progress::Progress};

/// Result of a needle test. The field names are part of the schema of `trike eval --json`.
#[derive(Debug, Serialize)]
pub(crate) struct NeedleOutcome {
    pub(crate) file: String,
    /// RNG seed of the haystacks.
    pub(crate) seed: u64,
    /// KV cache precision of exact attention.
    pub(crate) exact_kv: &'static str,
    /// KV cache precision of the compared setting.
    pub(crate) kv: String,
    /// Selection of keys of the compared setting.
    pub(crate) keys: &'static str,
    /// Number of keys selected by their codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keys_top_k: Option<usize>,
    /// Fraction of key blocks that the haystack attends to, unless it is 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_keys: Option<f64>,
    /// Limit on the cache positions of the compared setting.
    #[serde(flatten)]
    pub(crate) limit: Option<LimitOutcome>,
    #[serde(flatten)]
    pub(crate) score: NeedleScore,
}

/// Runs the needle test on a text.
pub(super) fn find(
    model: &dyn Model,
    file: &Path,
    text: &str,
    args: &EvalArgs,
    kv: KvOptions,
    quiet: bool,
) -> anyhow::Result<NeedleOutcome> {
    let default = NeedleOptions::default();
    let options = default
        .with_haystacks(args.limit.unwrap_or(default.haystacks))
        .with_context(args.context)
        .with_seed(args.seed)
        .with_kv(kv);
    let progress = Progress::start(format!("finding needles in {}", file.display()), quiet);
    let score = find_needles(model, text, &options, &mut |done, total| progress.set(done, total))
        .map_err(|e| in_file(e, file))?;
    Ok(NeedleOutcome {
        file: file.display().to_string(),
        seed: args.seed,
        exact_kv: model.default_kv().name(),
        kv: kv.precision.unwrap_or(model.default_kv().into()).to_string(),
        keys: kv.keys.name(),
        keys_top_k: kv.keys.top_k(),
        prompt_keys: prompt_share(kv.prompt_keys),
        limit: LimitOutcome::of(kv.limit),
        score,
    })
}
