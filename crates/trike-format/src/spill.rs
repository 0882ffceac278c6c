//! Writing of files whose header comes first but is known last: the data goes to an unnamed temporary file, and the
//! complete file is an [`OutputFile`].

use std::{
    fs::File,
    io::{BufWriter, Read, Seek, Write},
    path::{Path, PathBuf},
};

use crate::{
    FormatError, OutputFile,
    error::io_error,
    output::{self, folder},
};

/// Temporary data of a file, in the directory of the file so that it is on the same disk.
#[derive(Debug)]
pub(crate) struct Spill {
    target: PathBuf,
    file: BufWriter<File>,
    len: u64,
}

impl Spill {
    pub(crate) fn create(target: &Path) -> Result<Self, FormatError> {
        let file = tempfile::tempfile_in(folder(&output::target(target)))
            .map_err(|e| io_error(target, "create", e))?;
        Ok(Self { target: target.to_owned(), file: BufWriter::with_capacity(1 << 20, file), len: 0 })
    }

    /// Bytes written so far.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        self.len += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|e| io_error(&self.target, "write", e))
    }

    /// Appends zeros up to a multiple of `alignment`.
    pub(crate) fn align(&mut self, alignment: usize) -> Result<(), FormatError> {
        let padding = self.len.next_multiple_of(alignment as u64) - self.len;
        self.write(&vec![0; padding as usize])
    }

    /// The file of the data, rewound to its start.
    pub(crate) fn into_reader(self) -> Result<File, FormatError> {
        let error = |e| io_error(&self.target, "write", e);
        let mut file = self.file.into_inner().map_err(|e| io_error(&self.target, "write", e.into_error()))?;
        file.rewind().map_err(error)?;
        Ok(file)
    }
}

/// Bytes per write. The operating system caches a file in folios as large as its writes, and a mapped matrix is read from these;
/// with small ones, products are up to 7 % slower.
const BLOCK: usize = 2 << 20;

/// Writes a complete [`OutputFile`].
pub(crate) fn replace(target: &Path, parts: &mut [&mut dyn Read]) -> Result<(), FormatError> {
    let error = |e| io_error(target, "write", e);
    let mut file = OutputFile::create(target).map_err(error)?;
    let mut block = Vec::with_capacity(BLOCK);
    for part in parts {
        loop {
            part.take((BLOCK - block.len()) as u64).read_to_end(&mut block).map_err(error)?;
            if block.len() < BLOCK {
                break;
            }
            file.write_all(&block).map_err(error)?;
            block.clear();
        }
    }
    file.write_all(&block).map_err(error)?;
    file.finish().map_err(error)
}
