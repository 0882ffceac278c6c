//! What can go wrong with a tokenizer.

use std::{error::Error, io, path::PathBuf};

/// What can go wrong with a tokenizer: match [`VocabMismatch`](Self::VocabMismatch) and
/// [`Unsupported`](Self::Unsupported) first, the rest mean a broken file or a caller's mistake.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The tokenizer has ids that the model lacks, or too few for the model's rows.
    #[error(
        "the tokenizer has {tokenizer} tokens but the model has {model} rows of vocabulary: \
         they do not belong together; pass the tokenizer that was made for this model"
    )]
    VocabMismatch {
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Rows of the model's embedding.
        model: usize,
    },
    /// The file is well-formed as far as it was read, but asks for something that is not implemented.
    #[error("{feature} is not implemented: {remedy}")]
    Unsupported {
        /// What the file asks for, by its own name.
        feature: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// An error inside a named file.
    #[error("{}: {error}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: Box<TokenizerError>,
    },
    /// The file cannot be opened or read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Something is larger than the limit that keeps hostile files from exhausting memory.
    #[error("{what} is {requested}, over the limit of {limit}")]
    LimitExceeded {
        /// What is too large, with its unit.
        what: &'static str,
        /// The size asked for.
        requested: u64,
        /// The limit.
        limit: u64,
    },
    /// The file ends inside a value.
    #[error("the file ends inside {what} at byte {offset}: {needed} bytes needed, {available} left")]
    Truncated {
        /// The value being read.
        what: &'static str,
        /// Where it starts, in bytes from the start of the file or message.
        offset: usize,
        /// Bytes that the value takes.
        needed: u64,
        /// Bytes that are left.
        available: u64,
    },
    /// A value contradicts the format or another value.
    #[error("{place}: expected {expected}, got {got}")]
    Malformed {
        /// Where: a field, or a token by its id.
        place: String,
        /// What the format asks for.
        expected: &'static str,
        /// What is there.
        got: String,
    },
    /// The `tokenizers` crate refused the file or the text.
    #[error("tokenizer.json: {0}")]
    Json(Box<dyn Error + Send + Sync>),
    /// The `tokenizers` crate refused a vocabulary: a merge of tokens that are not there, for example.
    #[error("the vocabulary: {0}")]
    Vocabulary(Box<dyn Error + Send + Sync>),
    /// Some text cannot be represented, so it would be lost without a word.
    #[error(
        "the vocabulary has no token for byte {byte:#04x} and no unknown token: text with it would be lost; \
         use the complete tokenizer of the model"
    )]
    MissingByte {
        /// The first byte without a token.
        byte: u8,
    },
    /// A character of the text has no token, no byte fallback and no unknown token to stand for it.
    #[error(
        "no token for {character:?} at byte {offset} of the text, and the vocabulary has no unknown token"
    )]
    Unencodable {
        /// The character.
        character: char,
        /// Its place in the normalized text, in bytes.
        offset: usize,
    },
    /// An id that no token has.
    #[error("token id {id} has no token: the tokenizer has {vocab_size} ids")]
    UnknownId {
        /// The id.
        id: u32,
        /// Ids of the tokenizer.
        vocab_size: usize,
    },
    /// BOS was asked for, but none is known.
    #[error("a beginning-of-sequence token was asked for, but none is set: give its id with `with_special`")]
    NoBos,
    /// An empty prompt, and no BOS to start from instead.
    #[error(
        "the prompt is empty, and the tokenizer has no beginning-of-sequence token: expected at least one token"
    )]
    EmptyPrompt,
    /// An empty stop string would stop before the first token.
    #[error("stop string {index} is empty; every text contains it")]
    EmptyStop {
        /// Its place in the list.
        index: usize,
    },
}

impl TokenizerError {
    pub(crate) fn malformed(
        place: impl Into<String>,
        expected: &'static str,
        got: impl Into<String>,
    ) -> Self {
        Self::Malformed { place: place.into(), expected, got: got.into() }
    }

    pub(crate) fn unsupported(feature: impl Into<String>, remedy: &'static str) -> Self {
        Self::Unsupported { feature: feature.into(), remedy }
    }
}
