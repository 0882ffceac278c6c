//! Attention with ternary projections.

use candle_core::Tensor;
use candle_nn::{Module, VarBuilder};
use trike_cpu::Cpu;

use crate::exec::{check_len, check_width, shared_cpu, to_f32};
use crate::kv::KvCache;
use crate::linear::TernaryLinear;
use crate::mlp::{check_layer, refuse_extra};
use crate::quantize::TernarizeOptions;
use crate::rotary::RotaryEmbedding;
use crate::scores::attention;
use crate::{ActivationPolicy, AttentionSpec, CandleError, KvPrecision, NnError, RopePairing, RopeSpec};

/// Sizes of a [`TernaryAttention`]; all counts are elements.
///
/// ```
/// use trike_candle::TernaryAttentionConfig;
///
/// let config = TernaryAttentionConfig::new(2560, 20).with_kv_heads(5).with_window(4096);
/// assert_eq!((config.head_dim, config.kv_heads, config.window), (128, 5, Some(4096)));
/// config.validate()?;
/// # Ok::<(), trike_candle::CandleError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TernaryAttentionConfig {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads` (grouped-query attention).
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Expected context length; later positions work too, but their sines and cosines are not precomputed.
    pub context: usize,
    /// Positions that a query attends to, its own included; all when `None`.
    pub window: Option<usize>,
    /// Rotary embedding of queries and keys.
    pub rope: RopeSpec,
}

