//! Memory mapping of files; the only module of the crate that does it.

use std::{
    fs::File,
    ops::{Deref, Range},
    path::{Path, PathBuf},
};

use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;

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

    /// Removes a range from this process's memory after its content has been copied: otherwise a loaded model counts twice. The
    /// pages stay in the system's cache, and a later access maps them again.
    pub(crate) fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            // SAFETY: the mapping is read-only and backed by a file, so a dropped page is read again from the file
            // on the next access, with the same content (`map`); no write can be lost.
            let released = unsafe {
                self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len())
            };
            // Without it, the pages stay mapped: more memory, the same result.
            drop(released);
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}
