//! Memory-mapped files with their paths.

use std::{
    fs::{File, Metadata},
    ops::{Deref, Range},
    path::{Path, PathBuf},
};

use trike_host::{FileMap, FileRange};

use crate::{FormatError, error::io_error, look};

/// A file mapped read-only: opening does not read it, pages are loaded on access.
///
/// The file must not be truncated or rewritten in place while it is mapped. Trike's writers never do that: they write a temporary
/// file next to the target and rename it. Changes by other programs are detected by [`check`](Self::check).
#[derive(Debug)]
pub(crate) struct MappedFile {
    path: PathBuf,
    map: FileMap,
    file: File,
    /// When it was mapped.
    found: Metadata,
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
        Self::map(path, file)
    }

    /// Maps an open file; `path` is for error messages.
    #[expect(unsafe_code, reason = "no operating system can guarantee that a file does not change")]
    pub(crate) fn map(path: &Path, file: File) -> Result<Self, FormatError> {
        let failed = |source| io_error(path, "map", source);
        let found = file.metadata().map_err(failed)?;
        // SAFETY: this crate reads files on the documented condition that they are not truncated or rewritten in place while they
        // are open.
        let map = unsafe { FileMap::new(&file, path) }.map_err(failed)?;
        let mapped = Self { path: path.to_owned(), map, file, found };
        // Detects a change between opening and mapping.
        mapped.check()?;
        Ok(mapped)
    }

    /// Checks that the size and the modification time of the file are unchanged since it was mapped. Called before its content is
    /// used, and after it was copied.
    pub(crate) fn check(&self) -> Result<(), FormatError> {
        let now = self.file.metadata().map_err(|source| io_error(&self.path, "read", source))?;
        let time = |meta: &Metadata| meta.modified().ok();
        if now.len() == self.found.len() && time(&now) == time(&self.found) {
            return Ok(());
        }
        Err(FormatError::Changed { path: self.path.clone(), expected: self.found.len(), got: now.len() })
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn a_file_that_changes_while_it_is_open_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        let fresh = || {
            std::fs::write(&path, [1; 5000]).unwrap();
            let map = MappedFile::open(&path).unwrap();
            map.check().unwrap();
            (map, File::options().write(true).open(&path).unwrap())
        };
        for len in [100, 6000] {
            let (map, file) = fresh();
            file.set_len(len).unwrap();
            let message = map.check().unwrap_err().to_string();
            assert!(message.contains(&format!("expected 5000 unmodified bytes, got {len}")), "{message}");
        }
        let (map, file) = fresh();
        // Rewritten in place with the same size.
        file.set_modified(SystemTime::now() + Duration::from_secs(2)).unwrap();
        assert!(map.check().is_err());
        // Replaced by a rename, as Trike writes: the map still shows the old file.
        let (map, _file) = fresh();
        crate::OutputFile::replace(&path, "new").unwrap();
        map.check().unwrap();
        assert_eq!(map[4999], 1);
    }
}
