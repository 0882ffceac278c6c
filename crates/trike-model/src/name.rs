//! Names of a decoder's weights.

use std::fmt;

/// Name of a weight of a decoder. `Display` gives the name in HuggingFace checkpoints.
///
/// ```
/// use trike_model::WeightName;
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
    /// The weights that a block can have, in the order of the forward pass.
    pub fn of_block(layer: usize) -> [Self; 20] {
        [
            Self::AttentionNorm,
            Self::Query,
            Self::Key,
            Self::Value,
            Self::QueryBias,
            Self::KeyBias,
            Self::ValueBias,
            Self::QueryNorm,
            Self::KeyNorm,
            Self::AttentionSubNorm,
            Self::Output,
            Self::OutputBias,
            Self::MlpNorm,
            Self::Gate,
            Self::Up,
            Self::GateBias,
            Self::UpBias,
            Self::MlpSubNorm,
            Self::Down,
            Self::DownBias,
        ]
        .map(|name| name(layer))
    }

    /// The matrices of a block: query, key, value, output, gate, up, down.
    pub fn matrices(layer: usize) -> [Self; 7] {
        [Self::Query, Self::Key, Self::Value, Self::Output, Self::Gate, Self::Up, Self::Down]
            .map(|name| name(layer))
    }

    /// The norms that a block can have: of attention, queries, keys, attention's output, the MLP and the gated activation.
    pub fn norms(layer: usize) -> [Self; 6] {
        [
            Self::AttentionNorm,
            Self::QueryNorm,
            Self::KeyNorm,
            Self::AttentionSubNorm,
            Self::MlpNorm,
            Self::MlpSubNorm,
        ]
        .map(|name| name(layer))
    }

    /// Index in [`matrices`](Self::matrices); `None` for any other weight.
    pub fn matrix_index(self) -> Option<usize> {
        Self::matrices(self.layer()?).iter().position(|&name| name == self)
    }

    /// Index in [`norms`](Self::norms); `None` for any other weight.
    pub fn norm_index(self) -> Option<usize> {
        Self::norms(self.layer()?).iter().position(|&name| name == self)
    }

    /// Whether it is the matrix of a linear layer whose output is added to the residual stream.
    pub fn adds_to_stream(self) -> bool {
        matches!(self, Self::Output(_) | Self::Down(_))
    }

    /// The bias of the same linear layer; `None` unless this is a matrix of a block.
    pub fn bias(self) -> Option<Self> {
        Some(match self {
            Self::Query(layer) => Self::QueryBias(layer),
            Self::Key(layer) => Self::KeyBias(layer),
            Self::Value(layer) => Self::ValueBias(layer),
            Self::Output(layer) => Self::OutputBias(layer),
            Self::Gate(layer) => Self::GateBias(layer),
            Self::Up(layer) => Self::UpBias(layer),
            Self::Down(layer) => Self::DownBias(layer),
            _ => return None,
        })
    }

    /// The matrix of the linear layer that this matrix or bias belongs to; `None` for norms, embedding and head.
    pub fn matrix(self) -> Option<Self> {
        let mut all = Self::matrices(self.layer()?).into_iter();
        all.find(|&name| name == self || name.bias() == Some(self))
    }

    /// Whether this is a bias.
    pub fn is_bias(self) -> bool {
        self.matrix().is_some_and(|name| name != self)
    }

    /// The hook point of the block at which a matrix reads its input.
    pub fn read_at(self) -> Option<HookPoint> {
        Some(match self {
            Self::Query(_) | Self::Key(_) | Self::Value(_) => HookPoint::Attention,
            Self::Output(_) => HookPoint::Output,
            Self::Gate(_) | Self::Up(_) => HookPoint::Mlp,
            Self::Down(_) => HookPoint::Down,
            _ => return None,
        })
    }

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

    /// The layer of the weight; `None` for the embedding, the final norm and the head.
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

/// A point of a block at which linear layers read their input, in the order of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HookPoint {
    /// The normed residual stream, read by the query, key and value projections.
    Attention,
    /// The output of attention, read by the output projection.
    Output,
    /// The normed residual stream, read by the gate and up projections.
    Mlp,
    /// The gated activation, read by the down projection.
    Down,
}

impl HookPoint {
    /// All points, in order.
    pub const ALL: [Self; 4] = [Self::Attention, Self::Output, Self::Mlp, Self::Down];

    /// The matrices of a layer that read this input.
    pub fn matrices(self, layer: usize) -> Vec<WeightName> {
        WeightName::matrices(layer).into_iter().filter(|name| name.read_at() == Some(self)).collect()
    }

    /// Whether the output of the matrices is added to the residual stream directly.
    pub fn adds_to_residual(self) -> bool {
        matches!(self, Self::Output | Self::Down)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_a_block_agree() {
        let all = WeightName::of_block(3);
        let (matrices, norms) = (WeightName::matrices(3), WeightName::norms(3));
        for (i, name) in matrices.into_iter().enumerate() {
            assert_eq!((name.matrix_index(), name.norm_index()), (Some(i), None));
            assert!(name.is_block_matrix() && !name.is_vector() && !name.is_bias());
            assert_eq!((name.matrix(), name.bias().and_then(WeightName::matrix)), (Some(name), Some(name)));
            let point = name.read_at().expect("a point");
            assert!(point.matrices(3).contains(&name));
            assert!(
                name.bias().is_some_and(|bias| bias.is_bias() && bias.is_vector() && all.contains(&bias))
            );
        }
        for (i, name) in norms.into_iter().enumerate() {
            assert_eq!((name.norm_index(), name.matrix_index(), name.bias()), (Some(i), None, None));
            assert!(name.is_vector() && !name.is_bias() && name.matrix().is_none());
        }
        assert_eq!(all.len(), 2 * matrices.len() + norms.len());
        let mut names: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert!(all.iter().all(|name| name.layer() == Some(3)));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all.len());
        let read: Vec<_> = HookPoint::ALL.into_iter().flat_map(|point| point.matrices(3)).collect();
        assert_eq!(read, matrices);
    }
}
