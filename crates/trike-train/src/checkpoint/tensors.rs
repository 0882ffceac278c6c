//! The tensors of a checkpoint on disk.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata};

use super::TENSORS;
use crate::TrainError;

/// Maximum size of the file header, as in the safetensors crate.
const MOST_HEADER: u64 = 100_000_000;

/// The tensors of a checkpoint, read one at a time.
#[derive(Debug)]
pub(crate) struct Tensors {
    file: File,
    path: PathBuf,
    /// Name and byte range of each tensor, in file order.
    all: Vec<(String, Range<u64>)>,
}

impl Tensors {
    /// Opens the tensors of the checkpoint in this directory.
    pub(super) fn open(path: &Path) -> Result<Self, TrainError> {
        let at = path.join(TENSORS);
        let io = |source| TrainError::Io { path: at.clone(), source };
        let wrong = |problem: String| TrainError::Checkpoint {
            path: path.to_owned(),
            problem: format!("{TENSORS}: {problem}"),
        };
        let mut file = File::open(&at).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        let mut size = [0; 8];
        file.read_exact(&mut size).map_err(|e| wrong(e.to_string()))?;
        let start = u64::from_le_bytes(size).saturating_add(8);
        if start > len.min(MOST_HEADER) {
            return Err(wrong(format!("a header of {} bytes in a file of {len}", start - 8)));
        }
        let mut header = Vec::new();
        Read::by_ref(&mut file).take(start - 8).read_to_end(&mut header).map_err(io)?;
        let header: Metadata = serde_json::from_slice(&header).map_err(|e| wrong(e.to_string()))?;
        let expected = start.saturating_add(header.data_len() as u64);
        if expected != len {
            return Err(wrong(format!("it has {len} bytes: expected {expected}")));
        }
        let mut all = Vec::new();
        for (name, info) in header.tensors() {
            if info.dtype != Dtype::F32 {
                return Err(wrong(format!("{name} has {:?}: expected F32", info.dtype)));
            }
            let (from, to) = info.data_offsets;
            all.push((name, start + from as u64..start + to as u64));
        }
        all.sort_by_key(|(_, range)| range.start);
        Ok(Self { file, path: at, all })
    }

    /// Names and numbers of elements.
    pub(crate) fn lens(&self) -> Vec<(String, usize)> {
        let len = |range: &Range<u64>| ((range.end - range.start) / 4) as usize;
        self.all.iter().map(|(name, range)| (name.clone(), len(range))).collect()
    }

    /// Reads the values of a tensor.
    pub(crate) fn read(&mut self, name: &str) -> Result<Vec<f32>, TrainError> {
        let io = |source| TrainError::Io { path: self.path.clone(), source };
        let found = self.all.iter().find(|(other, _)| other == name);
        let missing =
            || TrainError::Checkpoint { path: self.path.clone(), problem: format!("{name} is missing") };
        let (_, range) = found.ok_or_else(missing)?;
        self.file.seek(SeekFrom::Start(range.start)).map_err(io)?;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.file.read_exact(&mut bytes).map_err(io)?;
        Ok(bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect())
    }
}
