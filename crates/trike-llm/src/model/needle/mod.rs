//! Whether a model finds a sentence again that stands far back in its context, and what a setting costs there.

mod figures;
mod haystack;

use trike_nn::{KeySelector, KvLimit, KvPrecisions, KvSpec, PromptKeys};

use super::{
    Model,
    perplexity::{best, log_sum_exp},
};
use crate::{LlmError, Session};

pub use figures::{NeedleAnswers, NeedleDepth, NeedleFigures, NeedleScore, NeedleSetting};
use figures::{Reply, Trial};
pub use haystack::{Haystack, haystacks};

/// Options of a needle test; each `with_` method changes one field of the default.
///
/// ```
/// use trike_llm::NeedleOptions;
///
/// let options = NeedleOptions::default().with_haystacks(4).with_seed(7);
/// assert_eq!((options.haystacks, options.seed, options.context), (4, 7, None));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NeedleOptions {
    /// Maximum number of haystacks, 16 by default; a short text gives fewer.
    pub haystacks: usize,
    /// Tokens of a prompt, at least 64 and at most the model's context length, which is the default.
    pub context: Option<usize>,
    /// RNG seed of the haystacks; 0 by default.
    pub seed: u64,
    /// The measured precision of cached keys and values; the model's default when `None`.
    pub kv: Option<KvPrecisions>,
    /// The measured selection of the keys that the tokens of question and answer attend to; all by default.
    pub keys: KeySelector,
    /// The measured selection of the keys that the other tokens attend to; all by default.
    pub prompt_keys: PromptKeys,
    /// The measured bound on the positions of the KV cache, beyond which it evicts; none by default.
    pub kv_limit: Option<KvLimit>,
}

impl Default for NeedleOptions {
    fn default() -> Self {
        Self {
            haystacks: 16,
            context: None,
            seed: 0,
            kv: None,
            keys: KeySelector::All,
            prompt_keys: PromptKeys::All,
            kv_limit: None,
        }
    }
}

impl NeedleOptions {
    /// The depths of a needle, as fractions of the haystack before it.
    pub const DEPTHS: [f64; 9] = [0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0];
    /// First tokens of an answer that must be right for a needle to be found.
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
    pub fn with_kv(self, kv: impl Into<Option<KvPrecisions>>) -> Self {
        Self { kv: kv.into(), ..self }
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

    /// Sets [`kv_limit`](Self::kv_limit).
    #[must_use]
    pub fn with_kv_limit(self, kv_limit: impl Into<Option<KvLimit>>) -> Self {
        Self { kv_limit: kv_limit.into(), ..self }
    }
}

/// Exact attention, or the setting that is compared with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Exact,
    Setting,
}

/// Runs the first so many tokens as a prompt and the others one by one, and passes on the positions and logits of the latter.
type Run<'a> = dyn FnMut(Side, &[u32], usize, &mut dyn FnMut(usize, &[f32])) -> Result<(), LlmError> + 'a;

/// See [`Model::find_needles`].
pub(crate) fn find<M: Model + ?Sized>(
    model: &M,
    text: &str,
    options: &NeedleOptions,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<NeedleScore, LlmError> {
    let all = haystacks(model.tokenizer()?, text, model.config().spec.context, options)?;
    let exact_kv = KvPrecisions::from(model.default_kv());
    let kv = options.kv.unwrap_or(exact_kv);
    let same_prompt = kv == exact_kv && options.prompt_keys.is_all() && options.kv_limit.is_none();
    let is_exact = same_prompt && options.keys.is_all();
    // Where prompts are read alike, the setting continues the one that exact attention has read.
    let mut sessions = [Session::default(), Session::default()];
    let own = usize::from(!same_prompt);
    let mut run: Box<Run<'_>> = Box::new(|side, ids, prompt, on_row| {
        let spec = |kv| KvSpec::new(kv, ids.len());
        match side {
            Side::Exact => model.logits_in(&mut sessions[0], ids, prompt, &spec(exact_kv), on_row),
            Side::Setting => {
                let spec = spec(kv).with_keys(options.keys).with_prompt_keys(options.prompt_keys);
                let spec = spec.limited(options.kv_limit);
                model.logits_in(&mut sessions[own], ids, prompt, &spec, on_row)
            }
        }
    });
    measure(&all, !is_exact, &mut *run, progress)
}

/// Puts all questions with exact attention and, if there is one, with the setting.
fn measure(
    all: &[Haystack],
    has_setting: bool,
    run: &mut Run<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<NeedleScore, LlmError> {
    let total = all.len() * (NeedleOptions::DEPTHS.len() + 1);
    let mut done = 0;
    let mut both = |ids: &[u32], haystack: &Haystack| -> Result<(Reply, Option<Reply>), LlmError> {
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
        // From the end: the prompts have the text before the needle in common, which is read once.
        let trial = |&depth: &f64| -> Result<Trial, LlmError> {
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
fn ask(side: Side, ids: &[u32], haystack: &Haystack, run: &mut Run<'_>) -> Result<Reply, LlmError> {
    let (inputs, question) = (&ids[..ids.len() - 1], ids.len() - haystack.needle().len());
    let first = ids.len() - haystack.answer().len();
    let mut reply = Reply::default();
    run(side, inputs, question, &mut |i, row| {
        if i + 1 < first {
            return;
        }
        let next = ids[i + 1] as usize;
        reply.nats += f64::from(row[next]) - log_sum_exp(row);
        // The tokens of a greedy continuation are those of the answer until one differs.
        if reply.tokens == i + 1 - first && best(row) == next {
            reply.tokens += 1;
        }
    })?;
    reply.nats /= haystack.answer().len() as f64;
    Ok(reply)
}

#[cfg(test)]
mod tests;
