//! `config.json` of a HuggingFace directory.

use std::path::Path;

use serde_json::Value;
use trike_nn::{Biases, DecoderSpec, GatedActivation, RopePairing, RopeScaling, RopeSpec};

use super::{Family, ModelConfig, SpecialIds};
use crate::LlmError;

/// Context length when the configuration has none: HuggingFace's default for Llama.
const DEFAULT_CONTEXT: usize = 2048;

struct Reader<'a> {
    path: &'a Path,
    config: &'a Value,
}

impl Reader<'_> {
    /// The value of a key; null is treated as absent.
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
    let family = match architecture.as_str() {
        "LlamaForCausalLM" | "llama" => Family::Llama,
        "MistralForCausalLM" | "mistral" => Family::Mistral,
        "Qwen2ForCausalLM" | "qwen2" => Family::Qwen2,
        "Qwen3ForCausalLM" | "qwen3" => Family::Qwen3,
        "BitNetForCausalLM" | "bitnet" => Family::BitNet,
        _ => {
            let name = format!("the architecture {}", shorten(&architecture));
            return Err(
                r.unsupported(name, "Trike runs Llama, Mistral, Qwen2, Qwen3 and BitNet for causal LM")
            );
        }
    };
    if r.float("partial_rotary_factor", 1.0)? != 1.0 {
        return Err(r.unsupported("partial_rotary_factor".to_owned(), REMEDY));
    }
    let hidden = r.required("hidden_size")?;
    let heads = r.required("num_attention_heads")?;
    let (rope, context) = rope(&r)?;
    let attention_bias = r.flag("attention_bias")?;
    let mlp_bias = r.flag("mlp_bias")?;
    let spec = DecoderSpec {
        hidden,
        intermediate: r.required("intermediate_size")?,
        layers: r.required("num_hidden_layers")?,
        heads,
        kv_heads: r.size("num_key_value_heads")?.unwrap_or(heads),
        // In Qwen3, head_dim differs from hidden / heads.
        head_dim: r.size("head_dim")?.unwrap_or(if family == Family::Qwen3 { 128 } else { hidden / heads }),
        vocab: r.required("vocab_size")?,
        context,
        rms_eps: r.float("rms_norm_eps", 1e-6)?,
        rope,
        activation: activation(&r, family)?,
        tied_head: r.flag("tie_word_embeddings")?,
        window: window(&r, family)?,
        biases: Biases {
            qkv: attention_bias || family == Family::Qwen2,
            output: attention_bias && family != Family::Qwen2,
            mlp: mlp_bias,
        },
        qk_norm: family == Family::Qwen3,
        sub_norms: family == Family::BitNet,
    };
    spec.validate()?;
    let special = SpecialIds { bos: r.ids("bos_token_id")?.first().copied(), eos: r.ids("eos_token_id")? };
    Ok(ModelConfig { architecture, family, spec, special })
}

const REMEDY: &str = "use a checkpoint without it, or wait for a version of Trike that has it";

fn activation(r: &Reader<'_>, family: Family) -> Result<GatedActivation, LlmError> {
    match (r.get("hidden_act").map(Value::as_str), family) {
        (None, Family::BitNet) | (Some(Some("relu2")), _) => Ok(GatedActivation::SquaredReLu),
        (None | Some(Some("silu" | "swish")), _) => Ok(GatedActivation::SiLu),
        (Some(Some(other)), _) => Err(r.unsupported(format!("hidden_act {}", shorten(other)), REMEDY)),
        (Some(None), _) => Err(r.error("hidden_act", "a name")),
    }
}

/// Mistral's window applies to every layer; the other families have one for some layers, behind a flag.
fn window(r: &Reader<'_>, family: Family) -> Result<Option<usize>, LlmError> {
    if r.flag("use_sliding_window")? {
        return Err(r.unsupported("use_sliding_window".to_owned(), REMEDY));
    }
    if family == Family::Mistral { r.size("sliding_window") } else { Ok(None) }
}

