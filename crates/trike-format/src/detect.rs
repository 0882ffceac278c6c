//! Detection of the kind of a model file.

use std::{fs::File, io::Read, path::Path};

use crate::{
    FormatError,
    error::io_error,
    hf, llama2c,
    look::{self, LFS, LFS_FOUND, LFS_REMEDY},
};

/// A kind of model that Trike reads: a file format or a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A GGUF file, opened with [`Gguf`](crate::Gguf).
    Gguf,
    /// A llama2.c checkpoint, opened with [`Llama2c`](crate::Llama2c).
    Llama2c,
    /// A HuggingFace directory, dense or packed, opened with [`HfDir`](crate::HfDir).
    HfDir,
}

/// Leading bytes that suffice to detect every kind: the header of a llama2.c checkpoint without a magic has 28.
const START: usize = 32;

/// Detects the kind of a model from the first bytes of a file, or from `config.json` for a directory.
///
/// # Errors
///
/// [`FormatError::Io`], or [`FormatError::NotAModel`] with the apparent kind of the file and a remedy.
///
/// ```
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("model.pt");
/// std::fs::write(&path, b"PK\x03\x04")?;
/// let error = trike_format::detect(&path).unwrap_err().to_string();
/// assert!(error.contains("PyTorch") && error.contains("safetensors"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn detect(path: impl AsRef<Path>) -> Result<FileKind, FormatError> {
    let path = path.as_ref();
    let not = |found: &str, remedy: &str| Err(look::not_a_model(path, found, remedy));
    let Some(metadata) = look::target(path)? else {
        return Err(look::missing(path));
    };
    if metadata.is_dir() {
        if look::regular(&path.join(hf::CONFIG))?.is_some() {
            return Ok(FileKind::HfDir);
        }
        return not(
            "a directory without config.json",
            "give the directory that contains it, or the path of a model file",
        );
    }
    if !metadata.is_file() {
        return not("not a regular file", "give the path of a model file or directory");
    }
    let mut start = Vec::with_capacity(START);
    let file = File::open(path).map_err(|e| io_error(path, "open", e))?;
    file.take(START as u64).read_to_end(&mut start).map_err(|e| io_error(path, "read", e))?;

    let as_safetensors = "save the model again as safetensors: Trike does not run pickled code";
    match start.as_slice() {
        [] => not("an empty file", "finish the download"),
        [b'G', b'G', b'U', b'F', ..] => Ok(FileKind::Gguf),
        [a, b, c, d, ..] if u32::from_le_bytes([*a, *b, *c, *d]) == llama2c::MAGIC => Ok(FileKind::Llama2c),
        // Checked before the patterns below, which may match the small numbers of its header; the file size makes it certain.
        _ if llama2c::v0_size(path, &start) == Some(metadata.len()) => Ok(FileKind::Llama2c),
        [b'P', b'K', 3, 4, ..] => not("a PyTorch file (.pt, .bin) or another zip archive", as_safetensors),
        [0x80, 2..=5, ..] => not("a PyTorch file (pickle)", as_safetensors),
        [b'l' | b'f', b'm', b'g', b'g', ..] | [b't', b'j', b'g', b'g', ..] | [b'a', b'l', b'g', b'g', ..] => {
            not("a GGML file from before GGUF", "convert the model again with a current llama.cpp")
        }
        [0x89, b'H', b'D', b'F', ..] => not("an HDF5 file (Keras)", "save the model again as safetensors"),
        [_, _, _, _, _, _, 0, 0, b'{', ..] => {
            not("a single safetensors file", "give the directory that contains it together with config.json")
        }
        _ if path.extension().is_some_and(|e| e == "onnx") => {
            not("an ONNX graph", "use the model's safetensors or a GGUF file of it")
        }
        start if start.starts_with(LFS) => not(LFS_FOUND, LFS_REMEDY),
        // Seven plausible numbers but the wrong size: the reader reports the details.
        _ if llama2c::v0_size(path, &start).is_some() => Ok(FileKind::Llama2c),
        _ => not(
            "an unknown file format",
            "give a GGUF file, a llama2.c checkpoint, or a directory with config.json and safetensors",
        ),
    }
}
