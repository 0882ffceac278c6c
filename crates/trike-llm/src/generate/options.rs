//! Options and results of text generation.

use std::{ops::ControlFlow, time::Duration};

use trike_core::{Bounds, OptionError};
use trike_nn::{KvOptions, KvPrecision, KvSpec};
use trike_text::{constraint::Grammar, sampler::SamplerConfig};

use super::PROMPT_STEP;
use crate::LlmError;

/// Receives pieces of new text; `Break` ends the generation.
pub type OnText<'a> = dyn FnMut(&str) -> ControlFlow<()> + 'a;

/// Options of text generation; each `with_` method changes one field of the default.
///
/// ```
/// use trike_llm::{GenerateOptions, sampler::SamplerConfig};
///
/// let options = GenerateOptions::default()
///     .with_max_tokens(64)
///     .with_sampler(SamplerConfig::default().with_temperature(0.8))
///     .with_stop(["\n\n".to_owned()]);
/// assert_eq!((options.max_tokens, options.stop.len(), options.kv.window), (Some(64), 1, None));
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// Maximum number of new tokens; `None` generates until an end token or until the context is full.
    pub max_tokens: Option<usize>,
    /// Sampling options; greedy decoding by default.
    pub sampler: SamplerConfig,
    /// Stop strings: each ends the text and is not part of it.
    pub stop: Vec<String>,
    /// The KV cache.
    pub kv: KvOptions,
    /// Maximum total tokens of prompt and continuation; the model's context length when `None`. The KV cache has this capacity, so
    /// that a [`Session`](crate::Session) can be continued up to it.
    pub context: Option<usize>,
    /// Grammar that constrains the text; unconstrained when `None`.
    pub grammar: Option<Grammar>,
    /// Record the log-probability of each new token, and of this many most probable tokens.
    pub logprobs: Option<usize>,
    /// Limit of the reasoning that the text begins with; none when `None`.
    pub reasoning: Option<ReasoningLimit>,
}

/// A limit of the reasoning that a text begins with. At the limit the text goes on with the tag that ends it, whatever the model says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReasoningLimit {
    /// Tokens of reasoning, and of the tag that opens it.
    pub tokens: usize,
    /// The tag that opens it; `None` if the prompt ends with that.
    pub open: Option<String>,
    /// The tag that ends it.
    pub close: String,
}

impl ReasoningLimit {
    /// A limit of the reasoning up to the tag `close`, in a text that begins with the tag `open`, or in every text.
    #[must_use]
    pub fn new(tokens: usize, open: impl Into<Option<String>>, close: impl Into<String>) -> Self {
        Self { tokens, open: open.into(), close: close.into() }
    }

    /// Whether a text of `tokens` tokens is reasoning that has to end.
    pub(super) fn is_reached(&self, tokens: usize, text: &str) -> bool {
        let is_open = self.open.as_ref().is_none_or(|open| text.trim_start().starts_with(open.as_str()));
        tokens >= self.tokens && is_open && !text.contains(&self.close)
    }
}

impl GenerateOptions {
    /// Sets [`max_tokens`](Self::max_tokens).
    #[must_use]
    pub fn with_max_tokens(self, max_tokens: impl Into<Option<usize>>) -> Self {
        Self { max_tokens: max_tokens.into(), ..self }
    }

    /// Sets [`sampler`](Self::sampler).
    #[must_use]
    pub fn with_sampler(self, sampler: SamplerConfig) -> Self {
        Self { sampler, ..self }
    }

    /// Sets [`stop`](Self::stop).
    #[must_use]
    pub fn with_stop(self, stop: impl Into<Vec<String>>) -> Self {
        Self { stop: stop.into(), ..self }
    }

    /// Sets [`kv`](Self::kv).
    #[must_use]
    pub fn with_kv(self, kv: impl Into<KvOptions>) -> Self {
        Self { kv: kv.into(), ..self }
    }

    /// Sets [`context`](Self::context).
    #[must_use]
    pub fn with_context(self, context: impl Into<Option<usize>>) -> Self {
        Self { context: context.into(), ..self }
    }

    /// Sets [`grammar`](Self::grammar).
    #[must_use]
    pub fn with_grammar(self, grammar: impl Into<Option<Grammar>>) -> Self {
        Self { grammar: grammar.into(), ..self }
    }

