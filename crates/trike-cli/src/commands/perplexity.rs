//! `trike perplexity`.

use std::path::Path;

use serde::Serialize;
use trike::{
    ActivationPrecision, Comparison, EvalError, KvLimit, Model, ModelFile, Score, ScoreOptions, Split,
    eval::{PositionFigures, compare, score},
};

use super::{
    kv::ChosenOutcome,
    load::{load, open, prompt_share},
    text::read,
};
use crate::{
    args::{self, PerplexityArgs},
    output,
    progress::Progress,
};

/// Perplexity of a model on a text. The field names are the schema of `trike perplexity --json`.
#[derive(Debug, Serialize)]
pub(crate) struct PerplexityOutcome {
    pub(crate) model: String,
    pub(crate) file: String,
    pub(crate) split: &'static str,
    /// Maximum sequence length in tokens, unless it is the model's context.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) context: Option<usize>,
    /// Activation precisions of ternary layers.
    pub(crate) activations: String,
    /// KV cache precision.
    pub(crate) kv: String,
    /// The choice of `--kv auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kv_chosen: Option<ChosenOutcome>,
    /// Selection of keys.
    pub(crate) keys: &'static str,
    /// Number of keys selected by their codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keys_top_k: Option<usize>,
    /// Fraction of key blocks that prompts attend to, unless it is 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_keys: Option<f64>,
    /// Limit on the cache positions.
    #[serde(flatten)]
    pub(crate) limit: Option<LimitOutcome>,
    #[serde(flatten)]
    pub(crate) figures: Figures,
    /// Comparison with the base model.
    #[serde(flatten)]
    pub(crate) against: Option<Against>,
}

/// A limit on the positions of the KV cache.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct LimitOutcome {
    /// Maximum number of positions.
    pub(crate) kv_limit: usize,
    /// The eviction policy.
    pub(crate) evict: &'static str,
}

impl LimitOutcome {
    pub(crate) fn of(limit: Option<KvLimit>) -> Option<Self> {
        limit.map(|limit| Self { kv_limit: limit.positions, evict: limit.eviction.name() })
    }
}

/// A [`Score`], serialized under the names of the schema.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) perplexity: f64,
    /// Mean negative log-likelihood per token.
    pub(crate) nats: f64,
    /// Standard error of `nats`.
    pub(crate) nats_error: f64,
    pub(crate) bits_per_byte: f64,
    /// Tokens scored.
    pub(crate) tokens: usize,
    /// Bytes of the decoded tokens.
    pub(crate) bytes: usize,
    pub(crate) sequences: usize,
}

/// Comparison with the model of `--base`.
#[derive(Debug, Serialize)]
pub(crate) struct Against {
    pub(crate) base: Base,
    /// Mean KL divergence from the base, in nats.
    pub(crate) kl: f64,
    /// Standard error of `kl`.
    pub(crate) kl_error: f64,
    /// Ratio of the perplexity to the base's.
    pub(crate) ratio: f64,
    /// Standard error of `ratio`; both models score the same tokens.
    pub(crate) ratio_error: f64,
    /// Fraction of tokens with the same most probable token (top-1 agreement).
    pub(crate) top1_agreement: f64,
    /// The same by position, if there are more than 512.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) positions: Vec<PositionOutcome>,
}

/// Figures of the tokens predicted from a range of positions.
#[derive(Debug, Serialize)]
pub(crate) struct PositionOutcome {
    pub(crate) first: usize,
    pub(crate) last: usize,
    pub(crate) tokens: usize,
    pub(crate) perplexity: f64,
    /// Ratio of the perplexity to the base's.
    pub(crate) ratio: f64,
    pub(crate) kl: f64,
    pub(crate) kl_error: f64,
}

impl From<&PositionFigures> for PositionOutcome {
    fn from(figures: &PositionFigures) -> Self {
        Self {
            first: figures.positions.start,
            last: figures.positions.end - 1,
            tokens: figures.tokens,
            perplexity: figures.nats.exp(),
            ratio: (figures.nats - figures.base_nats).exp(),
            kl: figures.kl,
            kl_error: figures.kl_error,
        }
    }
}

/// Number of positions up to which figures by position add nothing to the totals.
const FEW: usize = 512;

/// The base model.
#[derive(Debug, Serialize)]
pub(crate) struct Base {
    pub(crate) model: String,
    #[serde(flatten)]
    pub(crate) figures: Figures,
}

