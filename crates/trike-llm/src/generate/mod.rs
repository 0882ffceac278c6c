//! Text generation from a prompt.

mod options;
mod request;
mod session;

use std::{ops::ControlFlow, time::Instant};

use trike_nn::{Backend, DecoderSequence, Eviction, KvSpec, Logits, Step, StepLogits};
use trike_text::constraint::Constraint;

use crate::{LanguageModel, LlmError, sampler::Sampler, stream::TextStream, tokenizer::TokenizerError};
pub use options::{FinishReason, GenerateOptions, Generation, TokenLogprobs};
pub use request::PreparedRequest;
pub use session::Session;

/// Reduction of the hidden states of a text to one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    #[default]
    Mean,
    /// The state of the last token, the only one that attends to the whole text.
    Last,
}

/// Maximum number of prompt tokens per forward pass. A longer step amortizes weight unpacking over more tokens but needs more
/// memory for activations; this value was chosen, not tuned.
pub const PROMPT_STEP: usize = 256;

impl<B: Backend + 'static> LanguageModel<B> {
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
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generation, LlmError> {
        self.generate_in(&mut Session::default(), prompt_ids, ends, options, on_text)
    }

    /// [`generate_ids`](Self::generate_ids) that reuses the common prefix of the prompt and the text of `session`. Afterwards the
    /// session has this text, unless it has a rolling window.
    ///
    /// # Errors
    ///
    /// As [`generate_ids`](Self::generate_ids), and [`LlmError::Constraint`] for an invalid grammar; after an error the session is
    /// empty.
    pub fn generate_in(
        &self,
        session: &mut Session,
        prompt_ids: Vec<u32>,
        ends: &[u32],
        options: &GenerateOptions,
        on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generation, LlmError> {
        self.run(session, &PreparedRequest::of(self, prompt_ids, ends, options.clone())?, on_text)
    }

    /// [`generate_in`](Self::generate_in) for a prepared request.
    ///
    /// # Errors
    ///
    /// As [`generate_in`](Self::generate_in), and [`LlmError::Option`] for a request whose context is longer than the model's.
    pub fn run(
        &self,
        session: &mut Session,
        request: &PreparedRequest,
        mut on_text: impl FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generation, LlmError> {
        let PreparedRequest { ids: prompt_ids, ends, options, .. } = request;
        if prompt_ids.is_empty() {
            return Err(TokenizerError::EmptyPrompt.into());
        }
        let tokenizer = self.tokenizer()?;
        let mut sampler = Sampler::new(options.sampler.clone())?;
        let mut constraint =
            options.grammar.as_ref().map(|grammar| Constraint::new(grammar, tokenizer, ends)).transpose()?;
        let mut stream =
            TextStream::after(tokenizer, prompt_ids)?.with_stops(options.stop.iter().cloned())?;
        let context = self.decoder().spec().context;
        let longest = options.context.unwrap_or(context);
        let spec = request.cache(context, self.default_kv())?;
        let mut sequence = session.take(self.decoder(), &spec, prompt_ids)?;
        let reused = sequence.len();

        // LM head rows beyond the tokenizer's last id are padding.
        let known = tokenizer.vocab_size().min(self.decoder().spec().vocab);
        // With padding, the top logits could belong to tokens that do not exist; grammars and log-probabilities need all logits.
        let few = known == self.decoder().spec().vocab && constraint.is_none() && options.logprobs.is_none();
        let enough = options.sampler.candidates().filter(|_| few);
        let start = Instant::now();
        let mut best = self.prefill(&mut sequence, &prompt_ids[reused..], enough)?;
        let prefill = start.elapsed();
        let start = Instant::now();
        let mut history = prompt_ids.clone();
        let mut text = String::new();
        let mut logprobs = Vec::new();
        let finish = loop {
            let generated = history.len() - prompt_ids.len();
            if options.max_tokens == Some(0) {
                break FinishReason::MaxTokens;
            }
            let id = match &mut best {
                StepLogits::Top(top) => sampler.sample_top(top, known)?,
                StepLogits::All(logits) => {
                    let logits = &mut logits[..known];
                    let own = options.logprobs.map(|count| (count, logits.to_vec()));
                    if let Some(constraint) = &mut constraint {
                        constraint.mask(logits)?;
                    }
                    let id = sampler.sample(logits, &history)?;
                    if let Some((count, own)) = own.filter(|_| !ends.contains(&id)) {
                        logprobs.push(TokenLogprobs::of(&own, id, count));
                    }
                    id
                }
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
            let complete = constraint.as_mut().map(|constraint| constraint.accept(id)).transpose()?;
            if piece.stopped || complete == Some(true) {
                break FinishReason::Stop;
            }
            // The last token is not run: no token follows it.
            if options.max_tokens.is_some_and(|max| generated + 1 >= max) {
                break FinishReason::MaxTokens;
            }
            // A cache with eviction is never full.
            if sequence.max_step() == 0 || sequence.window().is_none() && sequence.len() >= longest {
                break FinishReason::Context;
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
        let evicted = sequence.evicted();
        session.keep(self.decoder(), sequence, &history, (reused, prompt_ids.len()));
        let ids = history.split_off(prompt_ids.len());
        let prompt_ids = prompt_ids.clone();
        Ok(Generation { text, prompt_ids, ids, finish, reused, evicted, logprobs, prefill, decode })
    }

    /// Prefills the first `prompt` of `ids`, decodes the rest token by token with caches of `kv`, and calls `on_row` with the
    /// positions and logits of the latter in order. The part of the prompt in `session` is reused; afterwards the session has all
    /// of `ids`.
    ///
    /// # Errors
    ///
    /// As [`logits_with`](Self::logits_with); after an error the session is empty.
    pub fn logits_in(
        &self,
        session: &mut Session,
        ids: &[u32],
        prompt: usize,
        kv: &KvSpec,
        mut on_row: impl FnMut(usize, &[f32]),
    ) -> Result<(), LlmError> {
        let context = self.decoder().spec().context;
        if ids.len() > context {
            return Err(LlmError::PromptTooLong { tokens: ids.len(), context });
        }
        if ids.is_empty() {
            return Ok(());
        }
        let prompt = prompt.min(ids.len());
        // Keep only the prompt: keys and values of later tokens may depend on another selection.
        let kept = &ids[..ids.len().min(prompt + 1)];
        let mut sequence = session.take(self.decoder(), kv, kept)?;
        let reused = sequence.len();
        self.prefill(&mut sequence, &ids[reused..prompt], Some(1))?;
        for token in prompt..ids.len() {
            let step = &mut [Step { sequence: &mut sequence, ids: &ids[token..=token] }];
            let row = self.decoder().forward(step, Logits::Last)?.pop().unwrap_or_default();
            if let Some((index, &value)) = row.iter().enumerate().find(|(_, v)| !v.is_finite()) {
                return Err(LlmError::NonFinite { token, index, value });
            }
            on_row(token, &row);
        }
        session.keep(self.decoder(), sequence, ids, (reused, prompt));
        Ok(())
    }
}

/// Maximum tokens of the next step of a prompt.
fn step_of<B: Backend>(sequence: &DecoderSequence<B>) -> usize {
    match sequence.spec().eviction {
        Eviction::Never => PROMPT_STEP,
        _ => PROMPT_STEP.min(sequence.max_step()),
    }
}

impl<B: Backend> LanguageModel<B> {
    /// Runs `ids` through the model in steps and returns the logits of the last token.
    fn prefill(
        &self,
        sequence: &mut DecoderSequence<B>,
        ids: &[u32],
        enough: Option<usize>,
    ) -> Result<StepLogits, LlmError> {
        let mut best = StepLogits::All(Vec::new());
        let mut rest = ids;
        while !rest.is_empty() {
            let (ids, later) = rest.split_at(step_of(sequence).min(rest.len()));
            best = self.step(sequence, ids, enough)?;
            rest = later;
        }
        Ok(best)
    }

    /// The `enough` largest logits of the next token, or all logits if more are needed.
    fn step(
        &self,
        sequence: &mut DecoderSequence<B>,
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

    /// The embedding of a text: its hidden states after the final norm, pooled and normalized to unit length.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::EmptyPrompt`] for no ids, [`LlmError::PromptTooLong`], [`LlmError::NonFinite`] for damaged weights, and
    /// errors of the decoder.
    pub fn embed(&self, ids: &[u32], pooling: Pooling) -> Result<Vec<f32>, LlmError> {
        let context = self.decoder().spec().context;
        match ids.len() {
            0 => return Err(TokenizerError::EmptyPrompt.into()),
            tokens if tokens > context => return Err(LlmError::PromptTooLong { tokens, context }),
            _ => {}
        }
        let kv = KvSpec::new(self.default_kv(), ids.len());
        let mut sequence = self.decoder().sequence(kv)?;
        let mut sum = vec![0.0f64; self.decoder().spec().hidden];
        let mut token = 0;
        for ids in ids.chunks(PROMPT_STEP) {
            let mut step = [Step { sequence: &mut sequence, ids }];
            let states = self.decoder().hidden(&mut step, Logits::All)?.pop().unwrap_or_default();
            for row in states.chunks_exact(sum.len()) {
                if let Some((index, &value)) = row.iter().enumerate().find(|(_, value)| !value.is_finite()) {
                    return Err(LlmError::NonFinite { token, index, value });
                }
                if pooling == Pooling::Last {
                    sum.fill(0.0);
                }
                sum.iter_mut().zip(row).for_each(|(sum, &value)| *sum += f64::from(value));
                token += 1;
            }
        }
        let length = sum.iter().map(|value| value * value).sum::<f64>().sqrt();
        // A zero vector cannot be normalized.
        let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
        Ok(sum.iter().map(|value| (value * scale) as f32).collect())
    }

    /// The logits of every token of `ids`, `tokens x vocabulary`, row by row: row `i` predicts the token after `ids[i]`.
    ///
    /// # Errors
    ///
    /// [`LlmError::PromptTooLong`], [`LlmError::NonFinite`] for damaged weights, and errors of the decoder.
    pub fn logits(&self, ids: &[u32]) -> Result<Vec<f32>, LlmError> {
        let kv = KvSpec::new(self.default_kv(), ids.len().max(1));
        let mut all = Vec::with_capacity(ids.len() * self.config().spec.vocab);
        self.logits_with(ids, &kv, |_, row| all.extend_from_slice(row))?;
        Ok(all)
    }

    /// Passes the logits of every token of `ids` to `on_row`, in order, with a cache of `kv`. With key selection, the tokens are run
    /// one by one, as in decoding, otherwise in prefill steps.
    ///
    /// # Errors
    ///
    /// As [`logits`](Self::logits), and [`NnError`](trike_nn::NnError) for a cache that is too small or that the backend does not have.
    pub fn logits_with(
        &self,
        ids: &[u32],
        kv: &KvSpec,
        mut on_row: impl FnMut(usize, &[f32]),
    ) -> Result<(), LlmError> {
        let context = self.decoder().spec().context;
        if ids.len() > context {
            return Err(LlmError::PromptTooLong { tokens: ids.len(), context });
        }
        let mut sequence = self.decoder().sequence(*kv)?;
        let mut token = 0;
        // The logits of a step are one allocation, which small devices limit to 128 MiB.
        let most = if kv.keys.is_all() { PROMPT_STEP } else { 1 };
        let rows = ((128 << 20) / (4 * self.decoder().spec().vocab)).clamp(1, most);
        let mut rest = ids;
        while !rest.is_empty() {
            let (ids, later) = rest.split_at(step_of(&sequence).min(rows).min(rest.len()));
            rest = later;
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
