//! The same step in Candle's primitive operations, whose gradients it has.

use anyhow::Result;
use candle_core::{D, DType, Device, Tensor, Var};
use candle_nn::{AdamW, Optimizer, ParamsAdamW};
use trike_nn::DecoderSpec;

use crate::{Engine, LENGTH, RATE, ROWS, ids, spec};

struct Block {
    attention_norm: Var,
    query: Var,
    key: Var,
    value: Var,
    output: Var,
    mlp_norm: Var,
    gate: Var,
    up: Var,
    down: Var,
}

pub(crate) struct Candle {
    spec: DecoderSpec,
    embedding: Var,
    blocks: Vec<Block>,
    norm: Var,
    cos: Tensor,
    sin: Tensor,
    mask: Tensor,
    ids: Tensor,
    targets: Tensor,
    optimizer: AdamW,
}

impl Candle {
    pub(crate) fn new() -> Result<Self> {
        let (spec, device) = (spec(), Device::Cpu);
        let (hidden, kv) = (spec.hidden, spec.kv_width());
        let matrix = |rows: usize, cols: usize| Var::randn(0f32, 0.02, (rows, cols), &device);
        let ones = || Var::ones(hidden, DType::F32, &device);
        let blocks = (0..spec.layers)
            .map(|_| {
                Ok(Block {
                    attention_norm: ones()?,
                    query: matrix(hidden, hidden)?,
                    key: matrix(kv, hidden)?,
                    value: matrix(kv, hidden)?,
                    output: matrix(hidden, hidden)?,
                    mlp_norm: ones()?,
                    gate: matrix(spec.intermediate, hidden)?,
                    up: matrix(spec.intermediate, hidden)?,
                    down: matrix(hidden, spec.intermediate)?,
                })
            })
            .collect::<Result<Vec<Block>>>()?;
        let (embedding, norm) = (matrix(spec.vocab, hidden)?, ones()?);
        let half = spec.head_dim / 2;
        let angles: Vec<f32> = (0..LENGTH)
            .flat_map(|t| (0..half).map(move |i| t as f32 * 10_000f32.powf(-(i as f32) / half as f32)))
            .collect();
        let angles = Tensor::from_vec(angles, (LENGTH, half), &device)?;
        let angles = Tensor::cat(&[&angles, &angles], 1)?;
        let mask: Vec<f32> = (0..LENGTH)
            .flat_map(|i| (0..LENGTH).map(move |j| if j <= i { 0.0 } else { f32::NEG_INFINITY }))
            .collect();
        let all = Tensor::from_vec(ids(), (ROWS, LENGTH + 1), &device)?;
        let mut vars = vec![embedding.clone(), norm.clone()];
        for b in &blocks {
            vars.extend(
                [
                    &b.attention_norm,
                    &b.query,
                    &b.key,
                    &b.value,
                    &b.output,
                    &b.mlp_norm,
                    &b.gate,
                    &b.up,
                    &b.down,
                ]
                .map(Var::clone),
            );
        }
        let config = ParamsAdamW { lr: RATE, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.0 };
        Ok(Self {
            spec,
            embedding,
            blocks,
            norm,
            cos: angles.cos()?,
            sin: angles.sin()?,
            mask: Tensor::from_vec(mask, (LENGTH, LENGTH), &device)?,
            ids: all.narrow(1, 0, LENGTH)?.contiguous()?,
            targets: all.narrow(1, 1, LENGTH)?.contiguous()?,
            optimizer: AdamW::new(vars, config)?,
        })
    }

    /// RMSNorm of primitive operations: the fused one cuts the gradient.
    fn normed(&self, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
        let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
        Ok(x.broadcast_div(&(mean + f64::from(self.spec.rms_eps))?.sqrt()?)?.broadcast_mul(weight)?)
    }

