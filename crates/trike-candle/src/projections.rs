//! Projections of attention.

use candle_core::Tensor;
use candle_nn::{Linear, Module};
use trike_cpu::Cpu;

use crate::{BitLinear, LatentBitLinear, TernaryLinear};

/// A linear layer for the projections of a [`MultiHeadAttention`](crate::MultiHeadAttention): a module with known widths.
///
/// Tensors are `[..., in]` and `[..., out]`, as with `candle_nn::Linear`.
pub trait Projection: Module {
    /// Input width.
    fn in_features(&self) -> usize;

    /// Output width.
    fn out_features(&self) -> usize;

    /// Uses another executor, if the layer has one.
    #[must_use]
    fn with_executor(self, cpu: &Cpu) -> Self
    where
        Self: Sized,
    {
        let _ = cpu;
        self
    }
}

impl Projection for TernaryLinear {
    fn in_features(&self) -> usize {
        self.in_features()
    }

    fn out_features(&self) -> usize {
        self.out_features()
    }

    fn with_executor(self, cpu: &Cpu) -> Self {
        self.with_cpu(cpu.clone())
    }
}

impl Projection for BitLinear {
    fn in_features(&self) -> usize {
        self.as_linear().in_features()
    }

    fn out_features(&self) -> usize {
        self.as_linear().out_features()
    }

    fn with_executor(self, cpu: &Cpu) -> Self {
        self.with_cpu(cpu.clone())
    }
}

impl Projection for LatentBitLinear {
    fn in_features(&self) -> usize {
        width(self.weight(), 1)
    }

    fn out_features(&self) -> usize {
        width(self.weight(), 0)
    }
}

impl Projection for Linear {
    fn in_features(&self) -> usize {
        width(self.weight(), 1)
    }

    fn out_features(&self) -> usize {
        width(self.weight(), 0)
    }
}

/// A dimension of a weight `[out, in]`; 0 for a missing axis, which no layer accepts.
fn width(weight: &Tensor, axis: usize) -> usize {
    weight.dims().get(axis).copied().unwrap_or(0)
}

/// The projections of a [`MultiHeadAttention`](crate::MultiHeadAttention); a [`BitLinear`] converts into a [`TernaryLinear`].
#[derive(Clone, Debug)]
pub struct AttentionWeights<L> {
    /// `heads * head_dim x hidden`.
    pub q_proj: L,
    /// `kv_heads * head_dim x hidden`.
    pub k_proj: L,
    /// `kv_heads * head_dim x hidden`.
    pub v_proj: L,
    /// `hidden x heads * head_dim`.
    pub o_proj: L,
}

/// The projections of a [`TernaryAttention`](crate::TernaryAttention).
pub type TernaryAttentionWeights = AttentionWeights<TernaryLinear>;

impl<L> AttentionWeights<L> {
    pub(crate) fn map<M, E>(self, change: impl Fn(L) -> Result<M, E>) -> Result<AttentionWeights<M>, E> {
        let Self { q_proj, k_proj, v_proj, o_proj } = self;
        Ok(AttentionWeights {
            q_proj: change(q_proj)?,
            k_proj: change(k_proj)?,
            v_proj: change(v_proj)?,
            o_proj: change(o_proj)?,
        })
    }
}
