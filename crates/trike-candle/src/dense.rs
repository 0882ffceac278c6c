//! Attention by Candle's operations, for masks and non-causal attention without a kernel.

use std::ops::Range;

use candle_core::{D, Tensor};

use crate::CandleError;
use crate::mask::Visible;

/// `softmax(scale q k^T + bias) v` of `q`, `[batch, tokens, heads * head_dim]`, with the keys and values of some positions,
/// `[batch, kv_heads, positions, head_dim]`, all in f32. Differentiable.
pub(crate) fn attend(
    visible: &Visible<'_>,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    positions: Range<usize>,
) -> Result<Tensor, CandleError> {
    let (batch, tokens, width) = q.dims3()?;
    let (spec, n) = (visible.spec(), positions.len());
    let (heads, kv_heads, d) = (spec.heads, spec.kv_heads, spec.head_dim);
    let share = heads / kv_heads;
    // Query heads that share keys are rows of one product.
    let q = q.reshape((batch, tokens, kv_heads, share, d))?.permute((0, 2, 3, 1, 4))?;
    let q = q.contiguous()?.reshape((batch, kv_heads, share * tokens, d))?;
    let scores = (q.matmul(&k.t()?)? * f64::from(spec.scale))?.reshape((batch, heads, tokens, n))?;
    let scores = scores.broadcast_add(&visible.tensor(positions)?)?;
    let weights = candle_nn::ops::softmax(&scores, D::Minus1)?;
    let out = weights.reshape((batch, kv_heads, share * tokens, n))?.matmul(v)?;
    let out = out.reshape((batch, kv_heads, share, tokens, d))?.permute((0, 3, 1, 2, 4))?;
    Ok(out.contiguous()?.reshape((batch, tokens, width))?)
}
