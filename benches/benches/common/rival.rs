//! The outside rival: candle's CPU matrix product, which is the `gemm` crates.

use candle_core::{DType, Device, Result, Tensor};

/// Dense weights in candle.
pub(crate) struct Rival {
    weights: Tensor,
}

impl Rival {
    /// What candle computes in: weights, activations and outputs alike.
    pub(crate) const DTYPES: [(DType, &'static str); 2] =
        [(DType::F32, "candle f32"), (DType::F16, "candle f16")];

    /// `rows x cols` integers as candle holds them.
    pub(crate) fn new(weights: &[i8], rows: usize, cols: usize, dtype: DType) -> Result<Self> {
        let floats: Vec<f32> = weights.iter().map(|&w| f32::from(w)).collect();
        Ok(Self { weights: Tensor::from_vec(floats, (rows, cols), &Device::Cpu)?.to_dtype(dtype)? })
    }

    /// The same numbers in memory of their own.
    pub(crate) fn duplicate(&self) -> Result<Self> {
        Ok(Self { weights: self.weights.copy()? })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.weights.elem_count() * self.weights.dtype().size_in_bytes()
    }

    /// Activations of `cols` numbers a token, in the type of the weights.
    pub(crate) fn activations(&self, x: &[f32]) -> Result<Tensor> {
        let cols = self.weights.dim(1)?;
        Tensor::from_slice(x, (x.len() / cols, cols), &Device::Cpu)?.to_dtype(self.weights.dtype())
    }

    /// `x W^T`.
    pub(crate) fn linear(&self, x: &Tensor) -> Result<Tensor> {
        x.matmul(&self.weights.t()?)
    }
}
