//! A checkpoint's configuration, read from any format.

mod gguf;
mod hf;
pub(crate) mod keys;

pub(crate) use gguf::FACTORS as ROPE_FACTORS;

use std::path::Path;

use trike_format::Llama2c;
use trike_nn::{ActivationPrecision, DecoderSpec, LayerSet, RopePairing, RopeSpec};

use crate::LlmError;

/// Ids of the tokens that begin and end text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Prepended to a text, when the model was trained with it.
    pub bos: Option<u32>,
    /// Each of these ends a text.
    pub eos: Vec<u32>,
}

/// The families of decoders that Trike runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Family {
    /// Llama, and checkpoints of llama2.c.
    Llama,
    /// Llama with a sliding window.
    Mistral,
    /// Llama with biases on queries, keys and values.
    Qwen2,
    /// Llama with a norm over each query and key head.
    Qwen3,
    /// Ternary, with sub-norms and one int8 activation scale per token.
    BitNet,
    /// Llama with factors of the embedding, the residual stream and the logits.
    MiniCpm,
    /// Llama in which some layers do not rotate queries and keys.
    SmolLm3,
}

impl Family {
    /// Pairing of the dimensions that RoPE rotates together in a GGUF file of this family.
    pub(crate) fn gguf_pairing(self) -> RopePairing {
        match self {
            Self::Llama | Self::Mistral | Self::MiniCpm | Self::SmolLm3 => RopePairing::Adjacent,
            Self::Qwen2 | Self::Qwen3 | Self::BitNet => RopePairing::Halves,
        }
    }

    /// The layers with RoPE in a GGUF file of this family, where no key lists them.
    pub(crate) fn gguf_rope_layers(self, layers: usize) -> LayerSet {
        match self {
            Self::SmolLm3 => all_but_every(ROPE_INTERVAL, layers),
            _ => LayerSet::All,
        }
    }

    /// The family's name in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Llama => "Llama",
            Self::Mistral => "Mistral",
            Self::Qwen2 => "Qwen2",
            Self::Qwen3 => "Qwen3",
            Self::BitNet => "BitNet",
            Self::MiniCpm => "MiniCPM",
            Self::SmolLm3 => "SmolLM3",
        }
    }

    /// The activation precision of ternary layers that models of this family are trained with; `None` if they are trained with
    /// unquantized activations.
    pub fn trained_activations(self) -> Option<ActivationPrecision> {
        match self {
            Self::BitNet => Some(ActivationPrecision::Int8PerToken),
            _ => None,
        }
    }
}

/// SmolLM3 has no RoPE in the last of as many layers, by default.
const ROPE_INTERVAL: usize = 4;

/// All layers but the last of every `interval`.
fn all_but_every(interval: usize, layers: usize) -> LayerSet {
    LayerSet::from_flags((1..=layers).map(|number| !number.is_multiple_of(interval)))
}

/// The configuration of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Name of the architecture, as the file spells it.
    pub architecture: String,
    /// The family that this architecture belongs to.
    pub family: Family,
    /// Sizes and constants.
    pub spec: DecoderSpec,
    /// Special tokens, when the configuration names them.
    pub special: SpecialIds,
}

impl ModelConfig {
    /// From a `config.json`; `path` is only named in errors.
    ///
    /// # Errors
    ///
    /// [`LlmError::Unsupported`] for an architecture, RoPE scaling or bias that is not implemented; [`LlmError::Config`] for a
    /// missing or invalid value.
    pub fn from_hf(path: &Path, config: &serde_json::Value) -> Result<Self, LlmError> {
        hf::config(path, config)
    }

    /// From the metadata of a GGUF file.
    ///
    /// # Errors
    ///
    /// As [`from_hf`](Self::from_hf).
    pub fn from_gguf(file: &trike_format::Gguf) -> Result<Self, LlmError> {
        gguf::config(file)
    }

    /// From the header of a llama2.c checkpoint, whose constants are fixed: theta 10,000, epsilon 1e-5, adjacent
    /// pairs, BOS 1 and EOS 2; BOS ends a text as well, since it separates the stories of the training data.
    ///
    /// # Errors
    ///
    /// [`LlmError::Nn`] when the sizes are inconsistent.
    pub fn from_llama2c(file: &Llama2c) -> Result<Self, LlmError> {
        let h = file.config();
        let spec = DecoderSpec {
            intermediate: h.hidden_dim,
            kv_heads: h.n_kv_heads,
            head_dim: h.head_dim(),
            context: h.seq_len,
            rope: RopeSpec::new(10_000.0, RopePairing::Adjacent),
            tied_head: h.shared_classifier,
            ..DecoderSpec::llama(h.dim, h.n_layers, h.n_heads, h.vocab_size)
        };
        spec.validate()?;
        Ok(Self {
            architecture: "llama2.c".to_owned(),
            family: Family::Llama,
            spec,
            special: SpecialIds { bos: Some(1), eos: vec![2, 1] },
        })
    }
}
