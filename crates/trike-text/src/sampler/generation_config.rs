//! A model's sampling defaults.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Size limit; a generation configuration has a few hundred bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The sampling options of a `generation_config.json`.
///
/// ```
/// use trike_text::sampler::GenerationConfig;
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("generation_config.json");
/// std::fs::write(&path, r#"{"do_sample": true, "temperature": 0.7, "eos_token_id": [2, 7]}"#)?;
/// let config = GenerationConfig::read(&path)?;
/// assert_eq!((config.do_sample, config.temperature, config.top_p), (Some(true), Some(0.7), None));
/// assert_eq!(config.eos_token_id, [2, 7]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct GenerationConfig {
    /// Whether tokens are sampled; otherwise decoding is greedy, and only the repetition penalty has an effect.
    pub do_sample: Option<bool>,
    /// Divides the logits.
    pub temperature: Option<f32>,
    /// Number of most probable tokens that are kept; 0 = all.
    pub top_k: Option<usize>,
    /// Total probability of the kept tokens.
    pub top_p: Option<f32>,
    /// Minimum probability of a kept token, as a fraction of the highest one.
    pub min_p: Option<f32>,
    /// Divides the logits of earlier tokens, also with greedy decoding.
    pub repetition_penalty: Option<f32>,
    /// Tokens that end a text, overriding those of the model's `config.json`; empty if the file has none. In the file, one id or a
    /// list.
    #[serde(default, deserialize_with = "ids", skip_serializing_if = "Vec::is_empty")]
    pub eos_token_id: Vec<u32>,
}

fn ids<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a token id or a list of them")]
    enum Ids {
        One(u32),
        List(Vec<u32>),
    }
    Ok(match Option::deserialize(deserializer)? {
        None => Vec::new(),
        Some(Ids::One(id)) => vec![id],
        Some(Ids::List(ids)) => ids,
    })
}

impl GenerationConfig {
    /// Parses a `generation_config.json`. Other settings in it are left to the caller.
    ///
    /// # Errors
    ///
    /// When it is not a JSON object or has values of the wrong types.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        // Through a map, since serde would also accept a list with the fields in order.
        let object: Map<String, Value> = serde_json::from_str(text)?;
        serde_json::from_value(Value::Object(object))
    }

    /// Reads a `generation_config.json`.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, is not a JSON object or has values of the wrong types.
    pub fn read(path: &Path) -> Result<Self, GenerationConfigError> {
        let failed = |source| GenerationConfigError::Io { path: path.to_owned(), source };
        let mut text = String::new();
        File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text)).map_err(failed)?;
        Self::from_json(&text)
            .map_err(|source| GenerationConfigError::Malformed { path: path.to_owned(), source })
    }
}

/// Error of reading a generation configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerationConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is not a generation configuration.
    #[error(
        "{}: the generation configuration: expected an object with numbers, got {source}; correct or remove it",
        path.display()
    )]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The parse error.
        source: serde_json::Error,
    },
}
