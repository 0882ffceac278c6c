//! Anthropic's `/v1/messages` and `/v1/messages/count_tokens`.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value, json};
use trike_engine::Outcome;
use trike_llm::{FinishReason, TokenLogprobs};
use trike_text::chat::Message;
use trike_text::reply::{ReplyPart, ReplyReader};
use trike_text::tokenizer::Tokenizer;

use crate::app::App;
use crate::chat::rendering;
use crate::conversation::{Conversation, Reply};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::running::{Chunks, Sent, answer_id, stream};
use crate::sampling::Wanted;
use crate::tools;

fn wrong(field: &str, message: impl std::fmt::Display) -> ApiError {
    ApiError::invalid(field, format!("`{field}`: {message}"))
}

/// The text of a content: a string, or blocks of text.
fn text(field: &str, content: &Value) -> Result<String, ApiError> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let texts: Result<Vec<&str>, ApiError> = blocks
                .iter()
                .map(|block| match (kind(block), block.get("text").and_then(Value::as_str)) {
                    ("text", Some(text)) => Ok(text),
                    (kind, _) => Err(wrong(field, format!("expected blocks of type `text`, got `{kind}`"))),
                })
                .collect();
            Ok(texts?.join("\n"))
        }
        _ => Err(wrong(field, "expected a string or a list of blocks")),
    }
}

fn kind(block: &Value) -> &str {
    block.get("type").and_then(Value::as_str).unwrap_or("(none)")
}

/// A message in those that chat templates know: results of tools are messages of their own.
fn message(message: &Value, into: &mut Vec<Message>) -> Result<(), ApiError> {
    let (Some(role), Some(content)) = (message.get("role").and_then(Value::as_str), message.get("content"))
    else {
        return Err(wrong("messages", "expected objects with `role` and `content`"));
    };
    if !["user", "assistant", "system"].contains(&role) {
        return Err(wrong("messages", format!("expected the role `user` or `assistant`, got {role:?}")));
    }
    let Value::Array(blocks) = content else {
        into.push(Message::new(role, text("messages", content)?));
        return Ok(());
    };
    let (mut texts, mut thoughts, mut calls) = (Vec::new(), Vec::new(), Vec::new());
    let member = |block: &Value, name: &str| {
        let value = block.get(name).and_then(Value::as_str).map(str::to_owned);
        value.ok_or_else(|| wrong("messages", format!("a block of type `{}` has no `{name}`", kind(block))))
    };
    for block in blocks {
        match (kind(block), role) {
            ("text", _) => texts.push(member(block, "text")?),
            ("thinking", "assistant") => thoughts.push(member(block, "thinking")?),
            // It cannot be read, and is not needed.
            ("redacted_thinking", "assistant") => {}
            ("tool_use", "assistant") => {
                let input = block.get("input").cloned().unwrap_or_else(|| json!({}));
                let function = json!({ "name": member(block, "name")?, "arguments": input });
                calls.push(json!({ "id": member(block, "id")?, "type": "function", "function": function }));
            }
            ("tool_result", "user") => {
                let result = text("messages", block.get("content").unwrap_or(&Value::Null))?;
                let is_error = block.get("is_error").and_then(Value::as_bool).unwrap_or(false);
                let result = if is_error { format!("Error: {result}") } else { result };
                let id = member(block, "tool_use_id")?;
                let name = name_of(into, &id);
                let message = Message::new("tool", result).with_field("tool_call_id", id);
                into.push(match name {
                    Some(name) => message.with_field("name", name),
                    None => message,
                });
            }
            (kind, _) => {
                return Err(wrong(
                    "messages",
                    format!("blocks of type `{kind}` are not supported from {role}"),
                ));
            }
        }
    }
    if texts.is_empty() && calls.is_empty() && thoughts.is_empty() {
        return Ok(());
    }
    let mut message = Message::new(role, texts.join("\n"));
    if !thoughts.is_empty() {
        message = message.with_field("reasoning_content", thoughts.join("\n"));
    }
    if !calls.is_empty() {
        message = message.with_field("tool_calls", calls);
    }
    into.push(message);
    Ok(())
}

