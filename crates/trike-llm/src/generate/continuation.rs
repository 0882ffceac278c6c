//! The text of one request, token by token.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use trike_nn::StepLogits;
use trike_text::constraint::Constraint;

use super::{FinishReason, OnText, PreparedRequest, ReasoningLimit, TokenLogprobs};
use crate::{
    LlmError,
    sampler::Sampler,
    stream::TextStream,
    tokenizer::{Tokenizer, TokenizerError},
};

/// The text of a request that is being generated: sampler, grammar, stop strings and limits. Whoever runs the model passes it the
/// logits of each token, for a single text as for many at once.
///
/// ```
/// use std::ops::ControlFlow;
/// use trike_llm::{Continuation, FinishReason, GenerateOptions, LanguageModel, Model, PreparedRequest};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
/// let model = LanguageModel::load(path)?;
/// let tokenizer = model.tokenizer()?;
/// let options = GenerateOptions::default().with_max_tokens(2);
/// let request = PreparedRequest::of(&model, tokenizer.encode_prompt("Once")?, tokenizer.eos(), options)?;
/// let mut text = Continuation::new(tokenizer, model.config().spec.vocab, &request)?;
/// let mut batch = model.batch(request.kv(), 1)?;
/// let mut ids = request.ids().to_vec();
/// let finish = loop {
///     let logits = batch.step(&[(0, &ids)], text.largest())?.remove(0);
///     match text.next(logits, &mut |_| ControlFlow::Continue(()))? {
///         ControlFlow::Continue(id) => ids = vec![id],
///         ControlFlow::Break(finish) => break finish,
///     }
/// };
/// assert_eq!((finish, text.ids().len()), (FinishReason::MaxTokens, 2));
/// # Ok::<(), trike_llm::LlmError>(())
/// ```
#[derive(Debug)]
pub struct Continuation<'t> {
    sampler: Sampler,
    constraint: Option<Constraint>,
    stream: TextStream<'t>,
    ends: Vec<u32>,
    max_tokens: Option<usize>,
    /// Number of most probable tokens to record.
    recorded: Option<usize>,
    /// Prompt and new tokens.
    history: Vec<u32>,
    prompt: usize,
    text: String,
    logprobs: Vec<TokenLogprobs>,
    /// LM head rows beyond the tokenizer's last id are padding.
    known: usize,
    largest: Option<usize>,
    /// The limit of the reasoning, until it is reached.
    reasoning: Option<ReasoningLimit>,
    /// Tokens that follow whatever the model says.
    forced: VecDeque<u32>,
    tokenizer: &'t Tokenizer,
}

impl<'t> Continuation<'t> {
    /// The empty continuation of a request's prompt, for a model with `vocab` logits per token.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::EmptyPrompt`] for no ids, and options out of range.
    pub fn new(tokenizer: &'t Tokenizer, vocab: usize, request: &PreparedRequest) -> Result<Self, LlmError> {
        let PreparedRequest { ids, ends, options, .. } = request;
        if ids.is_empty() {
            return Err(TokenizerError::EmptyPrompt.into());
        }
        let sampler = Sampler::new(options.sampler.clone())?;
        let grammar = options.grammar.as_ref();
        let constraint = grammar.map(|grammar| Constraint::new(grammar, tokenizer, ends)).transpose()?;
        let stream = TextStream::after(tokenizer, ids)?.with_stops(options.stop.iter().cloned())?;
        let known = tokenizer.vocab_size().min(vocab);
        // With padding, the top logits could belong to tokens that do not exist; grammars and log-probabilities need all logits.
        let few = known == vocab && constraint.is_none() && options.logprobs.is_none();
        Ok(Self {
            sampler,
            constraint,
            stream,
            ends: ends.clone(),
            max_tokens: options.max_tokens,
            recorded: options.logprobs,
            history: ids.clone(),
            prompt: ids.len(),
            text: String::new(),
            logprobs: Vec::new(),
            known,
            largest: options.sampler.candidates().filter(|_| few),
            reasoning: options.reasoning.clone(),
            forced: VecDeque::new(),
            tokenizer,
        })
    }