impl Against {
    pub(super) fn new(base: &Path, all: &Comparison) -> Self {
        let ratio = all.score.perplexity / all.base.perplexity;
        Self {
            base: Base { model: base.display().to_string(), figures: all.base.clone().into() },
            kl: all.kl,
            kl_error: all.kl_error,
            ratio,
            ratio_error: ratio * all.gap_error,
            top1_agreement: all.top1_agreement,
            positions: match all.positions.last().is_some_and(|last| last.positions.start >= FEW) {
                true => all.positions.iter().map(PositionOutcome::from).collect(),
                false => Vec::new(),
            },
        }
    }
}

impl From<Score> for Figures {
    fn from(score: Score) -> Self {
        let Score { perplexity, nats, nats_error, bits_per_byte, tokens, bytes, sequences } = score;
        Self { perplexity, nats, nats_error, bits_per_byte, tokens, bytes, sequences }
    }
}

/// Scores a text.
pub(crate) fn perplexity(args: &PerplexityArgs, quiet: bool) -> anyhow::Result<PerplexityOutcome> {
    let path = args.model.path(quiet)?;
    let text = read(&args.file)?;
    let cpu = args.cpu.cpu()?;
    let file = ModelFile::open(&path)?;
    let base_file = match &args.base {
        Some(path) => Some(ModelFile::open(super::hub::resolve(path, quiet)?)?),
        None => None,
    };
    let device = open(&args.device.device, quiet)?;
    let tokenizer = file.tokenizer(args.tokenizer.tokenizer.as_deref())?;
    // On the host, plan memory only for sequences as long as those of the text.
    let on_host = device.is_cpu();
    let settings = args.kv.options(on_host)?;
    let request = args.precision.kv_request(on_host)?;
    let wanted = |file: &ModelFile| {
        let options = args.precision.options(file, &cpu);
        if on_host { options.with_sequence(None) } else { options }
    };
    let own = wanted(&file).with_tokenizer(tokenizer);
    let known = request.known(&file, &own)?;
    let model = load(device, &file, &own, quiet)?;
    let kv = request.choose(known, &file, &own, &*model, quiet)?;
    // The base model scores the token ids of the measured model, so it needs no tokenizer. Activations of the reference are not
    // rounded.
    let base = match &base_file {
        Some(file) => {
            let wanted = wanted(file).with_activations(ActivationPrecision::F32);
            Some(load(open(&args.device.device, true)?, file, &wanted, quiet)?)
        }
        None => None,
    };
    let options = ScoreOptions::new(args.split.unwrap_or_else(|| Split::of(&text)))
        .with_limit(args.limit)
        .with_context(args.context)
        .with_kv(settings.with_precision(kv.precision));
    let base = args.base.as_deref().zip(base.as_deref());
    let (figures, against) = measure(&*model, base, &args.file, &text, &options, quiet)?;
    Ok(PerplexityOutcome {
        model: output::model_name(&path),
        file: args.file.display().to_string(),
        split: args::split_name(options.split),
        context: options.context,
        activations: args::activations_name(&model.activations()),
        kv: kv.precision.unwrap_or(model.default_kv().into()).to_string(),
        kv_chosen: kv.chosen,
        keys: settings.keys.name(),
        keys_top_k: settings.keys.top_k(),
        prompt_keys: prompt_share(settings.prompt_keys),
        limit: LimitOutcome::of(settings.limit),
        figures,
        against,
    })
}

/// Scores a text, alone or against a base model. `file` is used in errors.
pub(super) fn measure(
    model: &dyn Model,
    base: Option<(&Path, &dyn Model)>,
    file: &Path,
    text: &str,
    options: &ScoreOptions,
    quiet: bool,
) -> anyhow::Result<(Figures, Option<Against>)> {
    let progress = Progress::start(format!("scoring {}", file.display()), quiet);
    let mut set = |done, total| progress.set(done, total);
    match base {
        None => {
            let figures = score(model, text, options, &mut set).map_err(|e| in_file(e, file))?;
            Ok((figures.into(), None))
        }
        Some((path, base)) => {
            let all = compare(model, base, text, options, &mut set).map_err(|e| in_file(e, file))?;
            let against = Against::new(path, &all);
            Ok((all.score.into(), Some(against)))
        }
    }
}

/// Adds the path of the text to errors about the text.
pub(super) fn in_file(error: EvalError, path: &Path) -> anyhow::Error {
    let is_about_text = matches!(error, EvalError::NothingToScore | EvalError::NeedleText { .. });
    let error = anyhow::Error::from(error);
    if is_about_text { error.context(path.display().to_string()) } else { error }
}
