//! Metadata of a GGUF file.

use trike_format::{Gguf, MetaValue, TensorSource};
use trike_nn::{Biases, DecoderSpec, GatedActivation, RopeScaling, RopeSpec};

use super::{Family, ModelConfig, SpecialIds};
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
        "bitnet" => (Family::BitNet, GatedActivation::SiLu),
        "bitnet-b1.58" | "bitnet-25" => (Family::BitNet, GatedActivation::SquaredReLu),
        _ => return Err(r.unsupported(format!("the architecture {architecture}"))),
    };
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
    let spec = DecoderSpec {
        hidden,
        intermediate: r.required("feed_forward_length")?,
        layers: r.required("block_count")?,
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
        biases: Biases {
            qkv: has("blk.0.attn_q.bias"),
            output: has("blk.0.attn_output.bias"),
            mlp: has("blk.0.ffn_gate.bias"),
        },
        qk_norm: has("blk.0.attn_q_norm.weight"),
        sub_norms: has("blk.0.attn_sub_norm.weight"),
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

/// A window of 0 means none.
fn window(r: &Reader<'_>) -> Result<Option<usize>, LlmError> {
    match r.file.metadata().get(&r.key("attention.sliding_window")).and_then(MetaValue::as_i64) {
        Some(0) => Ok(None),
        _ => r.size("attention.sliding_window"),
    }
}

fn rope(r: &Reader<'_>, family: Family, head_dim: usize) -> Result<RopeSpec, LlmError> {
    let theta = r.file.f32(&r.key("rope.freq_base"))?.unwrap_or(10_000.0);
    let mut spec = RopeSpec::new(theta, family.gguf_pairing());
    let key = r.key("rope.scaling.type");
    let factor = r.key("rope.scaling.factor");
    let factor = || r.file.f32(&factor)?.ok_or_else(|| r.error(&factor, "a number"));
    spec.scaling = match r.file.str(&key)? {
        None | Some("none") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: factor()? },
        Some("yarn") => {
            let factor = factor()?;
            let attention = r.file.f32(&r.key("rope.scaling.attn_factor"))?.unwrap_or(1.0);
            RopeScaling::Yarn {
                factor,
                beta_fast: r.file.f32(&r.key("rope.scaling.yarn_beta_fast"))?.unwrap_or(32.0),
                beta_slow: r.file.f32(&r.key("rope.scaling.yarn_beta_slow"))?.unwrap_or(1.0),
                original_context: r.required("rope.scaling.original_context_length")?,
                attention_factor: attention * (0.1 * factor.max(1.0).ln() + 1.0),
            }
        }
        Some(kind) => return Err(r.unsupported(format!("{key} {kind}"))),
    };
    // Llama 3's RoPE scaling is stored as a tensor of divisors.
    if r.file.info(FACTORS).is_some() {
        if spec.scaling != RopeScaling::None {
            return Err(r.unsupported(format!("{key} together with the tensor {FACTORS}")));
        }
        let factors = r.file.load(FACTORS)?.into_f32();
        if factors.len() != head_dim / 2 {
            return Err(LlmError::Config {
                path: r.file.path().to_owned(),
                key: FACTORS.to_owned(),
                expected: format!("{} factors", head_dim / 2),
                got: factors.len().to_string(),
            });
        }
        spec.scaling = RopeScaling::Factors(factors);
    }
    Ok(spec)
}

/// The tensor that divides the rotary frequencies.
pub(crate) const FACTORS: &str = "rope_freqs.weight";

/// Refuses features that the decoder block does not implement.
fn refuse_extras(r: &Reader<'_>, head_dim: usize) -> Result<(), LlmError> {
    let long = "rope_factors_long.weight";
    if r.file.info(long).is_some() {
        return Err(r.unsupported(format!("RoPE scaling by the tensor {long}")));
    }
    if r.file.metadata().get(&r.key("expert_count")).and_then(MetaValue::as_i64).is_some_and(|n| n > 0) {
        return Err(r.unsupported(r.key("expert_count")));
    }
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
