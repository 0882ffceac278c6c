//! Writer of GGUF files.

use std::path::{Path, PathBuf};

use super::{
    header::{self, DEFAULT_ALIGNMENT, MAGIC},
    meta::{MetaValue, Metadata, put_str},
    spans,
    types::{GgufType, Q2_0_ID},
};
use crate::{
    FormatError, Tensor,
    error::Place,
    spill::{self, Spill},
};

/// llama.cpp limits tensor names to 64 bytes including the terminating zero.
const MAX_NAME_BYTES: usize = 63;

/// Writes a GGUF file, version 3, little-endian, aligned to 32 bytes.
///
/// Metadata and tensors are written in the order in which they are added. Tensors are streamed to disk, so a model need not
/// fit in memory; [`finish`](Self::finish) moves the complete file to its path atomically, and a writer that is dropped
/// earlier leaves no file behind. No value is ever changed: a tensor that the type cannot hold exactly is an error. See
/// [`Gguf`](crate::Gguf) for an example.
#[derive(Debug)]
pub struct GgufWriter {
    path: PathBuf,
    metadata: Metadata,
    tensors: Vec<Entry>,
    data: Spill,
}

#[derive(Debug)]
struct Entry {
    name: String,
    shape: Vec<usize>,
    kind: GgufType,
    offset: u64,
}

impl GgufWriter {
    /// Starts a file that [`finish`](Self::finish) moves to `path`, replacing any existing file.
    ///
    /// # Errors
    ///
    /// [`FormatError::Io`] if the directory is not writable.
    pub fn create(path: impl AsRef<Path>) -> Result<Self, FormatError> {
        let path = path.as_ref().to_owned();
        let data = Spill::create(&path)?;
        Ok(Self { path, metadata: Metadata::default(), tensors: Vec::new(), data })
    }

    /// Adds a metadata value.
    ///
    /// # Errors
    ///
    /// [`FormatError::Write`] if the key already exists, or is `general.alignment` with a value other than 32.
    pub fn metadata(&mut self, key: &str, value: impl Into<MetaValue>) -> Result<(), FormatError> {
        let value = value.into();
        if key == "general.alignment" && value.as_u32() != Some(DEFAULT_ALIGNMENT as u32) {
            return Err(self.refuse(key, "tensors are aligned to 32 bytes", "leave the key out"));
        }
        if self.metadata.insert(key.to_owned(), value) {
            Ok(())
        } else {
            Err(self.refuse(key, "the key already exists", "add each key once"))
        }
    }

    /// Adds a tensor as `kind`.
    ///
    /// # Errors
    ///
    /// [`FormatError::CannotHold`] if the type cannot hold the tensor: a row length that is not a multiple of the block, a
    /// scale that is not exact in f16 or changes within a block, more than one plane, means, a rotation, or a value that the
    /// float type cannot represent. [`FormatError::Write`] if the name already exists or is longer than 63 bytes. After an
    /// error, the writer must be discarded.
    pub fn tensor(&mut self, name: &str, tensor: &Tensor, kind: GgufType) -> Result<(), FormatError> {
        if name.len() > MAX_NAME_BYTES {
            let reason = format!("the name has {} bytes: expected at most {MAX_NAME_BYTES}", name.len());
            return Err(self.refuse(name, &reason, "use GGUF names, such as `blk.0.attn_q.weight`"));
        }
        if self.tensors.iter().any(|t| t.name == name) {
            return Err(self.refuse(name, "the tensor already exists", "add each tensor once"));
        }
        let offset = self.data.len();
        let place = Place { path: &self.path, tensor: name };
        super::encode::encode(place, tensor, kind, |bytes| self.data.write(bytes))?;
        self.data.align(DEFAULT_ALIGNMENT)?;
        self.tensors.push(Entry { name: name.to_owned(), shape: tensor.shape(), kind, offset });
        Ok(())
    }

    /// Writes the header and moves the file to its path.
    ///
    /// # Errors
    ///
    /// [`FormatError::Io`]; [`FormatError::Write`] if a reader could not infer the block size of the `Q2_0` tensors, because
    /// the file mixes both sizes or has only tiny tensors; and the header errors of [`Gguf::open`](crate::Gguf::open), with
    /// which the header is checked.
    pub fn finish(self) -> Result<(), FormatError> {
        let mut kinds = self.tensors.iter().filter(|t| t.kind.id() == Q2_0_ID);
        let first = kinds.next().map(|t| t.kind);
        if kinds.any(|t| Some(t.kind) != first) {
            return Err(self.refuse(
                "Q2_0",
                "the file mixes blocks of 64 and 128 under one id",
                "use one of them",
            ));
        }
        let shapes = self.tensors.iter().filter(|t| t.kind.id() == Q2_0_ID).map(|t| t.shape.as_slice());
        if !spans::q2_0_is_clear(shapes, DEFAULT_ALIGNMENT) {
            let reason = "the tensors are so small that a reader could not distinguish blocks of 64 and 128";
            return Err(self.refuse("Q2_0", reason, "use TQ2_0"));
        }
        let mut header = self.header();
        header.resize(header.len().next_multiple_of(DEFAULT_ALIGNMENT), 0);
        let parsed = header::parse(&self.path, &header)?;
        super::refuse_transforms(&self.path, &parsed.metadata)?;
        spill::replace(&self.path, &mut [&mut header.as_slice(), &mut self.data.into_reader()?])
    }

    fn header(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in self.metadata.iter() {
            put_str(key, &mut out);
            out.extend(value.type_id().to_le_bytes());
            value.put(&mut out);
        }
        for tensor in &self.tensors {
            put_str(&tensor.name, &mut out);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|&d| out.extend((d as u64).to_le_bytes()));
            out.extend(tensor.kind.id().to_le_bytes());
            out.extend(tensor.offset.to_le_bytes());
        }
        out
    }

    fn refuse(&self, what: &str, reason: &str, remedy: &str) -> FormatError {
        FormatError::Write {
            path: self.path.clone(),
            what: format!("`{what}`"),
            reason: reason.to_owned(),
            remedy: remedy.to_owned(),
        }
    }
}
