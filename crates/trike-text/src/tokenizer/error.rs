//! Errors of tokenizers.

use std::{error::Error, io, path::PathBuf};

/// Error of a tokenizer. [`VocabMismatch`](Self::VocabMismatch) and [`Unsupported`](Self::Unsupported) are the expected ones;
/// the others indicate a malformed file or a caller's mistake.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The tokenizer has ids outside the model's vocabulary, or too few ids for it.
    #[error(
        "the tokenizer has {tokenizer} tokens, but the model's vocabulary has {model} rows: \
         they do not belong together; pass the tokenizer that was made for this model"
    )]
    VocabMismatch {
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Rows of the model's embedding.
        model: usize,
    },
    /// The file uses a feature that is not implemented.
    #[error("{feature} is not implemented: {remedy}")]
    Unsupported {
        /// The feature, by its name in the file.
        feature: String,
        /// Suggested action.
        remedy: &'static str,
    },
    /// An error inside a named file.
    #[error("{}: {error}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// The error.
        error: Box<TokenizerError>,
    },
    /// The file cannot be opened or read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A size exceeds a limit that protects against memory exhaustion by hostile files.
    #[error("{what} is {requested}, over the limit of {limit}")]
    LimitExceeded {
        /// The quantity, with its unit.
        what: &'static str,
        /// The requested size.
        requested: u64,
        /// The limit.
        limit: u64,
    },
    /// The file ends inside a value.
    #[error("the file ends inside {what} at byte {offset}: {needed} bytes needed, {available} left")]
    Truncated {
        /// The value being read.
        what: &'static str,
        /// Offset of the value in bytes from the start of the file or message.
        offset: usize,
        /// Bytes of the value.
        needed: u64,
        /// Remaining bytes.
        available: u64,
    },
    /// A value contradicts the format or another value.
    #[error("{place}: expected {expected}, got {got}")]
    Malformed {
        /// The place: a field, or a token by its id.
        place: String,
        /// The value that the format requires.
        expected: &'static str,
        /// The value found.
        got: String,
    },
    /// An error of the `tokenizers` crate for a file or a text.
    #[error("tokenizer.json: {0}")]
    Json(Box<dyn Error + Send + Sync>),
    /// An error of the `tokenizers` crate for a vocabulary, such as a merge of nonexistent tokens.
    #[error("the vocabulary: {0}")]
    Vocabulary(Box<dyn Error + Send + Sync>),
    /// Some text cannot be represented and would be lost silently.
    #[error(
        "the vocabulary has no token for byte {byte:#04x} and no unknown token: text with it would be lost; \
         use the complete tokenizer of the model"
    )]
    MissingByte {
        /// The first byte without a token.
        byte: u8,
    },
    /// A character of the text has no token, no byte fallback and no unknown token.
    #[error(
        "no token for {character:?} at byte {offset} of the text, and the vocabulary has no unknown token"
    )]
    Unencodable {
        /// The character.
        character: char,
        /// Its byte offset in the normalized text.
        offset: usize,
    },
    /// An id without a token.
    #[error("token id {id} has no token: the tokenizer has {vocab_size} ids")]
    UnknownId {
        /// The id.
        id: u32,
        /// Ids of the tokenizer.
        vocab_size: usize,
    },
    /// All training texts are empty.
    #[error("all texts are empty: expected at least one with a character, to learn a vocabulary from")]
    NoText,
    /// The requested vocabulary is too small for the bytes and the special tokens.
    #[error(
        "a vocabulary of {requested} tokens: expected at least {needed}, 256 bytes and {special} special tokens"
    )]
    VocabTooSmall {
        /// The requested number of tokens.
        requested: usize,
        /// The least number.
        needed: usize,
        /// Special tokens in it.
        special: usize,
    },
    /// BOS was requested, but the tokenizer has none.
    #[error("the tokenizer has no beginning-of-sequence token: set its id with `with_special`")]
    NoBos,
    /// An empty prompt, and no BOS to generate from.
    #[error(
        "the prompt is empty, and the tokenizer has no beginning-of-sequence token: expected at least one token"
    )]
    EmptyPrompt,
    /// An empty stop string, which would stop before the first token.
    #[error("stop string {index} is empty; every text contains it")]
    EmptyStop {
        /// Its index in the list.
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
