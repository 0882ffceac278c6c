//! The architecture of a decoder, read from a checkpoint's configuration.

use trike_core::{AttentionSpec, GatedActivation, RopePairing, RopeSpec, SpecError};

use crate::{AttentionLayer, LayerSet, LayerSpec, Mixer, Mlp, WeightName};

/// Linear layers that add a bias to their output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Biases {
    /// Query, key and value projections (Qwen2).
    pub qkv: bool,
    /// Output projection of attention.
    pub output: bool,
    /// All three projections of the MLP.
    pub mlp: bool,
}

/// Constants that scale the activations of a decoder (Yang et al., 2022; MiniCPM); all are 1 in other families.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleFactors {
    /// Multiplies the embedding's rows.
    pub embedding: f32,
    /// Multiplies the outputs of attention and the MLP of every block before they are added to the residual stream.
    pub residual: f32,
    /// Divides the logits.
    pub logits: f32,
}

impl Default for ScaleFactors {
    fn default() -> Self {
        Self { embedding: 1.0, residual: 1.0, logits: 1.0 }
    }
}

/// Sizes and constants of a decoder; all counts are elements.
///
/// The flags cover the supported model families: Llama uses none of them, Mistral a window, Qwen2 biases, Qwen3
/// query and key norms, BitNet-b1.58 sub-norms and squared ReLU, MiniCPM factors, SmolLM3 layers without RoPE.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderSpec {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Inner width of the gated MLP.
    pub intermediate: usize,
    /// Decoder blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads` (grouped-query attention).
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Vocabulary size: rows of the embedding and of the LM head.
    pub vocab: usize,
    /// Context length of the model, in tokens.
    pub context: usize,
    /// Added to the mean square in every RMSNorm.
    pub rms_eps: f32,
    /// Rotary embedding.
    pub rope: RopeSpec,
    /// Activation of the gated MLP.
    pub activation: GatedActivation,
    /// Whether the LM head is the embedding matrix.
    pub tied_head: bool,
    /// Sliding window of [`window_layers`](Self::window_layers): positions that a query attends to, its own included; all when `None`.
    pub window: Option<usize>,
    /// The layers with the sliding window; the others attend to all positions.
    pub window_layers: LayerSet,
    /// The layers that apply RoPE to queries and keys; in the others, attention has no positions (NoPE).
    pub rope_layers: LayerSet,
    /// Biases of linear layers.
    pub biases: Biases,
    /// Whether an RMSNorm of width `head_dim` is applied to every query and key head before RoPE.
    pub qk_norm: bool,
    /// Whether an RMSNorm is applied to the outputs of attention and of the gated activation before their projections.
    pub sub_norms: bool,
    /// Factors of the embedding, the residual stream and the logits.
    pub factors: ScaleFactors,
}

/// Largest value accepted for any size, so that products of two fit in 64 bits and a hostile configuration
/// cannot request absurdly large buffers. The largest published vocabularies and widths are under 2^20.
const MAX_SIZE: usize = 1 << 24;

impl DecoderSpec {
    /// A Llama: `layers` blocks of width `hidden` with `heads` heads, a vocabulary of `vocab`. All other fields have defaults:
    /// an MLP of `4 * hidden`, as many key/value heads as query heads, a context of 2048, a separate LM head, SiLU, RoPE in
    /// halves with theta 10,000. Override them with struct update syntax:
    ///
    /// ```
    /// use trike_model::DecoderSpec;
    ///
    /// let spec = DecoderSpec { kv_heads: 2, tied_head: true, ..DecoderSpec::llama(64, 2, 4, 1000) };
    /// assert_eq!((spec.head_dim, spec.kv_width(), spec.intermediate), (16, 32, 256));
    /// assert!(spec.validate().is_ok());
    /// ```
    pub fn llama(hidden: usize, layers: usize, heads: usize, vocab: usize) -> Self {
        Self {
            hidden,
            intermediate: hidden.saturating_mul(4),
            layers,
            heads,
            kv_heads: heads,
            // `validate` rejects zero heads.
            head_dim: hidden / heads.max(1),
            vocab,
            context: 2048,
            rms_eps: 1e-5,
            rope: RopeSpec::new(10_000.0, RopePairing::Halves),
            activation: GatedActivation::SiLu,
            tied_head: false,
            window: None,
            window_layers: LayerSet::All,
            rope_layers: LayerSet::All,
            biases: Biases::default(),
            qk_norm: false,
            sub_norms: false,
            factors: ScaleFactors::default(),
        }
    }

