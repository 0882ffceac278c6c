//! The routes, and their description in OpenAPI.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::routing::{MethodRouter, get, post};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::{chat, completions, embeddings, messages, responses, status, text};

/// What a handler does with the fields of a body, for their names and types.
type Reader = fn(&App, &mut Fields) -> Result<(), ApiError>;

/// A route.
pub(crate) struct Route {
    /// Its paths; the first is described.
    pub(crate) paths: &'static [&'static str],
    summary: &'static str,
    pub(crate) handler: MethodRouter<Arc<App>>,
    /// An example of the body, with its reader.
    body: Option<(Value, Reader)>,
}

fn asked(paths: &'static [&'static str], summary: &'static str, handler: MethodRouter<Arc<App>>) -> Route {
    Route { paths, summary, handler, body: None }
}

fn sent(
    paths: &'static [&'static str],
    summary: &'static str,
    handler: MethodRouter<Arc<App>>,
    example: Value,
    reader: Reader,
) -> Route {
    Route { paths, summary, handler, body: Some((example, reader)) }
}

/// All routes.
pub(crate) fn all() -> Vec<Route> {
    let chat = json!({ "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 8 });
    vec![
        asked(&["/health", "/v1/health"], "Whether the model is loaded", get(status::health)),
        asked(&["/v1/models", "/models"], "The model", get(status::models)),
        asked(&["/v1/models/{*name}"], "The model, if it has this name", get(status::model_named)),
        asked(&["/props"], "What the server is", get(status::props)),
        asked(&["/slots"], "What runs", get(status::slots)),
        asked(&["/metrics"], "Counters and times in the text format of Prometheus", get(status::metrics)),
        asked(&["/openapi.json"], "This description", get(openapi)),
        sent(
            &["/v1/chat/completions", "/chat/completions"],
            "The answer to a conversation",
            post(chat::completions),
            chat.clone(),
            |app, fields| chat::read(app, fields).map(drop),
        ),
        sent(
            &["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"],
            "The number of tokens of a conversation",
            post(chat::input_tokens),
            chat.clone(),
            |app, fields| chat::read(app, fields).map(drop),
        ),
        sent(
            &["/v1/responses/input_tokens"],
            "The number of tokens of an input",
            post(responses::input_tokens),
            json!({ "input": "Hello" }),
            |app, fields| responses::read(app, fields).map(drop),
        ),
        sent(
            &["/v1/responses", "/responses"],
            "The answer to an input; nothing is stored",
            post(responses::responses),
            json!({ "input": "Hello", "max_output_tokens": 8 }),
            |app, fields| responses::read(app, fields).map(drop),
        ),
        sent(
            &["/v1/messages"],
            "The answer to messages in Anthropic's form",
            post(messages::messages),
            chat.clone(),
            |app, fields| messages::read(app, fields).map(drop),
        ),
        sent(
            &["/v1/messages/count_tokens"],
            "The number of tokens of messages in Anthropic's form",
            post(messages::count_tokens),
            chat.clone(),
            |app, fields| messages::read(app, fields).map(drop),
        ),
        sent(
            &["/v1/completions", "/completions"],
            "The continuation of a text",
            post(completions::completions),
            json!({ "prompt": "Once upon a time", "max_tokens": 8 }),
            |app, fields| completions::read(app, fields).map(drop),
        ),
        sent(
            &["/v1/embeddings", "/embeddings"],
            "The embeddings of texts",
            post(embeddings::embeddings),
            json!({ "input": ["Once", "upon"] }),
            |app, fields| embeddings::read(app, fields).map(drop),
        ),
        sent(
            &["/tokenize"],
            "The tokens of a text",
            post(text::tokenize),
            json!({ "content": "Once" }),
            |app, fields| text::read_text(app, fields).map(drop),
        ),
        sent(
            &["/detokenize"],
            "The text of tokens",
            post(text::detokenize),
            json!({ "tokens": [300, 301] }),
            |app, fields| text::read_tokens(app, fields).map(drop),
        ),
        sent(
            &["/apply-template"],
            "The prompt of a conversation, as text",
            post(chat::apply_template),
            chat,
            |app, fields| chat::read(app, fields).map(drop),
        ),
    ]
}

/// The JSON schema of a body: the fields of its example are required, and others than its reader's are refused.
fn body(app: &App, example: &Value, reader: Reader) -> Value {
    let Ok(mut fields) = Fields::read(example.to_string().as_bytes()) else { return json!({}) };
    // The example is read without errors: the tests say so.
    let _ = reader(app, &mut fields);
    let required: Vec<&String> = example
        .as_object()
        .into_iter()
        .flat_map(Map::keys)
        .filter(|name| !name.starts_with("max_"))
        .collect();
    json!({
        "type": "object",
        "properties": fields.schemas(),
        "required": required,
        "additionalProperties": false,
        "example": example,
    })
}

/// The description of all routes.
pub(crate) async fn openapi(State(app): State<Arc<App>>) -> Json<Value> {
    let mut paths = Map::new();
    let error = json!({ "description": "What is wrong", "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } } });
    for route in all() {
        let path = route.paths[0].replace("{*name}", "{name}");
        let responses = json!({ "200": { "description": "The answer" }, "4XX": error, "5XX": error });
        let mut operation = json!({ "summary": route.summary, "responses": responses });
        if path.contains("{name}") {
            operation["parameters"] =
                json!([{ "name": "name", "in": "path", "required": true, "schema": { "type": "string" } }]);
        }
        let method = match &route.body {
            Some((example, reader)) => {
                let schema = body(&app, example, *reader);
                operation["requestBody"] =
                    json!({ "required": true, "content": { "application/json": { "schema": schema } } });
                "post"
            }
            None => "get",
        };
        paths.insert(path, json!({ method: operation }));
    }
    let mut description = json!({
        "openapi": "3.1.0",
        "info": { "title": "Trike", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "components": {
            "schemas": { "Error": { "type": "object", "required": ["error"], "properties": { "error": {
                "type": "object",
                "required": ["message", "type"],
                "properties": { "message": { "type": "string" }, "type": { "type": "string" } },
            } } } },
        },
    });
    if !app.options.keys.is_empty() {
        description["components"]["securitySchemes"] =
            json!({ "key": { "type": "http", "scheme": "bearer" } });
        description["security"] = json!([{ "key": [] }]);
    }
    Json(description)
}
