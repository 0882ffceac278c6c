//! `config.json` of a HuggingFace directory.

use std::path::Path;

use serde_json::Value;
use trike_nn::{DecoderSpec, GatedActivation, RopePairing, RopeSpec};

use super::{ModelConfig, SpecialIds};
use crate::LlmError;

/// Context when a configuration does not name one: HuggingFace's default for Llama.
const DEFAULT_CONTEXT: usize = 2048;

struct Reader<'a> {
    path: &'a Path,
    config: &'a Value,
}

impl Reader<'_> {
    /// The value of a key; absent and null are the same there.
    fn get(&self, key: &str) -> Option<&Value> {
        self.config.get(key).filter(|v| !v.is_null())
    }

    fn error(&self, key: &str, expected: &str) -> LlmError {
        LlmError::Config {
            path: self.path.to_owned(),
            key: key.to_owned(),
            expected: expected.to_owned(),
            got: self.get(key).map_or("nothing".to_owned(), |v| shorten(&v.to_string())),
        }
    }

    fn unsupported(&self, name: String, remedy: &str) -> LlmError {
        LlmError::Unsupported { path: self.path.to_owned(), name, remedy: remedy.to_owned() }
    }

    fn size(&self, key: &str) -> Result<Option<usize>, LlmError> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => match v.as_u64().and_then(|n| usize::try_from(n).ok()) {
                Some(n) if n > 0 => Ok(Some(n)),
                _ => Err(self.error(key, "a positive integer")),
            },
        }
    }

    fn required(&self, key: &str) -> Result<usize, LlmError> {
        self.size(key)?.ok_or_else(|| self.error(key, "a positive integer"))
    }

    fn float(&self, key: &str, default: f32) -> Result<f32, LlmError> {
        match self.get(key) {
            None => Ok(default),
            Some(v) => v.as_f64().map(|x| x as f32).ok_or_else(|| self.error(key, "a number")),
        }
    }

    fn flag(&self, key: &str) -> Result<bool, LlmError> {
        match self.get(key) {
            None => Ok(false),
            Some(v) => v.as_bool().ok_or_else(|| self.error(key, "true or false")),
        }
    }

    fn ids(&self, key: &str) -> Result<Vec<u32>, LlmError> {
        let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        let ids = match self.get(key) {
            None => Some(Vec::new()),
            Some(Value::Array(list)) => list.iter().map(id).collect(),
            Some(v) => id(v).map(|id| vec![id]),
        };
        ids.ok_or_else(|| self.error(key, "a token id or a list of them"))
    }
}

fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(60).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    short
}

pub(super) fn config(path: &Path, config: &Value) -> Result<ModelConfig, LlmError> {
    let r = Reader { path, config };
    let architecture = match (r.get("architectures").and_then(|a| a.get(0)), r.get("model_type")) {
        (Some(Value::String(name)), _) | (None, Some(Value::String(name))) => name.clone(),
        _ => return Err(r.error("architectures", "a list with the name of the architecture")),
    };
    if !["LlamaForCausalLM", "llama"].contains(&architecture.as_str()) {
        let name = format!("the architecture {}", shorten(&architecture));
        return Err(r.unsupported(name, "Trike runs LlamaForCausalLM"));
    }
    refuse_extras(&r)?;

    let hidden = r.required("hidden_size")?;
    let heads = r.required("num_attention_heads")?;
    let spec = DecoderSpec {
        hidden,
        intermediate: r.required("intermediate_size")?,
        layers: r.required("num_hidden_layers")?,
        heads,
        kv_heads: r.size("num_key_value_heads")?.unwrap_or(heads),
        head_dim: r.size("head_dim")?.unwrap_or(hidden / heads),
        vocab: r.required("vocab_size")?,
        context: r.size("max_position_embeddings")?.unwrap_or(DEFAULT_CONTEXT),
        rms_eps: r.float("rms_norm_eps", 1e-6)?,
        rope: RopeSpec { theta: theta(&r)?, pairing: RopePairing::Halves },
        activation: GatedActivation::SiLu,
        tied_head: r.flag("tie_word_embeddings")?,
    };
    spec.validate()?;
    let special = SpecialIds { bos: r.ids("bos_token_id")?.first().copied(), eos: r.ids("eos_token_id")? };
    Ok(ModelConfig { architecture, spec, special })
}

