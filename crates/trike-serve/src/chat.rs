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
use trike_text::tokenizer::Tokenizer;

use crate::app::{App, now};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::running::{Chunks, Running, answer_id, finish, stream, timings, token_logprobs, usage};
use crate::sampling::Wanted;

/// Messages with the variables of the template.
struct Prompt {
    messages: Vec<Message>,
    rendering: RenderOptions,
}

impl Prompt {
    fn read(fields: &mut Fields) -> Result<Self, ApiError> {
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
        let variables: Option<Map<String, Value>> = fields.take("chat_template_kwargs", "an object")?;
        let mut rendering = RenderOptions::default();
        for (name, value) in variables.into_iter().flatten() {
            rendering = rendering.with_extra(name, value);
        }
        if let Some(effort) = fields.string("reasoning_effort")? {
            rendering = rendering.with_extra("reasoning_effort", effort);
        }
        let add: Option<bool> = fields.take("add_generation_prompt", "true or false")?;
        let rendering = rendering.with_add_generation_prompt(add.unwrap_or(true));
        Ok(Self { messages, rendering })
    }

    /// The template's output.
    fn render(&self, app: &App) -> Result<String, ApiError> {
        let template = app.template()?;
        template
            .render(&self.messages, &self.rendering)
            .map_err(|error| ApiError::invalid("messages", error.to_string()))
    }

    fn encode(&self, app: &App, tokenizer: &Tokenizer) -> Result<Vec<u32>, ApiError> {
        let template = app.template()?;
        template
            .encode(tokenizer, &self.messages, &self.rendering)
            .map_err(|error| ApiError::invalid("messages", error.to_string()))
    }
}

/// Tools change what a model may answer: refused unless they cannot be called.
fn tools(fields: &mut Fields) -> Result<(), ApiError> {
    let choice = fields.value("tool_choice");
    let is_off = choice == Some(json!("none"));
    let none = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    for name in ["tools", "functions"] {
        if let Some(value) = fields.value(name)
            && !none(&value)
            && !is_off
        {
            return Err(ApiError::invalid(
                name,
                format!("`{name}` is not supported yet: leave it out, or send `tool_choice`: \"none\""),
            ));
        }
    }
    fields.only("function_call", &[json!("none"), json!("auto")], "calls are not supported yet")?;
    fields.without_effect(&["parallel_tool_calls"]);
    match choice {
        Some(choice) if !["none", "auto"].iter().any(|free| choice == **free) => {
            Err(ApiError::invalid("tool_choice", "`tool_choice`: calls are not supported yet"))
        }
        _ => Ok(()),
    }
}

/// The answer to a conversation.
pub(crate) async fn completions(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, ApiError> {
    let model = app.loaded()?;
    let mut fields = Fields::read(&body)?;
    app.check_model(&mut fields)?;
    let prompt = Prompt::read(&mut fields)?;
    let wanted = Wanted::read(&mut fields, &app.model.generation, true)?;
    tools(&mut fields)?;
    fields.only("modalities", &[json!(["text"])], "only text is generated")?;
    fields.only("verbosity", &[json!("medium")], "models differ")?;
    fields.end()?;
    // Templates are programs of the model's author, with a limit to their run time.
    let (inner, tokenizer) = (Arc::clone(&app), model.tokenizer.clone());
    let ids = tokio::task::spawn_blocking(move || prompt.encode(&inner, &tokenizer));
    let ids = ids.await.map_err(|error| ApiError::internal(error.to_string()))??;
    let running = Running::start(&app, &ids, &model.tokenizer.turn_ends(), &wanted)?;
    let head = Head { id: answer_id(&app, "chatcmpl"), created: now(), model: app.model.name.clone() };
    if wanted.stream {
        let logprobs = wanted.options.logprobs.is_some();
        let chunks = ChatChunks { head, tokenizer: model.tokenizer.clone(), logprobs, usage: wanted.usage };
        return Ok(stream(running, wanted.usage, chunks).await?.into_response());
    }
    let outcomes = running.outcomes().await?;
    let choice = |(index, outcome): (usize, &Outcome)| {
        let logprobs = wanted.options.logprobs.map(|_| token_logprobs(&model.tokenizer, &outcome.logprobs));
        json!({
            "index": index,
            "message": { "role": "assistant", "content": outcome.text, "refusal": null },
            "logprobs": logprobs,
            "finish_reason": finish(outcome.finish),
        })
    };
    let mut answer = head.object("chat.completion");
    answer["choices"] = outcomes.iter().enumerate().map(choice).collect();
    answer["usage"] = usage(&outcomes);
    answer["timings"] = outcomes.first().map_or(Value::Null, timings);
    Ok(Json(answer).into_response())
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
    head: Head,
    tokenizer: Tokenizer,
    logprobs: bool,
    usage: bool,
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
}

impl Chunks for ChatChunks {
    fn start(&mut self, choice: usize) -> Vec<Value> {
        vec![self.chunk(choice, &json!({ "role": "assistant", "content": "" }), &Value::Null, None)]
    }

    fn text(&mut self, choice: usize, text: String, logprobs: &[TokenLogprobs]) -> Vec<Value> {
        let logprobs = match self.logprobs {
            true => token_logprobs(&self.tokenizer, logprobs),
            false => Value::Null,
        };
        vec![self.chunk(choice, &json!({ "content": text }), &logprobs, None)]
    }

    fn end(&mut self, choice: usize, outcome: &Outcome) -> Vec<Value> {
        let mut last = self.chunk(choice, &json!({}), &Value::Null, Some(finish(outcome.finish)));
        last["timings"] = timings(outcome);
        vec![last]
    }

    fn usage(&mut self, outcomes: &[Outcome]) -> Value {
        let mut last = self.head.object("chat.completion.chunk");
        last["usage"] = usage(outcomes);
        last
    }
}

/// The prompt of a conversation, as text.
pub(crate) async fn apply_template(
    State(app): State<Arc<App>>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let mut fields = Fields::read(&body)?;
    fields.without_effect(&["model"]);
    let prompt = Prompt::read(&mut fields)?;
    fields.end()?;
    let rendered = tokio::task::spawn_blocking(move || prompt.render(&app));
    let text = rendered.await.map_err(|error| ApiError::internal(error.to_string()))??;
    Ok(Json(json!({ "prompt": text })))
}
