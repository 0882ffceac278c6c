//! Reader of GGUF headers, with limits.
//!
//! Every length is checked against its limit and against the remaining bytes before anything is allocated, so that
//! reading a header takes at most as much memory as the file has bytes, plus the list entries that the limits bound.

use std::path::Path;

use super::meta::{MetaArray, MetaValue, Metadata, StringArray};
use crate::{FormatError, MAX_DIMS, bytes::Cursor};

/// `GGUF` at the start of the file.
pub(crate) const MAGIC: &[u8; 4] = b"GGUF";
/// Alignment of tensors without `general.alignment`.
pub(crate) const DEFAULT_ALIGNMENT: usize = 32;

/// Keys of real files have fewer than 100 bytes; the format allows this many.
const MAX_KEY_BYTES: usize = 65_535;
/// The longest real string is a whole `tokenizer.json` of some 30 MB.
const MAX_STRING_BYTES: usize = 64 << 20;
/// The longest real arrays are vocabularies and merges, with fewer than 600,000 entries.
const MAX_ARRAY_LEN: usize = 1 << 24;
/// No known file nests arrays; two levels leave a margin.
const MAX_ARRAY_NESTING: usize = 2;
/// Inner arrays in the whole file: each takes a list in memory but only 12 bytes in the file.
const MAX_INNER_ARRAYS: usize = 65_536;
/// Real files have fewer than 100 keys.
const MAX_KEYS: usize = 65_536;
/// The largest real model has some 1,100 tensors; a checkpoint with unmerged experts some 90,000.
const MAX_TENSORS: usize = 100_000;
/// llama.cpp's limit is 64 bytes, 128 in some builds.
const MAX_TENSOR_NAME_BYTES: usize = 256;
/// llama.cpp writes 32; for a mapped file, nothing above a page is useful. The limit is a huge page.
const MAX_ALIGNMENT: usize = 2 << 20;

/// A parsed header, not yet validated against the data.
pub(crate) struct Header {
    pub(crate) version: u32,
    pub(crate) metadata: Metadata,
    pub(crate) alignment: usize,
    pub(crate) tensors: Vec<RawTensor>,
    /// Byte offset of the data: the aligned end of the header. May be past the end of a file without tensors.
    pub(crate) data_start: usize,
}

/// A tensor's entry in the header.
pub(crate) struct RawTensor {
    pub(crate) name: String,
    /// Slowest-varying axis first, the reverse of the file.
    pub(crate) shape: Vec<usize>,
    pub(crate) type_id: u32,
    /// Byte offset from the start of the data.
    pub(crate) offset: usize,
}

pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Header, FormatError> {
    let mut reader = Reader { path, cursor: Cursor::new(path, bytes), len: bytes.len(), inner_arrays: 0 };
    reader.header()
}

struct Reader<'a> {
    path: &'a Path,
    cursor: Cursor<'a>,
    len: usize,
    inner_arrays: usize,
}

impl<'a> Reader<'a> {
    fn header(&mut self) -> Result<Header, FormatError> {
        let magic: [u8; 4] = self.cursor.array("the magic")?;
        if magic != *MAGIC {
            return Err(self.bad("the magic", "`GGUF`", format!("{magic:02x?}")));
        }
        let version = self.version()?;
        let tensor_count = self.cursor.length("the number of tensors", MAX_TENSORS)?;
        let key_count = self.cursor.length("the number of metadata keys", MAX_KEYS)?;
        let mut metadata = Metadata::default();
        for _ in 0..key_count {
            let key = self.string("a metadata key", MAX_KEY_BYTES)?.to_owned();
            let type_id = self.cursor.u32(&key)?;
            let value = self.value(&key, type_id)?;
            if let Some(key) = (!metadata.insert(key.clone(), value)).then_some(key) {
                return Err(self.bad("the metadata", "unique keys", format!("`{key}` twice")));
            }
        }
        let alignment = self.alignment(&metadata)?;
        let mut tensors = Vec::new();
        for _ in 0..tensor_count {
            tensors.push(self.tensor()?);
        }
        let data_start = self.cursor.position().next_multiple_of(alignment);
        Ok(Header { version, metadata, alignment, tensors, data_start })
    }

