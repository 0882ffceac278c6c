//! Needle-in-a-haystack test: retrieval of a sentence from far back in the context, and the loss due to a KV cache setting.

mod figures;
mod haystack;

use trike_llm::{Model, PROMPT_STEP, Session};
use trike_nn::{KvOptions, KvSpec};

use crate::{
    EvalError,
    perplexity::{best, log_sum_exp},
};

pub use figures::{NeedleAnswers, NeedleDepth, NeedleFigures, NeedleScore, NeedleSetting};
use figures::{Reply, Trial};
pub use haystack::{Haystack, haystacks};

/// Options of a needle test; each `with_` method changes one field of the default.
///
/// ```
/// use trike_eval::NeedleOptions;
///
/// let options = NeedleOptions::default().with_haystacks(4).with_seed(7);
/// assert_eq!((options.haystacks, options.seed, options.context), (4, 7, None));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NeedleOptions {
    /// Maximum number of haystacks, 16 by default; a short text yields fewer.
    pub haystacks: usize,
    /// Tokens per prompt, at least 64; the default and maximum is the model's context length.
    pub context: Option<usize>,
    /// RNG seed of the haystacks; 0 by default.
    pub seed: u64,
    /// The measured KV cache. Its key selector applies to the tokens of question and answer, its selection for prompts to all
    /// others.
    pub kv: KvOptions,
}

impl Default for NeedleOptions {
    fn default() -> Self {
        Self { haystacks: 16, context: None, seed: 0, kv: KvOptions::default() }
    }
}

impl NeedleOptions {
    /// Depths of the needle, as fractions of the haystack before it.
    pub const DEPTHS: [f64; 9] = [0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0];
    /// Number of initial answer tokens that must match for a needle to count as found.
    pub const FOUND_TOKENS: usize = 4;

    /// Sets [`haystacks`](Self::haystacks).
    #[must_use]
    pub fn with_haystacks(self, haystacks: usize) -> Self {
        Self { haystacks, ..self }
    }

    /// Sets [`context`](Self::context).
    #[must_use]
    pub fn with_context(self, context: impl Into<Option<usize>>) -> Self {
        Self { context: context.into(), ..self }
    }

    /// Sets [`seed`](Self::seed).
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Sets [`kv`](Self::kv).
    #[must_use]
    pub fn with_kv(self, kv: impl Into<KvOptions>) -> Self {
        Self { kv: kv.into(), ..self }
    }
}

/// Exact attention, or the setting compared with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Exact,
    Setting,
}

/// Prefills the first `prompt` tokens, decodes the rest token by token, and calls `on_row` with their positions and logits.
type Run<'a> = dyn FnMut(Side, &[u32], usize, &mut dyn FnMut(usize, &[f32])) -> Result<(), EvalError> + 'a;

