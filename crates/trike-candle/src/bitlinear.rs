//! The linear layer of BitNet b1.58.

use candle_core::Tensor;
use candle_nn::{Module, VarBuilder};
use trike_cpu::{ActivationPrecision, Cpu};
use trike_trit::{Granularity, TritTensor};

use crate::CandleError;
use crate::linear::TernaryLinear;
use crate::quantize::{QuantizationStats, Ternarize, TernarizeOptions, quantize_tensor};

/// The linear layer of BitNet b1.58 (Ma et al., 2024): ternary weights with one scale, int8 activations with one scale
/// per token.
///
/// ```text
/// s = max(mean|W|, 1e-5)        t = clamp(round(W / s), -1, 1)
/// a = max(max|x|, 1e-5) / 127   q = clamp(round(x / a), -128, 127)     for each token
/// y = (q t^T) a s + b
/// ```
///
/// The sums `q t^T` are exact integers. The layer does not include the RMSNorm that precedes some linear layers in BitNet's
/// blocks; that is the module [`RmsNorm`](crate::RmsNorm). Shapes, dtypes and gradients are those of
/// [`TernaryLinear`]; the rounding of the activations is treated as the identity in the backward pass
/// (straight-through estimator).
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_nn::Module;
/// use trike_candle::BitLinear;
///
/// let w = Tensor::new(&[[0.75f32, -1.0, 0.125], [1.0, 0.0, -0.125]], &Device::Cpu)?;
/// let (layer, stats) = BitLinear::from_weight(&w, None)?;
/// assert_eq!(stats.density, 0.5);
/// // Trits [1, -1, 0] and [1, 0, 0], scale 0.5; the largest activation is 127, so the codes are the activations.
/// let y = layer.forward(&Tensor::new(&[[127f32, 27.0, -5.0]], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[50.0, 63.5]]);
/// # Ok::<(), trike_candle::CandleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct BitLinear {
    linear: TernaryLinear,
}

impl BitLinear {
    /// Ternarizes a dense weight `[out, in]`; also returns statistics.
    ///
    /// # Errors
    ///
    /// As [`quantize_tensor`] and [`TernaryLinear::new`].
    pub fn from_weight(
        weight: &Tensor,
        bias: Option<Tensor>,
    ) -> Result<(Self, QuantizationStats), CandleError> {
        let (trits, stats) = quantize_tensor(weight, Ternarize::AbsMean(Granularity::Tensor))?;
        Ok((Self::from_quantized(&trits, bias)?, stats))
    }

    /// A layer from ternary weights.
    ///
    /// # Errors
    ///
    /// As [`TernaryLinear::new`].
    pub fn from_quantized(weight: &TritTensor, bias: Option<Tensor>) -> Result<Self, CandleError> {
        Ok(Self::wrap(TernaryLinear::new(weight, bias)?))
    }

    /// Loads `weight` and, if the checkpoint has one, `bias`, by the checkpoint's names. A dense weight is the master weight
    /// of an online-quantized checkpoint (with `-bf16` in its name), which this layer ternarizes by definition; parts
    /// packed by Trike are used unchanged.
    ///
    /// # Errors
    ///
    /// As [`TernaryLinear::load`].
    pub fn load(in_features: usize, out_features: usize, vb: VarBuilder<'_>) -> Result<Self, CandleError> {
        // The model was trained with these trits, so their error relative to the master weights is irrelevant.
        let how =
            TernarizeOptions::new(Ternarize::AbsMean(Granularity::Tensor)).with_max_error(f32::INFINITY);
        Ok(Self::wrap(TernaryLinear::load(in_features, out_features, vb, how)?))
    }

    fn wrap(linear: TernaryLinear) -> Self {
        Self { linear: linear.with_activations(ActivationPrecision::Int8PerToken) }
    }

    /// Uses another executor.
    #[must_use]
    pub fn with_cpu(self, cpu: Cpu) -> Self {
        Self { linear: self.linear.with_cpu(cpu) }
    }

    /// The underlying layer, with activations [`ActivationPrecision::Int8PerToken`].
    pub fn as_linear(&self) -> &TernaryLinear {
        &self.linear
    }
}

/// For functions and fields of type [`TernaryLinear`], as in [`TernaryAttentionWeights`](crate::TernaryAttentionWeights).
impl From<BitLinear> for TernaryLinear {
    fn from(layer: BitLinear) -> Self {
        layer.linear
    }
}

impl Module for BitLinear {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        self.linear.forward(x)
    }
}