    fn version(&mut self) -> Result<u32, FormatError> {
        let version = self.cursor.u32("the version")?;
        let unsupported = |name: String, remedy: &str| {
            let remedy = remedy.to_owned();
            Err(FormatError::Unsupported { path: self.path.to_owned(), name, remedy })
        };
        let again = "convert the model again with a current llama.cpp";
        match version {
            2 | 3 => Ok(version),
            _ if matches!(version.swap_bytes(), 1..=3) => {
                unsupported("big-endian GGUF".to_owned(), "convert the model again as little-endian")
            }
            _ => unsupported(format!("GGUF version {version}"), again),
        }
    }

    fn alignment(&self, metadata: &Metadata) -> Result<usize, FormatError> {
        let Some(value) = metadata.get("general.alignment") else { return Ok(DEFAULT_ALIGNMENT) };
        let alignment = value.as_u32().map(|v| v as usize);
        alignment.filter(|a| a.is_power_of_two() && *a <= MAX_ALIGNMENT).ok_or_else(|| {
            let got = alignment.map_or_else(|| value.describe(), |a| a.to_string());
            self.bad("`general.alignment`", &format!("a power of two up to {MAX_ALIGNMENT}"), got)
        })
    }

    fn tensor(&mut self) -> Result<RawTensor, FormatError> {
        let name = self.string("a tensor name", MAX_TENSOR_NAME_BYTES)?.to_owned();
        let layout = |expected: &str, got: String| FormatError::Layout {
            path: self.path.to_owned(),
            tensor: name.clone(),
            expected: expected.to_owned(),
            got,
        };
        let dims = self.cursor.u32("the number of dimensions")?;
        if dims == 0 || dims as usize > MAX_DIMS {
            return Err(layout("1 to 4 dimensions", dims.to_string()));
        }
        let mut shape = Vec::with_capacity(MAX_DIMS);
        for _ in 0..dims {
            let dim = self.cursor.u64("a dimension")?;
            let usable = usize::try_from(dim).ok().filter(|d| *d > 0);
            shape.push(usable.ok_or_else(|| layout("dimensions of at least 1", dim.to_string()))?);
        }
        shape.reverse();
        if trike_core::elements(&shape).is_err() {
            return Err(layout("an addressable number of elements", format!("shape {shape:?}")));
        }
        let type_id = self.cursor.u32("a tensor type")?;
        let offset = self.cursor.u64("a tensor offset")?;
        let offset =
            usize::try_from(offset).map_err(|_| layout("an offset inside the file", offset.to_string()))?;
        Ok(RawTensor { name, shape, type_id, offset })
    }

    fn value(&mut self, key: &str, type_id: u32) -> Result<MetaValue, FormatError> {
        let c = &mut self.cursor;
        Ok(match type_id {
            0 => MetaValue::U8(u8::from_le_bytes(c.array(key)?)),
            1 => MetaValue::I8(i8::from_le_bytes(c.array(key)?)),
            2 => MetaValue::U16(u16::from_le_bytes(c.array(key)?)),
            3 => MetaValue::I16(i16::from_le_bytes(c.array(key)?)),
            4 => MetaValue::U32(u32::from_le_bytes(c.array(key)?)),
            5 => MetaValue::I32(i32::from_le_bytes(c.array(key)?)),
            6 => MetaValue::F32(f32::from_le_bytes(c.array(key)?)),
            7 => {
                let byte = u8::from_le_bytes(c.array(key)?);
                MetaValue::Bool(self.boolean(key, byte)?)
            }
            8 => MetaValue::Str(self.string(key, MAX_STRING_BYTES)?.to_owned()),
            9 => MetaValue::Array(self.array(key, 1)?),
            10 => MetaValue::U64(u64::from_le_bytes(c.array(key)?)),
            11 => MetaValue::I64(i64::from_le_bytes(c.array(key)?)),
            12 => MetaValue::F64(f64::from_le_bytes(c.array(key)?)),
            _ => return Err(self.bad(&format!("the value type of `{key}`"), "0 to 12", type_id.to_string())),
        })
    }

