//! The one place where files are mapped into memory.

use std::{
    fs::File,
    ops::Deref,
    path::{Path, PathBuf},
};

use memmap2::Mmap;

use crate::{FormatError, look};

/// A file mapped read-only: opening costs no reading, pages arrive when they are touched.
///
/// The file must not be truncated or rewritten in place while it is mapped. Trike's own writers never do
/// that: they write beside the target and rename.
#[derive(Debug)]
pub(crate) struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    pub(crate) fn open(path: &Path) -> Result<Self, FormatError> {
        // Before opening: that would wait for the other end of a pipe.
        look::content(path)?;
        let file = File::open(path).map_err(|source| FormatError::Io {
            path: path.to_owned(),
            action: "open",
            source,
        })?;
        Self::map(path, &file)
    }

    /// Maps a file that is already open; `path` is for messages.
    pub(crate) fn map(path: &Path, file: &File) -> Result<Self, FormatError> {
        // SAFETY: the map is read-only and lives inside this value; that nobody truncates or rewrites the
        // file meanwhile is the documented condition of every reader in this crate (`lib.rs`), since no
        // operating system that Rust supports offers a way to enforce it.
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
