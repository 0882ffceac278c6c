//! `trike perplexity`.

use std::path::Path;

use serde::Serialize;
use trike::{Backend, Comparison, LanguageModel, LlmError, ModelFile, Score, Split, llm::Use};

use super::{Wanted, text::read};
use crate::{
    args::{self, PerplexityArgs},
    progress::Progress,
};

/// How well a model predicts a text. The field names are the schema of `trike perplexity --json`.
#[derive(Debug, Serialize)]
pub(crate) struct PerplexityOutcome {
    pub(crate) model: String,
    pub(crate) file: String,
    pub(crate) split: &'static str,
    /// Type of cached keys and values.
    pub(crate) kv: &'static str,
    #[serde(flatten)]
    pub(crate) figures: Figures,
    /// Against another model.
    #[serde(flatten)]
    pub(crate) against: Option<Against>,
}

/// A [`Score`] under the names of the schema.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) perplexity: f64,
    /// Mean negative log-likelihood of a token.
    pub(crate) nats: f64,
    /// Standard error of that.
    pub(crate) nats_error: f64,
    pub(crate) bits_per_byte: f64,
    /// Tokens scored.
    pub(crate) tokens: usize,
    /// Bytes that they decode to.
    pub(crate) bytes: usize,
    pub(crate) sequences: usize,
}

/// What `--base` adds.
#[derive(Debug, Serialize)]
pub(crate) struct Against {
    pub(crate) base: Base,
    /// Mean divergence from the base in nats.
    pub(crate) kl: f64,
    /// Standard error of that.
    pub(crate) kl_error: f64,
    /// The perplexity over the base's.
    pub(crate) ratio: f64,
    /// Standard error of that; both models see the same tokens.
    pub(crate) ratio_error: f64,
    /// Share of tokens for which both have the same best token.
    pub(crate) top1_agreement: f64,
}

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
    let split =
        args.split.unwrap_or(if text.contains("<|endoftext|>") { Split::Stories } else { Split::Window });
    let cpu = args.cpu.cpu()?;
    let file = ModelFile::open(&path)?;
    let base = match &args.base {
        Some(path) => Some(ModelFile::open(super::hub::resolve(path, quiet)?)?),
        None => None,
    };
    let place = &args.device.device;
    let mut wanted = Wanted::new(&file, place, &cpu, &args.precision, quiet);
    wanted.tokenizer = args.tokenizer.tokenizer.as_deref();
    let scoring = Scoring { args, path: &path, text: &text, split, quiet };
    match &base {
        None => wanted.load(&file, Alone(scoring)),
        Some(base) => {
            let base_wanted = Wanted::new(base, place, &cpu, &args.precision, quiet);
            wanted.load(&file, Beside { scoring, base, wanted: &base_wanted })
        }
    }
}

/// What is scored.
#[derive(Clone, Copy)]
struct Scoring<'a> {
    args: &'a PerplexityArgs,
    path: &'a Path,
    text: &'a str,
    split: Split,
    quiet: bool,
}

/// One model.
struct Alone<'a>(Scoring<'a>);

impl Use for Alone<'_> {
    type Out = anyhow::Result<PerplexityOutcome>;

    fn with<B: Backend>(self, model: LanguageModel<B>) -> Self::Out {
        outcome(self.0, &model, None::<&LanguageModel<B>>)
    }
}

/// A model whose base is not loaded yet.
struct Beside<'a> {
    scoring: Scoring<'a>,
    base: &'a ModelFile,
    wanted: &'a Wanted<'a>,
}

impl Use for Beside<'_> {
    type Out = anyhow::Result<PerplexityOutcome>;

    fn with<B: Backend>(self, model: LanguageModel<B>) -> Self::Out {
        self.wanted.load(self.base, Pair { scoring: self.scoring, model: &model })
    }
}

/// A model and its base.
struct Pair<'a, B: Backend> {
    scoring: Scoring<'a>,
    model: &'a LanguageModel<B>,
}

impl<B: Backend> Use for Pair<'_, B> {
    type Out = anyhow::Result<PerplexityOutcome>;

    fn with<C: Backend>(self, base: LanguageModel<C>) -> Self::Out {
        outcome(self.scoring, self.model, Some(&base))
    }
}

fn outcome<B: Backend, C: Backend>(
    scoring: Scoring<'_>,
    model: &LanguageModel<B>,
    base: Option<&LanguageModel<C>>,
) -> anyhow::Result<PerplexityOutcome> {
    let Scoring { args, path, text, split, quiet } = scoring;
    let kv = args.precision.kv.unwrap_or(model.default_kv());
    let progress = Progress::start("scoring", quiet);
    let mut set = |done, total| progress.set(done, total);
    let (score, against) = match (base, &args.base) {
        (Some(base), Some(base_path)) => {
            let base_kv = args.precision.kv.unwrap_or(base.default_kv());
            let all = trike::compare(model, kv, base, base_kv, text, split, args.limit, &mut set);
            let all = all.map_err(|e| in_file(e, &args.file))?;
            let against = Against::new(base_path, &all);
            (all.score, Some(against))
        }
        _ => {
            let score = trike::score(model, kv, text, split, args.limit, &mut set);
            (score.map_err(|e| in_file(e, &args.file))?, None)
        }
    };
    Ok(PerplexityOutcome {
        model: path.display().to_string(),
        file: args.file.display().to_string(),
        split: args::split_name(split),
        kv: args::kv_name(kv),
        figures: score.into(),
        against,
    })
}

/// The text has a name that only the command knows.
pub(super) fn in_file(error: LlmError, path: &Path) -> anyhow::Error {
    let is_about_text = matches!(error, LlmError::NothingToScore);
    let error = anyhow::Error::from(error);
    if is_about_text { error.context(path.display().to_string()) } else { error }
}
