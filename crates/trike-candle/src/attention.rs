//! Attention with its projections.

use candle_core::Tensor;
use candle_nn::{Module, VarBuilder};
use trike_cpu::Cpu;

use crate::attend::{Attention, check_no_window, check_sizes, check_spec};
use crate::exec::{check_len, check_width};
use crate::kv::KvCache;
use crate::mask::AttentionMask;
use crate::mlp::{check_shape, refuse_extra};
use crate::projections::{AttentionWeights, Projection};
use crate::quantize::TernarizeOptions;
use crate::rotary::RotaryEmbedding;
use crate::trits::AttentionScores;
use crate::{
    ActivationPolicy, AttentionSpec, CandleError, KvPrecision, NnError, RopePairing, RopeSpec, TernaryLinear,
};

/// Sizes of a [`MultiHeadAttention`]; all counts are elements.
///
/// ```
/// use trike_candle::AttentionConfig;
///
/// let config = AttentionConfig::new(2560, 20).with_kv_heads(5).with_window(4096);
/// assert_eq!((config.head_dim, config.kv_heads, config.window), (128, 5, Some(4096)));
/// config.validate()?;
/// # Ok::<(), trike_candle::CandleError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AttentionConfig {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads` (grouped-query attention).
    pub kv_heads: usize,
    /// Width of a head; even with rotary positions.
    pub head_dim: usize,
    /// Expected context length; later positions work too, but their sines and cosines are not precomputed.
    pub context: usize,
    /// Positions that a query attends to, its own included; all when `None`.
    pub window: Option<usize>,
    /// Rotary embedding of queries and keys, if they have one.
    pub rope: Option<RopeSpec>,
    /// Whether attention is causal; otherwise every token attends to all, and there is no cache.
    pub causal: bool,
    /// Scores of queries and keys.
    pub scores: AttentionScores,
}

/// Sizes of a [`TernaryAttention`].
pub type TernaryAttentionConfig = AttentionConfig;

impl AttentionConfig {
    /// Defaults: as many key and value heads as query heads, a `head_dim` of `hidden / heads`, a context of 2048, no window, the
    /// rotary embedding of Llama (theta 10000, halves), causal, exact scores.
    #[must_use]
    pub fn new(hidden: usize, heads: usize) -> Self {
        Self {
            hidden,
            heads,
            kv_heads: heads,
            head_dim: hidden.checked_div(heads).unwrap_or(0),
            context: 2048,
            window: None,
            rope: Some(RopeSpec::new(10_000.0, RopePairing::Halves)),
            causal: true,
            scores: AttentionScores::Exact,
        }
    }

    /// Sets the number of key and value heads.
    #[must_use]
    pub fn with_kv_heads(self, kv_heads: usize) -> Self {
        Self { kv_heads, ..self }
    }

    /// Sets the width of a head.
    #[must_use]
    pub fn with_head_dim(self, head_dim: usize) -> Self {
        Self { head_dim, ..self }
    }

    /// Sets the expected context length.
    #[must_use]
    pub fn with_context(self, context: usize) -> Self {
        Self { context, ..self }
    }

    /// Sets the number of positions that a query attends to, its own included.
    #[must_use]
    pub fn with_window(self, window: usize) -> Self {
        Self { window: Some(window), ..self }
    }

    /// Sets the rotary embedding of queries and keys; `None` for models with other position encodings.
    #[must_use]
    pub fn with_rope(self, rope: impl Into<Option<RopeSpec>>) -> Self {
        Self { rope: rope.into(), ..self }
    }

    /// Full attention instead of causal, as with [`Attention::bidirectional`].
    #[must_use]
    pub fn bidirectional(self) -> Self {
        Self { causal: false, ..self }
    }

    /// Sets the scores of queries and keys.
    #[must_use]
    pub fn with_scores(self, scores: AttentionScores) -> Self {
        Self { scores, ..self }
    }

