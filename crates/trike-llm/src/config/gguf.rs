//! Metadata of a GGUF file.

use trike_format::{Gguf, MetaValue, TensorSource};
use trike_nn::{Biases, DecoderSpec, GatedActivation, LayerSet, RopeScaling, RopeSpec, ScaleFactors};

use super::{Family, ModelConfig, SpecialIds, keys};
use crate::LlmError;

struct Reader<'a> {
    file: &'a Gguf,
    architecture: &'a str,
}

impl Reader<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn error(&self, key: &str, expected: &str) -> LlmError {
        let got = self.file.metadata().get(key);
        LlmError::Config {
            path: self.file.path().to_owned(),
            key: key.to_owned(),
            expected: expected.to_owned(),
            got: got.map_or("nothing".to_owned(), MetaValue::describe),
        }
    }

    fn unsupported(&self, name: String) -> LlmError {
        LlmError::Unsupported {
            path: self.file.path().to_owned(),
            name,
            remedy: "use a checkpoint without it, or wait for a version of Trike that has it".to_owned(),
        }
    }

    fn size(&self, key: &str) -> Result<Option<usize>, LlmError> {
        let key = self.key(key);
        let Some(value) = self.file.metadata().get(&key) else { return Ok(None) };
        // Some converters write one head count per layer; supported when all are equal.
        let number = match value.as_array() {
            None => value.as_i64(),
            Some(_) => {
                let list = self.file.i64s(&key)?.unwrap_or_default();
                list.first().copied().filter(|n| list.iter().all(|m| m == n))
            }
        };
        match number.and_then(|n| usize::try_from(n).ok()) {
            Some(n) if n > 0 => Ok(Some(n)),
            _ => Err(self.error(&key, "a positive integer, the same for every layer")),
        }
    }

    fn required(&self, key: &str) -> Result<usize, LlmError> {
        self.size(key)?.ok_or_else(|| self.error(&self.key(key), "a positive integer"))
    }
}

