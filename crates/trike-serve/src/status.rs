//! What the server is and does: `/health`, `/v1/models`, `/props`, `/slots`, `/metrics`.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use trike_engine::{Histogram, Slot};

use crate::app::App;
use crate::error::ApiError;

/// Status 200 once the model is loaded.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    app.loaded()?;
    Ok(Json(json!({ "status": "ok" })))
}

fn model(app: &App) -> Value {
    let meta = app.engine.model().ok().flatten().map(|model| {
        let spec = &model.config.spec;
        json!({ "n_ctx": model.context, "n_ctx_train": spec.context, "n_embd": spec.hidden, "n_vocab": spec.vocab })
    });
    json!({
        "id": app.model.name,
        "aliases": app.model.aliases,
        "object": "model",
        "created": app.started,
        "owned_by": "trike",
        "meta": meta,
    })
}

pub(crate) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [model(&app)] }))
}

pub(crate) async fn model_named(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    if app.model.is_named(&name) {
        return Ok(Json(model(&app)));
    }
    Err(ApiError::not_found(format!("no model named {name:?}; this server has {:?}", app.model.name)))
}

pub(crate) async fn props(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let model = app.loaded()?;
    Ok(Json(json!({
        "total_slots": app.engine.options().sequences,
        "model_path": model.path.display().to_string(),
        "model_alias": app.model.name,
        "backend": model.backend,
        "default_generation_settings": { "n_ctx": model.context },
        "chat_template": app.model.template.is_some(),
        "build_info": concat!("trike ", env!("CARGO_PKG_VERSION")),
    })))
}

pub(crate) async fn slots(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let context = app.loaded()?.context;
    let slot = |(id, slot): (usize, Slot)| {
        json!({
            "id": id,
            "n_ctx": context,
            "is_processing": slot.request.is_some(),
            "id_task": slot.request,
            "n_prompt_tokens": slot.prompt,
            "n_past": slot.position,
            "n_decoded": slot.generated,
        })
    };
    Ok(Json(app.engine.slots().into_iter().enumerate().map(slot).collect()))
}

/// The metrics in the text format of Prometheus.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let all = app.engine.metrics();
    let mut text = String::new();
    let counters = [
        ("requests_total", "Requests that were not refused.", all.requests),
        ("requests_finished_total", "Texts that ended.", all.finished),
        ("requests_cancelled_total", "Requests that were cancelled.", all.cancelled),
        ("requests_failed_total", "Requests that failed.", all.failed),
        ("requests_refused_total", "Requests refused since too many waited.", all.refused),
        ("requests_preempted_total", "Requests stopped for want of memory and run again.", all.preempted),
        ("prompt_tokens_total", "Prompt tokens that were read.", all.prompt_tokens),
        ("reused_tokens_total", "Prompt tokens whose keys and values were reused.", all.reused_tokens),
        ("generated_tokens_total", "New tokens.", all.generated_tokens),
        ("steps_total", "Steps of the model.", all.steps),
    ];
    for (name, help, value) in counters {
        // Writing to a string cannot fail.
        let _ =
            writeln!(text, "# HELP trike_{name} {help}\n# TYPE trike_{name} counter\ntrike_{name} {value}");
    }
    let gauges = [
        ("requests_running", "Requests that run.", all.running),
        ("requests_waiting", "Requests that wait.", all.waiting),
        ("kv_pages", "Pages of keys and values in use.", all.pages),
        ("kv_pages_kept", "Pages kept for later texts.", all.kept_pages),
        ("kv_pages_limit", "Pages that fit in the memory for them.", all.page_limit),
    ];
    for (name, help, value) in gauges {
        let _ = writeln!(text, "# HELP trike_{name} {help}\n# TYPE trike_{name} gauge\ntrike_{name} {value}");
    }
    histogram(
        &mut text,
        "first_token_seconds",
        "From the arrival of a request to its first token.",
        &all.first_token,
    );
    histogram(&mut text, "between_tokens_seconds", "Between two tokens of a text.", &all.between_tokens);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

fn histogram(text: &mut String, name: &str, help: &str, times: &Histogram) {
    let _ = writeln!(text, "# HELP trike_{name} {help}\n# TYPE trike_{name} histogram");
    for (bound, count) in times.cumulative() {
        let _ = writeln!(text, "trike_{name}_bucket{{le=\"{bound}\"}} {count}");
    }
    let (count, sum) = (times.count(), times.sum());
    let _ = writeln!(
        text,
        "trike_{name}_bucket{{le=\"+Inf\"}} {count}\ntrike_{name}_sum {sum}\ntrike_{name}_count {count}"
    );
}