    /// Checks that the sizes are consistent.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`], which names the field, the rule and the value.
    pub fn validate(&self) -> Result<(), CandleError> {
        check_sizes(&[("hidden", self.hidden)])?;
        // The constants of the rotary embedding are checked by `RotaryEmbedding::new`.
        check_spec(&self.spec())?;
        if self.causal { Ok(()) } else { check_no_window(self.window) }
    }

    /// The attention between the projections. YaRN's attention factor is part of its scale.
    fn spec(&self) -> AttentionSpec {
        let Self { heads, kv_heads, head_dim, window, .. } = *self;
        let factor = self.rope.as_ref().map_or(1.0, RopeSpec::attention_factor);
        AttentionSpec { heads, kv_heads, head_dim, scale: factor * factor / (head_dim as f32).sqrt(), window }
    }
}

/// Self-attention with its projections, as in Llama, Mistral and Qwen2: queries, keys and values are projections of the input, and
/// the result is a projection of the output of [`Attention`].
///
/// `x` is `[batch, tokens, hidden]` and so is the result, in the dtype of `x`. Projections are [`TernaryLinear`] by default
/// ([`TernaryAttention`]); with [`LatentBitLinear`](crate::LatentBitLinear) ternary weights are trained, and `candle_nn::Linear` is the dense layer. Scores and
/// probabilities are f32 with any of them, unless the configuration says [`AttentionScores::Popcount`].
///
/// [`forward`](Module::forward) takes whole sequences from position 0 and is differentiable;
/// [`forward_with_cache`](Self::forward_with_cache) continues from a [`KvCache`] and is not; [`forward_with`](Self::forward_with) takes
/// a mask too.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{Module, VarBuilder};
/// use trike_candle::{ActivationPrecision, AttentionConfig, KvPrecision, Ternarize, TernaryAttention};
/// use trike_trit::Granularity;
///
/// let config = AttentionConfig::new(16, 4).with_kv_heads(2).with_context(32);
/// # let varmap = candle_nn::VarMap::new();
/// # let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
/// # for (name, rows) in [("q_proj", 16), ("k_proj", 8), ("v_proj", 8), ("o_proj", 16)] {
/// #     vb.pp("self_attn").pp(name).get_with_hints((rows, 16), "weight", candle_nn::init::DEFAULT_KAIMING_NORMAL)?;
/// # }
/// let how = Ternarize::AbsMean(Granularity::Tensor);
/// let layer = TernaryAttention::load(&config, vb.pp("self_attn"), how)?;
/// let layer = layer.with_activations(ActivationPrecision::F32);
///
/// let x = Tensor::randn(0f32, 1.0, (1, 3, 16), &Device::Cpu)?;
/// let whole = layer.forward(&x)?;
/// let mut cache = layer.new_cache(1, 32, KvPrecision::F32)?;
/// layer.forward_with_cache(&x.narrow(1, 0, 2)?, &mut cache)?;
/// let last = layer.forward_with_cache(&x.narrow(1, 2, 1)?, &mut cache)?;
/// let difference = (whole.narrow(1, 2, 1)? - last)?.abs()?.max_all()?.to_scalar::<f32>()?;
/// assert!(difference < 1e-5);
/// # Ok::<(), trike_candle::CandleError>(())
/// ```
///
/// Training, and then the packed layer with the same weights:
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{Module, VarBuilder, VarMap};
/// use trike_candle::{AttentionConfig, AttentionWeights, LatentBitLinear, MultiHeadAttention, TernaryAttention};
///
/// let variables = VarMap::new();
/// let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
/// let layer = |name| LatentBitLinear::load(16, 16, vb.pp(name));
/// let (q_proj, k_proj, v_proj, o_proj) = (layer("q_proj")?, layer("k_proj")?, layer("v_proj")?, layer("o_proj")?);
/// let weights = AttentionWeights { q_proj, k_proj, v_proj, o_proj };
/// let latent = MultiHeadAttention::new(AttentionConfig::new(16, 4), weights)?;
///
/// let x = Tensor::randn(0f32, 1.0, (1, 3, 16), &Device::Cpu)?;
/// let y = latent.forward(&x)?;
/// let gradients = y.sqr()?.sum_all()?.backward()?;
/// assert!(variables.all_vars().iter().all(|var| gradients.get(var).is_some()));
/// let packed: TernaryAttention = latent.map(|layer| Ok(layer.to_bit_linear()?.into()))?;
/// let difference = (y - packed.forward(&x)?)?.abs()?.max_all()?.to_scalar::<f32>()?;
/// assert!(difference < 0.1);
/// # Ok::<(), trike_candle::CandleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct MultiHeadAttention<L = TernaryLinear> {
    config: AttentionConfig,
    weights: AttentionWeights<L>,
    rotary: Option<RotaryEmbedding>,
    attention: Attention,
}

