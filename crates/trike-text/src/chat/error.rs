//! What can go wrong between messages and a prompt.

use std::{io, path::PathBuf};

use crate::tokenizer::TokenizerError;

/// Why a conversation did not become a prompt: match [`Refused`](Self::Refused) and
/// [`TurnTooLong`](Self::TurnTooLong) first, the rest mean a template that is broken or asks for too much.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The template itself refused the conversation, with `raise_exception`.
    #[error("the chat template refuses this conversation: {message}")]
    Refused {
        /// The template's words.
        message: String,
    },
    /// The last turn alone, with the system prompt, is longer than the budget.
    #[error(
        "the last message and the system prompt are {tokens} tokens, and {budget} are left for them: \
         shorten the message or enlarge the context"
    )]
    TurnTooLong {
        /// Tokens of the shortest prompt that keeps both.
        tokens: usize,
        /// Tokens that a prompt may have.
        budget: usize,
    },
    /// The template is no template.
    #[error("chat template, line {line}: {message}")]
    Syntax {
        /// Counted from 1; 0 when unknown.
        line: usize,
        /// What the engine says.
        message: String,
    },
    /// The template failed on this conversation.
    #[error("chat template, line {line}: {message}")]
    Render {
        /// Counted from 1; 0 when unknown.
        line: usize,
        /// What the engine says.
        message: String,
    },
    /// The template uses a part of the language that is not implemented.
    #[error("chat template, line {line}: {feature} is not implemented: write it differently")]
    Unsupported {
        /// Counted from 1; 0 when unknown.
        line: usize,
        /// The part.
        feature: &'static str,
    },
    /// The template asks for more than any prompt needs.
    #[error("the chat template goes over the limit of {limit} {what}: it is broken or hostile")]
    LimitExceeded {
        /// What there is too much of, with its unit.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The model has templates, but none by this name.
    #[error("there is no chat template `{wanted}`; the model has {}", available.join(", "))]
    NoSuchTemplate {
        /// The name.
        wanted: String,
        /// The names that there are.
        available: Vec<String>,
    },
    /// A file or an option that should be JSON is something else.
    #[error("{place}: expected {expected}, got {got}")]
    Malformed {
        /// The file or the key.
        place: String,
        /// What it should hold.
        expected: &'static str,
        /// What it holds.
        got: String,
    },
    /// Messages use all private characters, so that none is left to stand for a special token.
    #[error(
        "the messages spell special tokens and use every private-use character of plane 16: shorten them"
    )]
    NoStandIn,
    /// The prompt could not be tokenized.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The thread that renders could not be started.
    #[error("the thread for the chat template: {0}")]
    Thread(io::Error),
}
