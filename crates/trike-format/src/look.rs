//! What a path leads to, before anything is opened: a pipe would block, and a link to nothing deserves a better
//! answer than that the file is not there.

use std::{fs::Metadata, io::ErrorKind, path::Path};

use crate::{FormatError, spill::io_error};

/// The metadata of what a path leads to, links followed; `None` when there is no such entry.
pub(crate) fn target(path: &Path) -> Result<Option<Metadata>, FormatError> {
    match std::fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error(path, "open", error)),
        // An entry that is there although its target is not.
        Err(_) if path.symlink_metadata().is_ok() => Err(not_a_model(
            path,
            "a symbolic link to a file that is not there",
            "finish the download, or copy the model together with the files that its links lead to",
        )),
        Err(_) => Ok(None),
    }
}

/// As [`target`], for a path that must lead to a regular file when it leads anywhere.
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

/// The metadata of a regular file that has content.
pub(crate) fn content(path: &Path) -> Result<Metadata, FormatError> {
    match regular(path)? {
        None => Err(io_error(path, "open", ErrorKind::NotFound.into())),
        Some(metadata) if metadata.len() == 0 => {
            Err(not_a_model(path, "an empty file", "finish the download"))
        }
        Some(metadata) => Ok(metadata),
    }
}

/// The start of the text that Git leaves in the place of a large file.
pub(crate) const LFS: &[u8] = b"version https://git-lfs";
pub(crate) const LFS_FOUND: &str = "a Git LFS pointer instead of the file it stands for";
pub(crate) const LFS_REMEDY: &str = "fetch the file with `git lfs pull`";

pub(crate) fn not_a_model(path: &Path, found: &str, remedy: &str) -> FormatError {
    FormatError::NotAModel { path: path.to_owned(), found: found.to_owned(), remedy: remedy.to_owned() }
}
