//! Text generation from a prompt.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use trike_core::{Bounds, OptionError};
use trike_nn::{Backend, KvPrecision, KvSpec, Logits, Sequence, Step, StepLogits};

use crate::{
    LanguageModel, LlmError,
    sampler::{Sampler, SamplerConfig},
    stream::TextStream,
    tokenizer::TokenizerError,
};

/// Maximum number of prompt tokens per forward pass. A longer step amortizes weight unpacking over more tokens but needs more
/// memory for activations; this value was chosen, not tuned.
pub(crate) const STEP: usize = 256;

/// Options of text generation; each `with_` method changes one field of the default.
///
/// ```
/// use trike_llm::{GenerateOptions, sampler::SamplerConfig};
///
/// let options = GenerateOptions::default()
///     .with_max_tokens(64)
///     .with_sampler(SamplerConfig::default().with_temperature(0.8))
///     .with_stop(["\n\n".to_owned()]);
/// assert_eq!((options.max_tokens, options.stop.len(), options.window), (Some(64), 1, None));
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
    /// Precision of cached keys and values; the model's default when `None`.
    pub kv: Option<KvPrecision>,
    /// Rolling window, in tokens: the text may exceed the context length, and each token attends to this many tokens only.
    pub window: Option<usize>,
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
    pub fn with_kv(self, kv: impl Into<Option<KvPrecision>>) -> Self {
        Self { kv: kv.into(), ..self }
    }

    /// Sets [`window`](Self::window).
    #[must_use]
    pub fn with_window(self, window: impl Into<Option<usize>>) -> Self {
        Self { window: window.into(), ..self }
    }

    /// The KV cache for a prompt of `prompt` tokens and its continuation, in a model with this context and default precision.
    ///
    /// # Errors
    ///
    /// [`LlmError::PromptTooLong`], and [`LlmError::Option`] for a window longer than the context.
    pub fn cache(&self, prompt: usize, context: usize, default: KvPrecision) -> Result<KvSpec, LlmError> {
        let precision = self.kv.unwrap_or(default);
        match self.window {
            Some(window) => {
                OptionError::check("window", Bounds::at_least(1usize).at_most(context), window)?;
                Ok(KvSpec::rolling(precision, window, STEP))
            }
            None if prompt > context => Err(LlmError::PromptTooLong { tokens: prompt, context }),
            None => {
                let wanted = prompt.saturating_add(self.max_tokens.unwrap_or(context));
                Ok(KvSpec::new(precision, wanted.min(context)))
            }
        }
    }
}

/// Reason why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model generated an end token.
    Eos,
    /// A stop string was generated.
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
    /// Time to the logits of the prompt's last token.
    pub prefill: Duration,
    /// Time from there to the end.
    pub decode: Duration,
}

impl Generation {
    /// New tokens per second of decoding. The first of them comes from the prompt's logits and is not counted.
    pub fn tokens_per_second(&self) -> f64 {
        rate(self.ids.len().saturating_sub(1), self.decode)
    }

    /// Prompt tokens per second.
    pub fn prompt_tokens_per_second(&self) -> f64 {
        rate(self.prompt_ids.len(), self.prefill)
    }
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

impl<B: Backend> LanguageModel<B> {
    /// Continues `prompt`.
    ///
    /// # Errors
    ///
    /// As [`generate_with`](Self::generate_with).
    pub fn generate(&self, prompt: &str, options: &GenerateOptions) -> Result<Generation, LlmError> {
        self.generate_with(prompt, options, |_| ControlFlow::Continue(()))
    }

