//! What can be wrong with a model file, or with a value that a file should hold.

use std::path::{Path, PathBuf};

use trike_core::TensorError;
use trike_trit::TritError;

use crate::GgufType;

/// Why a model file could not be read or written.
///
/// Every message names the file, the tensor where there is one, what was expected and found, and what to do.
/// Match [`Unsupported`](Self::Unsupported) and [`UnsupportedTensor`](Self::UnsupportedTensor) first: they
/// are files that are whole but need something that Trike does not do. The others are broken files, files of
/// another kind, or values that the chosen type cannot hold.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The operating system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was tried: `open`, `map`, `write` ...
        action: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The path is no model that Trike reads.
    #[error("{}: {found}; {remedy}", path.display())]
    NotAModel {
        /// The file or directory.
        path: PathBuf,
        /// What it seems to be.
        found: String,
        /// What to do.
        remedy: String,
    },
    /// The file announces a transform, a layout or a version that is not implemented.
    #[error("{}: `{name}` is not implemented; {remedy}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The key, method or version, as the file spells it.
        name: String,
        /// What to do.
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
        /// What to do.
        remedy: String,
    },
    /// The file ends too early.
    #[error(
        "{}: truncated at {what}: needs {needed} bytes, {available} are there; download or copy the file again",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// What was being read.
        what: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes there.
        available: u64,
    },
    /// A number in the header is over a cap.
    #[error("{}: {what} is {got}, over the cap of {limit}; the header is damaged or hostile", path.display())]
    OverLimit {
        /// The file.
        path: PathBuf,
        /// What is too large.
        what: String,
        /// The cap.
        limit: u64,
        /// What the file says.
        got: u64,
    },
    /// The header contradicts itself or its format.
    #[error("{}: {what}: expected {expected}, got {got}; download or convert the file again", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// The field.
        what: String,
        /// What the format asks for.
        expected: String,
        /// What the file says.
        got: String,
    },
    /// A tensor's shape, type, place or parts contradict the header.
    #[error(
        "{}: tensor `{tensor}`: expected {expected}, got {got}; download or convert the file again",
        path.display()
    )]
    Layout {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What the format asks for.
        expected: String,
        /// What the file says.
        got: String,
    },
    /// There is no tensor of that name.
    #[error("{}: no tensor `{tensor}`; {remedy}", path.display())]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The name asked for.
        tensor: String,
        /// What to do.
        remedy: String,
    },
    /// The stored numbers of a tensor are not usable: an infinite or undefined weight or scale, a bad code.
    #[error("{}: tensor `{tensor}`: {found}; the weights are damaged: download or convert the file again", path.display())]
    Values {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The number and where it is.
        found: String,
    },
    /// The parts of a ternary tensor do not make one.
    #[error("{}: tensor `{tensor}`: {source}; the weights are damaged: download or convert the file again", path.display())]
    Trits {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong with the parts.
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
        /// What the type holds.
        expected: String,
        /// What the tensor has.
        got: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A tensor that is not stored in Trike's packed form cannot be overwritten in place.
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
    /// A packed tensor whose size depends on its trits has no room for other trits in place.
    #[error(
        "{}: cannot write `{tensor}`: with these trits it takes another number of bytes; \
         convert the model to base3, 2bit or planes, whose sizes do not depend on the trits",
        path.display()
    )]
    PackedSize {
        /// The directory.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A file cannot be written as asked.
    #[error("{}: cannot write {what}: {reason}; {remedy}", path.display())]
    Write {
        /// The file or directory being written.
        path: PathBuf,
        /// The tensor, key or file concerned.
        what: String,
        /// Why.
        reason: String,
        /// What to do.
        remedy: String,
    },
}

/// A tensor of a file, to build errors that name both.
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
            remedy: "its tensors have other names, or it is incomplete".to_owned(),
        }
    }
}
