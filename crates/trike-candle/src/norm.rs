//! RMSNorm.

use candle_core::{CpuStorage, CustomOp2, D, Layout, Shape, Tensor};
use candle_nn::{Module, VarBuilder};
use trike_cpu::{Cpu, CpuOps};

use crate::exec::{check_device, check_len, check_width, floats, shared_cpu, to_f32};
use crate::{CandleError, NnError};

/// `x / sqrt(mean(x^2) + eps) * weight` along the last axis (Zhang and Sennrich, 2019).
///
/// `x` is `[..., n]` and `weight` `[n]`, on the CPU in f32, f16 or bf16; the result has the shape and dtype of `x`.
/// Gradients flow to both.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use trike_candle::{rms_norm, shared_cpu};
///
/// let x = Tensor::new(&[[3f32, -3.0]], &Device::Cpu)?;
/// let y = rms_norm(&shared_cpu()?, &x, &Tensor::new(&[1f32, 2.0], &Device::Cpu)?, 0.0)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[1.0, -2.0]]);
/// # Ok::<(), trike_candle::CandleError>(())
/// ```
///
/// # Errors
///
/// [`NnError::Shape`] when widths differ, [`NnError::Spec`] for an unsupported device or dtype.
pub fn rms_norm(cpu: &Cpu, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor, CandleError> {
    check_len("axes of the weight of a norm", 1, weight.rank())?;
    check_width("input of a norm", x, weight.elem_count())?;
    let op = RmsNormOp { cpu: cpu.clone(), eps };
    Ok(to_f32(x)?.apply_op2(&to_f32(weight)?, op)?.to_dtype(x.dtype())?)
}

/// [`rms_norm()`] as a module, with its weight.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::Module;
/// use trike_candle::RmsNorm;
///
/// let norm = RmsNorm::new(Tensor::ones(4, DType::F32, &Device::Cpu)?, 1e-5)?;
/// let y = norm.forward(&Tensor::full(7f32, (2, 3, 4), &Device::Cpu)?)?;
/// assert_eq!(y.dims(), [2, 3, 4]);
/// # Ok::<(), trike_candle::CandleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f32,
    cpu: Cpu,
}

impl RmsNorm {
    /// A norm with `weight` (`[n]`).
    ///
    /// # Errors
    ///
    /// [`NnError::Shape`] if the weight does not have rank 1, [`NnError::Spec`] for its device or dtype, or for an `eps` that
    /// is negative or not finite.
    pub fn new(weight: Tensor, eps: f32) -> Result<Self, CandleError> {
        check_len("axes of the weight of a norm", 1, weight.rank())?;
        to_f32(&weight)?;
        if !(eps >= 0.0 && eps.is_finite()) {
            return Err(NnError::Spec {
                field: "eps",
                rule: "must be finite and not negative",
                got: eps.to_string(),
            }
            .into());
        }
        Ok(Self { weight, eps, cpu: shared_cpu()? })
    }

    /// Loads `weight` (`[size]`) under the prefix of `vb`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and [`CandleError::Candle`] for a tensor that is missing or has the wrong shape.
    pub fn load(size: usize, eps: f32, vb: VarBuilder<'_>) -> Result<Self, CandleError> {
        check_device(vb.device())?;
        Self::new(vb.get(size, "weight")?, eps)
    }

    /// Uses another executor.
    #[must_use]
    pub fn with_cpu(self, cpu: Cpu) -> Self {
        Self { cpu, ..self }
    }
}

impl Module for RmsNorm {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        Ok(rms_norm(&self.cpu, x, &self.weight, self.eps)?)
    }
}

struct RmsNormOp {
    cpu: Cpu,
    eps: f32,
}

impl CustomOp2 for RmsNormOp {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (x, weight) = (floats(self.name(), s1, l1)?, floats(self.name(), s2, l2)?);
        let mut out = vec![0.0; x.len()];
        self.cpu.rms_norm(x, weight, self.eps, &mut out).map_err(CandleError::from)?;
        Ok((CpuStorage::F32(out), l1.shape().clone()))
    }

    /// With `n = x r`, `r = 1 / rms`: `grad_x = r (g w - n mean(g w n))`, `grad_w = sum(g n)` over the rows.
    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _res: &Tensor,
        grad: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let r = (x.sqr()?.mean_keepdim(D::Minus1)? + f64::from(self.eps))?.sqrt()?.recip()?;
        let n = x.broadcast_mul(&r)?;
        let scaled = grad.broadcast_mul(weight)?;
        let along = (&scaled * &n)?.mean_keepdim(D::Minus1)?;
        let grad_x = (scaled - n.broadcast_mul(&along)?)?.broadcast_mul(&r)?;
        // The kernel has rejected an empty weight.
        let rows = grad.elem_count() / weight.elem_count();
        let grad_w = (grad * n)?.reshape((rows, weight.elem_count()))?.sum(0)?;
        Ok((Some(grad_x), Some(grad_w)))
    }
}
