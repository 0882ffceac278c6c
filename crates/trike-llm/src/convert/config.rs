//! Writes a configuration in another format.

use std::path::Path;

use serde_json::{Value, json};
use trike_format::MetaValue;
use trike_nn::{DecoderSpec, GatedActivation, LayerSet, RopePairing, RopeScaling, RopeSpec, ScaleFactors};

use crate::{Family, ModelConfig};

/// A `config.json` that reads back as `config`; `None` when HuggingFace has no equivalent.
pub(super) fn to_hf(path: &Path, config: &ModelConfig) -> Option<Value> {
    let (spec, special) = (&config.spec, &config.special);
    // Chosen by the features of the block: a `llama` GGUF file may have a window or biases.
    let architecture = if spec.rope_layers != LayerSet::All {
        "SmolLM3ForCausalLM"
    } else if spec.factors != ScaleFactors::default() {
        "MiniCPMForCausalLM"
    } else if spec.sub_norms {
        "BitNetForCausalLM"
    } else if spec.qk_norm {
        "Qwen3ForCausalLM"
    } else if spec.biases.qkv && !spec.biases.output {
        "Qwen2ForCausalLM"
    } else if spec.window.is_some() {
        "MistralForCausalLM"
    } else {
        "LlamaForCausalLM"
    };
    let mut json = json!({
        "architectures": [architecture],
        "hidden_size": spec.hidden,
        "intermediate_size": spec.intermediate,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.context,
        "rope_theta": exact(spec.rope.theta),
        "rms_norm_eps": exact(spec.rms_eps),
        "hidden_act": match spec.activation {
            GatedActivation::SiLu => "silu",
            GatedActivation::SquaredReLu => "relu2",
        },
        "tie_word_embeddings": spec.tied_head,
        "attention_bias": spec.biases.qkv && spec.biases.output,
        "mlp_bias": spec.biases.mlp,
        "bos_token_id": special.bos,
        "eos_token_id": special.eos,
    });
    json["model_type"] = json!(architecture.trim_end_matches("ForCausalLM").to_lowercase());
    if architecture == "MiniCPMForCausalLM" {
        let ScaleFactors { embedding, residual, logits } = spec.factors;
        json["scale_emb"] = json!(exact(embedding));
        let root = (spec.layers as f64).sqrt();
        json["scale_depth"] = json!(shortest(f64::from(residual) * root, |depth| (depth / root) as f32));
        let hidden = spec.hidden as f64;
        json["dim_model_base"] = json!(shortest(hidden / f64::from(logits), |base| (hidden / base) as f32));
    }
    if spec.rope_layers != LayerSet::All {
        let flags: Vec<u8> =
            (0..spec.layers).map(|layer| u8::from(spec.rope_layers.contains(layer))).collect();
        json["no_rope_layers"] = json!(flags);
    }
    if let Some(window) = spec.window {
        json["sliding_window"] = json!(window);
        if architecture != "MistralForCausalLM" {
            json["use_sliding_window"] = json!(true);
        }
        if architecture.starts_with("Qwen") {
            // The first sliding layer is layer 0.
            json["max_window_layers"] = json!(0);
        }
        if spec.window_of_all().is_none() {
            let kind = |layer| match spec.window_layers.contains(layer) {
                true => "sliding_attention",
                false => "full_attention",
            };
            json["layer_types"] = (0..spec.layers).map(kind).collect();
        }
    }
    // Configurations have named constants, GGUF files a list of divisors.
    let named = named_factors(&spec.rope, spec.head_dim);
    match named.as_ref().unwrap_or(&spec.rope.scaling) {
        RopeScaling::None => {}
        RopeScaling::Linear { factor } => {
            json["rope_scaling"] = json!({"rope_type": "linear", "factor": exact(*factor)});
        }
        RopeScaling::Llama3 { factor, low, high, original_context } => {
            json["rope_scaling"] = json!({
                "rope_type": "llama3", "factor": exact(*factor), "low_freq_factor": exact(*low),
                "high_freq_factor": exact(*high), "original_max_position_embeddings": original_context,
            });
        }
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original_context, attention_factor } => {
            json["rope_scaling"] = json!({
                "rope_type": "yarn", "factor": exact(*factor), "beta_fast": exact(*beta_fast),
                "beta_slow": exact(*beta_slow), "attention_factor": exact(*attention_factor),
                "original_max_position_embeddings": original_context,
            });
        }
        // LongRoPE with one list for every length divides by it.
        RopeScaling::Factors(factors) => {
            let list: Vec<f64> = factors.iter().map(|factor| exact(*factor)).collect();
            json["rope_scaling"] = json!({
                "rope_type": "longrope", "short_factor": list, "long_factor": list, "attention_factor": 1.0,
                "original_max_position_embeddings": spec.context,
            });
        }
    }
    // A combination of features that matches no architecture would read back differently.
    let read = ModelConfig::from_hf(path, &json).ok()?.spec;
    let mut same = spec.clone();
    same.rope.pairing = RopePairing::Halves;
    if let Some(named) = named {
        same.rope.scaling = named;
    }
    // With YaRN, the context may be the product of the factor and the original context.
    same.context = read.context;
    (read == same && read.context >= spec.context).then_some(json)
}

