//! Errors of training.

use std::path::{Path, PathBuf};

use crate::data::EncodeError;

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
    /// A record of a data file is malformed.
    #[error("{}, line {line}: {problem}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// A data file of an unknown kind.
    #[error("{}: the kind of data is not known: expected a name that ends in .txt, .text, .md, .jsonl, .json or .parquet", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
    },
    /// A Parquet file, in a build that cannot read them.
    #[cfg(not(feature = "parquet"))]
    #[error("{}: this build does not read Parquet files, build with the feature `parquet`", path.display())]
    NoParquet {
        /// The file.
        path: PathBuf,
    },
    /// The data has too few documents.
    #[error("{documents} documents with text: expected at least {needed}")]
    TooFewDocuments {
        /// Documents that are not empty.
        documents: usize,
        /// The least number.
        needed: usize,
    },
    /// The data has more documents than can be counted.
    #[error("{documents} documents: expected at most {most}")]
    TooManyDocuments {
        /// Documents of the files.
        documents: usize,
        /// The largest number.
        most: usize,
    },
    /// The document cannot be turned into tokens.
    #[error("{}, line {line}: {source}", path.display())]
    Encode {
        /// The file.
        path: PathBuf,
        /// The line on which the document starts, from 1.
        line: usize,
        /// The cause.
        source: Box<EncodeError>,
    },
    /// No document of the data has a token to predict.
    #[error(
        "none of {documents} documents has a token to learn from: with the model's tokenizer and template each is shorter than two tokens, or has no answer that is learned"
    )]
    NothingToLearn {
        /// Documents that were read.
        documents: usize,
    },
    /// No document has a token to predict before the end of its row.
    #[error(
        "none of {documents} documents has a token to learn from in the {length} tokens of a row: the answers begin behind them; longer or packed rows hold them"
    )]
    CutAway {
        /// Documents that were read.
        documents: usize,
        /// Tokens of a row.
        length: usize,
    },
    /// A run in which every step was skipped.
    #[error("nothing was learned: gradients overflowed in f16 in all of {steps} steps")]
    NothingLearned {
        /// Steps taken.
        steps: usize,
    },
    /// A parameter that the architecture has is missing.
    #[error("{name} is missing")]
    NoParameter {
        /// Its name.
        name: String,
    },
    /// A tokenizer without a token that starts a document.
    #[error("the tokenizer has neither BOS nor EOS: a document that a model writes starts with one of them")]
    NoStart,
    /// Student and teacher have different vocabularies.
    #[error("the teacher has a vocabulary of {got} tokens: expected the student's {expected}")]
    Vocabulary {
        /// Tokens of the student.
        expected: usize,
        /// Tokens of the teacher.
        got: usize,
    },
    /// A loss or a gradient is not a number, or infinite.
    #[error("the {what} of step {step} is not finite")]
    NonFinite {
        /// What it is.
        what: &'static str,
        /// Steps taken before.
        step: u64,
    },
    /// A run's loss is not finite, or rises and does not come back.
    #[error("the loss diverges at step {step}; {}", last_checkpoint(checkpoint.as_deref()))]
    Diverged {
        /// Steps taken.
        step: usize,
        /// The last checkpoint, if there is one.
        checkpoint: Option<PathBuf>,
    },
    /// The configuration of a run is malformed or incomplete.
    #[error("{problem}")]
    Config {
        /// What is wrong.
        problem: String,
    },
    /// The tokenizer does not fit the model.
    #[error(transparent)]
    Tokenizer(#[from] trike_text::tokenizer::TokenizerError),
    /// The architecture or a weight does not fit.
    #[error(transparent)]
    Nn(#[from] trike_nn::NnError),
    /// An operation or its gradient failed.
    #[error(transparent)]
    Grad(#[from] trike_grad::GradError),
    /// A kernel failed.
    #[error(transparent)]
    Cpu(#[from] trike_cpu::CpuError),
    /// The page of a report could not be made.
    #[error(transparent)]
    Report(#[from] trike_report::ReportError),
    /// A tensor cannot be constructed.
    #[error(transparent)]
    Tensor(#[from] trike_core::TensorError),
    /// A model could not be read or written.
    #[error(transparent)]
    Llm(Box<trike_llm::LlmError>),
    /// A file of a model could not be read or written.
    #[error(transparent)]
    Format(Box<trike_format::FormatError>),
    /// A checkpoint is not one of this run.
    #[error("{}: {problem}", path.display())]
    Checkpoint {
        /// The checkpoint.
        path: PathBuf,
        /// What differs or is wrong.
        problem: String,
    },
    /// A file is not the one with which the run of a checkpoint was started: the result would be that of neither.
    #[error("{}: the {what} has changed: {file} was {expected}, and is {got} now", checkpoint.display())]
    Changed {
        /// The checkpoint.
        checkpoint: PathBuf,
        /// What the file is for, such as the data.
        what: &'static str,
        /// Its name.
        file: String,
        /// Its length and digest when the run was started, or that it was not there.
        expected: String,
        /// The same now.
        got: String,
    },
    /// A run needs more memory than it may take.
    #[error(
        "the run needs {needed} bytes of memory: expected at most {limit}; fewer or shorter rows and gradient checkpointing need less"
    )]
    Memory {
        /// Bytes at the peak of the run.
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
    /// Ranks that cannot work together, or a message between them that failed.
    #[error(transparent)]
    Comm(#[from] trike_comm::CommError),
    /// What another rank could not do for all of them.
    #[error("rank {rank}: {problem}")]
    OfRank {
        /// The rank, which has the error itself.
        rank: usize,
        /// Its error.
        problem: String,
    },
    /// Something that a trainer cannot do with ranks, whose gradients and means lie on all of them.
    #[error("{what} is for a trainer without ranks")]
    Alone {
        /// What was asked for.
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
