//! Identification of models by the contents of their files.

use std::path::{Path, PathBuf};

use trike_format::{Digest, gguf_parts};

use crate::{LlmError, ModelFile};

impl ModelFile {
    /// Name and sizes of the model, with a digest of its configuration and weights: equal for copies. The digest covers every byte
    /// of files up to 1 GiB, and 4096 samples of 64 KiB of larger ones. It is not collision-resistant against an adversary.
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

    /// A digest of its configuration and weights for data stored on this machine: as in [`fingerprint`](Self::fingerprint), and for
    /// larger files it includes the modification time.
    ///
    /// # Errors
    ///
    /// [`LlmError::Io`].
    pub fn digest(&self) -> Result<Digest, LlmError> {
        local(self.path())
    }
}

/// The digest of the model at a path, on this machine; it also detects changes of larger files outside the samples.
pub(crate) fn local(path: &Path) -> Result<Digest, LlmError> {
    digest(path, Digest::local_file)
}

/// The digest of the files of a model, including their names.
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

/// The files that determine the output of a model.
fn compared(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = path.read_dir() else {
        // All parts of a split model, whichever part was opened.
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