/// [`MultiHeadAttention`] with ternary projections.
pub type TernaryAttention = MultiHeadAttention<TernaryLinear>;

impl<L: Projection> MultiHeadAttention<L> {
    /// A layer made of its projections.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`] for inconsistent sizes, [`NnError::WeightShape`] for a projection of the wrong shape.
    pub fn new(config: AttentionConfig, weights: AttentionWeights<L>) -> Result<Self, CandleError> {
        config.validate()?;
        let attention = Attention::new(config.spec())?.with_scores(config.scores);
        let attention = if config.causal { attention } else { attention.bidirectional()? };
        let rotary = config.rope.as_ref();
        let rotary =
            rotary.map(|rope| RotaryEmbedding::new(rope, config.head_dim, config.context)).transpose()?;
        let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        for (name, layer, rows, cols) in [
            ("q_proj", &weights.q_proj, q, config.hidden),
            ("k_proj", &weights.k_proj, kv, config.hidden),
            ("v_proj", &weights.v_proj, kv, config.hidden),
            ("o_proj", &weights.o_proj, config.hidden, q),
        ] {
            check_shape(name, [layer.out_features(), layer.in_features()], [rows, cols])?;
        }
        Ok(Self { config, weights, rotary, attention })
    }

    /// The same attention with each projection replaced by `change`, for instance trained layers by packed ones.
    ///
    /// # Errors
    ///
    /// Errors of `change`, and as [`new`](Self::new).
    pub fn map<M: Projection>(
        self,
        change: impl Fn(L) -> Result<M, CandleError>,
    ) -> Result<MultiHeadAttention<M>, CandleError> {
        let cpu = self.attention.cpu().clone();
        Ok(MultiHeadAttention::new(self.config, self.weights.map(change)?)?.with_cpu(cpu))
    }

    /// Uses another executor, in the projections too.
    #[must_use]
    pub fn with_cpu(self, cpu: Cpu) -> Self {
        let AttentionWeights { q_proj, k_proj, v_proj, o_proj } = self.weights;
        let [q_proj, k_proj, v_proj, o_proj] =
            [q_proj, k_proj, v_proj, o_proj].map(|layer| layer.with_executor(&cpu));
        Self {
            config: self.config,
            weights: AttentionWeights { q_proj, k_proj, v_proj, o_proj },
            rotary: self.rotary.map(|rotary| rotary.with_cpu(cpu.clone())),
            attention: self.attention.with_cpu(cpu),
        }
    }

    /// The sizes.
    pub fn config(&self) -> &AttentionConfig {
        &self.config
    }

    /// The projections.
    pub fn weights(&self) -> &AttentionWeights<L> {
        &self.weights
    }

    /// An empty cache for `batch` sequences of up to `capacity` positions, made for the scores of the configuration. With a window of `w`, a
    /// capacity of `w + n - 1` is enough for any length in steps of at most `n` tokens.
    ///
    /// # Errors
    ///
    /// As [`KvCache::new`].
    pub fn new_cache(
        &self,
        batch: usize,
        capacity: usize,
        precision: KvPrecision,
    ) -> Result<KvCache, CandleError> {
        let cache = KvCache::new(batch, self.config.kv_heads, self.config.head_dim, capacity, precision)?;
        cache.with_scores(self.config.scores)
    }

