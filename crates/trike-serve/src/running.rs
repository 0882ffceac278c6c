//! Requests of the engine that belong to one HTTP request.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use axum::response::sse;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use trike_engine::{Event, Outcome, Request, Ticket};
use trike_llm::{FinishReason, TokenLogprobs};
use trike_text::tokenizer::Tokenizer;

use crate::app::App;
use crate::error::ApiError;
use crate::sampling::Wanted;

/// Comments of an idle stream, so that no proxy closes it.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Events of a stream that wait for a slow client; then the text waits.
const WAITING_EVENTS: usize = 64;

/// Most texts of one HTTP request.
const MOST_TEXTS: usize = 256;

/// The texts of a request. Dropping it, as when the client leaves, cancels them.
pub(crate) struct Running {
    tickets: Vec<Ticket>,
    events: mpsc::UnboundedReceiver<(usize, Event)>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.tickets.iter().for_each(Ticket::cancel);
    }
}

impl Running {
    /// Submits as many texts as are wanted of each prompt; the first ones belong to the first prompt.
    pub(crate) fn start(
        app: &App,
        prompts: &[Vec<u32>],
        ends: &[u32],
        wanted: &Wanted,
    ) -> Result<Self, ApiError> {
        let texts = prompts.len() * wanted.choices;
        if texts > MOST_TEXTS {
            let message = format!("`prompt`: expected at most {MOST_TEXTS} texts, got {texts}");
            return Err(ApiError::invalid("prompt", message));
        }
        let (sender, events) = mpsc::unbounded_channel();
        let mut running = Self { tickets: Vec::new(), events };
        let deadline = Instant::now() + app.options.timeout;
        for text in 0..texts {
            let mut options = wanted.options.clone();
            // Texts of one prompt differ.
            options.sampler.seed = options.sampler.seed.wrapping_add((text % wanted.choices) as u64);
            let ids = prompts[text / wanted.choices].clone();
            let request = Request::new(ids, ends, options).with_deadline(deadline);
            let sender = sender.clone();
            let ticket = app.engine.submit(request, move |event| match sender.send((text, event)) {
                Ok(()) => ControlFlow::Continue(()),
                // The client has left.
                Err(_) => ControlFlow::Break(()),
            })?;
            running.tickets.push(ticket);
        }
        Ok(running)
    }

    /// Number of texts.
    pub(crate) fn texts(&self) -> usize {
        self.tickets.len()
    }

    /// The next event with the number of its text; an error ends all.
    pub(crate) async fn next(&mut self) -> Result<Option<(usize, Event)>, ApiError> {
        match self.events.recv().await {
            Some((_, Event::Failed(error))) => Err(error.into()),
            event => Ok(event),
        }
    }

    /// All texts, once they have ended.
    pub(crate) async fn outcomes(mut self) -> Result<Vec<Outcome>, ApiError> {
        let mut outcomes: Vec<Option<Outcome>> = self.tickets.iter().map(|_| None).collect();
        while outcomes.iter().any(Option::is_none) {
            match self.next().await? {
                Some((choice, Event::Finished(outcome))) => outcomes[choice] = Some(outcome),
                Some(_) => {}
                None => return Err(ApiError::internal("the engine ended without an answer")),
            }
        }
        Ok(outcomes.into_iter().flatten().collect())
    }
}

/// An event of a stream: its name, if the API has names, and its object.
pub(crate) type Sent = (Option<&'static str>, Value);

/// What a stream sends.
pub(crate) trait Chunks: Send + 'static {
    /// Events before the first text.
    fn start(&mut self, choice: usize, reused: usize) -> Vec<Sent>;

    /// Events for new text.
    fn text(&mut self, choice: usize, text: String, logprobs: &[TokenLogprobs]) -> Vec<Sent>;

    /// Events at the end of a text.
    fn end(&mut self, choice: usize, outcome: &Outcome) -> Vec<Sent>;

    /// The events after all texts.
    fn last(&mut self, outcomes: &[Outcome]) -> Vec<Sent>;

    /// The event of an error.
    fn error(&mut self, error: &ApiError) -> Sent {
        (None, error.object())
    }

    /// Whether `[DONE]` ends the stream.
    fn has_end(&self) -> bool {
        true
    }
}

fn sse_event((name, object): Sent) -> Result<sse::Event, std::convert::Infallible> {
    let event = sse::Event::default().data(object.to_string());
    Ok(match name {
        Some(name) => event.event(name),
        None => event,
    })
}

