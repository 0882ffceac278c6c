//! `/v1/completions`: the continuation of a text.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use trike_engine::{LoadedModel, Outcome};
use trike_llm::TokenLogprobs;
use trike_text::tokenizer::Tokenizer;

use crate::app::{App, now};
use crate::chat::Head;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::running::{Chunks, Running, Sent, answer_id, finish, stream, timings, usage};
use crate::sampling::Wanted;

/// The tokens of a prompt: a text, token ids, or one of either in a list.
pub(crate) fn prompt(model: &LoadedModel, name: &str, value: Value) -> Result<Vec<u32>, ApiError> {
    let wrong = || {
        let message = format!("`{name}`: expected a text or a list of token ids, and one of them");
        ApiError::invalid(name, message)
    };
    match value {
        Value::String(text) => {
            let ids = model.tokenizer.encode_prompt(&text);
            ids.map_err(|error| ApiError::invalid(name, error.to_string()))
        }
        Value::Array(list) if !list.is_empty() && list.iter().all(Value::is_number) => {
            let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(wrong);
            let ids: Vec<u32> = list.iter().map(id).collect::<Result<_, _>>()?;
            let vocab = model.tokenizer.vocab_size();
            match ids.iter().find(|id| **id as usize >= vocab) {
                Some(id) => {
                    let message = format!("`{name}`: token {id} is not one of the {vocab}");
                    Err(ApiError::invalid(name, message))
                }
                None => Ok(ids),
            }
        }
        Value::Array(list) if list.is_empty() => {
            Err(ApiError::invalid(name, format!("`{name}`: expected at least one token")))
        }
        Value::Array(mut list) if list.len() == 1 => prompt(model, name, list.remove(0)),
        _ => Err(wrong()),
    }
}

/// The tokens of prompts: one, or a list of them.
fn prompts(model: &LoadedModel, value: Value) -> Result<Vec<Vec<u32>>, ApiError> {
    match value {
        Value::Array(list) if list.is_empty() => {
            Err(ApiError::invalid("prompt", "`prompt`: expected at least one text or token"))
        }
        Value::Array(list) if !list.iter().all(Value::is_number) => {
            list.into_iter().map(|one| prompt(model, "prompt", one)).collect()
        }
        one => Ok(vec![prompt(model, "prompt", one)?]),
    }
}

/// Reads the fields: the prompt and what is wanted of its continuation.
pub(crate) fn read(app: &App, fields: &mut Fields) -> Result<(Value, Wanted), ApiError> {
    app.check_model(fields)?;
    let text = fields.value("prompt").ok_or_else(|| ApiError::invalid("prompt", "`prompt` is missing"))?;
    let wanted = Wanted::read(fields, &app.model.generation, false)?;
    fields.only("suffix", &[json!("")], "texts are continued at their end")?;
    fields.only("echo", &[json!(false)], "the answer is the new text")?;
    fields.only("best_of", &[json!(1)], "ask for `n` texts and choose")?;
    fields.end()?;
    Ok((text, wanted))
}

/// The continuation of a text.
pub(crate) async fn completions(State(app): State<Arc<App>>, body: Bytes) -> Result<Response, ApiError> {
    let model = app.loaded()?;
    let mut fields = Fields::read(&body)?;
    let (text, wanted) = read(&app, &mut fields)?;
    let inner = Arc::clone(&app);
    // A grammar is compiled.
    let started = tokio::task::spawn_blocking(move || {
        let model = inner.loaded()?;
        let prompts = prompts(model, text)?;
        let running = Running::start(&inner, &prompts, model.tokenizer.eos(), &wanted)?;
        Ok::<_, ApiError>((running, wanted))
    });
    let (running, wanted) = started.await.map_err(|error| ApiError::internal(error.to_string()))??;
    let head = Head { id: answer_id(&app, "cmpl-"), created: now(), model: app.model.name.clone() };
    let logprobs = wanted.options.logprobs.is_some();
    if wanted.stream {
        let offsets = vec![0; running.texts()];
        let chunks = TextChunks {
            head,
            tokenizer: model.tokenizer.clone(),
            logprobs,
            usage: wanted.usage,
            choices: wanted.choices,
            offsets,
        };
        return Ok(stream(running, chunks).await?.into_response());
    }
    let outcomes = running.outcomes().await?;
    let choice = |(index, outcome): (usize, &Outcome)| {
        let logprobs = logprobs.then(|| legacy(&model.tokenizer, &outcome.logprobs, &mut 0));
        json!({
            "index": index,
            "text": outcome.text,
            "logprobs": logprobs,
            "finish_reason": finish(outcome.finish),
        })
    };
    let mut answer = head.object("text_completion");
    answer["choices"] = outcomes.iter().enumerate().map(choice).collect();
    answer["usage"] = usage(&outcomes, wanted.choices);
    answer["timings"] = outcomes.first().map_or(Value::Null, timings);
    Ok(Json(answer).into_response())
}

/// The log-probabilities of tokens as four lists. `offset` is that of the first token, in bytes, and becomes that of the next one.
fn legacy(tokenizer: &Tokenizer, all: &[TokenLogprobs], offset: &mut usize) -> Value {
    let text = |id: u32| String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap_or_default()).into_owned();
    let top = |of: &TokenLogprobs| -> serde_json::Map<String, Value> {
        of.top.iter().map(|(id, logprob)| (text(*id), json!(logprob))).collect()
    };
    let offsets: Vec<usize> = all
        .iter()
        .map(|of| {
            let at = *offset;
            *offset += text(of.id).len();
            at
        })
        .collect();
    json!({
        "tokens": all.iter().map(|of| text(of.id)).collect::<Vec<_>>(),
        "token_logprobs": all.iter().map(|of| of.logprob).collect::<Vec<_>>(),
        "top_logprobs": all.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

struct TextChunks {
    head: Head,
    tokenizer: Tokenizer,
    logprobs: bool,
    usage: bool,
    /// Texts of each prompt.
    choices: usize,
    /// Of each text, the offset of its next token.
    offsets: Vec<usize>,
}

impl TextChunks {
    fn chunk(&self, choice: usize, text: &str, logprobs: &Value, finish: Option<&str>) -> Value {
        let mut chunk = self.head.object("text_completion");
        chunk["choices"] =
            json!([{ "index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish }]);
        if self.usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

impl Chunks for TextChunks {
    fn start(&mut self, _: usize, _: usize) -> Vec<Sent> {
        Vec::new()
    }

    fn text(&mut self, choice: usize, text: String, logprobs: &[TokenLogprobs]) -> Vec<Sent> {
        let logprobs = match self.logprobs {
            true => legacy(&self.tokenizer, logprobs, &mut self.offsets[choice]),
            false => Value::Null,
        };
        vec![(None, self.chunk(choice, &text, &logprobs, None))]
    }

    fn end(&mut self, choice: usize, outcome: &Outcome) -> Vec<Sent> {
        let mut last = self.chunk(choice, "", &Value::Null, Some(finish(outcome.finish)));
        last["timings"] = timings(outcome);
        vec![(None, last)]
    }

    fn last(&mut self, outcomes: &[Outcome]) -> Vec<Sent> {
        if !self.usage {
            return Vec::new();
        }
        let mut last = self.head.object("text_completion");
        last["usage"] = usage(outcomes, self.choices);
        vec![(None, last)]
    }
}