/// Metadata of a GGUF file.
pub(super) fn to_gguf(config: &ModelConfig, name: Option<&str>) -> Vec<(String, MetaValue)> {
    let spec = &config.spec;
    let architecture = match (config.family, spec.activation) {
        (Family::Llama | Family::Mistral, _) => "llama",
        (Family::Qwen2, _) => "qwen2",
        (Family::Qwen3, _) => "qwen3",
        (Family::MiniCpm, _) => "minicpm",
        (Family::SmolLm3, _) => "smollm3",
        (Family::BitNet, GatedActivation::SiLu) => "bitnet",
        (Family::BitNet, GatedActivation::SquaredReLu) => "bitnet-b1.58",
    };
    // `DecoderSpec::validate` limits every size to 2^24.
    let n = |size: usize| MetaValue::U32(size as u32);
    let mut all = vec![("general.architecture".to_owned(), architecture.into())];
    all.extend(name.map(|name| ("general.name".to_owned(), name.into())));
    let mut add = |key: &str, value: MetaValue| all.push((format!("{architecture}.{key}"), value));
    for (key, size) in [
        ("block_count", spec.layers),
        ("context_length", spec.context),
        ("embedding_length", spec.hidden),
        ("feed_forward_length", spec.intermediate),
        ("attention.head_count", spec.heads),
        ("attention.head_count_kv", spec.kv_heads),
        ("attention.key_length", spec.head_dim),
        ("attention.value_length", spec.head_dim),
        ("rope.dimension_count", spec.head_dim),
        ("vocab_size", spec.vocab),
    ] {
        add(key, n(size));
    }
    add("attention.layer_norm_rms_epsilon", spec.rms_eps.into());
    add("rope.freq_base", spec.rope.theta.into());
    if config.family == Family::MiniCpm {
        add("embedding_scale", spec.factors.embedding.into());
        add("residual_scale", spec.factors.residual.into());
        add("logit_scale", spec.factors.logits.into());
    }
    if let Some(window) = spec.window {
        add("attention.sliding_window", n(window));
    }
    match spec.rope.scaling {
        // The last two are stored as a tensor.
        RopeScaling::None | RopeScaling::Llama3 { .. } | RopeScaling::Factors(_) => {}
        RopeScaling::Linear { factor } => {
            add("rope.scaling.type", "linear".into());
            add("rope.scaling.factor", factor.into());
        }
        RopeScaling::Yarn { factor, beta_fast, beta_slow, original_context, attention_factor } => {
            add("rope.scaling.type", "yarn".into());
            add("rope.scaling.factor", factor.into());
            add("rope.scaling.original_context_length", n(original_context));
            add("rope.scaling.yarn_beta_fast", beta_fast.into());
            add("rope.scaling.yarn_beta_slow", beta_slow.into());
            // Readers of GGUF multiply by `0.1 ln(factor) + 1` themselves.
            add("rope.scaling.attn_factor", (attention_factor / (0.1 * factor.ln() + 1.0)).into());
        }
    }
    all
}

/// Divisors of the rotary frequencies, for a scaling that GGUF stores as a tensor.
pub(super) fn rope_factors(spec: &DecoderSpec) -> Option<Vec<f32>> {
    match &spec.rope.scaling {
        RopeScaling::Factors(factors) => Some(factors.clone()),
        RopeScaling::Llama3 { .. } => {
            let mut plain = spec.rope.clone();
            plain.scaling = RopeScaling::None;
            let pairs =
                plain.frequencies(spec.head_dim).into_iter().zip(spec.rope.frequencies(spec.head_dim));
            Some(pairs.map(|(plain, scaled)| plain / scaled).collect())
        }
        _ => None,
    }
}

/// Llama 3's constants recovered from a list of divisors, or `None` if the list has another origin.
///
/// The largest divisor is the factor. Only the quotients of the other three constants matter, so the two frequency factors are those
/// of every published model, 1 and 4, and the original context follows from the divisors in between.
fn named_factors(rope: &RopeSpec, head_dim: usize) -> Option<RopeScaling> {
    let RopeScaling::Factors(divisors) = &rope.scaling else { return None };
    let factor = divisors.iter().copied().fold(1.0, f32::max);
    let (low, high) = (1.0f32, 4.0f32);
    let mut plain = rope.clone();
    plain.scaling = RopeScaling::None;
    let context_of = |(frequency, divisor): (f32, &f32)| {
        // The share of the plain frequency grows linearly in the rotations over the original context.
        let (factor, divisor) = (f64::from(factor), f64::from(*divisor));
        let kept = (divisor.recip() - factor.recip()) / (1.0 - factor.recip());
        let turns = f64::from(low) + kept * f64::from(high - low);
        let between = divisor > 1.0 && divisor < factor;
        between.then(|| turns * std::f64::consts::TAU / f64::from(frequency))
    };
    let frequencies = plain.frequencies(head_dim);
    let measured = frequencies.into_iter().zip(divisors).find_map(context_of);
    // Without an intermediate divisor, any context between the two groups gives the same list.
    let candidates = match measured {
        Some(context) => vec![context.round() as usize],
        None => (8..=20).map(|power| 1 << power).collect(),
    };
    candidates
        .into_iter()
        .map(|original_context| RopeScaling::Llama3 { factor, low, high, original_context })
        .find(|scaling| {
            let mut scaled = plain.clone();
            scaled.scaling = scaling.clone();
            if factor <= 1.0 || scaled.validate(head_dim).is_err() {
                return false;
            }
            let pairs = scaled.frequencies(head_dim).into_iter().zip(rope.frequencies(head_dim));
            pairs.into_iter().all(|(ours, theirs)| (ours - theirs).abs() <= 1e-6 * theirs)
        })
}

/// The number with the fewest decimals from which `read` makes the same f32 as from `value`.
fn shortest(value: f64, read: impl Fn(f64) -> f32) -> f64 {
    let rounded = (0..12).map(|digits| (value * 10f64.powi(digits)).round() / 10f64.powi(digits));
    rounded.into_iter().find(|&short| read(short) == read(value)).unwrap_or(value)
}

/// The f64 with the shortest decimal that round-trips through this f32, as configurations are written.
pub(super) fn exact(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