    /// Computes attention for the next tokens of every sequence, at the positions following those in `cache`, and appends them to
    /// the cache.
    ///
    /// # Errors
    ///
    /// [`NnError::ContextFull`] or [`NnError::StepTooLong`] when the cache is too small, [`NnError::Shape`] for a shape
    /// mismatch, [`NnError::EmptyStep`] without a token, [`NnError::Spec`] for an unsupported device or dtype, or an input (or
    /// a weight) that is tracked for gradients, which do not flow through a cache: detach it. On an error the cache is unchanged.
    pub fn forward_with_cache(&self, x: &Tensor, cache: &mut KvCache) -> Result<Tensor, CandleError> {
        self.forward_with(x, Some(cache), None)
    }

    /// Computes attention for the next tokens of every sequence, following the positions in the cache, if there is one, and
    /// restricted by the mask, if there is one.
    ///
    /// # Errors
    ///
    /// As [`forward_with_cache`](Self::forward_with_cache) and [`Attention::forward`].
    pub fn forward_with(
        &self,
        x: &Tensor,
        cache: Option<&mut KvCache>,
        mask: Option<AttentionMask<'_>>,
    ) -> Result<Tensor, CandleError> {
        check_len("axes of the input of attention", 3, x.rank())?;
        check_width("input of attention", x, self.config.hidden)?;
        let (batch, tokens, _) = x.dims3()?;
        if let Some(cache) = &cache {
            cache.check_room(self.attention.spec(), batch, tokens)?;
        } else if batch == 0 || tokens == 0 {
            return Err(NnError::EmptyStep.into());
        }
        let first_position = cache.as_ref().map_or(0, |cache| cache.len());
        let turned = |x: Tensor| match &self.rotary {
            Some(rotary) => rotary.forward(&x, first_position),
            None => Ok(x),
        };
        let AttentionWeights { q_proj, k_proj, v_proj, o_proj } = &self.weights;
        let (q, k) = (turned(q_proj.forward(x)?)?, turned(k_proj.forward(x)?)?);
        let out = self.attention.forward(&q, &k, &v_proj.forward(x)?, cache, mask)?;
        Ok(o_proj.forward(&out)?)
    }
}

impl TernaryAttention {
    /// Loads `q_proj`, `k_proj`, `v_proj` and `o_proj` under the prefix of `vb`, biases included; `how` applies to dense
    /// weights.
    ///
    /// # Errors
    ///
    /// As [`TernaryLinear::load`] and [`new`](Self::new), and [`NnError::Spec`] when there is a `q_norm`, `k_norm` or
    /// `attn_sub_norm`, which this module does not compute.
    pub fn load(
        config: &AttentionConfig,
        vb: VarBuilder<'_>,
        how: impl Into<TernarizeOptions>,
    ) -> Result<Self, CandleError> {
        config.validate()?;
        let how = how.into();
        refuse_extra(&vb, &["q_norm", "k_norm", "attn_sub_norm"])?;
        let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let layer = |name, cols, rows| TernaryLinear::load(cols, rows, vb.pp(name), how);
        let weights = AttentionWeights {
            q_proj: layer("q_proj", config.hidden, q)?,
            k_proj: layer("k_proj", config.hidden, kv)?,
            v_proj: layer("v_proj", config.hidden, kv)?,
            o_proj: layer("o_proj", q, config.hidden)?,
        };
        Self::new(config.clone(), weights)
    }

    /// Sets the activation precision of the projections, as [`TernaryLinear::with_activations`].
    #[must_use]
    pub fn with_activations(self, activations: impl Into<ActivationPolicy>) -> Self {
        let activations = activations.into();
        let AttentionWeights { q_proj, k_proj, v_proj, o_proj } = self.weights;
        let [q_proj, k_proj, v_proj, o_proj] =
            [q_proj, k_proj, v_proj, o_proj].map(|layer| layer.with_activations(activations));
        Self { weights: AttentionWeights { q_proj, k_proj, v_proj, o_proj }, ..self }
    }
}

impl<L: Projection> Module for MultiHeadAttention<L> {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        Ok(self.forward_with(x, None, None)?)
    }
}
