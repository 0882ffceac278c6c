//! `/v1/chat/completions` and `/apply-template`.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value, json};
use trike_engine::Outcome;
use trike_llm::TokenLogprobs;
use trike_text::chat::{Message, RenderOptions};
use trike_text::reply::{ReplyPart, ReplyReader};
use trike_text::tokenizer::Tokenizer;

use crate::app::{App, now};
use crate::conversation::{Call, Conversation, Reply};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::running::{Chunks, Sent, answer_id, finish, stream, timings, token_logprobs, usage};
use crate::sampling::Wanted;
use crate::tools;

/// The messages of a chat.
fn messages(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    let wrong = |message: String| ApiError::invalid("messages", message);
    let messages = fields.value("messages").ok_or_else(|| wrong("`messages` is missing".to_owned()))?;
    let Value::Array(list) = messages else {
        return Err(wrong("`messages`: expected a list of messages".to_owned()));
    };
    let mut messages = Vec::with_capacity(list.len());
    for (index, message) in list.into_iter().enumerate() {
        let part = message.get("content").and_then(Value::as_array).and_then(|parts| {
            let kind = |part: &Value| part.get("type").and_then(Value::as_str).map(str::to_owned);
            parts.iter().filter_map(kind).find(|kind| kind != "text")
        });
        if let Some(kind) = part {
            return Err(wrong(format!(
                "message {index}: parts of type `{kind}` are not supported, only `text`"
            )));
        }
        let read = serde_json::from_value(message);
        messages.push(read.map_err(|error| wrong(format!("message {index}: {error}")))?);
    }
    if messages.is_empty() {
        return Err(wrong("`messages`: expected at least one message".to_owned()));
    }
    Ok(messages)
}

/// The variables of the template.
pub(crate) fn rendering(fields: &mut Fields) -> Result<RenderOptions, ApiError> {
    let variables: Option<Map<String, Value>> = fields.take("chat_template_kwargs", "an object")?;
    let mut rendering = RenderOptions::default();
    for (name, value) in variables.into_iter().flatten() {
        rendering = rendering.with_extra(name, value);
    }
    if let Some(effort) = fields.string("reasoning_effort")? {
        rendering = rendering.with_extra("reasoning_effort", effort);
    }
    let add: Option<bool> = fields.take("add_generation_prompt", "true or false")?;
    Ok(rendering.with_add_generation_prompt(add.unwrap_or(true)))
}

/// Most tokens of reasoning; none when negative.
fn budget(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let budget: Option<i64> = fields.take("thinking_budget_tokens", "a whole number")?;
    Ok(budget.and_then(|budget| usize::try_from(budget).ok()))
}

/// Whether reasoning is left in the content.
fn is_raw(fields: &mut Fields) -> Result<bool, ApiError> {
    match fields.string("reasoning_format")?.as_deref() {
        None | Some("auto" | "deepseek") => Ok(false),
        Some("none") => Ok(true),
        Some(other) => {
            let expected = "expected `auto`, `deepseek` or `none`";
            Err(ApiError::invalid(
                "reasoning_format",
                format!("`reasoning_format`: {expected}, got {other:?}"),
            ))
        }
    }
}

fn conversation(app: &App, fields: &mut Fields) -> Result<Conversation, ApiError> {
    let go_on: Option<bool> = fields.take("continue_final_message", "true or false")?;
    let messages = messages(fields)?;
    let rendering = rendering(fields)?;
    let is_open =
        messages.last().is_some_and(|last| last.role == "assistant" && last.field("tool_calls").is_none());
    match go_on {
        Some(true) if !is_open => {
            let message = "`continue_final_message`: the last message is not a text of the assistant";
            return Err(ApiError::invalid("continue_final_message", message));
        }
        _ => {}
    }
    let goes_on = go_on.unwrap_or(rendering.add_generation_prompt) && is_open;
    Ok(Conversation {
        messages,
        goes_on,
        // The start of the turn stands before what is continued.
        rendering: if goes_on { rendering.with_add_generation_prompt(true) } else { rendering },
        reply: tools::of_chat(fields)?,
        budget: budget(fields)?,
        is_raw: is_raw(fields)?,
        wanted: Wanted::read(fields, &app.model.generation, true)?,
    })
}

/// Reads the fields of a chat.
pub(crate) fn read(app: &App, fields: &mut Fields) -> Result<Conversation, ApiError> {
    app.check_model(fields)?;
    let conversation = conversation(app, fields)?;
    fields.only("modalities", &[json!(["text"])], "only text is generated")?;
    fields.only("verbosity", &[json!("medium")], "models differ")?;
    fields.end()?;
    Ok(conversation)
}