    /// Checks that the sizes are consistent.
    ///
    /// # Errors
    ///
    /// [`SpecError`], which names the field, the rule and the value.
    pub fn validate(&self) -> Result<(), SpecError> {
        let fail = |field: &'static str, rule: &'static str, got: String| Err(SpecError { field, rule, got });
        for (field, n) in [
            ("hidden", self.hidden),
            ("intermediate", self.intermediate),
            ("layers", self.layers),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("vocab", self.vocab),
            ("context", self.context),
        ] {
            if !(1..=MAX_SIZE).contains(&n) {
                return fail(field, "must be 1 to 16777216", n.to_string());
            }
        }
        if self.heads > 1 << 16 || self.layers > 1 << 16 {
            return fail(
                "heads or layers",
                "must be at most 65536",
                format!("{}, {}", self.heads, self.layers),
            );
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return fail("kv_heads", "must divide heads", format!("{} of {}", self.kv_heads, self.heads));
        }
        if !self.head_dim.is_multiple_of(2) || self.head_dim > 1 << 16 {
            return fail("head_dim", "must be even and at most 65536", self.head_dim.to_string());
        }
        if !(self.rms_eps >= 0.0 && self.rms_eps < 1.0) {
            return fail("rms_eps", "must be 0 or more and under 1", self.rms_eps.to_string());
        }
        for (field, factor) in [
            ("factors.embedding", self.factors.embedding),
            ("factors.residual", self.factors.residual),
            ("factors.logits", self.factors.logits),
        ] {
            // So that quotients and squares are finite and normal in f32.
            if !(1e-6..=1e6).contains(&factor) {
                return fail(field, "must be 1e-6 to 1e6", factor.to_string());
            }
        }
        if self.window == Some(0) {
            return fail("window", "must be at least 1", "0".to_owned());
        }
        for (field, set) in [("window_layers", &self.window_layers), ("rope_layers", &self.rope_layers)] {
            if let Some(layer) = set.beyond(self.layers) {
                return fail(field, "must be layers of the decoder", format!("{layer} of {}", self.layers));
            }
        }
        self.rope.validate(self.head_dim)
    }

    /// What the block of a layer consists of.
    ///
    /// ```
    /// use trike_model::{DecoderSpec, LayerSet, Mixer};
    ///
    /// // Every second layer has a window.
    /// let window_layers = LayerSet::from_flags([true, false, true, false]);
    /// let spec = DecoderSpec { window: Some(8), window_layers, ..DecoderSpec::llama(64, 4, 4, 1000) };
    /// let windows = [0, 1, 2, 3].map(|layer| match spec.layer(layer).mixer {
    ///     Mixer::Attention(attention) => attention.window,
    /// });
    /// assert_eq!(windows, [Some(8), None, Some(8), None]);
    /// ```
    pub fn layer(&self, layer: usize) -> LayerSpec {
        let window = self.window.filter(|_| self.window_layers.contains(layer));
        let attention = AttentionLayer { window, rope: self.rope_layers.contains(layer) };
        LayerSpec { mixer: Mixer::Attention(attention), mlp: Mlp::Gated(self.activation) }
    }

    /// The window of every layer; `None` if some layer attends to all positions.
    pub fn window_of_all(&self) -> Option<usize> {
        self.window.filter(|_| self.window_layers == LayerSet::All)
    }

    /// The attention of a layer, scaled by `1 / sqrt(head_dim)` and, if it is rotated, by the query/key scaling of the rotary
    /// embedding.
    pub fn attention(&self, layer: AttentionLayer) -> AttentionSpec {
        let factor = if layer.rope { self.rope.attention_factor().powi(2) } else { 1.0 };
        AttentionSpec {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: factor / (self.head_dim as f32).sqrt(),
            window: layer.window,
        }
    }

    /// The epsilon that the norm `name` adds to the mean square.
    ///
    /// The residual stream is stored divided by the residual [factor](ScaleFactors::residual) `r`, so that a block adds its outputs
    /// unscaled. A norm of `x / r` equals one of `x` if its epsilon is divided by `r^2`:
    ///
    /// ```text
    /// (x / r) / sqrt(mean((x / r)^2) + eps / r^2) = x / sqrt(mean(x^2) + eps)
    /// ```
    ///
    /// Only norms of other tensors (of heads, and of the inputs of the output and down projections) use `eps` itself.
    pub fn norm_eps(&self, name: WeightName) -> f32 {
        use WeightName as W;
        match name {
            W::AttentionNorm(_) | W::MlpNorm(_) | W::FinalNorm => {
                self.rms_eps / self.factors.residual.powi(2)
            }
            _ => self.rms_eps,
        }
    }

    /// Factor of the embedding's rows in the residual stream, which is stored divided by [`ScaleFactors::residual`].
    pub fn embedding_factor(&self) -> f32 {
        self.factors.embedding / self.factors.residual
    }

    /// Factor of the final norm's output before the LM head: the head is linear, so scaling its input scales the logits.
    pub fn head_factor(&self) -> f32 {
        self.factors.logits.recip()
    }