/// The name of the tool of an earlier call.
fn name_of(messages: &[Message], id: &str) -> Option<String> {
    let calls = messages.iter().rev().filter_map(|message| message.field("tool_calls")?.as_array());
    let call = calls.flatten().find(|call| call.get("id").is_some_and(|own| own == id))?;
    call.get("function")?.get("name")?.as_str().map(str::to_owned)
}

/// The fields besides the model.
fn conversation(app: &App, fields: &mut Fields) -> Result<Conversation, ApiError> {
    let list: Option<Vec<Value>> = fields.take("messages", "a list of messages")?;
    let list = list
        .filter(|list| !list.is_empty())
        .ok_or_else(|| wrong("messages", "expected at least one message"))?;
    let mut messages = Vec::new();
    if let Some(system) = fields.value("system") {
        messages.push(Message::system(text("system", &system)?));
    }
    for value in &list {
        message(value, &mut messages)?;
    }
    let stop = fields.strings("stop_sequences")?;
    if !stop.is_empty() {
        fields.set("stop", "stop_sequences", stop)?;
    }
    let (budget, is_thinking) = thinking(fields)?;
    format(fields)?;
    fields.only("n", &[json!(1)], "a message has one reply")?;
    fields.only("speed", &[json!("standard")], "there is one speed")?;
    // What is cached and counted does not depend on them; a server of one machine has one place and one tier.
    fields.without_effect(&["cache_control", "container", "inference_geo", "betas"]);
    context_management(fields)?;
    let reply = tools::of_messages(fields)?;
    let mut rendering = rendering(fields)?;
    if let Some(is_thinking) = is_thinking {
        rendering = rendering.with_extra("enable_thinking", is_thinking);
    }
    let wanted = Wanted::read(fields, &app.model.generation, true)?;
    let goes_on =
        messages.last().is_some_and(|last| last.role == "assistant" && last.field("tool_calls").is_none());
    Ok(Conversation { messages, goes_on, rendering, reply, wanted, budget, is_raw: false })
}

/// Most tokens of reasoning, and whether there shall be any.
fn thinking(fields: &mut Fields) -> Result<(Option<usize>, Option<bool>), ApiError> {
    let Some(thinking) = fields.value("thinking") else { return Ok((None, None)) };
    match (kind(&thinking), thinking.get("budget_tokens").map(Value::as_u64)) {
        ("disabled", _) => Ok((None, Some(false))),
        ("adaptive", _) => Ok((None, Some(true))),
        ("enabled", Some(Some(budget))) => {
            Ok((Some(usize::try_from(budget).unwrap_or(usize::MAX)), Some(true)))
        }
        ("enabled", None) => Ok((None, Some(true))),
        _ => Err(wrong(
            "thinking",
            "expected the type `enabled` with `budget_tokens`, `adaptive` or `disabled`",
        )),
    }
}

/// The format of the content, under either of its names.
fn format(fields: &mut Fields) -> Result<(), ApiError> {
    let config: Option<Map<String, Value>> = fields.take("output_config", "an object")?;
    let mut format = fields.value("output_format");
    for (name, value) in config.into_iter().flatten() {
        match name.as_str() {
            "format" => format = Some(value),
            "effort" => fields.set("reasoning_effort", "output_config", value)?,
            _ => return Err(wrong("output_config", format!("`{name}` is not supported"))),
        }
    }
    let Some(format) = format.filter(|format| !format.is_null()) else { return Ok(()) };
    match (kind(&format), format.get("schema")) {
        ("json_schema", Some(schema)) => {
            let format =
                json!({ "type": "json_schema", "json_schema": { "name": "output", "schema": schema } });
            fields.set("response_format", "output_format", format)
        }
        _ => Err(wrong("output_format", "expected the type `json_schema` with a `schema`")),
    }
}