/// The rotary embedding, and the context length that it supports.
fn rope(r: &Reader<'_>) -> Result<(RopeSpec, usize), LlmError> {
    let context = r.size("max_position_embeddings")?.unwrap_or(DEFAULT_CONTEXT);
    // Newer configurations store all RoPE options in `rope_parameters`.
    let parameters = r.get("rope_parameters");
    let theta = match parameters.and_then(|p| p.get("rope_theta")) {
        Some(v) => v
            .as_f64()
            .map(|x| x as f32)
            .ok_or_else(|| r.error("rope_parameters", "a number in rope_theta"))?,
        None => r.float("rope_theta", 10_000.0)?,
    };
    let mut spec = RopeSpec::new(theta, RopePairing::Halves);
    let Some((key, scaling)) = [("rope_scaling", r.get("rope_scaling")), ("rope_parameters", parameters)]
        .into_iter()
        .find_map(|(key, value)| Some((key, value?)))
    else {
        return Ok((spec, context));
    };
    let inner = Reader { path: r.path, config: scaling };
    let kind = inner.get("rope_type").or_else(|| inner.get("type")).and_then(Value::as_str);
    let factor = || match inner.get("factor") {
        Some(_) => inner.float("factor", 1.0),
        None => Err(inner.error("factor", "a number")),
    };
    let original = inner.size("original_max_position_embeddings")?;
    let mut reach = context;
    spec.scaling = match kind {
        Some("default") => RopeScaling::None,
        None if key == "rope_parameters" => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: factor()? },
        Some("llama3") => RopeScaling::Llama3 {
            factor: factor()?,
            low: inner.float("low_freq_factor", 1.0)?,
            high: inner.float("high_freq_factor", 4.0)?,
            original_context: original
                .ok_or_else(|| inner.error("original_max_position_embeddings", "a positive integer"))?,
        },
        Some("yarn") => {
            for key in ["mscale", "mscale_all_dim"] {
                if inner.get(key).is_some() {
                    return Err(r.unsupported(format!("{key} of a YaRN scaling"), REMEDY));
                }
            }
            if inner.get("truncate").and_then(Value::as_bool) == Some(false) {
                return Err(r.unsupported("truncate: false of a YaRN scaling".to_owned(), REMEDY));
            }
            let factor = factor()?;
            let original_context = original.unwrap_or(context);
            // `max_position_embeddings` is the trained context here; the scaled context is its product with the factor.
            reach = context.max((original_context as f64 * f64::from(factor)) as usize);
            RopeScaling::Yarn {
                factor,
                beta_fast: inner.float("beta_fast", 32.0)?,
                beta_slow: inner.float("beta_slow", 1.0)?,
                original_context,
                attention_factor: inner.float("attention_factor", 0.1 * factor.max(1.0).ln() + 1.0)?,
            }
        }
        Some(kind) => return Err(r.unsupported(format!("{key} of type {}", shorten(kind)), REMEDY)),
        None => return Err(r.error(key, "an object with a rope_type")),
    };
    Ok((spec, reach))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use trike_testkit::assert_near;

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
    fn the_switches_of_each_family() {
        let family = |name: &str, more: &[(&str, Value)]| {
            let mut config = tiny();
            config["architectures"] = json!([name]);
            for (key, value) in more {
                config[*key] = value.clone();
            }
            parse(&config).unwrap()
        };
        let mistral = family("MistralForCausalLM", &[("sliding_window", json!(8))]).spec;
        assert_eq!((mistral.window, mistral.biases, mistral.qk_norm), (Some(8), Biases::default(), false));
        assert_eq!(family("MistralForCausalLM", &[("sliding_window", Value::Null)]).spec.window, None);
        let qwen2 = family("Qwen2ForCausalLM", &[("sliding_window", json!(8))]).spec;
        assert_eq!((qwen2.window, qwen2.biases), (None, Biases { qkv: true, output: false, mlp: false }));
        let qwen3 = family("Qwen3ForCausalLM", &[]).spec;
        assert_eq!((qwen3.head_dim, qwen3.qk_norm, qwen3.biases), (128, true, Biases::default()));
        let bitnet = family("BitNetForCausalLM", &[("hidden_act", json!("relu2"))]);
        assert!(bitnet.spec.sub_norms && bitnet.spec.activation == GatedActivation::SquaredReLu);
        assert_eq!(bitnet.family.trained_activations(), Some(trike_nn::ActivationPrecision::Int8PerToken));
        let biased = family("LlamaForCausalLM", &[("attention_bias", json!(true))]).spec;
        assert_eq!(biased.biases, Biases { qkv: true, output: true, mlp: false });
        let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32});
        let yarn = family("Qwen3ForCausalLM", &[("rope_scaling", yarn)]).spec;
        assert_eq!(yarn.context, 128);
        assert_near!(yarn.rope.attention_factor(), 0.1 * 4f32.ln() + 1.0, abs = 1e-6);
    }

    #[test]
    fn refusals_name_what_they_refuse() {
        for (key, value, word) in [
            ("architectures", json!(["GPT2LMHeadModel"]), "GPT2LMHeadModel"),
            ("architectures", json!("x"), "architectures"),
            ("rope_scaling", json!({"type": "linear"}), "factor"),
            ("rope_scaling", json!({"type": "linear", "factor": 0.5}), "rope.scaling"),
            ("rope_scaling", json!({"rope_type": "llama3", "factor": 8}), "original_max_position_embeddings"),
            ("rope_scaling", json!({"rope_type": "longrope"}), "longrope"),
            ("rope_scaling", json!({"type": "dynamic"}), "dynamic"),
            ("rope_scaling", json!({}), "rope_scaling"),
            ("rope_scaling", json!({"type": "yarn", "factor": 4, "mscale": 1}), "mscale"),
            ("rope_parameters", json!({"rope_type": "su"}), "su"),
            ("use_sliding_window", json!(true), "use_sliding_window"),
            ("mlp_bias", json!("yes"), "mlp_bias"),
            ("partial_rotary_factor", json!(0.5), "partial_rotary_factor"),
            ("hidden_act", json!("gelu"), "gelu"),
            ("hidden_size", json!(-3), "hidden_size"),
            ("hidden_size", json!(1e30), "hidden_size"),
            ("vocab_size", Value::Null, "vocab_size"),
            ("num_attention_heads", json!(0), "num_attention_heads"),
            ("num_key_value_heads", json!(3), "kv_heads"),
            ("head_dim", json!(3), "head_dim"),
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