pub(super) fn config(file: &Gguf) -> Result<ModelConfig, LlmError> {
    let architecture =
        file.str("general.architecture")?.ok_or_else(|| file.missing_key("general.architecture"))?;
    let r = Reader { file, architecture };
    // The first BitNet models use a SiLU gate, those of 2025 squared ReLU.
    let (family, activation) = match architecture {
        "llama" => (Family::Llama, GatedActivation::SiLu),
        "qwen2" => (Family::Qwen2, GatedActivation::SiLu),
        "qwen3" => (Family::Qwen3, GatedActivation::SiLu),
        "minicpm" => (Family::MiniCpm, GatedActivation::SiLu),
        "smollm3" => (Family::SmolLm3, GatedActivation::SiLu),
        "bitnet" => (Family::BitNet, GatedActivation::SiLu),
        "bitnet-b1.58" | "bitnet-25" => (Family::BitNet, GatedActivation::SquaredReLu),
        _ => return Err(r.unsupported(format!("the architecture {architecture}"))),
    };
    check_keys(&r, family)?;
    if family == Family::SmolLm3 && window(&r)?.is_some() {
        return Err(r.unsupported("a sliding window in SmolLM3".to_owned()));
    }
    let hidden = r.required("embedding_length")?;
    let heads = r.required("attention.head_count")?;
    let head_dim = r.size("attention.key_length")?.unwrap_or(hidden / heads);
    refuse_extras(&r, head_dim)?;
    let embedding = file.info("token_embd.weight").and_then(|t| t.shape.first().copied());
    let vocab = embedding.ok_or_else(|| {
        // A GGUF file may contain a vocabulary without weights.
        LlmError::Config {
            path: file.path().to_owned(),
            key: "token_embd.weight".to_owned(),
            expected: "a tensor".to_owned(),
            got: "nothing: this file contains no model weights".to_owned(),
        }
    })?;
    let eps = r.key("attention.layer_norm_rms_epsilon");
    let has = |name: &str| file.info(name).is_some();
    let layers = r.required("block_count")?;
    let spec = DecoderSpec {
        hidden,
        intermediate: r.required("feed_forward_length")?,
        layers,
        heads,
        kv_heads: r.size("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        vocab,
        context: r.required("context_length")?,
        rms_eps: file.f32(&eps)?.ok_or_else(|| r.error(&eps, "a number"))?,
        rope: rope(&r, family, head_dim)?,
        activation,
        tied_head: !has("output.weight"),
        window: window(&r)?,
        window_layers: LayerSet::All,
        rope_layers: family.gguf_rope_layers(layers),
        biases: Biases {
            qkv: has("blk.0.attn_q.bias"),
            output: has("blk.0.attn_output.bias"),
            mlp: has("blk.0.ffn_gate.bias"),
        },
        qk_norm: has("blk.0.attn_q_norm.weight"),
        sub_norms: has("blk.0.attn_sub_norm.weight"),
        factors: match family {
            Family::MiniCpm => factors(&r, hidden, layers)?,
            _ => ScaleFactors::default(),
        },
    };
    spec.validate()?;
    let special = SpecialIds {
        bos: file.u32("tokenizer.ggml.bos_token_id")?,
        eos: [file.u32("tokenizer.ggml.eos_token_id")?, file.u32("tokenizer.ggml.eot_token_id")?]
            .into_iter()
            .flatten()
            .collect(),
    };
    Ok(ModelConfig { architecture: architecture.to_owned(), family, spec, special })
}

/// The factors of MiniCPM. Files of older converters lack them and are of the first models: scale_emb 12, scale_depth 1.4 and
/// dim_model_base 256. (llama.cpp multiplies by the last quotient where these models divide.)
fn factors(r: &Reader<'_>, hidden: usize, layers: usize) -> Result<ScaleFactors, LlmError> {
    let number = |key: &str, default: f32| Ok::<_, LlmError>(r.file.f32(&r.key(key))?.unwrap_or(default));
    Ok(ScaleFactors {
        embedding: number("embedding_scale", 12.0)?,
        residual: number("residual_scale", 1.4 / (layers as f32).sqrt())?,
        logits: number("logit_scale", hidden as f32 / 256.0)?,
    })
}

/// A window of 0 means no window.
fn window(r: &Reader<'_>) -> Result<Option<usize>, LlmError> {
    match r.file.metadata().get(&r.key("attention.sliding_window")).and_then(MetaValue::as_i64) {
        Some(0) => Ok(None),
        _ => r.size("attention.sliding_window"),
    }
}

/// Refuses keys that change the result and are not implemented, and unknown keys of the architecture.
fn check_keys(r: &Reader<'_>, family: Family) -> Result<(), LlmError> {
    let own = r.key("");
    for (key, value) in r.file.metadata().iter() {
        if let Some(short) = key.strip_prefix(&own) {
            keys::ARCHITECTURE.check_meta(r.file.path(), Some(family), (short, key), value)?;
        } else if keys::NAMESPACES.knows(key) && !key.starts_with(SAMPLING) {
            keys::NAMESPACES.check_meta(r.file.path(), None, (key, key), value)?;
        }
    }
    match r.file.str("general.type")? {
        None | Some("model") => Ok(()),
        Some(kind) => Err(r.unsupported(format!("a file of the type {kind} (general.type)"))),
    }
}

/// Sampling defaults, checked before text is sampled.
const SAMPLING: &str = "general.sampling.";

/// RoPE settings. As in llama.cpp, a factor without a type is linear, older files name it `rope.scale_linear`, and 0 means no
/// scaling.
fn rope(r: &Reader<'_>, family: Family, head_dim: usize) -> Result<RopeSpec, LlmError> {
    let number = |key: &str| r.file.f32(&r.key(key));
    let theta = number("rope.freq_base")?.unwrap_or(10_000.0);
    let mut spec = RopeSpec::new(theta, family.gguf_pairing());
    let old = number("rope.scale_linear")?;
    let factor = number("rope.scaling.factor")?.or(old).filter(|factor| *factor != 0.0);
    let attention = number("rope.scaling.attn_factor")?.unwrap_or(1.0);
    let mix = number("rope.scaling.yarn_ext_factor")?.filter(|mix| *mix >= 0.0);
    let key = r.key("rope.scaling.type");
    let kind = r.file.str(&key)?.unwrap_or("linear");
    spec.scaling = match (kind, factor) {
        ("none", _) | ("linear", None) | ("longrope", None) => RopeScaling::None,
        ("linear", Some(factor)) => RopeScaling::Linear { factor },
        ("yarn", factor) => {
            let factor = factor.unwrap_or(1.0);
            let original = match r.size("rope.scaling.original_context_length")? {
                Some(original) => original,
                None => r.required("context_length")?,
            };
            RopeScaling::Yarn {
                factor,
                beta_fast: number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                original_context: original,
                attention_factor: attention * (0.1 * factor.max(1.0).ln() + 1.0),
            }
        }
        (kind, _) => return Err(r.unsupported(format!("{key} {kind}"))),
    };
    if kind == "longrope" {
        if [SHORT, LONG].into_iter().any(|tensor| r.file.info(tensor).is_none()) {
            return Err(r.unsupported(format!("{key} longrope without the tensors {SHORT} and {LONG}")));
        }
        spec.scaling = RopeScaling::Factors(longrope(r, head_dim)?);
    } else if let Some(tensor) = [LONG, SHORT].into_iter().find(|tensor| r.file.info(tensor).is_some()) {
        return Err(r.unsupported(format!("RoPE scaling by the tensor {tensor} with {key} {kind}")));
    }
    let yarn = matches!(spec.scaling, RopeScaling::Yarn { .. });
    if attention != 1.0 && !yarn {
        let key = r.key("rope.scaling.attn_factor");
        return Err(r.unsupported(format!("{key} {attention} without YaRN")));
    }
    // The mix of YaRN's interpolated and extrapolated frequencies: only the standard value is implemented.
    if mix.is_some_and(|mix| mix != if yarn { 1.0 } else { 0.0 }) {
        return Err(r.unsupported(r.key("rope.scaling.yarn_ext_factor")));
    }
    // Llama 3's RoPE scaling is stored as a tensor of divisors.
    if r.file.info(FACTORS).is_some() {
        let linear = match spec.scaling {
            RopeScaling::None => 1.0,
            RopeScaling::Linear { factor } => factor,
            _ => return Err(r.unsupported(format!("{key} {kind} together with the tensor {FACTORS}"))),
        };
        let mut factors = divisors(r, FACTORS, head_dim)?;
        factors.iter_mut().for_each(|factor| *factor *= linear);
        spec.scaling = RopeScaling::Factors(factors);
    }
    Ok(spec)
}

/// A tensor of divisors of the rotary frequencies.
fn divisors(r: &Reader<'_>, name: &str, head_dim: usize) -> Result<Vec<f32>, LlmError> {
    let factors = r.file.load(name)?.into_f32();
    if factors.len() == head_dim / 2 {
        return Ok(factors);
    }
    Err(LlmError::Config {
        path: r.file.path().to_owned(),
        key: name.to_owned(),
        expected: format!("{} factors", head_dim / 2),
        got: factors.len().to_string(),
    })
}

/// The divisors of LongRoPE, if one list serves every length: when both lists are equal, or when the context length does not exceed
/// the original context.
fn longrope(r: &Reader<'_>, head_dim: usize) -> Result<Vec<f32>, LlmError> {
    let [short, long] = [divisors(r, SHORT, head_dim)?, divisors(r, LONG, head_dim)?];
    let context = r.required("context_length")?;
    let original = r.size("rope.scaling.original_context_length")?.unwrap_or(context);
    if short != long && context > original {
        let name = format!("longrope with another {LONG} past the original context of {original} tokens");
        return Err(r.unsupported(name));
    }
    Ok(short)
}

/// The tensors of LongRoPE: for texts within the original context, and for longer ones.
const SHORT: &str = "rope_factors_short.weight";
const LONG: &str = "rope_factors_long.weight";

/// The tensor that divides the rotary frequencies.
pub(crate) const FACTORS: &str = "rope_freqs.weight";

/// Refuses features that the decoder block does not implement.
fn refuse_extras(r: &Reader<'_>, head_dim: usize) -> Result<(), LlmError> {
    for (key, width) in [("rope.dimension_count", "RoPE"), ("attention.value_length", "values")] {
        match r.size(key)? {
            Some(n) if n != head_dim => {
                return Err(r.unsupported(format!("{} {n} with heads of {head_dim} ({width})", r.key(key))));
            }
            _ => {}
        }
    }
    Ok(())
}