/// Edits of the history that change nothing here: templates leave out the reasoning of earlier turns by themselves.
fn context_management(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(management) = fields.value("context_management") else { return Ok(()) };
    let edits = management.get("edits").and_then(Value::as_array);
    match edits.into_iter().flatten().map(kind).find(|kind| !kind.starts_with("clear_thinking")) {
        None => Ok(()),
        Some(kind) => Err(wrong("context_management", format!("edits of type `{kind}` are not supported"))),
    }
}

/// Reads the fields of both routes.
pub(crate) fn read(app: &App, fields: &mut Fields) -> Result<Conversation, ApiError> {
    app.check_model(fields)?;
    let conversation = conversation(app, fields)?;
    fields.end()?;
    Ok(conversation)
}

/// A reply to the messages.
pub(crate) async fn messages(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, ApiError> {
    app.loaded()?;
    let mut fields = Fields::read(&body)?;
    let conversation = read(&app, &mut fields)?;
    if conversation.wanted.options.max_tokens.is_none() {
        return Err(wrong("max_tokens", "expected a whole number of at least 1"));
    }
    let (talk, wanted) = conversation.start(&app).await?;
    let reader = talk.reader();
    let head = Head { id: answer_id(&app, "msg_"), model: app.model.name.clone(), prompt: talk.prompt };
    let stops = wanted.options.stop.clone();
    let tokenizer = talk.tokenizer.clone();
    if wanted.stream {
        let chunks = Events { app, head, reader, stops, tokenizer, open: None, blocks: 0 };
        return Ok(stream(talk.running, chunks).await?.into_response());
    }
    let outcomes = talk.running.outcomes().await?;
    let Some(outcome) = outcomes.first() else { return Err(ApiError::internal("no text")) };
    let reply = Reply::read(&app, reader, &outcome.text);
    let mut content = Vec::new();
    if !reply.reasoning.is_empty() {
        content.push(json!({ "type": "thinking", "thinking": reply.reasoning, "signature": "" }));
    }
    if !reply.content.is_empty() || reply.calls.is_empty() {
        content.push(json!({ "type": "text", "text": reply.content }));
    }
    content.extend(
        reply.calls.iter().map(
            |call| json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": call.input() }),
        ),
    );
    let mut answer = head.object(outcome.reused);
    answer["content"] = Value::Array(content);
    let (reason, stop) = reason(outcome, reply.calls.len(), &stops, &tokenizer);
    answer["stop_reason"] = json!(reason);
    answer["stop_sequence"] = json!(stop);
    answer["usage"]["output_tokens"] = json!(outcome.ids.len());
    Ok(Json(answer).into_response())
}

/// The number of tokens of the prompt.
pub(crate) async fn count_tokens(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let mut fields = Fields::read(&body)?;
    let conversation = read(&app, &mut fields)?;
    Ok(Json(json!({ "input_tokens": conversation.count(&app).await? })))
}

struct Head {
    id: String,
    model: String,
    prompt: usize,
}

impl Head {
    fn object(&self, reused: usize) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": {
                "input_tokens": self.prompt.saturating_sub(reused),
                "cache_read_input_tokens": reused,
                "cache_creation_input_tokens": 0,
                "output_tokens": 0,
            },
        })
    }
}

/// Why a reply ended, with the stop sequence.
fn reason(
    outcome: &Outcome,
    calls: usize,
    stops: &[String],
    tokenizer: &Tokenizer,
) -> (&'static str, Option<String>) {
    match outcome.finish {
        FinishReason::MaxTokens | FinishReason::Cancelled => ("max_tokens", None),
        FinishReason::Context => ("model_context_window_exceeded", None),
        FinishReason::Stop | FinishReason::Eos => {
            // The text ends before the sequence, which the tokens contain.
            let whole = tokenizer.decode(&outcome.ids).unwrap_or_default();
            let found = stops.iter().filter_map(|stop| Some((whole.find(stop.as_str())?, stop)));
            match found.min() {
                Some((_, stop)) => ("stop_sequence", Some(stop.clone())),
                None if calls > 0 => ("tool_use", None),
                None => ("end_turn", None),
            }
        }
    }
}

