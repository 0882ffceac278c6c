//! A request that waits or runs.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trike_llm::{Continuation, FinishReason, TokenLogprobs};
use trike_nn::{KvPage, PROMPT_ROWS, StepLogits};

use crate::request::OnEvent;
use crate::{EngineError, Event, Outcome};

/// A request with its text so far.
pub(crate) struct Active<'m> {
    pub(crate) id: u64,
    pub(crate) text: Continuation<'m>,
    /// Tokens of the prompt.
    pub(crate) prompt: usize,
    /// Of the prompt, those that were reused when it started.
    pub(crate) reused: usize,
    /// Pages that the prefix tree has, too; holding them keeps them there.
    pub(crate) shared: Vec<KvPage>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) times: Times,
    cancelled: Arc<AtomicBool>,
    on_event: OnEvent,
    /// Log-probabilities that were passed on.
    said: usize,
}

/// When a request arrived and what it has done since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) arrived: Instant,
    pub(crate) started: Option<Instant>,
    pub(crate) first: Option<Instant>,
    pub(crate) last: Option<Instant>,
}

impl Times {
    pub(crate) fn new() -> Self {
        Self { arrived: Instant::now(), started: None, first: None, last: None }
    }
}

/// How a request ended.
pub(crate) enum Ending {
    Finished(FinishReason),
    Failed(EngineError),
}

impl<'m> Active<'m> {
    pub(crate) fn new(
        id: u64,
        text: Continuation<'m>,
        (deadline, times): (Option<Instant>, Times),
        cancelled: Arc<AtomicBool>,
        on_event: OnEvent,
    ) -> Self {
        let prompt = text.history().len();
        let shared = Vec::new();
        Self { id, text, prompt, reused: 0, shared, deadline, times, cancelled, on_event, said: 0 }
    }

    /// How a request ended that was cancelled or whose deadline has passed.
    pub(crate) fn over(&self, now: Instant) -> Option<Ending> {
        if self.cancelled.load(Ordering::Relaxed) {
            Some(Ending::Finished(FinishReason::Cancelled))
        } else if self.deadline.is_some_and(|deadline| now >= deadline) {
            Some(Ending::Failed(EngineError::Deadline))
        } else {
            None
        }
    }

    /// The rows of the next step after `done` computed tokens: one token of generated text, or a part of the prompt of about `budget`
    /// tokens. Generated text is also computed again token by token, since that gives the same bits.
    pub(crate) fn rows(&self, done: usize, budget: usize) -> usize {
        match self.prompt.saturating_sub(done) {
            0 => 1,
            rest if rest <= budget + PROMPT_ROWS => rest,
            _ => budget.max(PROMPT_ROWS),
        }
    }

    /// Reports an event. A receiver that wants no more cancels the request.
    pub(crate) fn say(&mut self, event: Event) {
        if (self.on_event)(event).is_break() {
            self.cancelled.store(true, Ordering::Relaxed);
        }
    }

    /// Samples a token from the logits of the last one, and reports the text that is now final. `None` if the text goes on.
    pub(crate) fn sample(&mut self, logits: StepLogits) -> Option<Ending> {
        let mut new = String::new();
        let mut take = |piece: &str| {
            new.push_str(piece);
            ControlFlow::Continue(())
        };
        // A bug in a grammar or a sampler must not end other requests.
        let next = catch_unwind(AssertUnwindSafe(|| self.text.next(logits, &mut take)));
        let now = Instant::now();
        self.times.first.get_or_insert(now);
        self.times.last = Some(now);
        let ending = match next {
            Ok(Ok(ControlFlow::Continue(_))) => None,
            Ok(Ok(ControlFlow::Break(finish))) => Some(Ending::Finished(finish)),
            Ok(Err(error)) => Some(Ending::Failed(error.into())),
            Err(panic) => Some(Ending::Failed(panicked(&*panic))),
        };
        if !new.is_empty() {
            let logprobs = self.new_logprobs();
            self.say(Event::Text { text: new, logprobs });
        }
        ending
    }

    fn new_logprobs(&mut self) -> Vec<TokenLogprobs> {
        let new = self.text.logprobs()[self.said..].to_vec();
        self.said += new.len();
        new
    }

    /// Reports how the request ended.
    pub(crate) fn end(mut self, ending: Ending) {
        match ending {
            Ending::Finished(finish) => self.finish(finish),
            Ending::Failed(error) => self.say(Event::Failed(error)),
        }
    }

    fn finish(self, finish: FinishReason) {
        let said = self.said;
        let Self { text, prompt, reused, times, mut on_event, .. } = self;
        let mut rest = String::new();
        let (text, mut ids, logprobs) = text.end(finish, &mut |piece| {
            rest.push_str(piece);
            ControlFlow::Continue(())
        });
        ids.drain(..prompt);
        let new = logprobs[said..].to_vec();
        // The request has ended, so `Break` has no effect.
        if !rest.is_empty() || !new.is_empty() {
            let _ = on_event(Event::Text { text: rest, logprobs: new });
        }
        let Times { arrived, started, first, .. } = times;
        let now = Instant::now();
        let (started, first) = (started.unwrap_or(now), first.unwrap_or(now));
        let waited = started.duration_since(arrived);
        let (prefill, decode) = (first.duration_since(started), now.duration_since(first));
        let outcome = Outcome { text, ids, finish, prompt, reused, logprobs, waited, prefill, decode };
        let _ = on_event(Event::Finished(outcome));
    }

    /// Time since the previous token.
    pub(crate) fn since_last(&self, now: Instant) -> Option<Duration> {
        self.times.last.map(|last| now.duration_since(last))
    }
}

/// The error of a panic.
pub(crate) fn panicked(payload: &(dyn std::any::Any + Send)) -> EngineError {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    EngineError::Panic { message: text.unwrap_or_else(|| "a panic without a message".to_owned()) }
}
