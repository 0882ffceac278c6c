//! Metadata of a GGUF file.

use trike_format::{Gguf, MetaValue, TensorSource};
use trike_nn::{DecoderSpec, GatedActivation, RopePairing, RopeSpec};

use super::{ModelConfig, SpecialIds};
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
        // Some converters write one head count a layer; that is a size when all are the same.
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
    if architecture != "llama" {
        return Err(r.unsupported(format!("the architecture {architecture}")));
    }
    let hidden = r.required("embedding_length")?;
    let heads = r.required("attention.head_count")?;
    let head_dim = r.size("attention.key_length")?.unwrap_or(hidden / heads);
    refuse_extras(&r, head_dim)?;
    let embedding = file.info("token_embd.weight").and_then(|t| t.shape.first().copied());
    let vocab = embedding.ok_or_else(|| {
        // A vocabulary without weights is a GGUF file too.
        LlmError::Config {
            path: file.path().to_owned(),
            key: "token_embd.weight".to_owned(),
            expected: "a tensor".to_owned(),
            got: "nothing: this file holds no model".to_owned(),
        }
    })?;
    let eps = r.key("attention.layer_norm_rms_epsilon");
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
        rope: RopeSpec {
            theta: file.f32(&r.key("rope.freq_base"))?.unwrap_or(10_000.0),
            pairing: RopePairing::Adjacent,
        },
        activation: GatedActivation::SiLu,
        tied_head: file.info("output.weight").is_none(),
    };
    spec.validate()?;
    let special = SpecialIds {
        bos: file.u32("tokenizer.ggml.bos_token_id")?,
        eos: [file.u32("tokenizer.ggml.eos_token_id")?, file.u32("tokenizer.ggml.eot_token_id")?]
            .into_iter()
            .flatten()
            .collect(),
    };
    Ok(ModelConfig { architecture: architecture.to_owned(), spec, special })
}

/// What would change the arithmetic and is not in the decoder block.
fn refuse_extras(r: &Reader<'_>, head_dim: usize) -> Result<(), LlmError> {
    let scaling = r.key("rope.scaling.type");
    if let Some(kind) = r.file.str(&scaling)?.filter(|kind| *kind != "none") {
        return Err(r.unsupported(format!("{scaling} {kind}")));
    }
    for tensor in ["rope_freqs.weight", "rope_factors_long.weight"] {
        if r.file.info(tensor).is_some() {
            return Err(r.unsupported(format!("RoPE scaling by the tensor {tensor}")));
        }
    }
    for key in ["expert_count", "attention.sliding_window"] {
        if r.file.metadata().get(&r.key(key)).and_then(MetaValue::as_i64).is_some_and(|n| n > 0) {
            return Err(r.unsupported(r.key(key)));
        }
    }
    if let Some(tensor) = r.file.tensors().iter().find(|t| t.name.ends_with(".bias")) {
        return Err(r.unsupported(format!("the bias {}", tensor.name)));
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
