//! The sampling defaults of a model.

use trike_format::{Gguf, HfDir, TensorSource as _};

use crate::{LlmError, names::FILE_KEY, sampler::GenerationConfig};

/// Those of a model directory: its `generation_config.json`, if it has one.
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
        // The tokenizer's keys name them.
        eos_token_id: Vec::new(),
    })
}
