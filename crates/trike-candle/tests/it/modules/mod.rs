//! The Candle modules compared with the same computations by Candle's own operations.

use candle_core::{D, DType, Device, Tensor};
use trike_candle::{AttentionSpec, CandleError, NnError};
use trike_testkit::{Rng, assert_close};

mod attention;
mod caches;
mod heads;
mod kinds;
mod linear;
mod load;
mod masks;
mod ops;
mod popcount;

/// Normally distributed values from a seeded generator.
fn normal(rng: &mut Rng, shape: &[usize]) -> Tensor {
    Tensor::from_vec(rng.normals(shape.iter().product()), shape, &Device::Cpu).expect("a tensor")
}

fn values(x: &Tensor) -> Vec<f32> {
    x.to_dtype(DType::F32).and_then(|x| x.flatten_all()?.to_vec1()).expect("values")
}

#[track_caller]
fn close(got: &Tensor, want: &Tensor, bound: f32) {
    assert_eq!(got.shape(), want.shape());
    assert_eq!(got.dtype(), want.dtype());
    assert_close(&values(got), &values(want), bound);
}

/// `max|a - b|`, to show that an option changes something.
fn distance(a: &Tensor, b: &Tensor) -> f32 {
    values(a).iter().zip(values(b)).fold(0.0, |m, (a, b)| m.max((a - b).abs()))
}

/// `sum(y^2)`-like loss with uneven weights, so that no gradient is symmetric by chance.
fn loss(y: &Tensor) -> Tensor {
    let weights = normal(&mut Rng::new(99), y.dims());
    (y.to_dtype(DType::F32).expect("f32") * weights).and_then(|y| y.sum_all()).expect("a loss")
}

/// `n` tokens from `first` on.
fn tokens(x: &Tensor, first: usize, n: usize) -> Tensor {
    x.narrow(1, first, n).expect("tokens")
}

/// Attention of `[batch, tokens, heads * d]` to `[batch, positions, kv_heads * d]` from Candle's operations, for queries at the last
/// positions. `bias` is added to the scores, `[batch or 1, heads or 1, tokens, positions]`.
fn softmax_attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    spec: &AttentionSpec,
    causal: bool,
    bias: Option<&Tensor>,
) -> candle_core::Result<Tensor> {
    let ((batch, tokens, _), positions) = (q.dims3()?, k.dim(1)?);
    let AttentionSpec { heads, kv_heads, head_dim: d, scale, window } = *spec;
    let split = |x: &Tensor, n: usize| x.reshape((batch, x.dim(1)?, n, d))?.transpose(1, 2)?.contiguous();
    // Query head h reads key head h / (heads / kv_heads).
    let index: Vec<u32> = (0..heads).map(|h| (h / (heads / kv_heads)) as u32).collect();
    let index = Tensor::new(index, &Device::Cpu)?;
    let (k, v) = (split(k, kv_heads)?.index_select(&index, 1)?, split(v, kv_heads)?.index_select(&index, 1)?);
    let first = positions - tokens;
    let seen = |i: usize, j: usize| {
        !causal || (j <= first + i && window.is_none_or(|window| first + i - j < window))
    };
    let all = (0..tokens * positions).map(|i| seen(i / positions, i % positions));
    let mask: Vec<f32> = all.map(|seen| if seen { 0.0 } else { f32::NEG_INFINITY }).collect();
    let mask = Tensor::from_vec(mask, (tokens, positions), &Device::Cpu)?;
    let mut scores = (split(q, heads)?.matmul(&k.t()?)? * f64::from(scale))?.broadcast_add(&mask)?;
    if let Some(bias) = bias {
        scores = scores.broadcast_add(bias)?;
    }
    let y = candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&v)?;
    y.transpose(1, 2)?.contiguous()?.reshape((batch, tokens, heads * d))
}

/// The message of an error in a given field.
#[track_caller]
fn spec_error<T>(result: Result<T, CandleError>, field: &str) -> String {
    match result {
        Err(CandleError::Nn(error @ NnError::Spec { field: got, .. })) if got == field => error.to_string(),
        Err(other) => panic!("expected an error of {field}, got {other}"),
        Ok(_) => panic!("expected an error of {field}"),
    }
}
