//! Causal attention of whole sequences by the kernels, with its backward pass.

use candle_core::{CpuStorage, CustomOp3, D, Layout, Shape, Tensor};
use trike_core::BlockBitmap;
use trike_cpu::{Cpu, CpuOps, KvData, KvView};

use crate::exec::floats;
use crate::mask::{AttentionMask, Visible};
use crate::{AttentionSpec, CandleError};

/// Causal attention of `q`, `[batch, tokens, heads * head_dim]`, to `k` and `v`, `[batch, tokens, kv_heads * head_dim]`, all in f32 and
/// checked. Differentiable; the backward pass materializes the `tokens x tokens` scores of every head.
pub(crate) fn attend(
    cpu: &Cpu,
    problem: &AttentionSpec,
    blocks: Option<&BlockBitmap>,
    [q, k, v]: [&Tensor; 3],
) -> Result<Tensor, CandleError> {
    let op = AttentionOp { cpu: cpu.clone(), problem: *problem, blocks: blocks.cloned() };
    Ok(q.apply_op3(k, v, op)?)
}

struct AttentionOp {
    cpu: Cpu,
    problem: AttentionSpec,
    blocks: Option<BlockBitmap>,
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

    /// The scores of all pairs, with minus infinity where masked.
    fn masked(&self, scores: &Tensor, batch: usize, tokens: usize) -> Result<Tensor, CandleError> {
        let mask = self.blocks.as_ref().map(AttentionMask::Blocks);
        let visible = Visible::new(&self.problem, true, batch, 0..tokens, mask)?;
        let heads = self.problem.heads;
        let scores = scores.reshape((batch, heads, tokens, tokens))?;
        let scores = scores.broadcast_add(&visible.tensor(0..tokens)?)?;
        Ok(scores.reshape((batch * heads, tokens, tokens))?)
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
            let (q, out) = (&q[span.clone()], &mut out[span]);
            match &self.blocks {
                Some(blocks) => self.cpu.attention_masked(&self.problem, q, 0, view, blocks, out),
                None => self.cpu.attention(&self.problem, q, 0, view, out),
            }
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
        let scores = self.masked(&(q.matmul(&k.t()?)? * scale)?, batch, tokens)?;
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