    /// The continuation with a grammar that was compiled before, as on another thread.
    #[must_use]
    pub fn with_constraint(self, constraint: Constraint) -> Self {
        Self { constraint: Some(constraint), largest: None, ..self }
    }

    /// The number of largest logits that are enough; `None` if all are needed.
    #[must_use]
    pub fn largest(&self) -> Option<usize> {
        self.largest
    }

    /// Samples the next token and passes the text that is now final to `on_text`. `Break` says why the text ends; otherwise the model
    /// has to run the token.
    ///
    /// # Errors
    ///
    /// Logits that cannot be sampled, and [`LlmError::Constraint`].
    pub fn next(
        &mut self,
        logits: StepLogits,
        on_text: &mut OnText<'_>,
    ) -> Result<ControlFlow<FinishReason, u32>, LlmError> {
        if self.max_tokens == Some(0) {
            return Ok(ControlFlow::Break(FinishReason::MaxTokens));
        }
        let forced = self.forced.pop_front();
        let id = match logits {
            StepLogits::Top(top) => match forced {
                Some(id) => id,
                None => self.sampler.sample_top(&top, self.known)?,
            },
            StepLogits::All(mut logits) => {
                logits.truncate(self.known);
                let own = self.recorded.map(|count| (count, logits.clone()));
                if let Some(constraint) = &mut self.constraint {
                    constraint.mask(&mut logits)?;
                }
                let id = match forced {
                    Some(id) => id,
                    None => self.sampler.sample(&logits, &self.history)?,
                };
                if let Some((count, own)) = own.filter(|_| !self.ends.contains(&id)) {
                    self.logprobs.push(TokenLogprobs::of(&own, id, count));
                }
                id
            }
        };
        if self.ends.contains(&id) {
            return Ok(ControlFlow::Break(FinishReason::Eos));
        }
        self.history.push(id);
        let piece = self.stream.push(id)?;
        self.text.push_str(&piece.text);
        if !piece.text.is_empty() && on_text(&piece.text).is_break() {
            return Ok(ControlFlow::Break(FinishReason::Cancelled));
        }
        let complete = self.constraint.as_mut().map(|constraint| constraint.accept(id)).transpose()?;
        let (tokens, text) = (self.ids().len(), &self.text);
        if let Some(limit) = self.reasoning.take_if(|limit| limit.is_reached(tokens, text)) {
            self.forced.extend(self.tokenizer.encode(&format!("\n{}\n\n", limit.close), false)?);
        }
        if piece.stopped || complete == Some(true) {
            return Ok(ControlFlow::Break(FinishReason::Stop));
        }
        // The last token is not run: no token follows it.
        if self.max_tokens.is_some_and(|max| self.ids().len() >= max) {
            return Ok(ControlFlow::Break(FinishReason::MaxTokens));
        }
        Ok(ControlFlow::Continue(id))
    }

    /// Ends the text: passes what was held back, such as the start of a stop string, to `on_text`, unless it was cancelled. Returns the
    /// text, its tokens after those of the prompt, and the log-probabilities.
    pub fn end(
        self,
        finish: FinishReason,
        on_text: &mut OnText<'_>,
    ) -> (String, Vec<u32>, Vec<TokenLogprobs>) {
        let Self { stream, mut text, history, logprobs, .. } = self;
        let rest = stream.finish();
        if !rest.is_empty() && finish != FinishReason::Cancelled {
            text.push_str(&rest);
            // The generation has ended, so `Break` has no effect.
            let _ = on_text(&rest);
        }
        (text, history, logprobs)
    }

    /// The new tokens, without the end token.
    #[must_use]
    pub fn ids(&self) -> &[u32] {
        &self.history[self.prompt..]
    }

    /// The tokens of the prompt and the new ones.
    #[must_use]
    pub fn history(&self) -> &[u32] {
        &self.history
    }

    /// The new text so far.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The log-probabilities of the new tokens, with [`GenerateOptions::logprobs`](crate::GenerateOptions::logprobs).
    #[must_use]
    pub fn logprobs(&self) -> &[TokenLogprobs] {
        &self.logprobs
    }
}