    fn array(&mut self, key: &str, nesting: usize) -> Result<MetaArray, FormatError> {
        macro_rules! numbers {
            ($variant:ident: $t:ty, $n:expr) => {{
                // No overflow: the length is limited, and an element has at most eight bytes.
                let bytes = self.cursor.take($n * size_of::<$t>(), key)?;
                let chunks = bytes.as_chunks::<{ size_of::<$t>() }>().0;
                MetaArray::$variant(chunks.iter().map(|&b| <$t>::from_le_bytes(b)).collect())
            }};
        }
        let type_id = self.cursor.u32(key)?;
        let n = self.cursor.length(&format!("the length of `{key}`"), MAX_ARRAY_LEN)?;
        Ok(match type_id {
            0 => numbers!(U8: u8, n),
            1 => numbers!(I8: i8, n),
            2 => numbers!(U16: u16, n),
            3 => numbers!(I16: i16, n),
            4 => numbers!(U32: u32, n),
            5 => numbers!(I32: i32, n),
            6 => numbers!(F32: f32, n),
            7 => {
                let bytes = self.cursor.take(n, key)?;
                MetaArray::Bool(bytes.iter().map(|&b| self.boolean(key, b)).collect::<Result<_, _>>()?)
            }
            8 => MetaArray::Str(self.strings(key, n)?),
            9 => MetaArray::Array(self.arrays(key, n, nesting + 1)?),
            10 => numbers!(U64: u64, n),
            11 => numbers!(I64: i64, n),
            12 => numbers!(F64: f64, n),
            _ => {
                return Err(self.bad(
                    &format!("the element type of `{key}`"),
                    "0 to 12",
                    type_id.to_string(),
                ));
            }
        })
    }

    fn arrays(&mut self, key: &str, n: usize, nesting: usize) -> Result<Vec<MetaArray>, FormatError> {
        let over = |what: &str, limit: usize, got: usize| FormatError::OverLimit {
            path: self.path.to_owned(),
            what: format!("{what} of `{key}`"),
            limit: limit as u64,
            got: got as u64,
        };
        if nesting > MAX_ARRAY_NESTING {
            return Err(over("the nesting", MAX_ARRAY_NESTING, nesting));
        }
        self.inner_arrays = self.inner_arrays.saturating_add(n);
        if self.inner_arrays > MAX_INNER_ARRAYS {
            return Err(over("the number of inner arrays", MAX_INNER_ARRAYS, self.inner_arrays));
        }
        (0..n).map(|_| self.array(key, nesting)).collect()
    }

    /// Reads strings in two passes, lengths first, so that the buffers are allocated with the exact size.
    fn strings(&mut self, key: &str, n: usize) -> Result<StringArray, FormatError> {
        let mut ahead = self.cursor.clone();
        let mut total = 0;
        for _ in 0..n {
            let len = ahead.length(key, MAX_STRING_BYTES)?;
            ahead.take(len, key)?;
            total += len;
        }
        let mut strings = StringArray::with_capacity(n, total);
        for _ in 0..n {
            // Tokens may be parts of characters.
            let len = self.cursor.length(key, MAX_STRING_BYTES)?;
            strings.push(self.cursor.take(len, key)?);
        }
        Ok(strings)
    }

    fn string(&mut self, what: &str, limit: usize) -> Result<&'a str, FormatError> {
        let n = self.cursor.length(what, limit)?;
        let at = self.cursor.position();
        let bytes = self.cursor.take(n, what)?;
        std::str::from_utf8(bytes).map_err(|error| FormatError::Header {
            path: self.path.to_owned(),
            what: format!("{what} (byte {at} of {})", self.len),
            expected: "UTF-8".to_owned(),
            got: error.to_string(),
        })
    }

    fn boolean(&self, key: &str, byte: u8) -> Result<bool, FormatError> {
        match byte {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.bad(&format!("`{key}`"), "a bool, 0 or 1", byte.to_string())),
        }
    }

    fn bad(&self, what: &str, expected: &str, got: impl Into<String>) -> FormatError {
        FormatError::Header {
            path: self.path.to_owned(),
            what: what.to_owned(),
            expected: expected.to_owned(),
            got: got.into(),
        }
    }
}
