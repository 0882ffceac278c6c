//! The linear layer of BitNet b1.58 for training.

use candle_core::{CpuStorage, CustomOp1, Layout as Strides, Shape, Tensor};
use candle_nn::{Module, VarBuilder};
use trike_core::{DenseData, DenseTensor, absmean_trits};
use trike_trit::{Encoding, Granularity};

use crate::exec::{check_device, check_finite, check_len, check_width, floats, to_f32};
use crate::{BitLinear, CandleError};

/// Lower bound of a token's absolute maximum in the scale of its activations.
const SMALLEST: f32 = 1e-5;

/// The linear layer of BitNet b1.58 with its latent weight, for training by Candle's optimizers: the arithmetic of
/// [`BitLinear`], and gradients that reach the weight.
///
/// The latent weight `[out, in]` is ternarized in every forward pass, so it may be a variable that an optimizer changes. Both
/// roundings are the identity in the backward pass (straight-through estimator, Bengio et al., 1308.3432): with the ternary weight
/// `q` and the rounded input `r`, `grad_W = grad_y^T r` and `grad_x = grad_y q`. Products are Candle's in f32.
/// [`to_bit_linear`](Self::to_bit_linear) returns the packed layer, whose products are exact sums of integers: results differ by the
/// rounding of f32.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{AdamW, Module, Optimizer, VarBuilder, VarMap};
/// use trike_candle::LatentBitLinear;
///
/// let variables = VarMap::new();
/// let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
/// let layer = LatentBitLinear::load(4, 2, vb.pp("up_proj"))?;
/// let before = layer.weight().to_vec2::<f32>()?;
///
/// let x = Tensor::new(&[[1f32, 2.0, -3.0, 0.5]], &Device::Cpu)?;
/// let loss = layer.forward(&x)?.sqr()?.sum_all()?;
/// AdamW::new_lr(variables.all_vars(), 0.1)?.backward_step(&loss)?;
/// assert_ne!(layer.weight().to_vec2::<f32>()?, before);
/// # Ok::<(), trike_candle::CandleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LatentBitLinear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl LatentBitLinear {
    /// A layer with the latent weight `[out, in]` and a bias `[out]`, in f32, f16 or bf16 on the CPU; either may be the tensor of a
    /// [`Var`](candle_core::Var).
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`](crate::NnError::Spec) for another device or dtype, [`NnError::Shape`](crate::NnError::Shape) for a bias of another shape,
    /// [`CandleError::Candle`] if the weight does not have two axes.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Result<Self, CandleError> {
        let (rows, _) = weight.dims2()?;
        to_f32(&weight)?;
        if let Some(bias) = &bias {
            to_f32(bias)?;
            check_len("axes of a bias", 1, bias.rank())?;
            check_len("length of a bias", rows, bias.elem_count())?;
        }
        Ok(Self { weight, bias })
    }

    /// A layer without bias whose latent weight is `weight` under the prefix of `vb`. A missing variable is initialized uniformly
    /// within `sqrt(6 / in)` (Kaiming).
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and [`CandleError::Candle`] for a weight that is missing or has another shape.
    pub fn load(in_features: usize, out_features: usize, vb: VarBuilder<'_>) -> Result<Self, CandleError> {
        check_device(vb.device())?;
        let init = candle_nn::init::DEFAULT_KAIMING_UNIFORM;
        Self::new(vb.get_with_hints((out_features, in_features), "weight", init)?, None)
    }

    /// The latent weight, `[out, in]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, `[out]`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The layer with its current weights, packed for inference.
    ///
    /// # Errors
    ///
    /// As [`BitLinear::from_weight`].
    pub fn to_bit_linear(&self) -> Result<BitLinear, CandleError> {
        // Weights and bias of the packed layer are constants.
        let bias = self.bias.as_ref().map(Tensor::detach);
        Ok(BitLinear::from_weight(&self.weight.detach(), bias)?.0)
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor, CandleError> {
        let (rows, cols) = self.weight.dims2()?;
        check_width("input of a ternary linear layer", x, cols)?;
        let ternary = to_f32(&self.weight)?.apply_op1(Ternarized)?;
        let rounded = to_f32(x)?.apply_op1(Rounded)?;
        let mut dims = x.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = rows;
        }
        let tokens = x.elem_count() / cols.max(1);
        let mut y = rounded.reshape((tokens, cols))?.matmul(&ternary.t()?)?.reshape(dims)?;
        if let Some(bias) = &self.bias {
            y = y.broadcast_add(&to_f32(bias)?)?;
        }
        Ok(y.to_dtype(x.dtype())?)
    }
}

impl Module for LatentBitLinear {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        Ok(self.apply(x)?)
    }
}

/// A weight ternarized by BitNet's rule, [`absmean_trits`].
struct Ternarized;

impl CustomOp1 for Ternarized {
    fn name(&self) -> &'static str {
        "ternarized_weight"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Strides) -> candle_core::Result<(CpuStorage, Shape)> {
        let values = floats(self.name(), storage, layout)?;
        check_finite("a weight", values)?;
        let ternary = || -> Result<Vec<f32>, CandleError> {
            let dense = DenseTensor::new(layout.dims().to_vec(), DenseData::F32(values.to_vec()))?;
            Ok(absmean_trits(&dense, Granularity::Tensor, Encoding::TwoBit)?.dequantize())
        };
        Ok((CpuStorage::F32(ternary()?), layout.shape().clone()))
    }

    fn bwd(&self, _arg: &Tensor, _res: &Tensor, grad: &Tensor) -> candle_core::Result<Option<Tensor>> {
        Ok(Some(grad.clone()))
    }
}

/// Activations rounded to int8 with one scale per token.
struct Rounded;

impl CustomOp1 for Rounded {
    fn name(&self) -> &'static str {
        "int8_activations"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Strides) -> candle_core::Result<(CpuStorage, Shape)> {
        let values = floats(self.name(), storage, layout)?;
        check_finite("an activation", values)?;
        let width = layout.dims().last().copied().unwrap_or(1).max(1);
        let mut out = Vec::with_capacity(values.len());
        for token in values.chunks(width) {
            let scale = token.iter().fold(SMALLEST, |m, v| m.max(v.abs())) / 127.0;
            out.extend(token.iter().map(|v| (v / scale).round_ties_even().clamp(-128.0, 127.0) * scale));
        }
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(&self, _arg: &Tensor, _res: &Tensor, grad: &Tensor) -> candle_core::Result<Option<Tensor>> {
        Ok(Some(grad.clone()))
    }
}
