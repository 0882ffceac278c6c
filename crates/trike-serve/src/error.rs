//! Errors of the server and of requests.

use std::net::SocketAddr;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use trike_engine::EngineError;
use trike_llm::LlmError;
use trike_text::sampler::SamplerError;

/// An error of the server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The system refuses threads or sockets.
    #[error("the server cannot run: {0}")]
    Io(#[from] std::io::Error),
}

/// The error object of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    /// The type of the OpenAI API.
    kind: &'static str,
    code: Option<&'static str>,
    /// The field.
    param: Option<String>,
    message: String,
}

impl ApiError {
    /// A field that is wrong, or everything.
    pub(crate) fn invalid<'a>(param: impl Into<Option<&'a str>>, message: impl Into<String>) -> Self {
        let param = param.into().map(str::to_owned);
        let (status, kind) = (StatusCode::BAD_REQUEST, "invalid_request_error");
        Self { status, kind, code: None, param, message: message.into() }
    }

    /// Something that the server does not have.
    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, code: Some("not_found"), ..Self::invalid(None, message) }
    }

    /// A prompt that does not fit. Clients tell it from other errors by words of this message.
    fn too_long(tokens: usize, room: usize) -> Self {
        let message =
            format!("the prompt has {tokens} tokens and exceeds the available context size of {room} tokens");
        Self { code: Some("context_length_exceeded"), ..Self::invalid(None, message) }
    }

    pub(crate) fn unauthorized() -> Self {
        let message = "missing or wrong API key: send it as `Authorization: Bearer KEY`";
        let (status, code) = (StatusCode::UNAUTHORIZED, Some("invalid_api_key"));
        Self { status, code, kind: "authentication_error", ..Self::invalid(None, message) }
    }

    pub(crate) fn loading() -> Self {
        let (status, kind) = (StatusCode::SERVICE_UNAVAILABLE, "unavailable_error");
        Self { status, kind, ..Self::invalid(None, "the model is being loaded") }
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        let (status, kind) = (StatusCode::INTERNAL_SERVER_ERROR, "server_error");
        Self { status, kind, ..Self::invalid(None, message) }
    }

    /// The same with another status.
    pub(crate) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// The object, as in a body or an event.
    pub(crate) fn object(&self) -> serde_json::Value {
        let Self { status, kind, code, param, message } = self;
        let code = code.map_or_else(|| json!(status.as_u16()), |code| json!(code));
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }
}

impl ApiError {
    /// The object in Anthropic's form.
    pub(crate) fn anthropic_object(&self) -> serde_json::Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            StatusCode::GATEWAY_TIMEOUT => "timeout_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "api_error",
        };
        json!({ "type": "error", "error": { "type": kind, "message": self.message } })
    }

    /// The answer to a request for Anthropic's API.
    pub(crate) fn into_anthropic(self) -> Response {
        let object = self.anthropic_object();
        self.answer(object)
    }

    fn answer(self, object: serde_json::Value) -> Response {
        let mut response = (self.status, Json(object)).into_response();
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        // Whoever passes the response on can write the error in another form.
        response.extensions_mut().insert(self);
        response
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match &error {
            &EngineError::PromptTooLong { tokens, room } => Self::too_long(tokens, room),
            EngineError::Option(option) => Self::invalid(option.field(), message),
            EngineError::QueueFull { .. } => {
                let (status, kind) = (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error");
                Self { status, kind, ..Self::invalid(None, message) }
            }
            EngineError::ShuttingDown => Self { message, ..Self::loading() },
            EngineError::Deadline => Self { status: StatusCode::GATEWAY_TIMEOUT, ..Self::internal(message) },
            EngineError::Model(model) => match &**model {
                LlmError::Constraint(_) => Self::invalid("response_format", message),
                LlmError::Option(option) | LlmError::Sampler(SamplerError::Option(option)) => {
                    Self::invalid(option.field(), message)
                }
                LlmError::Tokenizer(_) | LlmError::Chat(_) | LlmError::Sampler(_) => {
                    Self::invalid(None, message)
                }
                &LlmError::PromptTooLong { tokens, context } => Self::too_long(tokens, context),
                _ => Self::internal(message),
            },
            _ => Self::internal(message),
        }
    }
}

impl From<LlmError> for ApiError {
    fn from(error: LlmError) -> Self {
        EngineError::from(error).into()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let object = self.object();
        self.answer(object)
    }
}
