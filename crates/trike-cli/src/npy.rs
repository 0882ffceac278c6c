//! Row-wise writer of NumPy's `.npy`.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::Context;
use trike::format::{Lock, OutputFile};

/// The header is padded so that the data starts at a multiple of this.
const ALIGNMENT: usize = 64;
/// Magic, version and the length of the header.
const PREFIX: usize = 10;

/// A matrix of f32, written row by row. Until [`finish`](Self::finish) an existing file is kept, and locked against other
/// processes.
pub(crate) struct NpyWriter {
    path: PathBuf,
    file: OutputFile,
    _lock: Lock,
}

impl NpyWriter {
    /// Starts a matrix of `rows x cols`.
    pub(crate) fn create(path: &Path, rows: usize, cols: usize) -> anyhow::Result<Self> {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let created = || format!("cannot create {}", path.display());
        if path.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory)).with_context(created);
        }
        let lock = Lock::new(path)?;
        let file = OutputFile::create(path).with_context(created)?;
        let mut writer = Self { path: path.to_owned(), file, _lock: lock };
        writer.row_bytes(&header(rows, cols))?;
        Ok(writer)
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, row: &[f32]) -> anyhow::Result<()> {
        let bytes: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.row_bytes(&bytes)
    }

    fn row_bytes(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.file.write_all(bytes).with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Moves the file to its path.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        self.file.finish().with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// Format version 1.0: the header length is a u16, the header is a Python literal that ends with a newline.
fn header(rows: usize, cols: usize) -> Vec<u8> {
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {cols}), }}");
    let len = (PREFIX + text.len() + 1).next_multiple_of(ALIGNMENT) - PREFIX;
    text.extend(std::iter::repeat_n(' ', len - 1 - text.len()));
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    // Two numbers of at most 20 digits result in a header of 128 bytes.
    bytes.extend((len as u16).to_le_bytes());
    bytes.extend(text.into_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_by_hand() {
        let bytes = header(3, 512);
        assert_eq!(bytes.len() % 64, 0);
        assert_eq!(&bytes[..10], b"\x93NUMPY\x01\x00\x76\x00");
        assert!(bytes[10..].starts_with(b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 512), }  "));
        assert_eq!(bytes.last(), Some(&b'\n'));
        assert_eq!(header(usize::MAX, usize::MAX).len(), 128);
    }

    #[test]
    fn a_file_that_is_not_finished_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npy");
        let mut writer = NpyWriter::create(&path, 1, 2).unwrap();
        writer.row(&[1.0, 2.0]).unwrap();
        drop(writer);
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);
        let mut writer = NpyWriter::create(&path, 1, 2).unwrap();
        writer.row(&[1.0, 2.0]).unwrap();
        writer.finish().unwrap();
        assert!(std::fs::read(&path).unwrap().ends_with(&[0, 0, 128, 63, 0, 0, 0, 64]));
        assert_eq!(dir.path().read_dir().unwrap().count(), 1);
    }
}
