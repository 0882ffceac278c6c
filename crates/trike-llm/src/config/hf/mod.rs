//! `config.json` of a HuggingFace directory.

mod layers;
mod rope;

use std::path::Path;

use serde_json::Value;
use trike_nn::{Biases, DecoderSpec, GatedActivation, ScaleFactors};

use super::{Family, ModelConfig, SpecialIds, keys};
use crate::LlmError;

/// Default values of keys missing from a configuration: those of the family's configuration class in transformers.
struct Defaults {
    context: usize,
    theta: f32,
    rms_eps: f32,
    /// `None` = as many as query heads.
    kv_heads: Option<usize>,
    window: Option<usize>,
}

impl Defaults {
    fn of(family: Family) -> Self {
        let llama = Self { context: 2048, theta: 1e4, rms_eps: 1e-6, kv_heads: None, window: None };
        match family {
            Family::Llama | Family::MiniCpm => llama,
            Family::Mistral => Self { context: 131_072, kv_heads: Some(8), window: Some(4096), ..llama },
            Family::Qwen2 | Family::Qwen3 => {
                Self { context: 32_768, kv_heads: Some(32), window: Some(4096), ..llama }
            }
            Family::BitNet => Self { theta: 5e5, rms_eps: 1e-5, kv_heads: Some(5), ..llama },
            Family::SmolLm3 => Self { context: 32_768, theta: 2e6, kv_heads: Some(4), ..llama },
        }
    }
}

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
        "MiniCPMForCausalLM" | "minicpm" => Family::MiniCpm,
        "SmolLM3ForCausalLM" | "smollm3" => Family::SmolLm3,
        _ => {
            let name = format!("the architecture {}", shorten(&architecture));
            return Err(r.unsupported(
                name,
                "Trike runs Llama, Mistral, Qwen2, Qwen3, BitNet, MiniCPM and SmolLM3 for causal LM",
            ));
        }
    };
    keys::CONFIG.check_json(path, Some(family), config)?;
    let defaults = Defaults::of(family);
    let hidden = r.required("hidden_size")?;
    let heads = r.required("num_attention_heads")?;
    // A missing key has the default of the class; null means as many as query heads.
    let kv_heads = match r.size("num_key_value_heads")? {
        None if config.get("num_key_value_heads").is_none() => defaults.kv_heads.unwrap_or(heads),
        read => read.unwrap_or(heads),
    };
    let (rope, context) = rope::rope(&r, &defaults)?;
    let layers = r.required("num_hidden_layers")?;
    let rope_layers = layers::rope(&r, family, layers)?;
    let (window, window_layers) = layers::window(&r, family, &defaults, &rope_layers, layers, context)?;
    let attention_bias = r.flag("attention_bias")?;
    let mlp_bias = r.flag("mlp_bias")?;
    // Families without these biases: the key must not be set.
    for (key, set, without) in [
        ("attention_bias", attention_bias, family == Family::Mistral),
        ("mlp_bias", mlp_bias, !matches!(family, Family::Llama | Family::SmolLm3)),
    ] {
        if set && without {
            return Err(r.unsupported(format!("`{key}` of {architecture}"), REMEDY));
        }
    }
    let spec = DecoderSpec {
        hidden,
        intermediate: r.required("intermediate_size")?,
        layers,
        heads,
        kv_heads,
        // In Qwen3, head_dim differs from hidden / heads.
        head_dim: r.size("head_dim")?.unwrap_or(if family == Family::Qwen3 { 128 } else { hidden / heads }),
        vocab: r.required("vocab_size")?,
        context,
        rms_eps: r.float("rms_norm_eps", defaults.rms_eps)?,
        rope,
        activation: activation(&r, family)?,
        // In these configuration classes, the head is the embedding unless the key says otherwise.
        tied_head: match r.get("tie_word_embeddings") {
            None => matches!(family, Family::MiniCpm | Family::SmolLm3),
            Some(_) => r.flag("tie_word_embeddings")?,
        },
        window,
        window_layers,
        rope_layers,
        biases: Biases {
            qkv: attention_bias || family == Family::Qwen2,
            output: attention_bias && family != Family::Qwen2,
            mlp: mlp_bias,
        },
        qk_norm: family == Family::Qwen3,
        sub_norms: family == Family::BitNet,
        factors: match family {
            Family::MiniCpm => factors(&r, hidden, layers)?,
            _ => ScaleFactors::default(),
        },
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

/// The factors of MiniCPM. Its two configuration classes have different defaults, and every published model has the keys.
fn factors(r: &Reader<'_>, hidden: usize, layers: usize) -> Result<ScaleFactors, LlmError> {
    let number = |key: &str| r.get(key).and_then(Value::as_f64).ok_or_else(|| r.error(key, "a number"));
    Ok(ScaleFactors {
        embedding: number("scale_emb")? as f32,
        residual: (number("scale_depth")? / (layers as f64).sqrt()) as f32,
        logits: (hidden as f64 / number("dim_model_base")?) as f32,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use trike_nn::{LayerSet, Mixer};
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
    fn defaults_are_those_of_the_class() {
        let family = |name: &str| {
            let mut config = tiny();
            config["architectures"] = json!([name]);
            for key in ["num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "hidden_act"] {
                config.as_object_mut().unwrap().remove(key);
            }
            (config["num_attention_heads"], config["hidden_size"]) = (json!(160), json!(1600));
            parse(&config).unwrap().spec
        };
        let of =
            |spec: &DecoderSpec| (spec.kv_heads, spec.context, spec.rms_eps, spec.rope.theta, spec.window);
        assert_eq!(of(&family("LlamaForCausalLM")), (160, 2048, 1e-6, 1e4, None));
        assert_eq!(of(&family("MistralForCausalLM")), (8, 131_072, 1e-6, 1e4, Some(4096)));
        assert_eq!(of(&family("Qwen2ForCausalLM")), (32, 32_768, 1e-6, 1e4, None));
        assert_eq!(of(&family("BitNetForCausalLM")), (5, 2048, 1e-5, 5e5, None));
    }

    #[test]
    fn the_layers_with_a_window() {
        let qwen = |name: &str, more: Value| {
            let mut config = tiny();
            config["architectures"] = json!([name]);
            for (key, value) in more.as_object().unwrap() {
                config[key] = value.clone();
            }
            parse(&config).map(|parsed| {
                let spec = parsed.spec;
                [0, 1].map(|layer| match spec.layer(layer).mixer {
                    Mixer::Attention(attention) => attention.window,
                })
            })
        };
        let slide = |more: Value| {
            let mut all = json!({"use_sliding_window": true, "sliding_window": 8});
            for (key, value) in more.as_object().unwrap() {
                all[key] = value.clone();
            }
            all
        };
        for name in ["Qwen2ForCausalLM", "Qwen3ForCausalLM"] {
            // As many full-attention layers as there are layers, or more.
            assert_eq!(qwen(name, slide(json!({"max_window_layers": 2}))).unwrap(), [None, None]);
            assert_eq!(qwen(name, slide(json!({}))).unwrap(), [None, None], "28 by default");
            assert_eq!(qwen(name, slide(json!({"max_window_layers": 0}))).unwrap(), [Some(8), Some(8)]);
            assert_eq!(qwen(name, slide(json!({"max_window_layers": 1}))).unwrap(), [None, Some(8)]);
            // A window as long as the context masks nothing.
            let wide = slide(json!({"max_window_layers": 1, "sliding_window": 32}));
            assert_eq!(qwen(name, wide).unwrap(), [None, None]);
            let types = |a: &str, b: &str| slide(json!({"layer_types": [a, b], "max_window_layers": 1}));
            assert_eq!(qwen(name, types("full_attention", "full_attention")).unwrap(), [None, None]);
            assert_eq!(
                qwen(name, types("sliding_attention", "sliding_attention")).unwrap(),
                [Some(8), Some(8)]
            );
            assert_eq!(qwen(name, types("sliding_attention", "full_attention")).unwrap(), [Some(8), None]);
            assert!(qwen(name, types("full_attention", "chunked_attention")).is_err());
            assert!(qwen(name, json!({"layer_types": ["sliding_attention", "sliding_attention"]})).is_err());
        }
        let mistral =
            |types: [&str; 2]| qwen("MistralForCausalLM", json!({"sliding_window": 8, "layer_types": types}));
        assert_eq!(mistral(["sliding_attention"; 2]).unwrap(), [Some(8), Some(8)]);
        assert!(mistral(["full_attention", "sliding_attention"]).is_err());
    }

    #[test]
    fn the_layers_of_smollm3_with_rope() {
        let of = |more: Value| {
            let mut config = tiny();
            (config["architectures"], config["num_hidden_layers"]) =
                (json!(["SmolLM3ForCausalLM"]), json!(5));
            for (key, value) in more.as_object().unwrap() {
                config[key] = value.clone();
            }
            parse(&config).map(|parsed| parsed.spec)
        };
        let spec = of(json!({"tie_word_embeddings": null, "rope_theta": null})).unwrap();
        assert_eq!(spec.rope_layers, LayerSet::Listed(vec![0, 1, 2, 4]));
        assert_eq!((spec.rope.theta, spec.tied_head, spec.window), (2e6, true, None));
        assert_eq!(of(json!({"no_rope_layer_interval": 9})).unwrap().rope_layers, LayerSet::All);
        let listed = of(
            json!({"no_rope_layers": [0, 1, 1, 0, 1, 0], "use_sliding_window": true, "sliding_window": 4}),
        );
        let listed = listed.unwrap();
        assert_eq!(listed.rope_layers, LayerSet::Listed(vec![1, 2, 4]));
        assert_eq!((listed.window, listed.window_layers), (Some(4), LayerSet::Listed(vec![0, 3])));
        for (key, value) in [
            ("no_rope_layers", json!([1, 1, 0])),
            ("no_rope_layers", json!([1, 1, 0, 2, 1])),
            ("no_rope_layer_interval", json!(0)),
        ] {
            let error = of(json!({ key: value })).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
        // The keys of one architecture change nothing silently in another.
        let mut llama = tiny();
        llama["no_rope_layers"] = json!([1, 0]);
        assert!(parse(&llama).unwrap_err().to_string().contains("no_rope_layers"));
    }

    #[test]
    fn refusals_name_what_they_refuse() {
        for (key, value, word) in [
            ("architectures", json!(["GPT2LMHeadModel"]), "GPT2LMHeadModel"),
            ("architectures", json!("x"), "architectures"),
            ("rope_scaling", json!({"type": "linear"}), "factor"),
            ("rope_scaling", json!({"type": "linear", "factor": 0.5}), "rope.scaling"),
            ("rope_scaling", json!({"rope_type": "llama3", "factor": 8}), "low_freq_factor"),
            ("rope_scaling", json!({"rope_type": "longrope"}), "short_factor"),
            ("rope_scaling", json!({"type": "dynamic"}), "dynamic"),
            ("rope_scaling", json!({"factor": 4}), "rope_type"),
            ("rope_scaling", json!("linear"), "rope_scaling"),
            ("rope_scaling", json!({"type": "yarn", "factor": 4, "truncate": false}), "truncate"),
            ("rope_scaling", json!({"type": "yarn", "factr": 4}), "`factor`"),
            ("rope_parameters", json!({"rope_type": "su"}), "su"),
            ("use_sliding_window", json!(true), "use_sliding_window"),
            ("mlp_bias", json!("yes"), "mlp_bias"),
            ("partial_rotary_factor", json!(0.5), "partial_rotary_factor"),
            ("rms_norm_epsilon", json!(1e-6), "`rms_norm_eps`"),
            ("rope_thetta", json!(1e6), "`rope_theta`"),
            ("attention_multiplier", json!(0.5), "attention_multiplier"),
            ("final_logit_softcapping", json!(30.0), "final_logit_softcapping"),
            ("is_causal", json!(false), "is_causal"),
            ("wormhole", json!([1]), "wormhole"),
            ("layer_types", json!(["full_attention", "sliding_attention"]), "layer_types"),
            ("layer_types", json!(["full_attention"]), "a list of 2 types"),
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
