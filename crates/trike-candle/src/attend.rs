//! Attention without projections: checks of a step, and choice of the implementation.

use candle_core::{Device, Tensor};
use trike_cpu::Cpu;

use crate::exec::{check_len, check_untracked, check_width, shared_cpu, to_f32};
use crate::kv::KvCache;
use crate::mask::{AttentionMask, Visible};
use crate::popcount::{self, Context};
use crate::trits::{AttentionScores, TritRows};
use crate::{AttentionSpec, CandleError, NnError, dense, scores};

/// Rule for tensors of popcount scores.
const NO_GRADIENTS: &str = "must not be tracked for gradients, which rounding to trits stops: detach it";

/// Attention without projections: per head, `softmax(scale q k^T) v` of given queries, keys and values.
///
/// `q` is `[batch, tokens, heads * head_dim]`, `k` and `v` are `[batch, tokens, kv_heads * head_dim]`, on the CPU in f32, f16 or bf16;
/// the result has the shape and dtype of `q`. Query head `h` reads key/value head `h / (heads / kv_heads)`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use trike_candle::{Attention, AttentionSpec, KeySelector, KvCache, KvPrecision};
///
/// let spec = AttentionSpec { heads: 4, kv_heads: 2, head_dim: 64, scale: 0.125, window: None };
/// let attention = Attention::new(spec)?;
/// let random = |width| Tensor::randn(0f32, 1.0, (1, 200, width), &Device::Cpu);
/// let (q, k, v) = (random(256)?, random(128)?, random(128)?);
/// let exact = attention.forward(&q, &k, &v, None, None)?;
///
/// // The same, the last token alone, which attends to 8 of the keys before it, to the first 2 and the last 2.
/// let cache = KvCache::new(1, 2, 64, 256, KvPrecision::Int8)?;
/// let mut cache = cache.with_keys(KeySelector::signs(8)?)?;
/// let step = |from, n| -> Result<_, candle_core::Error> { Ok([q.narrow(1, from, n)?, k.narrow(1, from, n)?, v.narrow(1, from, n)?]) };
/// let [q1, k1, v1] = step(0, 199)?;
/// let prompt = attention.forward(&q1, &k1, &v1, Some(&mut cache), None)?;
/// let [q1, k1, v1] = step(199, 1)?;
/// let token = attention.forward(&q1, &k1, &v1, Some(&mut cache), None)?;
/// let error = (prompt - exact.narrow(1, 0, 199)?)?.abs()?.max_all()?.to_scalar::<f32>()?;
/// assert!(error < 0.1);
/// assert_eq!((token.dims(), cache.len()), (&[1, 1, 256][..], 200));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Attention {
    spec: AttentionSpec,
    causal: bool,
    scores: AttentionScores,
    cpu: Cpu,
}

impl Attention {
    /// Causal attention with exact scores.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`], which names the field, for heads that cannot share keys evenly, sizes and a window of zero or of more than
    /// the kernels support, and a scale that is not finite.
    pub fn new(spec: AttentionSpec) -> Result<Self, CandleError> {
        check_spec(&spec)?;
        Ok(Self { spec, causal: true, scores: AttentionScores::Exact, cpu: shared_cpu()? })
    }

    /// Sets the scores.
    #[must_use]
    pub fn with_scores(self, scores: AttentionScores) -> Self {
        Self { scores, ..self }
    }

    /// Full attention: every token attends to all tokens, as in encoders.
    ///
    /// There is neither a cache nor a kernel then: Candle's operations compute it, with the scores of all heads in memory at the
    /// same time.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`] with a window.
    pub fn bidirectional(self) -> Result<Self, CandleError> {
        check_no_window(self.spec.window)?;
        Ok(Self { causal: false, ..self })
    }

    /// Uses another executor.
    #[must_use]
    pub fn with_cpu(self, cpu: Cpu) -> Self {
        Self { cpu, ..self }
    }

    /// The sizes.
    #[must_use]
    pub fn spec(&self) -> &AttentionSpec {
        &self.spec
    }

    pub(crate) fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// The scores.
    #[must_use]
    pub fn scores(&self) -> AttentionScores {
        self.scores
    }

