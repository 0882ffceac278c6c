//! The sampling defaults of a model.

use trike_format::{Gguf, HfDir, TensorSource as _};

use serde_json::Value;

use crate::{
    LlmError,
    config::keys::{GENERATION, NAMESPACES},
    names::FILE_KEY,
    sampler::GenerationConfig,
};

/// Returns an error for settings of a `generation_config.json` that change the text and are not implemented.
pub(crate) fn check_hf(dir: &HfDir) -> Result<(), LlmError> {
    let Some(path) = dir.file("generation_config.json") else { return Ok(()) };
    let text =
        std::fs::read_to_string(&path).map_err(|source| LlmError::Io { path: path.clone(), source })?;
    // Invalid JSON is an error where its values are read.
    GENERATION.check_json(&path, None, &serde_json::from_str(&text).unwrap_or_default())
}

/// As [`check_hf`], for the settings of a GGUF file.
pub(crate) fn check_gguf(file: &Gguf) -> Result<(), LlmError> {
    if let Some(text) = file.str(&format!("{FILE_KEY}generation_config.json"))? {
        let json: Value = serde_json::from_str(text).unwrap_or_default();
        return GENERATION.check_json(file.path(), None, &json);
    }
    for (key, value) in file.metadata().iter().filter(|(key, _)| key.starts_with(&sampling_key(""))) {
        NAMESPACES.check_meta(file.path(), None, (key, key), value)?;
    }
    Ok(())
}

/// The sampling defaults of a model directory: its `generation_config.json`, if it has one.
pub(crate) fn of_hf(dir: &HfDir) -> Result<GenerationConfig, LlmError> {
    match dir.file("generation_config.json") {
        Some(path) => Ok(GenerationConfig::read(&path)?),
        None => Ok(GenerationConfig::default()),
    }
}

/// The key of a sampling default.
pub(crate) fn sampling_key(name: &str) -> String {
    format!("general.sampling.{name}")
}

/// The sampling defaults of a GGUF file: those of its `generation_config.json`, if `trike convert` stored it, else the keys. A
/// temperature of 0 is greedy decoding.
pub(crate) fn of_gguf(file: &Gguf) -> Result<GenerationConfig, LlmError> {
    let key = format!("{FILE_KEY}generation_config.json");
    if let Some(text) = file.str(&key)? {
        return GenerationConfig::from_json(text).map_err(|error| LlmError::Config {
            path: file.path().to_owned(),
            key,
            expected: "a generation configuration".to_owned(),
            got: error.to_string(),
        });
    }
    let float = |name: &str| file.f32(&sampling_key(name));
    let temperature = float("temp")?;
    let top_k = file.i64(&sampling_key("top_k"))?;
    Ok(GenerationConfig {
        do_sample: temperature.map(|temperature| temperature > 0.0),
        temperature: temperature.filter(|temperature| *temperature > 0.0),
        // Zero and negative numbers keep all tokens.
        top_k: top_k.map(|k| usize::try_from(k).unwrap_or(0)),
        top_p: float("top_p")?,
        min_p: float("min_p")?,
        repetition_penalty: float("penalty_repeat")?,
        // End tokens are read with the tokenizer's keys.
        eos_token_id: Vec::new(),
    })
}