/// The kind of a block that is open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    Call,
}

struct Events {
    app: Arc<App>,
    head: Head,
    reader: ReplyReader,
    stops: Vec<String>,
    tokenizer: Tokenizer,
    open: Option<Block>,
    /// Blocks that were opened.
    blocks: usize,
}

impl Events {
    fn close(&mut self, sent: &mut Vec<Sent>) {
        if self.open.take().is_some() {
            sent.push(event("content_block_stop", json!({ "index": self.blocks - 1 })));
        }
    }

    fn open(&mut self, block: Block, content: &Value, sent: &mut Vec<Sent>) {
        self.close(sent);
        sent.push(event("content_block_start", json!({ "index": self.blocks, "content_block": content })));
        self.blocks += 1;
        self.open = Some(block);
    }

    fn parts(&mut self, parts: Vec<ReplyPart>, sent: &mut Vec<Sent>) {
        for part in parts {
            let delta = match part {
                ReplyPart::Reasoning(text) => {
                    if self.open != Some(Block::Thinking) {
                        let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
                        self.open(Block::Thinking, &block, sent);
                    }
                    json!({ "type": "thinking_delta", "thinking": text })
                }
                ReplyPart::Content(text) => {
                    if self.open != Some(Block::Text) {
                        self.open(Block::Text, &json!({ "type": "text", "text": "" }), sent);
                    }
                    json!({ "type": "text_delta", "text": text })
                }
                ReplyPart::Call { name, .. } => {
                    let id = answer_id(&self.app, "toolu_");
                    self.open(
                        Block::Call,
                        &json!({ "type": "tool_use", "id": id, "name": name, "input": {} }),
                        sent,
                    );
                    continue;
                }
                ReplyPart::Arguments { text, .. } => {
                    json!({ "type": "input_json_delta", "partial_json": text })
                }
            };
            sent.push(event(
                "content_block_delta",
                json!({ "index": self.blocks.saturating_sub(1), "delta": delta }),
            ));
        }
    }
}

/// An event whose object has its name as type.
fn event(name: &'static str, mut object: Value) -> Sent {
    object["type"] = json!(name);
    (Some(name), object)
}

impl Chunks for Events {
    fn start(&mut self, _: usize, reused: usize) -> Vec<Sent> {
        vec![event("message_start", json!({ "message": self.head.object(reused) }))]
    }

    fn text(&mut self, _: usize, text: String, _: &[TokenLogprobs]) -> Vec<Sent> {
        let (parts, mut sent) = (self.reader.push(&text), Vec::new());
        self.parts(parts, &mut sent);
        sent
    }

    fn end(&mut self, _: usize, outcome: &Outcome) -> Vec<Sent> {
        let (parts, mut sent) = (self.reader.finish(), Vec::new());
        self.parts(parts, &mut sent);
        self.close(&mut sent);
        let (reason, stop) = reason(outcome, self.reader.calls(), &self.stops, &self.tokenizer);
        let usage = json!({ "output_tokens": outcome.ids.len() });
        let delta = json!({ "stop_reason": reason, "stop_sequence": stop });
        sent.push(event("message_delta", json!({ "delta": delta, "usage": usage })));
        sent.push(event("message_stop", json!({})));
        sent
    }

    fn last(&mut self, _: &[Outcome]) -> Vec<Sent> {
        Vec::new()
    }

    fn error(&mut self, error: &ApiError) -> Sent {
        (Some("error"), error.anthropic_object())
    }

    fn has_end(&self) -> bool {
        false
    }
}
