//! Names and source of a decoder's weights.

use std::fmt;

use trike_core::Tensor;
use trike_cpu::{FileRange, Tiles};

use crate::NnError;

/// Name of a weight of a decoder. `Display` gives the name in HuggingFace checkpoints.
///
/// ```
/// use trike_nn::WeightName;
///
/// assert_eq!(WeightName::Query(3).to_string(), "model.layers.3.self_attn.q_proj.weight");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightName {
    /// Token embedding, `vocab x hidden`.
    Embedding,
    /// RMSNorm before attention of a layer, `hidden`.
    AttentionNorm(usize),
    /// Query projection, `heads * head_dim x hidden`.
    Query(usize),
    /// Key projection, `kv_heads * head_dim x hidden`.
    Key(usize),
    /// Value projection, `kv_heads * head_dim x hidden`.
    Value(usize),
    /// Output projection of attention, `hidden x heads * head_dim`.
    Output(usize),
    /// RMSNorm before the MLP, `hidden`.
    MlpNorm(usize),
    /// Gate projection, `intermediate x hidden`.
    Gate(usize),
    /// Up projection, `intermediate x hidden`.
    Up(usize),
    /// Down projection, `hidden x intermediate`.
    Down(usize),
    /// Bias of the query projection, `heads * head_dim`.
    QueryBias(usize),
    /// Bias of the key projection, `kv_heads * head_dim`.
    KeyBias(usize),
    /// Bias of the value projection, `kv_heads * head_dim`.
    ValueBias(usize),
    /// Bias of the output projection of attention, `hidden`.
    OutputBias(usize),
    /// Bias of the gate projection, `intermediate`.
    GateBias(usize),
    /// Bias of the up projection, `intermediate`.
    UpBias(usize),
    /// Bias of the down projection, `hidden`.
    DownBias(usize),
    /// RMSNorm of every query head, `head_dim`.
    QueryNorm(usize),
    /// RMSNorm of every key head, `head_dim`.
    KeyNorm(usize),
    /// RMSNorm over the output of attention, `heads * head_dim`.
    AttentionSubNorm(usize),
    /// RMSNorm over the gated activation, `intermediate`.
    MlpSubNorm(usize),
    /// Final RMSNorm, `hidden`.
    FinalNorm,
    /// Output head, `vocab x hidden`, unless tied to the embedding.
    Head,
}

impl WeightName {
    /// Whether this is one of the seven linear layers of a block, which are ternary in a ternary model.
    pub fn is_block_matrix(self) -> bool {
        matches!(
            self,
            Self::Query(_)
                | Self::Key(_)
                | Self::Value(_)
                | Self::Output(_)
                | Self::Gate(_)
                | Self::Up(_)
                | Self::Down(_)
        )
    }

    /// The layer that it belongs to; `None` for the embedding, the final norm and the head.
    pub fn layer(self) -> Option<usize> {
        match self {
            Self::Embedding | Self::FinalNorm | Self::Head => None,
            Self::AttentionNorm(layer)
            | Self::Query(layer)
            | Self::Key(layer)
            | Self::Value(layer)
            | Self::Output(layer)
            | Self::MlpNorm(layer)
            | Self::Gate(layer)
            | Self::Up(layer)
            | Self::Down(layer)
            | Self::QueryBias(layer)
            | Self::KeyBias(layer)
            | Self::ValueBias(layer)
            | Self::OutputBias(layer)
            | Self::GateBias(layer)
            | Self::UpBias(layer)
            | Self::DownBias(layer)
            | Self::QueryNorm(layer)
            | Self::KeyNorm(layer)
            | Self::AttentionSubNorm(layer)
            | Self::MlpSubNorm(layer) => Some(layer),
        }
    }

    /// Whether this is a norm or a bias.
    pub fn is_vector(self) -> bool {
        !self.is_block_matrix() && !matches!(self, Self::Embedding | Self::Head)
    }
}

impl fmt::Display for WeightName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layer, rest) = match self {
            Self::Embedding => return f.pad("model.embed_tokens.weight"),
            Self::FinalNorm => return f.pad("model.norm.weight"),
            Self::Head => return f.pad("lm_head.weight"),
            Self::AttentionNorm(l) => (l, "input_layernorm"),
            Self::Query(l) => (l, "self_attn.q_proj"),
            Self::Key(l) => (l, "self_attn.k_proj"),
            Self::Value(l) => (l, "self_attn.v_proj"),
            Self::Output(l) => (l, "self_attn.o_proj"),
            Self::MlpNorm(l) => (l, "post_attention_layernorm"),
            Self::Gate(l) => (l, "mlp.gate_proj"),
            Self::Up(l) => (l, "mlp.up_proj"),
            Self::Down(l) => (l, "mlp.down_proj"),
            Self::QueryNorm(l) => (l, "self_attn.q_norm"),
            Self::KeyNorm(l) => (l, "self_attn.k_norm"),
            Self::AttentionSubNorm(l) => (l, "self_attn.attn_sub_norm"),
            Self::MlpSubNorm(l) => (l, "mlp.ffn_sub_norm"),
            Self::QueryBias(l) => return bias(f, *l, "self_attn.q_proj"),
            Self::KeyBias(l) => return bias(f, *l, "self_attn.k_proj"),
            Self::ValueBias(l) => return bias(f, *l, "self_attn.v_proj"),
            Self::OutputBias(l) => return bias(f, *l, "self_attn.o_proj"),
            Self::GateBias(l) => return bias(f, *l, "mlp.gate_proj"),
            Self::UpBias(l) => return bias(f, *l, "mlp.up_proj"),
            Self::DownBias(l) => return bias(f, *l, "mlp.down_proj"),
        };
        f.pad(&format!("model.layers.{layer}.{rest}.weight"))
    }
}

fn bias(f: &mut fmt::Formatter<'_>, layer: usize, rest: &str) -> fmt::Result {
    f.pad(&format!("model.layers.{layer}.{rest}.bias"))
}

/// Source of a decoder's weights.
pub trait DecoderWeights {
    /// A matrix.
    ///
    /// # Errors
    ///
    /// [`NnError::Load`] when it is missing or cannot be read.
    fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError>;

    /// A matrix that the source stores in the order of the host kernels, in a mapped file; `None` for every other one. A backend
    /// that cannot use it gets the [`matrix`](Self::matrix).
    ///
    /// # Errors
    ///
    /// As [`matrix`](Self::matrix).
    fn tiles(&mut self, name: WeightName) -> Result<Option<Tiles<FileRange>>, NnError> {
        let _ = name;
        Ok(None)
    }

    /// The weights of a norm, or a bias.
    ///
    /// # Errors
    ///
    /// As [`matrix`](Self::matrix).
    fn vector(&mut self, name: WeightName) -> Result<Vec<f32>, NnError>;
}