    /// Computes attention of the next tokens of every sequence. With a cache, they follow its positions, and their keys and values
    /// are appended to it; without one, they are whole sequences, and the result is differentiable if the scores are exact.
    ///
    /// # Errors
    ///
    /// [`NnError::Shape`] for shapes that do not match each other, the cache or the mask, [`NnError::EmptyStep`] without a token,
    /// [`NnError::ContextFull`] or [`NnError::StepTooLong`] when the cache is too small, [`NnError::Cpu`] for a block mask that
    /// does not cover these positions. [`NnError::Spec`] for an unsupported device or dtype, a mask that hides all positions from a
    /// query, a cache made for other scores or used with non-causal attention, a non-finite input of popcount scores, and a tensor
    /// tracked for gradients with a cache or with popcount scores, which are not differentiable: detach it. On an error the cache
    /// is unchanged.
    pub fn forward(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        cache: Option<&mut KvCache>,
        mask: Option<AttentionMask<'_>>,
    ) -> Result<Tensor, CandleError> {
        let (batch, tokens) = check_inputs(&self.spec, [q, k, v])?;
        let (dtype, [q, k, v]) = (q.dtype(), [to_f32(q)?, to_f32(k)?, to_f32(v)?]);
        if let (AttentionScores::Popcount, Some(AttentionMask::Dense(mask))) = (self.scores, mask) {
            check_untracked("a mask of popcount scores", NO_GRADIENTS, &[mask])?;
        }
        let out = match cache {
            None => self.whole(batch, tokens, [&q, &k, &v], mask)?,
            Some(cache) => self.step(batch, tokens, [&q, &k, &v], cache, mask)?,
        };
        Ok(out.to_dtype(dtype)?)
    }

    /// Attention of whole sequences.
    fn whole(
        &self,
        batch: usize,
        tokens: usize,
        [q, k, v]: [&Tensor; 3],
        mask: Option<AttentionMask<'_>>,
    ) -> Result<Tensor, CandleError> {
        let AttentionSpec { heads, kv_heads, head_dim, .. } = self.spec;
        let visible = Visible::new(&self.spec, self.causal, batch, 0..tokens, mask)?;
        let by_heads = |x: &Tensor| -> Result<Tensor, CandleError> {
            Ok(x.reshape((batch, tokens, kv_heads, head_dim))?.transpose(1, 2)?.contiguous()?)
        };
        match self.scores {
            AttentionScores::Exact if visible.has_kernel() => {
                scores::attend(&self.cpu, &self.spec, visible.blocks(), [q, k, v])
            }
            AttentionScores::Exact => dense::attend(&visible, q, &by_heads(k)?, &by_heads(v)?, 0..tokens),
            AttentionScores::Popcount => {
                check_untracked("an input of popcount scores", NO_GRADIENTS, &[q, k, v])?;
                let (q_values, k, v) = (flat(q)?, flat(k)?, flat(&by_heads(v)?)?);
                let mut out = vec![0.0; q_values.len()];
                let (wide, narrow) = (tokens * heads * head_dim, tokens * kv_heads * head_dim);
                let queries = q_values.chunks_exact(wide).zip(out.chunks_exact_mut(wide));
                let contexts = k.chunks_exact(narrow).zip(v.chunks_exact(narrow));
                for (sequence, ((q, out), (k, values))) in queries.zip(contexts).enumerate() {
                    let queries = popcount::round_queries(&self.spec, q)?;
                    let keys = TritRows::round_heads("a key", k, kv_heads, 1, head_dim)?;
                    let context = Context { keys: &keys, capacity: tokens, values, positions: 0..tokens };
                    popcount::attend(&self.cpu, &visible, sequence, &queries, &context, out)?;
                }
                Ok(Tensor::from_vec(out, q.shape(), &Device::Cpu)?)
            }
        }
    }

    /// Attention of the next tokens of a cache.
    fn step(
        &self,
        batch: usize,
        tokens: usize,
        [q, k, v]: [&Tensor; 3],
        cache: &mut KvCache,
        mask: Option<AttentionMask<'_>>,
    ) -> Result<Tensor, CandleError> {
        let fail = |field, rule, got: &str| Err(NnError::Spec { field, rule, got: got.to_owned() }.into());
        if !self.causal {
            return fail("attention with a cache", "must be causal", "bidirectional");
        }
        if cache.scores() != self.scores {
            let rule = match self.scores {
                AttentionScores::Exact => "must be exact, as those of the attention",
                AttentionScores::Popcount => "must be popcount, as those of the attention",
            };
            return fail("scores of a cache", rule, cache.scores().name());
        }
        let rule = "must not be tracked for gradients: detach it, or use `forward`";
        check_untracked("an input with a cache", rule, &[q, k, v])?;
        cache.check_room(&self.spec, batch, tokens)?;
        let first = cache.len();
        let visible = Visible::new(&self.spec, true, batch, first..first + tokens, mask)?;
        let AttentionSpec { heads, kv_heads, head_dim, .. } = self.spec;
        let q_values = flat(q)?;
        let queries: Vec<Vec<TritRows>> = match self.scores {
            AttentionScores::Exact => Vec::new(),
            // Rounded before any key is stored, because a query may be refused.
            AttentionScores::Popcount => {
                let sequences = q_values.chunks_exact(tokens * heads * head_dim);
                sequences.map(|q| popcount::round_queries(&self.spec, q)).collect::<Result<_, _>>()?
            }
        };
        cache.store(&self.spec, &flat(k)?, &flat(v)?, tokens)?;
        let positions = cache.stored();
        let out = match self.scores {
            AttentionScores::Exact if visible.has_kernel() => {
                cache.attend(&self.cpu, &self.spec, &q_values, tokens, visible.blocks())?
            }
            AttentionScores::Exact => {
                let shape = (batch, kv_heads, positions.len(), head_dim);
                let tensor = |values| Tensor::from_vec(values, shape, &Device::Cpu);
                let (k, v) = (tensor(cache.keys()?)?, tensor(cache.values()?)?);
                return dense::attend(&visible, q, &k, &v, positions);
            }
            AttentionScores::Popcount => {
                let (values, mut out) = (cache.values()?, vec![0.0; q_values.len()]);
                let queries = queries.iter().zip(out.chunks_exact_mut(tokens * heads * head_dim));
                let values = values.chunks_exact(kv_heads * positions.len() * head_dim);
                for (sequence, ((queries, out), values)) in queries.zip(values).enumerate() {
                    let (keys, capacity) = (cache.trits(sequence), cache.capacity());
                    let context = Context { keys, capacity, values, positions: positions.clone() };
                    popcount::attend(&self.cpu, &visible, sequence, queries, &context, out)?;
                }
                out
            }
        };
        Ok(Tensor::from_vec(out, q.shape(), &Device::Cpu)?)
    }
}

