//! Requests and what is said of them.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trike_llm::{FinishReason, GenerateOptions, TokenLogprobs};

use crate::EngineError;

/// A prompt with its options.
///
/// Of the options, [`GenerateOptions::kv`] and [`GenerateOptions::context`] are the engine's: a request with its own is refused.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Request {
    /// The tokens of the prompt.
    pub ids: Vec<u32>,
    /// Tokens that end the text.
    pub ends: Vec<u32>,
    /// Sampling, limits, stop strings, grammar.
    pub options: GenerateOptions,
    /// When the request fails unless it has ended.
    pub deadline: Option<Instant>,
}

impl Request {
    /// A request for the continuation of a prompt; each token of `ends` ends the text.
    #[must_use]
    pub fn new(ids: Vec<u32>, ends: &[u32], options: GenerateOptions) -> Self {
        Self { ids, ends: ends.to_vec(), options, deadline: None }
    }

    /// Sets [`deadline`](Self::deadline).
    #[must_use]
    pub fn with_deadline(self, deadline: impl Into<Option<Instant>>) -> Self {
        Self { deadline: deadline.into(), ..self }
    }
}

/// What happened to a request. The last event is `Finished` or `Failed`.
#[derive(Clone, Debug)]
pub enum Event {
    /// The request runs.
    Started {
        /// Tokens of the prompt whose keys and values are reused.
        reused: usize,
    },
    /// New text.
    Text {
        /// The text that is now final.
        text: String,
        /// Log-probabilities of the tokens since the last event, with [`GenerateOptions::logprobs`].
        logprobs: Vec<TokenLogprobs>,
    },
    /// The text ended.
    Finished(Outcome),
    /// The request failed.
    Failed(EngineError),
}

/// A finished text.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The whole text; the texts of all events joined.
    pub text: String,
    /// Its tokens, without the end token.
    pub ids: Vec<u32>,
    /// Why it ended.
    pub finish: FinishReason,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens of the prompt whose keys and values were reused.
    pub reused: usize,
    /// Log-probabilities of all tokens, with [`GenerateOptions::logprobs`].
    pub logprobs: Vec<TokenLogprobs>,
    /// Time in the queue.
    pub waited: Duration,
    /// Time from the start to the logits of the prompt's last token.
    pub prefill: Duration,
    /// Time from then to the end.
    pub decode: Duration,
}

/// Receives the events of a request, on the engine's thread: it must not block. `Break` cancels the request.
pub(crate) type OnEvent = Box<dyn FnMut(Event) -> ControlFlow<()> + Send>;

/// A submitted request. Dropping it does not cancel the request.
#[derive(Clone, Debug)]
pub struct Ticket {
    pub(crate) id: u64,
    pub(crate) cancelled: Arc<AtomicBool>,
}

impl Ticket {
    /// A number unique within the engine.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Ends the request with [`FinishReason::Cancelled`] before the next step. Without effect on a request that has ended.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}
