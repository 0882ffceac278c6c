//! Mapped files with their paths.

use std::{
    fs::File,
    ops::{Deref, Range},
    path::{Path, PathBuf},
};

use trike_host::{FileMap, FileRange};

use crate::{FormatError, look};

/// A file mapped read-only: opening does not read it, pages are loaded on access.
///
/// The file must not be truncated or rewritten in place while it is mapped. Trike's writers never do that: they
/// write a temporary file next to the target and rename it.
#[derive(Debug)]
pub(crate) struct MappedFile {
    path: PathBuf,
    map: FileMap,
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
        let map = FileMap::new(file).map_err(|source| FormatError::Io {
            path: path.to_owned(),
            action: "map",
            source,
        })?;
        Ok(Self { path: path.to_owned(), map })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A range that outlives this value.
    pub(crate) fn range(&self, range: Range<usize>) -> Option<FileRange> {
        self.map.range(range)
    }

    /// [`FileMap::release`].
    pub(crate) fn release(&self, range: Range<usize>) {
        self.map.release(range);
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}
