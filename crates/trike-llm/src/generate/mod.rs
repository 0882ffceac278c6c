//! Text generation from a prompt.

mod continuation;
mod options;
mod request;
mod session;

use std::{ops::ControlFlow, time::Instant};

use trike_nn::{Backend, DecoderSequence, Eviction, KvSpec, Logits, Step, StepLogits};

use crate::{LanguageModel, LlmError, tokenizer::TokenizerError};
pub use continuation::Continuation;
pub use options::{FinishReason, GenerateOptions, Generation, OnText, ReasoningLimit, TokenLogprobs};
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
        let (prompt_ids, options) = (&request.ids, &request.options);
        let mut text = Continuation::new(self.tokenizer()?, self.decoder().spec().vocab, request)?;
        let context = self.decoder().spec().context;
        let longest = options.context.unwrap_or(context);
        let spec = request.cache(context, self.default_kv())?;
        let mut sequence = session.take(self.decoder(), &spec, prompt_ids)?;
        let reused = sequence.len();

        let start = Instant::now();
        let mut logits = self.prefill(&mut sequence, &prompt_ids[reused..], text.largest())?;
        let prefill = start.elapsed();
        let start = Instant::now();
        let finish = loop {
            match text.next(logits, &mut on_text)? {
                ControlFlow::Break(finish) => break finish,
                // A cache with eviction is never full.
                ControlFlow::Continue(_)
                    if sequence.max_step() == 0
                        || sequence.window().is_none() && sequence.len() >= longest =>
                {
                    break FinishReason::Context;
                }
                ControlFlow::Continue(id) => logits = self.step(&mut sequence, &[id], text.largest())?,
            }
        };
        let decode = start.elapsed();
        let evicted = sequence.evicted();
        let (text, mut ids, logprobs) = text.end(finish, &mut on_text);
        session.keep(self.decoder(), sequence, &ids, (reused, prompt_ids.len()));
        ids.drain(..prompt_ids.len());
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
