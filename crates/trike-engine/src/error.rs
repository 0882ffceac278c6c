//! Errors of requests and of the engine.

use std::sync::Arc;

use trike_core::OptionError;
use trike_llm::LlmError;

/// An error of a request or of the engine. Cloned, because an error of a step reaches every request of the step.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// An option out of range.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The queue is full.
    #[error("{waiting} requests wait already, and at most {limit} may")]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
        /// The most that may.
        limit: usize,
    },
    /// The keys and values of a prompt do not fit in the memory for them.
    #[error("the prompt has {tokens} tokens, and there is memory for {room}")]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of the longest prompt.
        room: usize,
    },
    /// The deadline passed.
    #[error("the request did not end before its deadline")]
    Deadline,
    /// The engine is shutting down.
    #[error("the engine is shutting down")]
    ShuttingDown,
    /// A bug: a request or a step panicked. Other requests go on.
    #[error("internal error: {message}")]
    Panic {
        /// What the panic said.
        message: String,
    },
    /// The thread of the engine cannot be started.
    #[error("the thread of the engine cannot be started: {reason}")]
    Thread {
        /// The system's reason.
        reason: String,
    },
    /// An error of the model.
    #[error(transparent)]
    Model(Arc<LlmError>),
}

impl From<LlmError> for EngineError {
    fn from(error: LlmError) -> Self {
        Self::Model(Arc::new(error))
    }
}