    /// Continues `prompt` and passes each piece of new text to `on_text` as soon as it is final. A piece is valid
    /// UTF-8; the pieces joined are [`Generation::text`]. `Break` ends the generation.
    ///
    /// # Errors
    ///
    /// Tokenizer errors for `prompt`, [`LlmError::PromptTooLong`], options out of range, and logits that cannot be
    /// sampled.
    pub fn generate_with(
        &self,
        prompt: &str,
        options: &GenerateOptions,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generation, LlmError> {
        let tokenizer = self.tokenizer()?;
        self.generate_ids(tokenizer.encode_prompt(prompt)?, tokenizer.eos(), options, on_text)
    }

    /// [`generate_with`](Self::generate_with) on a prompt of token ids, such as a rendered conversation; each token of `ends`
    /// ends the text.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::EmptyPrompt`] for no ids, and as [`generate_with`](Self::generate_with).
    pub fn generate_ids(
        &self,
        prompt_ids: Vec<u32>,
        ends: &[u32],
        options: &GenerateOptions,
        mut on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generation, LlmError> {
        if prompt_ids.is_empty() {
            return Err(TokenizerError::EmptyPrompt.into());
        }
        let tokenizer = self.tokenizer()?;
        let mut sampler = Sampler::new(options.sampler.clone())?;
        let mut stream =
            TextStream::after(tokenizer, &prompt_ids)?.with_stops(options.stop.iter().cloned())?;
        let mut sequence = self.sequence_for(prompt_ids.len(), options)?;

        // LM head rows beyond the tokenizer's last id are padding.
        let known = tokenizer.vocab_size().min(self.decoder().spec().vocab);
        // With padding, the top logits could belong to tokens that do not exist.
        let enough = options.sampler.candidates().filter(|_| known == self.decoder().spec().vocab);
        let start = Instant::now();
        let mut best = self.prefill(&mut sequence, &prompt_ids, enough)?;
        let prefill = start.elapsed();
        let start = Instant::now();
        let mut history = prompt_ids.clone();
        let mut text = String::new();
        let finish = loop {
            let generated = history.len() - prompt_ids.len();
            if options.max_tokens.is_some_and(|max| generated >= max) {
                break FinishReason::MaxTokens;
            }
            let id = match &best {
                StepLogits::Top(top) => sampler.sample_top(top, known)?,
                StepLogits::All(logits) => sampler.sample(&logits[..known], &history)?,
            };
            if ends.contains(&id) {
                break FinishReason::Eos;
            }
            history.push(id);
            let piece = stream.push(id)?;
            text.push_str(&piece.text);
            if !piece.text.is_empty() && on_text(&piece.text).is_break() {
                break FinishReason::Cancelled;
            }
            if piece.stopped {
                break FinishReason::Stop;
            }
            if sequence.max_step() == 0 {
                break match options.max_tokens {
                    Some(max) if generated + 1 >= max => FinishReason::MaxTokens,
                    _ => FinishReason::Context,
                };
            }
            best = self.step(&mut sequence, &[id], enough)?;
        };
        let decode = start.elapsed();
        let rest = stream.finish();
        if !rest.is_empty() && finish != FinishReason::Cancelled {
            text.push_str(&rest);
            // The generation has ended, so `Break` has no effect.
            let _ = on_text(&rest);
        }
        let ids = history.split_off(prompt_ids.len());
        Ok(Generation { text, prompt_ids, ids, finish, prefill, decode })
    }

    /// A sequence with a KV cache for the prompt and its continuation.
    fn sequence_for(&self, prompt: usize, options: &GenerateOptions) -> Result<Sequence<B>, LlmError> {
        let spec = options.cache(prompt, self.decoder().spec().context, self.default_kv())?;
        Ok(self.decoder().sequence(spec)?)
    }

    /// Runs `ids` through the model in steps and returns the logits of the last token.
    fn prefill(
        &self,
        sequence: &mut Sequence<B>,
        ids: &[u32],
        enough: Option<usize>,
    ) -> Result<StepLogits, LlmError> {
        let mut best = StepLogits::All(Vec::new());
        for ids in ids.chunks(STEP) {
            best = self.step(sequence, ids, enough)?;
        }
        Ok(best)
    }

    /// The `enough` largest logits of the next token, or all logits.
    fn step(
        &self,
        sequence: &mut Sequence<B>,
        ids: &[u32],
        enough: Option<usize>,
    ) -> Result<StepLogits, LlmError> {
        let steps = &mut [Step { sequence, ids }];
        let best = match enough {
            Some(k) => self.decoder().forward_top(steps, k)?.pop(),
            None => self.decoder().forward(steps, Logits::Last)?.pop().map(StepLogits::All),
        };
        Ok(best.unwrap_or(StepLogits::All(Vec::new())))
    }

    /// Passes the logits of every token of `ids` to `on_row`, in order.
    ///
    /// # Errors
    ///
    /// [`LlmError::PromptTooLong`], [`LlmError::NonFinite`] for damaged weights, and errors of the decoder.
    pub fn logits(
        &self,
        ids: &[u32],
        kv: KvPrecision,
        mut on_row: impl FnMut(usize, &[f32]),
    ) -> Result<(), LlmError> {
        let context = self.decoder().spec().context;
        if ids.len() > context {
            return Err(LlmError::PromptTooLong { tokens: ids.len(), context });
        }
        let mut sequence = self.decoder().sequence(KvSpec::new(kv, ids.len().max(1)))?;
        let mut token = 0;
        // The logits of a step are one allocation, which small devices limit to 128 MiB.
        let rows = ((128 << 20) / (4 * self.decoder().spec().vocab)).clamp(1, STEP);
        for ids in ids.chunks(rows) {
            let mut step = [Step { sequence: &mut sequence, ids }];
            let all = self.decoder().forward(&mut step, Logits::All)?.pop().unwrap_or_default();
            for row in all.chunks_exact(self.decoder().spec().vocab) {
                if let Some((index, &value)) = row.iter().enumerate().find(|(_, v)| !v.is_finite()) {
                    return Err(LlmError::NonFinite { token, index, value });
                }
                on_row(token, row);
                token += 1;
            }
        }
        Ok(())
    }
}
