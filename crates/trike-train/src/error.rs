//! Errors of training.

use std::path::{Path, PathBuf};

/// Error of training.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A record of a data file is malformed, or cannot be tokenized.
    #[error("{}, line {line}: {problem}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The problem found.
        problem: String,
    },
    /// A data file of an unknown kind, or of one that this build does not read.
    #[error("{}: {problem}", path.display())]
    DataFile {
        /// The file.
        path: PathBuf,
        /// The problem and the remedy.
        problem: &'static str,
    },
    /// The data has too few documents.
    #[error("{documents} documents with text: expected at least {needed}")]
    TooFewDocuments {
        /// Number of nonempty documents.
        documents: usize,
        /// The least number.
        needed: usize,
    },
    /// More documents than can be indexed.
    #[error("{documents} documents: expected at most {most}")]
    TooManyDocuments {
        /// Documents of the files.
        documents: usize,
        /// The largest number.
        most: usize,
    },
    /// No document of the data has a target.
    #[error(
        "none of {documents} documents has a target token: with the model's tokenizer and template each has fewer than two tokens, or no answer to train on"
    )]
    NothingToLearn {
        /// Documents that were read.
        documents: usize,
    },
    /// All targets are beyond the end of their row.
    #[error(
        "none of {documents} documents has a target token in a row of {length} tokens: their answers begin after its end; use longer or packed rows"
    )]
    CutAway {
        /// Documents that were read.
        documents: usize,
        /// Tokens of a row.
        length: usize,
    },
    /// A run in which every step was skipped.
    #[error("no step was taken: f16 gradients overflowed in all {steps} steps")]
    NothingLearned {
        /// Steps taken.
        steps: usize,
    },
    /// A parameter of the architecture is missing.
    #[error("{name} is missing")]
    NoParameter {
        /// Name of the parameter.
        name: String,
    },
    /// A tokenizer without BOS and EOS, one of which starts generated documents.
    #[error("the tokenizer has neither BOS nor EOS: generated documents start with one of them")]
    NoStart,
    /// Student and teacher have different vocabulary sizes.
    #[error("the teacher has a vocabulary of {got} tokens: expected {expected}, as the student has")]
    Vocabulary {
        /// Tokens of the student.
        expected: usize,
        /// Tokens of the teacher.
        got: usize,
    },
    /// A loss or a gradient is NaN or infinite.
    #[error("the {what} of step {step} is not finite")]
    NonFinite {
        /// The loss or gradient concerned.
        what: &'static str,
        /// Number of previous steps.
        step: u64,
    },
    /// The loss of a run is not finite, or rises and does not recover.
    #[error("the loss diverges at step {step}; {}", last_checkpoint(checkpoint.as_deref()))]
    Diverged {
        /// Steps taken.
        step: usize,
        /// The last checkpoint, if any.
        checkpoint: Option<PathBuf>,
    },
    /// The configuration of a run is malformed or incomplete.
    #[error("{problem}")]
    Config {
        /// The problem found.
        problem: String,
    },
    /// An error of the architecture, of a weight or of a kernel.
    #[error(transparent)]
    Nn(#[from] trike_nn::NnError),
    /// An operation or its gradient failed.
    #[error(transparent)]
    Grad(#[from] trike_autodiff::GradError),
    /// The page of a report could not be made.
    #[error(transparent)]
    Report(#[from] trike_report::ReportError),
    /// A model or its tokenizer could not be read or written.
    #[error(transparent)]
    Llm(Box<trike_llm::LlmError>),
    /// A file of a model could not be read or written.
    #[error(transparent)]
    Format(Box<trike_format::FormatError>),
    /// A checkpoint does not belong to this run.
    #[error("{}: {problem}", path.display())]
    Checkpoint {
        /// The checkpoint.
        path: PathBuf,
        /// The difference or error.
        problem: String,
    },
    /// A file changed since the run of the checkpoint was started.
    #[error("{}: the {what} has changed: {file} was {expected}, and is {got} now", checkpoint.display())]
    Changed {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// The role of the file, such as the data.
        what: &'static str,
        /// Name of the file.
        file: String,
        /// Its size and digest when the run was started, or that it was absent.
        expected: String,
        /// The current value.
        got: String,
    },
    /// A run exceeds its memory limit.
    #[error(
        "the run needs {needed} bytes of memory: expected at most {limit}; use fewer or shorter rows or gradient checkpointing"
    )]
    Memory {
        /// Peak memory of the run in bytes.
        needed: u64,
        /// The largest accepted number.
        limit: u64,
    },
    /// A file of an adapter is malformed or not supported.
    #[error("{}: {source}", path.display())]
    Adapter {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<crate::AdapterError>,
    },
    /// Ranks with different settings, or a failed message between them.
    #[error(transparent)]
    Comm(#[from] trike_comm::CommError),
    /// An operation that failed on another rank.
    #[error("rank {rank}: {problem}")]
    OfRank {
        /// The rank, which reports the cause.
        rank: usize,
        /// The error of that rank.
        problem: String,
    },
    /// An operation that is not supported with ranks, since gradients and moments are distributed.
    #[error("{what} is not supported with several ranks")]
    Alone {
        /// The unsupported operation.
        what: &'static str,
    },
    /// An option is out of range.
    #[error(transparent)]
    Option(#[from] trike_core::OptionError),
}

fn last_checkpoint(path: Option<&Path>) -> String {
    match path {
        Some(path) => format!("its last checkpoint is {}", path.display()),
        None => "it has no checkpoint".to_owned(),
    }
}

impl From<trike_core::SpecError> for TrainError {
    fn from(error: trike_core::SpecError) -> Self {
        Self::Nn(error.into())
    }
}

trike_nn::from_kernel_errors!(TrainError: trike_cpu::CpuError, trike_core::TensorError);

impl From<trike_text::tokenizer::TokenizerError> for TrainError {
    fn from(error: trike_text::tokenizer::TokenizerError) -> Self {
        Self::Llm(Box::new(error.into()))
    }
}

impl From<trike_llm::LlmError> for TrainError {
    fn from(error: trike_llm::LlmError) -> Self {
        Self::Llm(Box::new(error))
    }
}

impl From<trike_format::FormatError> for TrainError {
    fn from(error: trike_format::FormatError) -> Self {
        Self::Format(Box::new(error))
    }
}