    fn rotated(&self, x: &Tensor) -> Result<Tensor> {
        let half = self.spec.head_dim / 2;
        let (low, high) = (x.narrow(D::Minus1, 0, half)?, x.narrow(D::Minus1, half, half)?);
        let turned = Tensor::cat(&[&high.neg()?, &low], D::Minus1)?;
        Ok((x.broadcast_mul(&self.cos)? + turned.broadcast_mul(&self.sin)?)?)
    }

    /// `rows x tokens x heads head_dim` as `rows x heads x tokens x head_dim`.
    fn heads(&self, x: &Tensor, heads: usize) -> Result<Tensor> {
        Ok(x.reshape((ROWS, LENGTH, heads, self.spec.head_dim))?.transpose(1, 2)?.contiguous()?)
    }

    fn loss(&self) -> Result<Tensor> {
        let spec = &self.spec;
        let tokens = ROWS * LENGTH;
        let mut x = self.embedding.index_select(&self.ids.flatten_all()?, 0)?;
        for block in &self.blocks {
            let normed = int8(&self.normed(&x, &block.attention_norm)?)?;
            let q = self.rotated(&self.heads(&linear(&normed, &block.query)?, spec.heads)?)?;
            let k = self.rotated(&self.heads(&linear(&normed, &block.key)?, spec.kv_heads)?)?;
            let v = self.heads(&linear(&normed, &block.value)?, spec.kv_heads)?;
            let shape = (ROWS, spec.heads, LENGTH, spec.head_dim);
            let repeated = |x: Tensor| -> Result<Tensor> {
                let group = spec.heads / spec.kv_heads;
                let x = x.unsqueeze(2)?.broadcast_as((ROWS, spec.kv_heads, group, LENGTH, spec.head_dim))?;
                Ok(x.reshape(shape)?)
            };
            let scores = (q.matmul(&repeated(k)?.t()?)? * (1.0 / (spec.head_dim as f64).sqrt()))?;
            let weights = candle_nn::ops::softmax(&scores.broadcast_add(&self.mask)?, D::Minus1)?;
            let attended = weights.matmul(&repeated(v)?)?.transpose(1, 2)?.reshape((tokens, spec.hidden))?;
            x = (x + linear(&int8(&attended)?, &block.output)?)?;
            let normed = int8(&self.normed(&x, &block.mlp_norm)?)?;
            let gated = (linear(&normed, &block.gate)?.silu()? * linear(&normed, &block.up)?)?;
            x = (x + linear(&int8(&gated)?, &block.down)?)?;
        }
        let logits = self.normed(&x, &self.norm)?.matmul(&self.embedding.t()?)?;
        let logits = candle_nn::ops::log_softmax(&logits, D::Minus1)?;
        Ok(candle_nn::loss::nll(&logits, &self.targets.flatten_all()?)?)
    }
}

/// `x` rounded to int8 per token, with the gradient of the identity.
fn int8(x: &Tensor) -> Result<Tensor> {
    let fixed = x.detach();
    let scale = (fixed.abs()?.max_keepdim(D::Minus1)?.clamp(1e-5, f32::INFINITY)? / 127.0)?;
    let rounded = fixed.broadcast_div(&scale)?.round()?.broadcast_mul(&scale)?;
    Ok((x + (rounded - &fixed)?)?)
}

/// `x W^T` with `W` rounded to its mean magnitude times -1, 0 or 1, with the gradient of the identity.
fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let fixed = weight.detach();
    let scale = fixed.abs()?.mean_all()?;
    let trits = fixed.broadcast_div(&scale)?.round()?.clamp(-1.0, 1.0)?;
    let ternary = (weight + (trits.broadcast_mul(&scale)? - &fixed)?)?;
    Ok(x.matmul(&ternary.t()?)?)
}

impl Engine for Candle {
    fn step(&mut self) -> Result<f64> {
        let loss = self.loss()?;
        self.optimizer.backward_step(&loss)?;
        Ok(f64::from(loss.to_scalar::<f32>()?))
    }
}
