//! Recognition of equal models by the contents of their files.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use crate::{LlmError, ModelFile, Tensors};

/// Most bytes of a file that is compared as a whole.
const WHOLE: u64 = 1 << 30;
/// Bytes and number of the parts of a larger one.
const PART: usize = 1 << 16;
const PARTS: u64 = 1 << 12;

impl ModelFile {
    /// The model in words, with a hash of its configuration and weights: the same for copies, and of files up to 1 GiB another one for
    /// any other byte. Of larger files it depends on 64 KiB in each of 4096 places. It is no protection against someone who makes
    /// different models look equal.
    ///
    /// # Errors
    ///
    /// [`LlmError::Io`].
    pub fn fingerprint(&self) -> Result<String, LlmError> {
        let spec = &self.config().spec;
        let mut hash = 0;
        let files = match self.tensors() {
            Tensors::Gguf(file) => file.files().map(Path::to_owned).collect(),
            Tensors::Hf(_) | Tensors::Llama2c(_) => compared(self.path()),
        };
        for path in files {
            let failed = |source| LlmError::Io { path: path.clone(), source };
            if let Some(name) = path.file_name() {
                hash = mixed(hash, name.as_encoded_bytes());
            }
            hash = contents(hash, &path).map_err(failed)?;
        }
        let (name, layers, hidden) = (&self.config().architecture, spec.layers, spec.hidden);
        Ok(format!("{name} with {layers} layers of width {hidden}, contents {hash:016x}"))
    }
}

/// The files that decide what a model computes.
fn compared(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = path.read_dir() else { return vec![path.to_owned()] };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| {
        file.extension().is_some_and(|end| end == "safetensors")
            || file.file_name().is_some_and(|name| name == "config.json")
    });
    files.sort();
    files
}

fn contents(mut hash: u64, path: &Path) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    hash = mixed(hash, &bytes.to_le_bytes());
    let mut part = vec![0; PART];
    let mut at = 0;
    let step = if bytes <= WHOLE { PART as u64 } else { bytes / PARTS };
    while at < bytes {
        file.seek(SeekFrom::Start(at))?;
        let length = usize::try_from(bytes - at).unwrap_or(PART).min(PART);
        file.read_exact(&mut part[..length])?;
        hash = mixed(hash, &part[..length]);
        at += step;
    }
    Ok(hash)
}

/// Hashes bytes, eight at a time (FxHash). For equal copies, and not against someone who makes different ones look equal.
fn mixed(hash: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    let hash = words.iter().fold(hash, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    mix(mix(hash, u64::from_le_bytes(last)), bytes.len() as u64)
}
