//! Rotary position embedding.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor};
use trike_cpu::{Cpu, CpuOps, RopePairing, RopeTable};
use trike_nn::check;

use crate::exec::{floats, shared_cpu, to_f32};
use crate::{CandleError, NnError, RopeSpec};

/// Number of positions with precomputed sines and cosines; later positions are computed on demand.
const KEPT_POSITIONS: usize = 8192;

/// Rotates pairs of each head by `position * frequency` (Su et al., RoFormer, 2021), both pairings and every scaling of
/// [`RopeSpec`].
///
/// YaRN's `attention_factor` is not applied here: it scales the attention scores and is part of the scale of
/// [`TernaryAttention`](crate::TernaryAttention).
///
/// ```
/// use candle_core::{Device, Tensor};
/// use trike_candle::{RopePairing, RopeSpec, RotaryEmbedding};
///
/// // One head of two elements: it rotates by its position, in radians.
/// let rotary = RotaryEmbedding::new(&RopeSpec::new(10_000.0, RopePairing::Halves), 2, 16)?;
/// let x = Tensor::new(&[[1f32, 0.0], [1.0, 0.0]], &Device::Cpu)?;
/// let y = rotary.forward(&x, 3)?.to_vec2::<f32>()?;
/// assert!((y[0][0] - 3f32.cos()).abs() < 1e-6 && (y[1][1] - 4f32.sin()).abs() < 1e-6);
/// # Ok::<(), trike_candle::CandleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RotaryEmbedding {
    table: Arc<RopeTable>,
    inverse: Arc<RopeTable>,
    head_dim: usize,
    pairing: RopePairing,
    cpu: Cpu,
}

impl RotaryEmbedding {
    /// An embedding over heads of `head_dim`, usually used for positions below `context`.
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`] for an odd or zero `head_dim` and for constants out of range.
    pub fn new(spec: &RopeSpec, head_dim: usize, context: usize) -> Result<Self, CandleError> {
        if head_dim == 0 || !head_dim.is_multiple_of(2) || head_dim > 1 << 16 {
            let rule = "must be even and 2 to 65536";
            return Err(NnError::Spec { field: "head_dim", rule, got: head_dim.to_string() }.into());
        }
        spec.validate(head_dim)?;
        let frequencies = spec.frequencies(head_dim);
        // The gradient is rotated by the negative angle.
        let inverse = RopeTable::from_frequencies(frequencies.iter().map(|f| -f).collect())?;
        let table = RopeTable::from_frequencies(frequencies)?;
        Ok(Self {
            table: Arc::new(table.precompute(context.min(KEPT_POSITIONS) as u32)),
            inverse: Arc::new(inverse),
            head_dim,
            pairing: spec.pairing,
            cpu: shared_cpu()?,
        })
    }

    /// Uses another executor.
    #[must_use]
    pub fn with_cpu(self, cpu: Cpu) -> Self {
        Self { cpu, ..self }
    }

    /// Rotates `x`, `[..., tokens, heads * head_dim]`, whose tokens have consecutive positions from `first_position`.
    /// Differentiable.
    ///
    /// # Errors
    ///
    /// [`NnError::Shape`] for fewer than two axes, [`NnError::Heads`] for a width that is not a multiple of `head_dim`,
    /// [`NnError::Spec`] for an unsupported device or dtype, or a position that does not fit in 32 bits.
    pub fn forward(&self, x: &Tensor, first_position: usize) -> Result<Tensor, CandleError> {
        let &[.., tokens, width] = x.dims() else {
            return Err(NnError::Shape {
                what: "axes of the input of rope, at least",
                expected: 2,
                got: x.rank(),
            }
            .into());
        };
        check::head_norm(width, self.head_dim)?;
        let last = first_position.checked_add(tokens).filter(|&end| end <= u32::MAX as usize);
        if last.is_none() {
            let rule = "must be under 4294967296";
            return Err(NnError::Spec { field: "position", rule, got: first_position.to_string() }.into());
        }
        let op = RopeOp { rotary: self.clone(), first: first_position as u32 };
        Ok(to_f32(x)?.apply_op1(op)?.to_dtype(x.dtype())?)
    }
}

struct RopeOp {
    rotary: RotaryEmbedding,
    first: u32,
}

impl CustomOp1 for RopeOp {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let mut x = floats(self.name(), storage, layout)?.to_vec();
        let RotaryEmbedding { table, head_dim, pairing, cpu, .. } = &self.rotary;
        if let &[.., tokens, width] = layout.dims()
            && !x.is_empty()
        {
            let positions: Vec<u32> =
                (0..x.len() / width).map(|i| self.first + (i % tokens) as u32).collect();
            cpu.rope(&mut x, width / head_dim, *head_dim, &positions, table, *pairing)
                .map_err(CandleError::from)?;
        }
        Ok((CpuStorage::F32(x), layout.shape().clone()))
    }

    fn bwd(&self, _arg: &Tensor, _res: &Tensor, grad: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let mut back = self.rotary.clone();
        back.table = Arc::clone(&self.rotary.inverse);
        Ok(Some(grad.contiguous()?.apply_op1_no_bwd(&Self { rotary: back, first: self.first })?))
    }
}