    /// Sets [`logprobs`](Self::logprobs).
    #[must_use]
    pub fn with_logprobs(self, logprobs: impl Into<Option<usize>>) -> Self {
        Self { logprobs: logprobs.into(), ..self }
    }

    /// Sets [`reasoning`](Self::reasoning).
    #[must_use]
    pub fn with_reasoning(self, reasoning: impl Into<Option<ReasoningLimit>>) -> Self {
        Self { reasoning: reasoning.into(), ..self }
    }

    /// The KV cache for a prompt of `prompt` tokens and its continuation, in a model with this context and default precision.
    ///
    /// # Errors
    ///
    /// [`LlmError::PromptTooLong`], and [`LlmError::Option`] for a window or a context longer than the model's.
    pub fn cache(&self, prompt: usize, context: usize, default: KvPrecision) -> Result<KvSpec, LlmError> {
        if let Some(wanted) = self.context {
            OptionError::check("context", Bounds::at_least(1usize).at_most(context), wanted)?;
        }
        let (context, asked) = (self.context.unwrap_or(context), self.context.is_some());
        if let Some(window) = self.kv.window {
            OptionError::check("window", Bounds::at_least(1usize).at_most(context), window)?;
        } else if prompt > context {
            return Err(LlmError::PromptTooLong { tokens: prompt, context });
        }
        let wanted = match asked {
            true => context,
            false => prompt.saturating_add(self.max_tokens.unwrap_or(context)).min(context),
        };
        Ok(KvSpec::of(&self.kv, default, wanted, PROMPT_STEP))
    }
}

/// Reason why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model generated an end token.
    Eos,
    /// A stop string was generated, or the text is complete under its [grammar](GenerateOptions::grammar).
    Stop,
    /// [`GenerateOptions::max_tokens`] were generated.
    MaxTokens,
    /// The context is full.
    Context,
    /// The callback returned `Break`.
    Cancelled,
}

impl FinishReason {
    /// A short name: `eos`, `stop`, `max_tokens`, `context`, `cancelled`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eos => "eos",
            Self::Stop => "stop",
            Self::MaxTokens => "max_tokens",
            Self::Context => "context",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A continued prompt.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The new text, without the prompt.
    pub text: String,
    /// Token ids of the prompt, BOS included.
    pub prompt_ids: Vec<u32>,
    /// New token ids, without the end token.
    pub ids: Vec<u32>,
    /// Reason why the text ended.
    pub finish: FinishReason,
    /// Tokens of the prompt reused from a [`Session`](crate::Session).
    pub reused: usize,
    /// Positions evicted from the KV cache, with [`KvOptions::limit`].
    pub evicted: usize,
    /// The log-probabilities of the new tokens, with [`GenerateOptions::logprobs`].
    pub logprobs: Vec<TokenLogprobs>,
    /// Time to the logits of the prompt's last token.
    pub prefill: Duration,
    /// Time from then to the end.
    pub decode: Duration,
}

impl Generation {
    /// New tokens per second of decoding. The first new token is sampled from the prompt's logits and is not counted.
    pub fn tokens_per_second(&self) -> f64 {
        rate(self.ids.len().saturating_sub(1), self.decode)
    }

    /// Prompt tokens per second, without reused ones.
    pub fn prompt_tokens_per_second(&self) -> f64 {
        rate(self.prompt_ids.len() - self.reused, self.prefill)
    }
}

/// Log-probabilities of the model, before temperature, penalties and grammar.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The chosen token.
    pub id: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// The most probable tokens, in descending order.
    pub top: Vec<(u32, f32)>,
}

impl TokenLogprobs {
    /// Of a token, and of the `count` most probable ones.
    pub(crate) fn of(logits: &[f32], id: u32, count: usize) -> Self {
        let best = logits.iter().fold(f32::NEG_INFINITY, |best, &logit| best.max(logit));
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit - best).exp()).sum();
        let log_sum = f64::from(best) + sum.ln();
        let logprob = |logit: f32| (f64::from(logit) - log_sum) as f32;
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        let better = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        let count = count.min(order.len());
        if count < order.len() {
            order.select_nth_unstable_by(count, better);
            order.truncate(count);
        }
        order.sort_by(better);
        let top = order.into_iter().map(|id| (id, logprob(logits[id as usize]))).collect();
        Self { id, logprob: logprob(logits[id as usize]), top }
    }
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}
