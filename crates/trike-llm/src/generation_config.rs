//! What a model says about how its tokens should be chosen.

use std::{fs::File, io::Read, path::Path};

use serde::Deserialize;
use trike_format::FormatError;

use crate::{LlmError, ModelFile, Tensors};

/// A generation configuration is a few hundred bytes; a file over this is another one.
const MAX_BYTES: u64 = 1 << 20;

/// The part of a `generation_config.json` that is about sampling.
///
/// ```
/// use trike_llm::GenerationConfig;
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("generation_config.json");
/// std::fs::write(&path, r#"{"do_sample": true, "temperature": 0.7, "eos_token_id": 2}"#)?;
/// let config = GenerationConfig::read(&path)?;
/// assert_eq!((config.do_sample, config.temperature, config.top_p), (Some(true), Some(0.7), None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
pub struct GenerationConfig {
    /// Whether tokens are sampled, and not the best one taken; the others mean nothing without it.
    pub do_sample: Option<bool>,
    /// Divides the logits.
    pub temperature: Option<f32>,
    /// How many of the best tokens are kept; zero means all.
    pub top_k: Option<usize>,
    /// The probability that the kept tokens reach together.
    pub top_p: Option<f32>,
    /// The share of the best token's probability that a kept one has.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens that came before, sampled or not.
    pub repetition_penalty: Option<f32>,
}

impl GenerationConfig {
    /// Reads one.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is no JSON object or has values of other types.
    pub fn read(path: &Path) -> Result<Self, LlmError> {
        let mut text = String::new();
        File::open(path)
            .and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text))
            .map_err(|source| LlmError::Io { path: path.to_owned(), source })?;
        serde_json::from_str(&text).map_err(|e| {
            let (what, expected) =
                ("the generation configuration", "an object with numbers; mend or remove it");
            let (path, got) = (path.to_owned(), e.to_string());
            FormatError::Header { path, what: what.to_owned(), expected: expected.to_owned(), got }.into()
        })
    }
}

impl ModelFile {
    /// The generation configuration that comes with the model, or an empty one.
    ///
    /// # Errors
    ///
    /// As [`GenerationConfig::read`].
    pub fn generation_config(&self) -> Result<GenerationConfig, LlmError> {
        let path = match self.tensors() {
            Tensors::Hf(dir) => dir.file("generation_config.json"),
            Tensors::Gguf(_) | Tensors::Llama2c(_) => None,
        };
        path.map_or_else(|| Ok(GenerationConfig::default()), |path| GenerationConfig::read(&path))
    }
}
