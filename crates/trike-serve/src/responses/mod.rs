//! OpenAI's `/v1/responses`. Nothing is stored: a client sends the whole conversation.

mod events;
mod input;

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value, json};
use trike_engine::Outcome;
use trike_llm::FinishReason;
use trike_text::tokenizer::Tokenizer;

use crate::app::{App, now};
use crate::chat::rendering;
use crate::conversation::{Conversation, Reply};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::running::{answer_id, stream};
use crate::sampling::Wanted;
use crate::tools;

fn wrong(field: &str, message: impl std::fmt::Display) -> ApiError {
    ApiError::invalid(field, format!("`{field}`: {message}"))
}

/// What the response object repeats of the request.
const REPEATED: &[&str] = &[
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "reasoning",
    "safety_identifier",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
];

/// The answer to an input.
pub(crate) async fn responses(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, ApiError> {
    app.loaded()?;
    let mut fields = Fields::read(&body)?;
    let repeated = repeated(&fields);
    let conversation = read(&app, &mut fields)?;
    let (talk, wanted) = conversation.start(&app).await?;
    let reader = talk.reader();
    let head = Head { id: answer_id(&app, "resp_"), created: now(), model: app.model.name.clone(), repeated };
    let tokenizer = talk.tokenizer.clone();
    if wanted.stream {
        let events = events::Events::new(app, head, reader, tokenizer);
        return Ok(stream(talk.running, events).await?.into_response());
    }
    let outcomes = talk.running.outcomes().await?;
    let Some(outcome) = outcomes.first() else { return Err(ApiError::internal("no text")) };
    let reply = Reply::read(&app, reader, &outcome.text);
    let mut output = Vec::new();
    if !reply.reasoning.is_empty() {
        output.push(reasoning_item(&answer_id(&app, "rs_"), Some(&reply.reasoning)));
    }
    if !reply.content.is_empty() || reply.calls.is_empty() {
        output.push(message_item(&answer_id(&app, "msg_"), Some(&reply.content)));
    }
    for call in &reply.calls {
        output.push(call_item(&answer_id(&app, "fc_"), &call.id, &call.name, Some(&call.arguments)));
    }
    let answer = head.finished(output, outcome, &reply.reasoning, &tokenizer);
    Ok(Json(answer).into_response())
}

/// Reads the fields.
pub(crate) fn read(app: &App, fields: &mut Fields) -> Result<Conversation, ApiError> {
    app.check_model(fields)?;
    let conversation = conversation(app, fields)?;
    fields.end()?;
    Ok(conversation)
}

/// The number of tokens of the prompt.
pub(crate) async fn input_tokens(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let conversation = read(&app, &mut Fields::read(&body)?)?;
    Ok(Json(json!({ "object": "response.input_tokens", "input_tokens": conversation.count(&app).await? })))
}

/// The values of fields that the response repeats.
fn repeated(fields: &Fields) -> Map<String, Value> {
    REPEATED.iter().filter_map(|name| Some(((*name).to_owned(), fields.peek(name)?.clone()))).collect()
}

/// Reads the fields; those of the chat API under its names.
fn conversation(app: &App, fields: &mut Fields) -> Result<Conversation, ApiError> {
    let stored = "nothing is stored: send the whole conversation as `input`";
    fields.only("previous_response_id", &[], stored)?;
    fields.only("conversation", &[], stored)?;
    fields.only("prompt", &[], "send `instructions` and `input`")?;
    fields.only("background", &[json!(false)], "the answer is awaited")?;
    fields.only("truncation", &[json!("disabled")], "a prompt that is too long is an error")?;
    fields.only("n", &[json!(1)], "a response has one reply")?;
    let includes: Vec<String> = fields.take("include", "a list of strings")?.unwrap_or_default();
    let without_logprobs = |name: &String| name != "message.output_text.logprobs";
    if let Some(name) = includes.iter().find(|name| !without_logprobs(name)) {
        return Err(wrong("include", format!("`{name}` is not supported")));
    }
    fields.only("top_logprobs", &[json!(0)], "ask /v1/chat/completions")?;
    // Calls are the client's to run, so their number is its own affair.
    fields.without_effect(&["max_tool_calls", "client_metadata"]);
    let mut messages = Vec::new();
    if let Some(instructions) = fields.string("instructions")? {
        messages.push(trike_text::chat::Message::system(instructions));
    }
    let input =
        fields.value("input").ok_or_else(|| wrong("input", "expected a string or a list of items"))?;
    input::messages(input, &mut messages)?;
    if let Some(max) = fields.count("max_output_tokens")? {
        fields.set("max_completion_tokens", "max_output_tokens", max)?;
    }
    text(fields)?;
    if let Some(mut reasoning) = fields.take::<Map<String, Value>>("reasoning", "an object")? {
        // There is no summary but the reasoning itself.
        for name in ["summary", "generate_summary", "context"] {
            reasoning.remove(name);
        }
        if let Some(effort) = reasoning.remove("effort").filter(|effort| !effort.is_null()) {
            fields.set("reasoning_effort", "reasoning", effort)?;
        }
        if let Some(name) = reasoning.keys().next() {
            return Err(wrong("reasoning", format!("`{name}` is not supported")));
        }
    }
    let reply = tools::of_responses(fields)?;
    let rendering = rendering(fields)?;
    let wanted = Wanted::read(fields, &app.model.generation, true)?;
    Ok(Conversation { messages, goes_on: false, rendering, reply, wanted, budget: None, is_raw: false })
}

/// The format of the text.
fn text(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(text) = fields.take::<Map<String, Value>>("text", "an object")? else { return Ok(()) };
    for (name, value) in text {
        match name.as_str() {
            "format" => match value.get("type").and_then(Value::as_str) {
                Some("json_schema") => {
                    let format = json!({ "type": "json_schema", "json_schema": value });
                    fields.set("response_format", "text", format)?;
                }
                _ => fields.set("response_format", "text", value)?,
            },
            "verbosity" if value == "medium" || value.is_null() => {}
            _ => return Err(wrong("text", format!("`{name}` is not supported"))),
        }
    }
    Ok(())
}

/// What all events have of the response.
struct Head {
    id: String,
    created: u64,
    model: String,
    repeated: Map<String, Value>,
}

impl Head {
    fn object(&self, status: &str) -> Value {
        let mut object = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": null,
            "status": status,
            "background": false,
            "error": null,
            "frequency_penalty": 0.0,
            "incomplete_details": null,
            "instructions": null,
            "max_output_tokens": null,
            "max_tool_calls": null,
            "metadata": {},
            "model": self.model,
            "output": [],
            "parallel_tool_calls": true,
            "presence_penalty": 0.0,
            "previous_response_id": null,
            "prompt_cache_key": null,
            "reasoning": { "effort": null, "summary": null },
            "safety_identifier": null,
            "service_tier": "default",
            "store": false,
            "temperature": 1.0,
            "text": { "format": { "type": "text" } },
            "tool_choice": "auto",
            "tools": [],
            "top_logprobs": 0,
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": null,
        });
        for (name, value) in self.repeated.iter().filter(|(_, value)| !value.is_null()) {
            object[name] = value.clone();
        }
        object
    }

    /// The response after its text.
    fn finished(
        &self,
        output: Vec<Value>,
        outcome: &Outcome,
        reasoning: &str,
        tokenizer: &Tokenizer,
    ) -> Value {
        let is_whole = matches!(outcome.finish, FinishReason::Eos | FinishReason::Stop);
        let mut object = self.object(if is_whole { "completed" } else { "incomplete" });
        if is_whole {
            object["completed_at"] = json!(now());
        } else {
            object["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        object["output"] = Value::Array(output);
        let thoughts = match reasoning.is_empty() {
            true => 0,
            false => tokenizer.encode(reasoning, false).map_or(0, |ids| ids.len()),
        };
        object["usage"] = json!({
            "input_tokens": outcome.prompt,
            "input_tokens_details": { "cached_tokens": outcome.reused },
            "output_tokens": outcome.ids.len(),
            "output_tokens_details": { "reasoning_tokens": thoughts.min(outcome.ids.len()) },
            "total_tokens": outcome.prompt + outcome.ids.len(),
        });
        object
    }
}

/// The status of an item: it has its text, or is being written.
fn status(text: Option<&str>) -> &'static str {
    if text.is_some() { "completed" } else { "in_progress" }
}

fn reasoning_item(id: &str, text: Option<&str>) -> Value {
    let content: Vec<Value> =
        text.iter().map(|text| json!({ "type": "reasoning_text", "text": text })).collect();
    json!({ "id": id, "type": "reasoning", "summary": [], "content": content, "status": status(text) })
}

fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

fn message_item(id: &str, text: Option<&str>) -> Value {
    let content: Vec<Value> = text.iter().map(|text| text_part(text)).collect();
    json!({ "id": id, "type": "message", "role": "assistant", "status": status(text), "content": content })
}

fn call_item(id: &str, call: &str, name: &str, arguments: Option<&str>) -> Value {
    json!({
        "id": id,
        "type": "function_call",
        "status": status(arguments),
        "call_id": call,
        "name": name,
        "arguments": arguments.unwrap_or_default(),
    })
}