impl TernaryAttentionConfig {
    /// Defaults: as many key and value heads as query heads, a `head_dim` of `hidden / heads`, a context of 2048, no window, and
    /// the rotary embedding of Llama (theta 10000, halves).
    #[must_use]
    pub fn new(hidden: usize, heads: usize) -> Self {
        Self {
            hidden,
            heads,
            kv_heads: heads,
            head_dim: hidden.checked_div(heads).unwrap_or(0),
            context: 2048,
            window: None,
            rope: RopeSpec::new(10_000.0, RopePairing::Halves),
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

    /// Sets the rotary embedding of queries and keys.
    #[must_use]
    pub fn with_rope(self, rope: RopeSpec) -> Self {
        Self { rope, ..self }
    }

    /// Checks that the sizes are consistent.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`], which names the field, the rule and the value.
    pub fn validate(&self) -> Result<(), CandleError> {
        let fail = |field, rule, got: String| Err(NnError::Spec { field, rule, got }.into());
        for (field, n) in [
            ("hidden", self.hidden),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
        ] {
            if !(1..=1 << 20).contains(&n) {
                return fail(field, "must be 1 to 1048576", n.to_string());
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return fail("kv_heads", "must divide heads", format!("{} of {}", self.kv_heads, self.heads));
        }
        if self.window == Some(0) {
            return fail("window", "must be at least 1", "0".to_owned());
        }
        // The rest is checked by `RotaryEmbedding::new`.
        Ok(())
    }
}

/// The projections of a [`TernaryAttention`]; a [`BitLinear`](crate::BitLinear) converts into a [`TernaryLinear`].
#[derive(Clone, Debug)]
pub struct TernaryAttentionWeights {
    /// `heads * head_dim x hidden`.
    pub q_proj: TernaryLinear,
    /// `kv_heads * head_dim x hidden`.
    pub k_proj: TernaryLinear,
    /// `kv_heads * head_dim x hidden`.
    pub v_proj: TernaryLinear,
    /// `hidden x heads * head_dim`.
    pub o_proj: TernaryLinear,
}

impl TernaryAttentionWeights {
    fn map(self, change: impl Fn(TernaryLinear) -> TernaryLinear) -> Self {
        let Self { q_proj, k_proj, v_proj, o_proj } = self;
        let [q_proj, k_proj, v_proj, o_proj] = [q_proj, k_proj, v_proj, o_proj].map(change);
        Self { q_proj, k_proj, v_proj, o_proj }
    }
}

/// Causal self-attention with ternary projections and rotary positions, as in Llama, Mistral and Qwen2.
///
/// `x` is `[batch, tokens, hidden]` and so is the result, in the dtype of `x`. Only the projections are ternary: scores
/// and probabilities are f32, as in every model that has ternary weights.
///
/// [`forward`](Module::forward) takes whole sequences from position 0 and is differentiable;
/// [`forward_with_cache`](Self::forward_with_cache) continues from a [`KvCache`] and is not.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{Module, VarBuilder};
/// use trike_candle::{ActivationPrecision, KvPrecision, Ternarize, TernaryAttention, TernaryAttentionConfig};
/// use trike_trit::Granularity;
///
/// let config = TernaryAttentionConfig::new(16, 4).with_kv_heads(2).with_context(32);
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
#[derive(Clone, Debug)]
pub struct TernaryAttention {
    config: TernaryAttentionConfig,
    weights: TernaryAttentionWeights,
    rotary: RotaryEmbedding,
    cpu: Cpu,
}

impl TernaryAttention {
    /// A layer from its projections.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`] for inconsistent sizes, [`NnError::WeightShape`] for a projection of the wrong shape.
    pub fn new(
        config: TernaryAttentionConfig,
        weights: TernaryAttentionWeights,
    ) -> Result<Self, CandleError> {
        config.validate()?;
        let rotary = RotaryEmbedding::new(&config.rope, config.head_dim, config.context)?;
        let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        check_layer("q_proj", &weights.q_proj, q, config.hidden)?;
        check_layer("k_proj", &weights.k_proj, kv, config.hidden)?;
        check_layer("v_proj", &weights.v_proj, kv, config.hidden)?;
        check_layer("o_proj", &weights.o_proj, config.hidden, q)?;
        Ok(Self { config, weights, rotary, cpu: shared_cpu()? })
    }

    /// Loads `q_proj`, `k_proj`, `v_proj` and `o_proj` under the prefix of `vb`, biases included; `how` applies to dense
    /// weights.
    ///
    /// # Errors
    ///
    /// As [`TernaryLinear::load`] and [`new`](Self::new), and [`NnError::Spec`] when there is a `q_norm`, `k_norm` or
    /// `attn_sub_norm`, which this module does not compute.
    pub fn load(
        config: &TernaryAttentionConfig,
        vb: VarBuilder<'_>,
        how: impl Into<TernarizeOptions>,
    ) -> Result<Self, CandleError> {
        config.validate()?;
        let how = how.into();
        refuse_extra(&vb, &["q_norm", "k_norm", "attn_sub_norm"])?;
        let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let layer = |name, cols, rows| TernaryLinear::load(cols, rows, vb.pp(name), how);
        let weights = TernaryAttentionWeights {
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
        Self { weights: self.weights.map(|layer| layer.with_activations(activations)), ..self }
    }

    /// Uses another executor, in the projections too.
    #[must_use]
    pub fn with_cpu(self, cpu: Cpu) -> Self {
        let weights = self.weights.map(|layer| layer.with_cpu(cpu.clone()));
        Self { weights, rotary: self.rotary.with_cpu(cpu.clone()), cpu, ..self }
    }

    /// The sizes.
    pub fn config(&self) -> &TernaryAttentionConfig {
        &self.config
    }

    /// An empty cache for `batch` sequences of up to `capacity` positions. With a window of `w`, a capacity of
    /// `w + n - 1` is enough for any length in steps of at most `n` tokens.
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
        KvCache::new(batch, self.config.kv_heads, self.config.head_dim, capacity, precision)
    }

    /// Computes attention for the next tokens of every sequence, at the positions after those in `cache`, and appends them to
    /// the cache.
    ///
    /// # Errors
    ///
    /// [`NnError::ContextFull`] or [`NnError::StepTooLong`] when the cache is too small, [`NnError::Shape`] for a shape
    /// mismatch, [`NnError::EmptyStep`] without a token, [`NnError::Spec`] for an unsupported device or dtype, or an input (or
    /// a bias) that is tracked for gradients, which do not flow through a cache: detach it. On an error the cache is unchanged.
    pub fn forward_with_cache(&self, x: &Tensor, cache: &mut KvCache) -> Result<Tensor, CandleError> {
        let (batch, tokens) = self.check_input(x)?;
        let problem = self.spec();
        cache.check_room(&problem, batch, tokens)?;
        let [q, k, v] = self.project(x, cache.len())?;
        if q.track_op() || k.track_op() || v.track_op() {
            let rule = "must not be tracked for gradients: detach it, or use `forward`";
            return Err(NnError::Spec {
                field: "an input with a cache",
                rule,
                got: "a tracked tensor".to_owned(),
            }
            .into());
        }
        let values =
            |x: &Tensor| -> Result<Vec<f32>, CandleError> { Ok(to_f32(x)?.flatten_all()?.to_vec1()?) };
        let (q_values, k, v) = (values(&q)?, values(&k)?, values(&v)?);
        let out = cache.step(&self.cpu, &problem, (&q_values, &k, &v), tokens)?;
        let out = Tensor::from_vec(out, q.shape(), q.device())?.to_dtype(x.dtype())?;
        Ok(self.weights.o_proj.forward(&out)?)
    }

    fn spec(&self) -> AttentionSpec {
        let TernaryAttentionConfig { heads, kv_heads, head_dim, window, .. } = self.config;
        let factor = self.config.rope.attention_factor();
        AttentionSpec { heads, kv_heads, head_dim, scale: factor * factor / (head_dim as f32).sqrt(), window }
    }

    /// Sequences and tokens of an input.
    fn check_input(&self, x: &Tensor) -> Result<(usize, usize), CandleError> {
        check_len("axes of the input of attention", 3, x.rank())?;
        check_width("input of attention", x, self.config.hidden)?;
        Ok((x.dim(0)?, x.dim(1)?))
    }

    /// Queries, keys and values, the first two after RoPE.
    fn project(&self, x: &Tensor, first_position: usize) -> Result<[Tensor; 3], CandleError> {
        let TernaryAttentionWeights { q_proj, k_proj, v_proj, .. } = &self.weights;
        let q = self.rotary.forward(&q_proj.forward(x)?, first_position)?;
        let k = self.rotary.forward(&k_proj.forward(x)?, first_position)?;
        Ok([q, k, v_proj.forward(x)?])
    }
}

impl Module for TernaryAttention {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        self.check_input(x)?;
        let [q, k, v] = self.project(x, 0)?;
        let out = attention(&self.cpu, &self.spec(), &q, &k, &v)?;
        self.weights.o_proj.forward(&out)
    }
}
