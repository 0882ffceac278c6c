//! One safetensors file: a header with a size limit, and tensors as slices of the memory map.

use std::{collections::HashMap, path::Path};

use safetensors::{Dtype, tensor::TensorInfo as Entry};
use serde_json::{Map, Value};
use trike_host::FileRange;

use crate::{
    FormatError,
    error::Place,
    look::{LFS, LFS_FOUND, LFS_REMEDY, not_a_model},
    map::MappedFile,
};

/// The largest real headers have about 100,000 tensors of 110 bytes each. Parsing may take 16 times the header size in memory.
const MAX_HEADER_BYTES: usize = 16 << 20;
/// Bytes of the header length at the start of the file.
pub(super) const PREFIX: usize = 8;

/// A mapped safetensors file; all tensors are inside the file and do not overlap.
#[derive(Debug)]
pub(crate) struct Container {
    map: MappedFile,
    tensors: HashMap<String, Slot>,
}

/// Type, shape and byte range of a stored tensor.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    start: usize,
    pub(crate) len: usize,
}

impl Slot {
    /// Byte offset in the file.
    pub(crate) fn start(&self) -> usize {
        self.start
    }
}

impl Container {
    pub(crate) fn open(path: &Path) -> Result<Self, FormatError> {
        let map = MappedFile::open(path)?;
        if map.starts_with(LFS) {
            return Err(not_a_model(path, LFS_FOUND, LFS_REMEDY));
        }
        let header_len = header_len(path, &map)?;
        let header: Map<String, Value> =
            serde_json::from_slice(&map[PREFIX..PREFIX + header_len]).map_err(|e| FormatError::Header {
                path: path.to_owned(),
                what: "the safetensors header".to_owned(),
                expected: "a JSON object".to_owned(),
                got: e.to_string(),
            })?;
        let mut entries = Vec::with_capacity(header.len());
        for (name, value) in header {
            if name != "__metadata__" {
                let entry: Entry = serde_json::from_value(value).map_err(|e| {
                    let place = Place { path, tensor: &name };
                    place.layout("a safetensors entry: dtype, shape, data_offsets", e.to_string())
                })?;
                entries.push((name, entry));
            }
        }
        entries.sort_by_key(|(_, entry)| entry.data_offsets);

        let mut end = 0;
        let mut tensors = HashMap::with_capacity(entries.len());
        for (name, entry) in entries {
            let place = Place { path, tensor: &name };
            let (from, to) = entry.data_offsets;
            if from != end || to < from {
                let expected = format!("data that starts at byte {end}, where the previous tensor ends");
                return Err(place.layout(expected, format!("bytes {from}..{to}")));
            }
            let bits = entry.shape.iter().try_fold(entry.dtype.bitsize(), |n, &d| n.checked_mul(d));
            if bits != (to - from).checked_mul(8) || bits.is_none() {
                let expected = format!("the size of {} {:?}", entry.dtype, entry.shape);
                return Err(place.layout(expected, format!("{} bytes", to - from)));
            }
            end = to;
            let start = PREFIX + header_len;
            if to > map.len() - start {
                return Err(FormatError::Truncated {
                    path: path.to_owned(),
                    what: format!("the data of tensor `{name}`"),
                    needed: to as u64,
                    available: (map.len() - start) as u64,
                });
            }
            let slot = Slot { dtype: entry.dtype, shape: entry.shape, start: start + from, len: to - from };
            tensors.insert(name, slot);
        }
        if PREFIX + header_len + end != map.len() {
            return Err(FormatError::Header {
                path: path.to_owned(),
                what: "the size of the file".to_owned(),
                expected: format!("{} bytes for its tensors", PREFIX + header_len + end),
                got: map.len().to_string(),
            });
        }
        Ok(Self { map, tensors })
    }

    pub(crate) fn path(&self) -> &Path {
        self.map.path()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub(crate) fn slot(&self, name: &str) -> Option<&Slot> {
        self.tensors.get(name)
    }

    /// The bytes of a tensor of this file.
    pub(crate) fn bytes(&self, slot: &Slot) -> &[u8] {
        &self.map[slot.start..slot.start + slot.len]
    }

    /// [`MappedFile::check`].
    pub(crate) fn check(&self) -> Result<(), FormatError> {
        self.map.check()
    }

    /// The bytes of a tensor of this file, which outlive it.
    pub(crate) fn range(&self, slot: &Slot) -> Option<FileRange> {
        self.map.range(slot.start..slot.start + slot.len)
    }

    /// [`MappedFile::release`] for a tensor that has been copied.
    pub(crate) fn release(&self, slot: &Slot) {
        self.map.release(slot.start..slot.start + slot.len);
    }
}

fn header_len(path: &Path, bytes: &[u8]) -> Result<usize, FormatError> {
    let truncated = |what: &str, needed: u64, available: usize| FormatError::Truncated {
        path: path.to_owned(),
        what: what.to_owned(),
        needed,
        available: available as u64,
    };
    let Some(prefix) = bytes.first_chunk::<PREFIX>() else {
        return Err(truncated("the length of the safetensors header", PREFIX as u64, bytes.len()));
    };
    let len = u64::from_le_bytes(*prefix);
    if len > MAX_HEADER_BYTES as u64 {
        return Err(FormatError::OverLimit {
            path: path.to_owned(),
            what: "the length of the safetensors header".to_owned(),
            limit: MAX_HEADER_BYTES as u64,
            got: len,
        });
    }
    let left = bytes.len() - PREFIX;
    if len > left as u64 { Err(truncated("the safetensors header", len, left)) } else { Ok(len as usize) }
}
