//! Recognition of equal models by the contents of their files.

use std::path::{Path, PathBuf};

use trike_format::{Digest, gguf_parts};

use crate::{LlmError, ModelFile};

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
        let digest = digest(self.path(), Digest::file)?;
        let (name, layers, hidden) = (&self.config().architecture, spec.layers, spec.hidden);
        Ok(format!("{name} with {layers} layers of width {hidden}, contents {digest}"))
    }

    /// A digest of its configuration and weights, for what is stored on this machine: as that of
    /// [`fingerprint`](Self::fingerprint), and of larger files another one when the time of the last change is another.
    ///
    /// # Errors
    ///
    /// [`LlmError::Io`].
    pub fn digest(&self) -> Result<Digest, LlmError> {
        local(self.path())
    }
}

/// The digest of the model at a path, on this machine: also another one when a larger file was changed where it is not read.
pub(crate) fn local(path: &Path) -> Result<Digest, LlmError> {
    digest(path, Digest::local_file)
}

/// The digest of the files of a model with their names.
fn digest(model: &Path, of: impl Fn(Digest, &Path) -> std::io::Result<Digest>) -> Result<Digest, LlmError> {
    let mut digest = Digest::default();
    for path in compared(model) {
        if let Some(name) = path.file_name().filter(|_| model.is_dir()) {
            digest = digest.bytes(name.as_encoded_bytes());
        }
        digest = of(digest, &path).map_err(|source| LlmError::Io { path: path.clone(), source })?;
    }
    Ok(digest)
}

/// The files that decide what a model computes.
fn compared(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = path.read_dir() else {
        // Of a model in several files all, whichever it was opened by.
        let parts = path.file_name().and_then(|name| gguf_parts(name.to_str()?));
        return parts.map_or_else(
            || vec![path.to_owned()],
            |parts| parts.iter().map(|part| path.with_file_name(part)).collect(),
        );
    };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| {
        file.extension().is_some_and(|end| end == "safetensors")
            || file.file_name().is_some_and(|name| name == "config.json")
    });
    files.sort();
    files
}
