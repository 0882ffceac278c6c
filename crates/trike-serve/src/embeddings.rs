//! `/v1/embeddings`.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use trike_llm::Pooling;

use crate::app::App;
use crate::completions::prompt;
use crate::error::ApiError;
use crate::fields::Fields;

/// Most texts of one request.
const MOST_TEXTS: usize = 2048;

/// Reads the fields: the texts, and whether their embeddings are wanted in base64.
pub(crate) fn read(app: &App, fields: &mut Fields) -> Result<(Value, bool), ApiError> {
    app.check_model(fields)?;
    let input = fields.value("input").ok_or_else(|| ApiError::invalid("input", "`input` is missing"))?;
    let encoding = fields.string("encoding_format")?;
    let size = app.loaded().ok().map(|model| json!(model.config.spec.hidden));
    fields.only("dimensions", size.as_slice(), "the model decides")?;
    fields.without_effect(&["user"]);
    fields.end()?;
    match encoding.as_deref() {
        None | Some("float") => Ok((input, false)),
        Some("base64") => Ok((input, true)),
        Some(other) => {
            let message = format!("`encoding_format`: expected `float` or `base64`, got {other:?}");
            Err(ApiError::invalid("encoding_format", message))
        }
    }
}

/// The embeddings of one or more texts.
pub(crate) async fn embeddings(State(app): State<Arc<App>>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let model = app.loaded()?;
    let (input, is_base64) = read(&app, &mut Fields::read(&body)?)?;
    let texts = match input {
        Value::Array(list) if !list.iter().all(Value::is_number) => list,
        one => vec![one],
    };
    if texts.len() > MOST_TEXTS {
        let message = format!("`input`: expected at most {MOST_TEXTS} texts, got {}", texts.len());
        return Err(ApiError::invalid("input", message));
    }
    let mut tokens = 0;
    let mut data = Vec::with_capacity(texts.len());
    for (index, text) in texts.into_iter().enumerate() {
        let ids = prompt(model, "input", text)?;
        tokens += ids.len();
        let (sender, received) = oneshot::channel();
        // A client that has left does not receive it.
        app.engine.embed(ids, Pooling::Mean, move |embedding| drop(sender.send(embedding)))?;
        let embedding = received.await.map_err(|_| ApiError::internal("the engine ended"))??;
        let embedding = match is_base64 {
            true => {
                json!(
                    STANDARD
                        .encode(embedding.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
                )
            }
            false => json!(embedding),
        };
        data.push(json!({ "object": "embedding", "index": index, "embedding": embedding }));
    }
    Ok(Json(json!({
        "object": "list",
        "data": data,
        "model": app.model.name,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })))
}
