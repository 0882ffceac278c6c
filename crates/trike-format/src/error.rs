//! Errors of reading and writing model files.

use std::path::{Path, PathBuf};

use trike_core::TensorError;
use trike_trit::TritError;

use crate::GgufType;

/// Error of reading or writing a model file.
///
/// Every message names the file, the tensor (if any), the expected and the actual value, and a remedy.
/// [`Unsupported`](Self::Unsupported) and [`UnsupportedTensor`](Self::UnsupportedTensor) indicate valid files that need a
/// feature that Trike does not implement. The other variants indicate damaged files, files of another kind, or values that the
/// chosen type cannot hold.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// An error of the operating system.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The failed action: `open`, `map`, `write` ...
        action: &'static str,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The path is not a model that Trike reads.
    #[error("{}: {found}; {remedy}", path.display())]
    NotAModel {
        /// The file or directory.
        path: PathBuf,
        /// The apparent kind of the file.
        found: String,
        /// The remedy.
        remedy: String,
    },
    /// The file requires a transform, a layout or a version that is not implemented.
    #[error("{}: `{name}` is not implemented; {remedy}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The key, method or version, as spelled in the file.
        name: String,
        /// The remedy.
        remedy: String,
    },
    /// A tensor is stored in a type that is not implemented.
    #[error("{}: tensor `{tensor}` is stored as {kind}, which Trike does not read; {remedy}", path.display())]
    UnsupportedTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The name of its type.
        kind: String,
        /// The remedy.
        remedy: String,
    },
    /// The file ends too early.
    #[error(
        "{}: truncated at {what}: expected {needed} bytes, got {available}; download or copy the file again",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The part of the file being read.
        what: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes available.
        available: u64,
    },
    /// Another process modified or truncated the file while it was open.
    #[error(
        "{}: the file changed while it was open: expected {expected} unmodified bytes, got {got}; wait until it is written, \
         and open it again",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// Its size in bytes when it was opened.
        expected: u64,
        /// Its bytes now.
        got: u64,
    },
    /// A number in the header exceeds a limit of the reader.
    #[error("{}: {what} is {got}: expected at most {limit}; the header is damaged or malicious", path.display())]
    OverLimit {
        /// The file.
        path: PathBuf,
        /// The quantity that is too large.
        what: String,
        /// The limit.
        limit: u64,
        /// The value in the file.
        got: u64,
    },
    /// The header contradicts itself or its format.
    #[error("{}: {what}: expected {expected}, got {got}; download or convert the file again", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The field.
        what: String,
        /// The value that the format requires.
        expected: String,
        /// The value in the file.
        got: String,
    },
    /// A tensor's shape, type, offset or parts contradict the header.
    #[error(
        "{}: tensor `{tensor}`: expected {expected}, got {got}; download or convert the file again",
        path.display()
    )]
    Layout {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The value that the format requires.
        expected: String,
        /// The value in the file.
        got: String,
    },
    /// The file has no tensor of that name.
    #[error("{}: no tensor `{tensor}`; {remedy}", path.display())]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The requested name.
        tensor: String,
        /// The remedy.
        remedy: String,
    },
    /// The stored numbers of a tensor are invalid: an infinite or NaN weight or scale, an invalid code.
    #[error("{}: tensor `{tensor}`: {found}; the weights are damaged: download or convert the file again", path.display())]
    Values {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The number and its position.
        found: String,
    },
    /// The parts of a ternary tensor are not a valid tensor.
    #[error("{}: tensor `{tensor}`: {source}; the weights are damaged: download or convert the file again", path.display())]
    Trits {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The error of the parts.
        source: TritError,
    },
    /// A type cannot hold a tensor without changing a value.
    #[error("{}: {kind} cannot hold tensor `{tensor}`: expected {expected}, got {got}; {remedy}", path.display())]
    CannotHold {
        /// The file being written.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The type.
        kind: GgufType,
        /// The values that the type can hold.
        expected: String,
        /// The values of the tensor.
        got: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// Weights cannot be rounded to a block type.
    #[error("cannot round to {kind}: expected {expected}, got {got}")]
    Rounding {
        /// The type.
        kind: GgufType,
        /// The types or weights that can be rounded.
        expected: String,
        /// The type or the weights given.
        got: String,
    },
    /// A tensor that is not stored in Trike's packed format cannot be overwritten in place.
    #[error(
        "{}: cannot write `{tensor}`: it is not packed by Trike; convert the model to a directory of packed trits",
        path.display()
    )]
    NotPacked {
        /// The directory.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A packed tensor whose size depends on its trits cannot be overwritten in place by trits of another packed size.
    #[error(
        "{}: cannot write `{tensor}`: the packed size of the new trits differs; \
         convert the model to base3, 2bit or planes, whose sizes do not depend on the trits",
        path.display()
    )]
    PackedSize {
        /// The directory.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A file cannot be written as requested.
    #[error("{}: cannot write {what}: {reason}; {remedy}", path.display())]
    Write {
        /// The file or directory being written.
        path: PathBuf,
        /// The tensor, key or file concerned.
        what: String,
        /// The reason.
        reason: String,
        /// The remedy.
        remedy: String,
    },
}

/// [`FormatError::Unsupported`] for a file or directory.
pub(crate) fn unsupported(path: &Path, name: String, remedy: &str) -> FormatError {
    FormatError::Unsupported { path: path.to_owned(), name, remedy: remedy.to_owned() }
}

/// [`FormatError::Io`] of an action on a path.
pub(crate) fn io_error(path: &Path, action: &'static str, source: std::io::Error) -> FormatError {
    FormatError::Io { path: path.to_owned(), action, source }
}

/// A file and a tensor of it, to build errors that name both.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) path: &'a Path,
    pub(crate) tensor: &'a str,
}

impl Place<'_> {
    pub(crate) fn layout(self, expected: impl Into<String>, got: impl Into<String>) -> FormatError {
        FormatError::Layout {
            path: self.path.to_owned(),
            tensor: self.tensor.to_owned(),
            expected: expected.into(),
            got: got.into(),
        }
    }

    pub(crate) fn values(self, found: impl Into<String>) -> FormatError {
        FormatError::Values {
            path: self.path.to_owned(),
            tensor: self.tensor.to_owned(),
            found: found.into(),
        }
    }

    pub(crate) fn tensor_error(self, error: &TensorError) -> FormatError {
        self.values(error.to_string())
    }

    pub(crate) fn trits(self, source: TritError) -> FormatError {
        FormatError::Trits { path: self.path.to_owned(), tensor: self.tensor.to_owned(), source }
    }

    pub(crate) fn unsupported(self, kind: impl Into<String>, remedy: impl Into<String>) -> FormatError {
        FormatError::UnsupportedTensor {
            path: self.path.to_owned(),
            tensor: self.tensor.to_owned(),
            kind: kind.into(),
            remedy: remedy.into(),
        }
    }

    pub(crate) fn missing(self) -> FormatError {
        FormatError::MissingTensor {
            path: self.path.to_owned(),
            tensor: self.tensor.to_owned(),
            remedy: "the file uses other tensor names or is incomplete".to_owned(),
        }
    }
}