/// Inserts sentences of `text` into passages of it, at several depths of the context, and measures whether the model completes
/// their first halves, with exact attention and with the KV cache of `options`. `progress` is called with the prompts done and in
/// total.
///
/// ```
/// use trike_eval::{NeedleOptions, find_needles};
/// use trike_llm::LanguageModel;
/// use trike_nn::{KeySelector, KvOptions};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
/// let model = LanguageModel::load(path)?;
/// let text: String = (0..60).map(|i| format!(" On day {i}, Lily saw {} birds.", i * i % 97)).collect();
/// let options = NeedleOptions::default()
///     .with_context(256)
///     .with_haystacks(1)
///     .with_kv(KvOptions::default().with_keys(KeySelector::signs(16)?));
/// let score = find_needles(&model, &text, &options, &mut |_, _| ())?;
///
/// let (exact, signs) = (score.all.exact, score.all.setting.expect("a setting"));
/// assert_eq!((score.context, score.depths.len(), score.all.prompts), (256, 9, 9));
/// assert!(signs.kept <= exact.found && exact.found <= 9);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// Errors of [`haystacks()`], [`LlmError::NoTokenizer`](trike_llm::LlmError::NoTokenizer), and as [`Model::logits_in`].
pub fn find_needles(
    model: &dyn Model,
    text: &str,
    options: &NeedleOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<NeedleScore, EvalError> {
    let all = haystacks(model.tokenizer()?, text, model.config().spec.context, options)?;
    let (kv, default) = (options.kv, model.default_kv());
    let same_precision = kv.precision.is_none_or(|precision| precision == default);
    let same_prompt = same_precision && kv.prompt_keys.is_all() && kv.limit.is_none() && kv.window.is_none();
    let is_exact = same_prompt && kv.keys.is_all();
    // If both prefill identically, the setting reuses the session of exact attention.
    let mut sessions = [Session::default(), Session::default()];
    let own = usize::from(!same_prompt);
    let mut run: Box<Run<'_>> = Box::new(|side, ids, prompt, on_row| {
        let (session, options) = match side {
            Side::Exact => (0, KvOptions::default()),
            Side::Setting => (own, kv),
        };
        let spec = KvSpec::of(&options, default, ids.len(), PROMPT_STEP);
        Ok(model.logits_in(&mut sessions[session], ids, prompt, &spec, on_row)?)
    });
    measure(&all, !is_exact, &mut *run, progress)
}

/// Asks all questions with exact attention and, if there is one, with the setting.
fn measure(
    all: &[Haystack],
    has_setting: bool,
    run: &mut Run<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<NeedleScore, EvalError> {
    let total = all.len() * (NeedleOptions::DEPTHS.len() + 1);
    let mut done = 0;
    let mut both = |ids: &[u32], haystack: &Haystack| -> Result<(Reply, Option<Reply>), EvalError> {
        let exact = ask(Side::Exact, ids, haystack, run)?;
        let setting = if has_setting { Some(ask(Side::Setting, ids, haystack, run)?) } else { None };
        done += 1;
        progress(done, total);
        Ok((exact, setting))
    };
    let mut rows = Vec::with_capacity(all.len());
    let mut guesses = Vec::with_capacity(all.len());
    for haystack in all {
        let guess = both(&haystack.control(), haystack)?;
        // Deepest first: consecutive prompts share the text before the needle, which is prefilled once.
        let trial = |&depth: &f64| -> Result<Trial, EvalError> {
            let (ids, distance) = haystack.with_needle(depth);
            let (exact, setting) = both(&ids, haystack)?;
            let gain = |reply: Reply, guess: Reply| Reply { nats: reply.nats - guess.nats, ..reply };
            Ok(Trial {
                distance,
                exact: gain(exact, guess.0),
                setting: setting.zip(guess.1).map(|(reply, guess)| gain(reply, guess)),
            })
        };
        let mut row = NeedleOptions::DEPTHS.iter().rev().map(trial).collect::<Result<Vec<_>, _>>()?;
        row.reverse();
        rows.push(row);
        guesses.push(guess);
    }
    Ok(NeedleScore::new(all, &rows, &guesses))
}

/// The answer to the question at the end of a prompt.
fn ask(side: Side, ids: &[u32], haystack: &Haystack, run: &mut Run<'_>) -> Result<Reply, EvalError> {
    let (inputs, question) = (&ids[..ids.len() - 1], ids.len() - haystack.needle().len());
    let first = ids.len() - haystack.answer().len();
    let mut reply = Reply::default();
    run(side, inputs, question, &mut |i, row| {
        if i + 1 < first {
            return;
        }
        let next = ids[i + 1] as usize;
        reply.nats += f64::from(row[next]) - log_sum_exp(row);
        // The greedy continuation matches the answer up to the first different token.
        if reply.tokens == i + 1 - first && best(row) == next {
            reply.tokens += 1;
        }
    })?;
    reply.nats /= haystack.answer().len() as f64;
    Ok(reply)
}

#[cfg(test)]
mod tests;
