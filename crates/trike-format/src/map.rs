//! Memory mapping of files; the only module of the crate that does it.

use std::{
    fs::File,
    ops::Deref,
    path::{Path, PathBuf},
};

use memmap2::Mmap;

use crate::{FormatError, look};

/// A file mapped read-only: opening does not read it, pages are loaded on access.
///
/// The file must not be truncated or rewritten in place while it is mapped. Trike's writers never do that: they
/// write a temporary file next to the target and rename it.
#[derive(Debug)]
pub(crate) struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    pub(crate) fn open(path: &Path) -> Result<Self, FormatError> {
        // Checked before opening, because opening a pipe blocks.
        look::content(path)?;
        let file = File::open(path).map_err(|source| FormatError::Io {
            path: path.to_owned(),
            action: "open",
            source,
        })?;
        Self::map(path, &file)
    }

    /// Maps an open file; `path` is for error messages.
    pub(crate) fn map(path: &Path, file: &File) -> Result<Self, FormatError> {
        // SAFETY: the map is read-only and owned by this value. That nobody truncates or rewrites the file in
        // the meantime is the documented condition of every reader in this crate (`lib.rs`); no operating
        // system that Rust supports can enforce it.
        let map = unsafe { Mmap::map(file) };
        let map = map.map_err(|source| FormatError::Io { path: path.to_owned(), action: "map", source })?;
        Ok(Self { path: path.to_owned(), map })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}
