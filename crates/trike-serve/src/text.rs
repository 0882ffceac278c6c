//! `/tokenize` and `/detokenize`.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use serde_json::{Value, json};

use crate::app::App;
use crate::completions::prompt;
use crate::error::ApiError;
use crate::fields::Fields;

/// Reads the fields of `/tokenize`: the text, whether it has its special tokens, and whether pieces are wanted.
pub(crate) fn read_text(_: &App, fields: &mut Fields) -> Result<(String, bool, bool), ApiError> {
    fields.without_effect(&["model"]);
    let text = fields.string("content")?;
    let text = text.ok_or_else(|| ApiError::invalid("content", "`content` is missing"))?;
    let (special, pieces) = (fields.flag("add_special")?, fields.flag("with_pieces")?);
    fields.end()?;
    Ok((text, special, pieces))
}

/// Reads the fields of `/detokenize`.
pub(crate) fn read_tokens(_: &App, fields: &mut Fields) -> Result<Vec<u32>, ApiError> {
    fields.without_effect(&["model"]);
    let ids: Option<Vec<u32>> = fields.take("tokens", "a list of token ids")?;
    let ids = ids.ok_or_else(|| ApiError::invalid("tokens", "`tokens` is missing"))?;
    fields.end()?;
    Ok(ids)
}

/// The tokens of a text.
pub(crate) async fn tokenize(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let model = app.loaded()?;
    let (text, special, pieces) = read_text(&app, &mut Fields::read(&body)?)?;
    let ids = match special {
        true => prompt(model, "content", Value::String(text))?,
        false => {
            let ids = model.tokenizer.encode(&text, false);
            ids.map_err(|error| ApiError::invalid("content", error.to_string()))?
        }
    };
    let piece = |id: &u32| {
        let bytes = model.tokenizer.token_bytes(*id).unwrap_or_default();
        match std::str::from_utf8(bytes) {
            Ok(text) => json!({ "id": id, "piece": text }),
            Err(_) => json!({ "id": id, "piece": bytes }),
        }
    };
    let tokens: Value = if pieces { ids.iter().map(piece).collect() } else { json!(ids) };
    Ok(Json(json!({ "tokens": tokens })))
}

/// The text of tokens.
pub(crate) async fn detokenize(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let model = app.loaded()?;
    let ids = read_tokens(&app, &mut Fields::read(&body)?)?;
    let text = model.tokenizer.decode(&ids);
    let text = text.map_err(|error| ApiError::invalid("tokens", error.to_string()))?;
    Ok(Json(json!({ "content": text })))
}
