//! What the handlers of requests share.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use trike_engine::{Engine, LoadedModel};
use trike_text::chat::ChatTemplate;
use trike_text::reply::ReplyFormat;
use trike_text::tokenizer::Tokenizer;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::options::{ServeOptions, ServedModel};

/// What the handlers share.
pub(crate) struct App {
    pub(crate) engine: Engine,
    pub(crate) model: ServedModel,
    pub(crate) options: ServeOptions,
    /// When the server started, in seconds since 1970.
    pub(crate) started: u64,
    /// A number that differs between servers, for identifiers.
    pub(crate) start: u64,
    /// Answers so far.
    pub(crate) answers: AtomicU64,
    /// How the model's replies are written; made for the first chat.
    pub(crate) format: OnceLock<ReplyFormat>,
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl App {
    /// The model, or the error of a server that does not have it yet.
    pub(crate) fn loaded(&self) -> Result<&LoadedModel, ApiError> {
        self.engine.model()?.ok_or_else(ApiError::loading)
    }

    pub(crate) fn template(&self) -> Result<&ChatTemplate, ApiError> {
        self.model.template.as_ref().ok_or_else(|| {
            let message =
                "the model has no chat template: use /v1/completions, or start the server with a template";
            ApiError::invalid("messages", message)
        })
    }

    /// How the model's replies are written.
    pub(crate) fn format(&self, tokenizer: &Tokenizer) -> Result<&ReplyFormat, ApiError> {
        let template = self.template()?;
        Ok(self.format.get_or_init(|| ReplyFormat::of(template, tokenizer)))
    }

    /// Checks the field `model`, which may be missing: another model than the server's is an error.
    pub(crate) fn check_model(&self, fields: &mut Fields) -> Result<(), ApiError> {
        match fields.string("model")? {
            Some(name) if !self.model.is_named(&name) && !name.is_empty() => {
                let own = &self.model.name;
                Err(ApiError::not_found(format!("no model named {name:?}; this server has {own:?}")))
            }
            _ => Ok(()),
        }
    }
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("model", &self.model.name).finish_non_exhaustive()
    }
}
