//! Causal attention of whole sequences, with its gradient.

use candle_core::{CpuStorage, CustomOp3, D, Device, Layout, Shape, Tensor};
use trike_cpu::{Cpu, CpuOps, KvData, KvView};

use crate::exec::{check_len, check_width, floats, to_f32};
use crate::{AttentionSpec, CandleError, NnError};

/// Causal attention `softmax(scale q k^T) v` for each head, limited to the last `window` positions (the token's own included) if
/// the spec has a window.
///
/// `q` is `[batch, tokens, heads * head_dim]`, `k` and `v` are `[batch, tokens, kv_heads * head_dim]`, on the CPU in
/// f32, f16 or bf16; the result has the shape and dtype of `q`. Gradients flow to all three; the backward pass materializes
/// the `tokens x tokens` scores of every head.
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
/// [`NnError::Shape`] when shapes do not match, [`NnError::EmptyStep`] without a token, [`NnError::Spec`] for an unsupported
/// device or dtype, [`NnError::Cpu`] if `kv_heads` does not divide `heads` or the window is zero.
pub fn attention(
    cpu: &Cpu,
    spec: &AttentionSpec,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
) -> Result<Tensor, CandleError> {
    let problem = *spec;
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
    let op = AttentionOp { cpu: cpu.clone(), problem };
    Ok(to_f32(q)?.apply_op3(&to_f32(k)?, &to_f32(v)?, op)?.to_dtype(q.dtype())?)
}

struct AttentionOp {
    cpu: Cpu,
    problem: AttentionSpec,
}

impl AttentionOp {
    /// `[batch, tokens, heads * head_dim]` as `[batch * query heads, tokens, head_dim]`, shared heads repeated.
    fn split(&self, x: &Tensor, heads: usize) -> candle_core::Result<Tensor> {
        let (batch, tokens, _) = x.dims3()?;
        let (d, shared) = (self.problem.head_dim, self.problem.heads / heads);
        let x = x.reshape((batch, tokens, heads, d))?.transpose(1, 2)?.unsqueeze(2)?;
        let x = x.expand((batch, heads, shared, tokens, d))?.contiguous()?;
        x.reshape((batch * self.problem.heads, tokens, d))
    }

    /// The inverse of `split`, with shared heads summed.
    fn join(&self, x: &Tensor, batch: usize, heads: usize) -> candle_core::Result<Tensor> {
        let (_, tokens, d) = x.dims3()?;
        let x = x.reshape((batch, heads, self.problem.heads / heads, tokens, d))?.sum(2)?;
        x.transpose(1, 2)?.contiguous()?.reshape((batch, tokens, heads * d))
    }

    /// Attention mask: 0 if a token attends to another, else minus infinity.
    fn mask(&self, tokens: usize) -> candle_core::Result<Tensor> {
        let row = |i: usize| {
            let span = self.problem.span(i);
            (0..tokens).map(move |j| if span.contains(&j) { 0.0 } else { f32::NEG_INFINITY })
        };
        Tensor::from_vec((0..tokens).flat_map(row).collect::<Vec<f32>>(), (1, tokens, tokens), &Device::Cpu)
    }
}

impl CustomOp3 for AttentionOp {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (batch, tokens, width) = l1.shape().dims3()?;
        let q = floats(self.name(), s1, l1)?;
        let (k, v) = (floats(self.name(), s2, l2)?, floats(self.name(), s3, l3)?);
        let AttentionSpec { kv_heads, head_dim: d, .. } = self.problem;
        let kv = tokens * kv_heads * d;
        let mut out = vec![0.0; q.len()];
        let (mut heads_k, mut heads_v) = (vec![0.0; kv], vec![0.0; kv]);
        for i in 0..batch {
            for (heads, x) in [(&mut heads_k, k), (&mut heads_v, v)] {
                for (row, x) in x[i * kv..][..kv].chunks_exact(d).enumerate() {
                    let (token, head) = (row / kv_heads, row % kv_heads);
                    heads[(head * tokens + token) * d..][..d].copy_from_slice(x);
                }
            }
            let view = KvView { k: KvData::F32(&heads_k), v: KvData::F32(&heads_v), capacity: tokens };
            let span = i * tokens * width..(i + 1) * tokens * width;
            self.cpu
                .attention(&self.problem, &q[span.clone()], 0, view, &mut out[span])
                .map_err(CandleError::from)?;
        }
        Ok((CpuStorage::F32(out), l1.shape().clone()))
    }

    /// With `p` the probabilities: `grad_v = p^T g`, `grad_s = p (g v^T - sum(g v^T p))`, `grad_q = scale grad_s k`,
    /// `grad_k = scale grad_s^T q`.
    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        _res: &Tensor,
        grad: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (batch, tokens, _) = q.dims3()?;
        let AttentionSpec { heads, kv_heads, scale, .. } = self.problem;
        let scale = f64::from(scale);
        let (q, g) = (self.split(q, heads)?, self.split(grad, heads)?);
        let (k, v) = (self.split(k, kv_heads)?, self.split(v, kv_heads)?);
        let scores = (q.matmul(&k.t()?)? * scale)?.broadcast_add(&self.mask(tokens)?)?;
        let p = candle_nn::ops::softmax(&scores, D::Minus1)?;
        let grad_p = g.matmul(&v.t()?)?;
        let along = (&grad_p * &p)?.sum_keepdim(D::Minus1)?;
        let grad_s = ((grad_p.broadcast_sub(&along)? * &p)? * scale)?;
        let grad_q = self.join(&grad_s.matmul(&k)?, batch, heads)?;
        let grad_k = self.join(&grad_s.t()?.matmul(&q)?, batch, kv_heads)?;
        let grad_v = self.join(&p.t()?.matmul(&g)?, batch, kv_heads)?;
        Ok((Some(grad_q), Some(grad_k), Some(grad_v)))
    }
}
