//! Inspection of a path before it is opened: opening a pipe would block, and a broken link deserves a better error than "not
//! found".

use std::{fs::Metadata, io::ErrorKind, path::Path};

use crate::{FormatError, error::io_error};

/// The metadata of the target of a path, following links; `None` if the entry does not exist.
pub(crate) fn target(path: &Path) -> Result<Option<Metadata>, FormatError> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error(path, "open", error)),
        // The entry exists, but its target does not.
        Err(_) if path.symlink_metadata().is_ok() => Err(not_a_model(
            path,
            "a symbolic link to a missing file",
            "finish the download, or copy the model together with the targets of its links",
        )),
        Err(_) => Ok(None),
    }
}

/// Like [`target`], but an error if the target exists and is not a regular file.
pub(crate) fn regular(path: &Path) -> Result<Option<Metadata>, FormatError> {
    match target(path)? {
        Some(metadata) if metadata.is_dir() => {
            Err(not_a_model(path, "a directory where a file is expected", "give the path of a model file"))
        }
        Some(metadata) if !metadata.is_file() => {
            Err(not_a_model(path, "not a regular file", "give the path of a model file"))
        }
        other => Ok(other),
    }
}

/// The metadata of a nonempty regular file.
pub(crate) fn content(path: &Path) -> Result<Metadata, FormatError> {
    match regular(path)? {
        None => Err(missing(path)),
        Some(metadata) if metadata.len() == 0 => {
            Err(not_a_model(path, "an empty file", "finish the download"))
        }
        Some(metadata) => Ok(metadata),
    }
}

/// The error for a path that does not exist. The system's message would differ between systems.
pub(crate) fn missing(path: &Path) -> FormatError {
    io_error(path, "open", std::io::Error::new(ErrorKind::NotFound, "no such file or directory"))
}

/// The first bytes of a Git LFS pointer file.
pub(crate) const LFS: &[u8] = b"version https://git-lfs";
pub(crate) const LFS_FOUND: &str = "a Git LFS pointer instead of the file content";
pub(crate) const LFS_REMEDY: &str = "fetch the file with `git lfs pull`";

pub(crate) fn not_a_model(path: &Path, found: &str, remedy: &str) -> FormatError {
    FormatError::NotAModel { path: path.to_owned(), found: found.to_owned(), remedy: remedy.to_owned() }
}