/// Causal attention of whole sequences with exact scores: [`Attention::forward`] without a cache or mask. Gradients flow to all
/// three inputs; the backward pass materializes the `tokens x tokens` scores of every head.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use trike_candle::{AttentionSpec, attention, shared_cpu};
///
/// let spec = AttentionSpec { heads: 1, kv_heads: 1, head_dim: 1, scale: 1.0, window: None };
/// let q = Tensor::zeros((1, 2, 1), candle_core::DType::F32, &Device::Cpu)?;
/// let v = Tensor::new(&[[[2f32], [4.0]]], &Device::Cpu)?;
/// // With all scores zero, each token averages the values that it attends to.
/// let y = attention(&shared_cpu()?, &spec, &q, &q, &v)?;
/// assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [2.0, 3.0]);
/// # Ok::<(), trike_candle::CandleError>(())
/// ```
///
/// # Errors
///
/// As [`Attention::new`] and [`Attention::forward`].
pub fn attention(
    cpu: &Cpu,
    spec: &AttentionSpec,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
) -> Result<Tensor, CandleError> {
    // Checked first, so that an error of width names the tensor.
    check_inputs(spec, [q, k, v])?;
    Attention::new(*spec)?.with_cpu(cpu.clone()).forward(q, k, v, None, None)
}

/// Checks the rules of [`Attention::new`].
pub(crate) fn check_spec(spec: &AttentionSpec) -> Result<(), CandleError> {
    check_sizes(&[("heads", spec.heads), ("kv_heads", spec.kv_heads), ("head_dim", spec.head_dim)])?;
    let fail = |field, rule, got: String| Err(NnError::Spec { field, rule, got }.into());
    if !spec.heads.is_multiple_of(spec.kv_heads) {
        return fail("kv_heads", "must divide heads", format!("{} of {}", spec.kv_heads, spec.heads));
    }
    if spec.window == Some(0) {
        return fail("window", "must be at least 1", "0".to_owned());
    }
    if !spec.scale.is_finite() {
        return fail("scale", "must be finite", spec.scale.to_string());
    }
    Ok(())
}

/// Checks the rule of [`Attention::bidirectional`].
pub(crate) fn check_no_window(window: Option<usize>) -> Result<(), CandleError> {
    let Some(window) = window else { return Ok(()) };
    let rule = "must be none for attention that is not causal";
    Err(NnError::Spec { field: "window", rule, got: window.to_string() }.into())
}

/// Checks that the kernels support each size.
pub(crate) fn check_sizes(sizes: &[(&'static str, usize)]) -> Result<(), CandleError> {
    match sizes.iter().find(|(_, n)| !(1..=1 << 20).contains(n)) {
        None => Ok(()),
        Some((field, n)) => {
            let rule = "must be 1 to 1048576";
            Err(NnError::Spec { field, rule, got: n.to_string() }.into())
        }
    }
}

/// Sequences and tokens of queries, keys and values.
fn check_inputs(spec: &AttentionSpec, [q, k, v]: [&Tensor; 3]) -> Result<(usize, usize), CandleError> {
    let width = |heads: usize| heads.saturating_mul(spec.head_dim);
    check_width("width of queries", q, width(spec.heads))?;
    check_width("width of keys", k, width(spec.kv_heads))?;
    check_width("width of values", v, width(spec.kv_heads))?;
    check_len("axes of queries", 3, q.rank())?;
    let (batch, tokens, _) = q.dims3()?;
    for x in [k, v] {
        check_len("axes of keys and values", 3, x.rank())?;
        check_len("sequences of keys and values", batch, x.dim(0)?)?;
        check_len("tokens of keys and values", tokens, x.dim(1)?)?;
    }
    if batch == 0 || tokens == 0 {
        return Err(NnError::EmptyStep.into());
    }
    Ok((batch, tokens))
}

fn flat(x: &Tensor) -> Result<Vec<f32>, CandleError> {
    Ok(x.flatten_all()?.to_vec1()?)
}