    /// Width of all query heads together.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// The weights of the decoder, in the order of the forward pass.
    ///
    /// ```
    /// use trike_model::{DecoderSpec, WeightName};
    ///
    /// let spec = DecoderSpec { tied_head: true, ..DecoderSpec::llama(64, 2, 4, 1000) };
    /// assert_eq!(spec.weights().len(), 1 + 2 * 9 + 1);
    /// assert_eq!(spec.weights()[2], WeightName::Query(0));
    /// ```
    pub fn weights(&self) -> Vec<WeightName> {
        let blocks = (0..self.layers).flat_map(WeightName::of_block);
        let all = [WeightName::Embedding]
            .into_iter()
            .chain(blocks)
            .chain([WeightName::FinalNorm, WeightName::Head]);
        all.filter(|&name| self.has(name)).collect()
    }

    /// Whether the decoder has a weight, in any layer.
    pub fn has(&self, name: WeightName) -> bool {
        use WeightName as W;
        match name {
            W::QueryBias(_) | W::KeyBias(_) | W::ValueBias(_) => self.biases.qkv,
            W::OutputBias(_) => self.biases.output,
            W::GateBias(_) | W::UpBias(_) | W::DownBias(_) => self.biases.mlp,
            W::QueryNorm(_) | W::KeyNorm(_) => self.qk_norm,
            W::AttentionSubNorm(_) | W::MlpSubNorm(_) => self.sub_norms,
            W::Head => !self.tied_head,
            _ => true,
        }
    }

    /// The weight, if the decoder has it.
    pub fn optional(&self, name: WeightName) -> Option<WeightName> {
        Some(name).filter(|&name| self.has(name))
    }

    /// Rows and columns of a weight, `out x in`; a norm or a bias is one row.
    ///
    /// ```
    /// use trike_model::{DecoderSpec, WeightName};
    ///
    /// let spec = DecoderSpec { kv_heads: 2, ..DecoderSpec::llama(64, 2, 4, 1000) };
    /// assert_eq!(spec.shape(WeightName::Key(1)), (32, 64));
    /// assert_eq!(spec.shape(WeightName::DownBias(0)), (1, 64));
    /// ```
    pub fn shape(&self, name: WeightName) -> (usize, usize) {
        use WeightName as W;
        let (hidden, inner) = (self.hidden, self.intermediate);
        let (query, kv) = (self.query_width(), self.kv_width());
        match name {
            W::Embedding | W::Head => (self.vocab, hidden),
            W::Query(_) => (query, hidden),
            W::Key(_) | W::Value(_) => (kv, hidden),
            W::Output(_) => (hidden, query),
            W::Gate(_) | W::Up(_) => (inner, hidden),
            W::Down(_) => (hidden, inner),
            W::QueryNorm(_) | W::KeyNorm(_) => (1, self.head_dim),
            W::AttentionSubNorm(_) | W::QueryBias(_) => (1, query),
            W::KeyBias(_) | W::ValueBias(_) => (1, kv),
            W::MlpSubNorm(_) | W::GateBias(_) | W::UpBias(_) => (1, inner),
            W::AttentionNorm(_) | W::MlpNorm(_) | W::FinalNorm | W::OutputBias(_) | W::DownBias(_) => {
                (1, hidden)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_names_its_field() {
        let small = DecoderSpec::llama(48, 2, 6, 97);
        assert_eq!(small.validate(), Ok(()));
        type Spoil = fn(&mut DecoderSpec);
        let table: [(&str, Spoil); 15] = [
            ("hidden", |s| s.hidden = 0),
            ("vocab", |s| s.vocab = (1 << 24) + 1),
            ("layers", |s| s.layers = 0),
            ("heads or layers", |s| s.layers = (1 << 16) + 1),
            ("kv_heads", |s| s.kv_heads = 4),
            ("head_dim", |s| s.head_dim = 7),
            ("rms_eps", |s| s.rms_eps = f32::NAN),
            ("rms_eps", |s| s.rms_eps = -1e-9),
            ("rope.theta", |s| s.rope.theta = 1.0),
            ("window", |s| s.window = Some(0)),
            ("window_layers", |s| s.window_layers = LayerSet::from_flags([false, false, true])),
            ("rope_layers", |s| s.rope_layers = LayerSet::from_flags([true, false, true])),
            ("factors.embedding", |s| s.factors.embedding = f32::INFINITY),
            ("factors.residual", |s| s.factors.residual = 0.0),
            ("factors.logits", |s| s.factors.logits = -1.0),
        ];
        for (want, spoil) in table {
            let mut spec = small.clone();
            spoil(&mut spec);
            match spec.validate() {
                Err(SpecError { field, .. }) => assert_eq!(field, want),
                other => panic!("{want}: {other:?}"),
            }
        }
    }
}