/// The answer to a conversation.
pub(crate) async fn completions(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, ApiError> {
    app.loaded()?;
    let mut fields = Fields::read(&body)?;
    let conversation = read(&app, &mut fields)?;
    let (talk, wanted) = conversation.start(&app).await?;
    let head = Head { id: answer_id(&app, "chatcmpl-"), created: now(), model: app.model.name.clone() };
    let reader = talk.reader();
    if wanted.stream {
        let readers = vec![reader; wanted.choices];
        let logprobs = wanted.options.logprobs.is_some();
        let (tokenizer, usage) = (talk.tokenizer.clone(), wanted.usage);
        let chunks = ChatChunks { app, head, tokenizer, logprobs, usage, readers };
        return Ok(stream(talk.running, chunks).await?.into_response());
    }
    let tokenizer = talk.tokenizer.clone();
    let outcomes = talk.running.outcomes().await?;
    let choice = |(index, outcome): (usize, &Outcome)| {
        let logprobs = wanted.options.logprobs.map(|_| token_logprobs(&tokenizer, &outcome.logprobs));
        let reply = Reply::read(&app, reader.clone(), &outcome.text);
        json!({
            "index": index,
            "message": message(&reply),
            "logprobs": logprobs,
            "finish_reason": finish_of(outcome, reply.calls.len()),
        })
    };
    let mut answer = head.object("chat.completion");
    answer["choices"] = outcomes.iter().enumerate().map(choice).collect();
    answer["usage"] = usage(&outcomes, wanted.choices);
    answer["timings"] = outcomes.first().map_or(Value::Null, timings);
    Ok(Json(answer).into_response())
}

/// The number of tokens of the prompt.
pub(crate) async fn input_tokens(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let conversation = read(&app, &mut Fields::read(&body)?)?;
    Ok(Json(json!({ "input_tokens": conversation.count(&app).await? })))
}

/// A reply as a message.
fn message(reply: &Reply) -> Value {
    let content = match reply.content.is_empty() && !reply.calls.is_empty() {
        true => Value::Null,
        false => json!(reply.content),
    };
    let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
    if !reply.reasoning.is_empty() {
        message["reasoning_content"] = json!(reply.reasoning);
    }
    if !reply.calls.is_empty() {
        let call = |call: &Call| {
            let function = json!({ "name": call.name, "arguments": call.arguments });
            json!({ "id": call.id, "type": "function", "function": function })
        };
        message["tool_calls"] = reply.calls.iter().map(call).collect();
    }
    message
}

/// Why a reply ended.
fn finish_of(outcome: &Outcome, calls: usize) -> &'static str {
    match finish(outcome.finish) {
        "stop" if calls > 0 => "tool_calls",
        reason => reason,
    }
}

/// What all objects of an answer have.
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
}

impl Head {
    pub(crate) fn object(&self, kind: &str) -> Value {
        json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": concat!("trike-", env!("CARGO_PKG_VERSION")),
            "choices": [],
        })
    }
}

struct ChatChunks {
    app: Arc<App>,
    head: Head,
    tokenizer: Tokenizer,
    logprobs: bool,
    usage: bool,
    /// One for each choice.
    readers: Vec<ReplyReader>,
}

impl ChatChunks {
    fn chunk(&self, choice: usize, delta: &Value, logprobs: &Value, finish: Option<&str>) -> Value {
        let mut chunk = self.head.object("chat.completion.chunk");
        chunk["choices"] =
            json!([{ "index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish }]);
        if self.usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// Chunks of parts; the log-probabilities go with the first, or with one of their own.
    fn parts(&self, choice: usize, parts: Vec<ReplyPart>, logprobs: &[TokenLogprobs]) -> Vec<Sent> {
        let mut probabilities = match self.logprobs && !logprobs.is_empty() {
            true => token_logprobs(&self.tokenizer, logprobs),
            false => Value::Null,
        };
        let mut deltas: Vec<Value> = parts
            .into_iter()
            .map(|part| match part {
                ReplyPart::Reasoning(text) => json!({ "reasoning_content": text }),
                ReplyPart::Content(text) => json!({ "content": text }),
                ReplyPart::Call { index, name } => {
                    let (id, function) = (answer_id(&self.app, "call_"), json!({ "name": name, "arguments": "" }));
                    json!({ "tool_calls": [{ "index": index, "id": id, "type": "function", "function": function }] })
                }
                ReplyPart::Arguments { index, text } => {
                    json!({ "tool_calls": [{ "index": index, "function": { "arguments": text } }] })
                }
            })
            .collect();
        if deltas.is_empty() && !probabilities.is_null() {
            deltas.push(json!({}));
        }
        let chunk =
            |delta: Value| (None, self.chunk(choice, &delta, &std::mem::take(&mut probabilities), None));
        deltas.into_iter().map(chunk).collect()
    }
}

impl Chunks for ChatChunks {
    fn start(&mut self, choice: usize, _: usize) -> Vec<Sent> {
        let delta = json!({ "role": "assistant", "content": "" });
        vec![(None, self.chunk(choice, &delta, &Value::Null, None))]
    }

    fn text(&mut self, choice: usize, text: String, logprobs: &[TokenLogprobs]) -> Vec<Sent> {
        let parts = self.readers[choice].push(&text);
        self.parts(choice, parts, logprobs)
    }

    fn end(&mut self, choice: usize, outcome: &Outcome) -> Vec<Sent> {
        let rest = self.readers[choice].finish();
        let mut sent = self.parts(choice, rest, &[]);
        let reason = finish_of(outcome, self.readers[choice].calls());
        let mut last = self.chunk(choice, &json!({}), &Value::Null, Some(reason));
        last["timings"] = timings(outcome);
        sent.push((None, last));
        sent
    }

    fn last(&mut self, outcomes: &[Outcome]) -> Vec<Sent> {
        if !self.usage {
            return Vec::new();
        }
        let mut last = self.head.object("chat.completion.chunk");
        last["usage"] = usage(outcomes, self.readers.len());
        last["timings"] = outcomes.first().map_or(Value::Null, timings);
        vec![(None, last)]
    }
}

/// The prompt of a conversation, as text.
pub(crate) async fn apply_template(
    State(app): State<Arc<App>>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let tokenizer = app.loaded()?.tokenizer.clone();
    let mut fields = Fields::read(&body)?;
    let conversation = read(&app, &mut fields)?;
    let rendered = tokio::task::spawn_blocking(move || conversation.render(&app, &tokenizer));
    let text = rendered.await.map_err(|error| ApiError::internal(error.to_string()))??;
    Ok(Json(json!({ "prompt": text })))
}
