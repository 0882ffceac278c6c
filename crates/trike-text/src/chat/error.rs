//! Errors of chat templates.

use std::{io, path::PathBuf};

use crate::tokenizer::TokenizerError;

/// Error of rendering a conversation. [`Refused`](Self::Refused) and [`TurnTooLong`](Self::TurnTooLong) are the expected ones;
/// most others indicate a template that is malformed or exceeds a limit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The template rejected the conversation with `raise_exception`.
    #[error("the chat template rejects this conversation: {message}")]
    Refused {
        /// The template's message.
        message: String,
    },
    /// The last turn alone, with the system prompt, is longer than the budget.
    #[error(
        "the last message and the system prompt have {tokens} tokens, but only {budget} fit: \
         shorten the message or enlarge the context"
    )]
    TurnTooLong {
        /// Tokens of the shortest prompt with both.
        tokens: usize,
        /// Maximum number of tokens of the prompt.
        budget: usize,
    },
    /// The template has a syntax error.
    #[error("chat template, line {line}: {message}")]
    Syntax {
        /// Counted from 1; 0 when unknown.
        line: usize,
        /// The engine's message.
        message: String,
    },
    /// The template failed on this conversation.
    #[error("chat template, line {line}: {message}")]
    Render {
        /// Counted from 1; 0 when unknown.
        line: usize,
        /// The engine's message.
        message: String,
    },
    /// The template uses a part of the language that is not implemented.
    #[error("chat template, line {line}: {feature} is not implemented: rewrite the template without it")]
    Unsupported {
        /// Counted from 1; 0 when unknown.
        line: usize,
        /// The unsupported feature.
        feature: &'static str,
    },
    /// The template exceeds a resource limit.
    #[error("the chat template exceeds the limit of {limit} {what}: it is broken or hostile")]
    LimitExceeded {
        /// The limited quantity, with its unit.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The model has no template of this name.
    #[error("there is no chat template `{wanted}`; the model has {}", available.join(", "))]
    NoSuchTemplate {
        /// The name.
        wanted: String,
        /// The available names.
        available: Vec<String>,
    },
    /// A file or an option is not the expected JSON.
    #[error("{place}: expected {expected}, got {got}")]
    Malformed {
        /// The file or the key.
        place: String,
        /// The expected value.
        expected: &'static str,
        /// The value found.
        got: String,
    },
    /// The template omits a part of a training conversation, or renders it as something else.
    #[error("{whose}: the chat template {problem}")]
    Unrendered {
        /// `tools`, or `message` with its number, counted from 1.
        whose: String,
        /// The problem with the template.
        problem: &'static str,
    },
    /// The messages use all private-use characters, so that no placeholder for a special token is left.
    #[error(
        "the messages contain special tokens and use every private-use character of plane 16: shorten them"
    )]
    NoPlaceholder,
    /// The prompt could not be tokenized.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The rendering thread could not be started.
    #[error("cannot start the thread for the chat template: {0}")]
    Thread(io::Error),
}