/// Sends the events of a request as server-sent events. The first event of the engine is awaited, so that a request that cannot run is
/// an error with its status and not a stream.
pub(crate) async fn stream(
    mut running: Running,
    mut chunks: impl Chunks,
) -> Result<sse::Sse<impl tokio_stream::Stream<Item = Result<sse::Event, std::convert::Infallible>>>, ApiError>
{
    let mut first = running.next().await?;
    let count = running.tickets.len();
    let (sender, events) = mpsc::channel(WAITING_EVENTS);
    tokio::spawn(async move {
        let mut outcomes: Vec<Option<Outcome>> = vec![None; count];
        let mut sent = true;
        while sent && outcomes.iter().any(Option::is_none) {
            let event = match first.take() {
                Some(event) => Ok(Some(event)),
                None => running.next().await,
            };
            let objects = match event {
                Ok(Some((choice, event))) => match event {
                    Event::Started { reused } => chunks.start(choice, reused),
                    Event::Text { text, logprobs } => chunks.text(choice, text, &logprobs),
                    Event::Finished(outcome) => {
                        let objects = chunks.end(choice, &outcome);
                        outcomes[choice] = Some(outcome);
                        objects
                    }
                    Event::Failed(error) => vec![chunks.error(&ApiError::from(error))],
                },
                Ok(None) => break,
                Err(error) => {
                    // The status was sent: the error is an event.
                    let _ = sender.send(sse_event(chunks.error(&error))).await;
                    return;
                }
            };
            for object in objects {
                // An error: the client has left, and dropping `running` cancels its texts.
                sent &= sender.send(sse_event(object)).await.is_ok();
            }
        }
        let outcomes: Vec<Outcome> = outcomes.into_iter().flatten().collect();
        for object in chunks.last(&outcomes) {
            sent = sent && sender.send(sse_event(object)).await.is_ok();
        }
        if sent && chunks.has_end() {
            // Nobody is told whether the last event arrives.
            let _ = sender.send(Ok(sse::Event::default().data("[DONE]"))).await;
        }
    });
    let events = tokio_stream::wrappers::ReceiverStream::new(events);
    Ok(sse::Sse::new(events).keep_alive(sse::KeepAlive::new().interval(KEEP_ALIVE)))
}

/// The OpenAI API's name of why a text ended.
pub(crate) fn finish(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Eos | FinishReason::Stop => "stop",
        FinishReason::MaxTokens | FinishReason::Context | FinishReason::Cancelled => "length",
    }
}

/// Numbers of tokens; the prompt of `choices` texts counts once.
pub(crate) fn usage(outcomes: &[Outcome], choices: usize) -> Value {
    let of_prompts = || outcomes.iter().step_by(choices.max(1));
    let prompt: usize = of_prompts().map(|outcome| outcome.prompt).sum();
    let cached: usize = of_prompts().map(|outcome| outcome.reused).sum();
    let completion: usize = outcomes.iter().map(|outcome| outcome.ids.len()).sum();
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": { "cached_tokens": cached },
    })
}

/// Times of a text, as llama.cpp's server reports them.
pub(crate) fn timings(outcome: &Outcome) -> Value {
    let Outcome { prompt, reused, prefill, decode, ids, .. } = outcome;
    let rate = |tokens: usize, time: &Duration| {
        if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
    };
    // The first token is sampled from the logits of the prompt.
    let (read, made) = (prompt - reused, ids.len().saturating_sub(1));
    json!({
        "cache_n": reused,
        "prompt_n": read,
        "prompt_ms": prefill.as_secs_f64() * 1e3,
        "prompt_per_second": rate(read, prefill),
        "predicted_n": ids.len(),
        "predicted_ms": decode.as_secs_f64() * 1e3,
        "predicted_per_second": rate(made, decode),
    })
}

/// A token with its text, its bytes and its log-probability.
pub(crate) fn token(tokenizer: &Tokenizer, id: u32, logprob: f32) -> Value {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    json!({
        "id": id,
        "token": String::from_utf8_lossy(bytes),
        "bytes": bytes,
        "logprob": f64::from(logprob.max(-9999.0)),
    })
}

/// The log-probabilities of some tokens.
pub(crate) fn token_logprobs(tokenizer: &Tokenizer, all: &[TokenLogprobs]) -> Value {
    let one = |of: &TokenLogprobs| {
        let mut object = token(tokenizer, of.id, of.logprob);
        object["top_logprobs"] = of.top.iter().map(|(id, logprob)| token(tokenizer, *id, *logprob)).collect();
        object
    };
    json!({ "content": all.iter().map(one).collect::<Vec<_>>() })
}

/// An identifier of an answer.
pub(crate) fn answer_id(app: &App, prefix: &str) -> String {
    format!(
        "{prefix}{:016x}{:08x}",
        app.start,
        app.answers.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    )
}
