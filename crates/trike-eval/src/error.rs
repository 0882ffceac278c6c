//! The errors of measuring.

use std::path::PathBuf;

use trike_core::OptionError;
use trike_llm::{LlmError, tokenizer::TokenizerError};

/// Error of a measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// The model could not be run, or a text could not be tokenized.
    #[error(transparent)]
    Llm(#[from] LlmError),
    /// A field of an options struct is out of range.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// No sequence of the text has two tokens or more.
    #[error("nothing to score: no sequence of the text has two tokens or more")]
    NothingToScore,
    /// A text unsuitable for a needle test.
    #[error("no needle test can be made of the text: expected {expected}, got {got}")]
    NeedleText {
        /// The expected content.
        expected: String,
        /// The content.
        got: String,
    },
    /// Precisions of the KV cache cannot be chosen on this backend.
    #[error(
        "choosing the precision of keys and values: not supported by {backend}, only by the CPU in one process"
    )]
    KvChoice {
        /// The backend.
        backend: String,
    },
    /// A malformed line of a task file.
    #[error("{}: `line {line}`: expected {expected}, got {got}", path.display())]
    Question {
        /// The file.
        path: PathBuf,
        /// The line number, starting at 1.
        line: usize,
        /// The expected content.
        expected: String,
        /// The content.
        got: String,
    },
    /// A task file without a question.
    #[error("{}: no questions: expected one JSON object per line", path.display())]
    NoQuestions {
        /// The file.
        path: PathBuf,
    },
    /// Two models whose vocabularies differ cannot be compared.
    #[error(
        "the models have vocabularies of {ours} and {base} tokens: divergence requires the same vocabulary"
    )]
    VocabularyMismatch {
        /// Size of the measured model's vocabulary.
        ours: usize,
        /// Size of the base model's.
        base: usize,
    },
}

impl From<TokenizerError> for EvalError {
    fn from(error: TokenizerError) -> Self {
        Self::Llm(error.into())
    }
}