/// Newer configurations hold theta in `rope_parameters`.
fn theta(r: &Reader<'_>) -> Result<f32, LlmError> {
    match r.get("rope_parameters").and_then(|p| p.get("rope_theta")) {
        Some(v) => {
            v.as_f64().map(|x| x as f32).ok_or_else(|| r.error("rope_parameters", "a number in rope_theta"))
        }
        None => r.float("rope_theta", 10_000.0),
    }
}

/// What would change the arithmetic and is not in the decoder block.
fn refuse_extras(r: &Reader<'_>) -> Result<(), LlmError> {
    let remedy = "convert the checkpoint to one without it, or wait for a version of Trike that has it";
    for key in ["rope_scaling", "rope_parameters"] {
        let kind = r.get(key).and_then(|s| s.get("rope_type").or_else(|| s.get("type")));
        match (r.get(key), kind.and_then(Value::as_str)) {
            (None, _) | (Some(_), Some("default")) => {}
            (Some(_), Some(kind)) => {
                return Err(r.unsupported(format!("{key} of type {}", shorten(kind)), remedy));
            }
            (Some(_), None) if key == "rope_parameters" => {}
            (Some(_), None) => return Err(r.error(key, "an object with a rope_type")),
        }
    }
    for key in ["attention_bias", "mlp_bias"] {
        if r.flag(key)? {
            return Err(r.unsupported(key.to_owned(), remedy));
        }
    }
    if r.float("partial_rotary_factor", 1.0)? != 1.0 {
        return Err(r.unsupported("partial_rotary_factor".to_owned(), remedy));
    }
    match r.get("hidden_act").map(Value::as_str) {
        None | Some(Some("silu" | "swish")) => Ok(()),
        Some(Some(other)) => Err(r.unsupported(format!("hidden_act {}", shorten(other)), remedy)),
        Some(None) => Err(r.error("hidden_act", "a name")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tiny() -> Value {
        json!({
            "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
            "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "hidden_act": "silu",
            "tie_word_embeddings": true, "bos_token_id": 0, "eos_token_id": [1, 2], "rope_scaling": null,
        })
    }

    fn parse(value: &Value) -> Result<ModelConfig, LlmError> {
        config(Path::new("m"), value)
    }

    #[test]
    fn a_llama() {
        let parsed = parse(&tiny()).unwrap();
        assert_eq!((parsed.spec.head_dim, parsed.spec.kv_heads, parsed.spec.tied_head), (16, 2, true));
        assert_eq!(parsed.special, SpecialIds { bos: Some(0), eos: vec![1, 2] });
        let mut newer = tiny();
        newer["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 5e5});
        assert_eq!(parse(&newer).unwrap().spec.rope.theta, 5e5);
    }

    #[test]
    fn refusals_name_what_they_refuse() {
        for (key, value, word) in [
            ("architectures", json!(["GPT2LMHeadModel"]), "GPT2LMHeadModel"),
            ("architectures", json!("x"), "architectures"),
            ("rope_scaling", json!({"type": "linear", "factor": 2}), "linear"),
            ("rope_scaling", json!({"rope_type": "llama3"}), "llama3"),
            ("rope_scaling", json!({}), "rope_scaling"),
            ("rope_parameters", json!({"rope_type": "yarn"}), "yarn"),
            ("attention_bias", json!(true), "attention_bias"),
            ("mlp_bias", json!("yes"), "mlp_bias"),
            ("partial_rotary_factor", json!(0.5), "partial_rotary_factor"),
            ("hidden_act", json!("gelu"), "gelu"),
            ("hidden_size", json!(-3), "hidden_size"),
            ("hidden_size", json!(1e30), "hidden_size"),
            ("vocab_size", Value::Null, "vocab_size"),
            ("num_attention_heads", json!(0), "num_attention_heads"),
            ("num_key_value_heads", json!(3), "kv_heads"),
            ("rms_norm_eps", json!("small"), "rms_norm_eps"),
            ("eos_token_id", json!(["a"]), "eos_token_id"),
        ] {
            let mut spoiled = tiny();
            spoiled[key] = value;
            let error = parse(&spoiled).unwrap_err().to_string();
            assert!(error.contains(word), "{key}: {error}");
        }
        assert!(parse(&json!([])).is_err());
    }
}
