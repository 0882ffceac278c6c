//! The ternary linear layer.

use std::{fmt, sync::Arc};

use candle_core::{CpuStorage, CustomOp1, Layout as Strides, Shape, Tensor};
use candle_nn::{Linear, Module, VarBuilder};
use trike_core::Layout;
use trike_cpu::{ActivationPrecision, Cpu, CpuOps, DenseMatrix, Matrix, choose_layout};
use trike_trit::{Granularity, TritTensor};

use crate::exec::{check_device, check_len, check_width, floats, shared_cpu, to_f32};
use crate::packed;
use crate::quantize::{QuantizationStats, Ternarize, TernarizeOptions, quantize};
use crate::{CandleError, NnError};

/// `y = x W^T + b` with ternary `W` (`out x in`, any number of planes, any scales): takes the place of a
/// `candle_nn::Linear`.
///
/// `x` is `[..., in]` on the CPU in f32, f16 or bf16 with any leading axes, `y` is `[..., out]` in the dtype of `x`.
/// Products and sums are f32.
///
/// Gradients pass to `x` (`grad_x = grad_y W`) and to a bias that is a variable; the weights are constants. The backward
/// pass widens `W` to f32 for as long as it runs.
///
/// The weights lie in memory in the layout that is fastest for them, by the table that decoders use
/// ([`choose_layout`]); where a dense weight was to become ternary and the error would be over
/// [`TernarizeOptions::max_error`], they stay dense. [`kind`](Self::kind) says which.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_nn::Module;
/// use trike_candle::TernaryLinear;
/// use trike_trit::{Encoding, Scales, TritTensor};
///
/// let trits = TritTensor::from_trits(2, 3, &[1, 0, -1, 1, 1, 1], Encoding::TwoBit, Scales::tensor(0.5))?;
/// let layer = TernaryLinear::new(&trits, Some(Tensor::new(&[10f32, 20.0], &Device::Cpu)?))?;
/// let y = layer.forward(&Tensor::new(&[[1f32, 2.0, 4.0]], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec2::<f32>()?, [[8.5, 23.5]]);
/// # Ok::<(), trike_candle::CandleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TernaryLinear {
    weight: Arc<Matrix>,
    bias: Option<Tensor>,
    activations: ActivationPrecision,
    cpu: Cpu,
    #[cfg(feature = "gpu")]
    device: Option<Arc<crate::on_device::OnDevice>>,
}

/// How a [`TernaryLinear`] holds its weights.
///
/// ```
/// use trike_candle::{Layout, LinearKind};
///
/// assert_eq!(LinearKind::Ternary(Layout::Sparse).to_string(), "ternary, sparse");
/// assert_eq!(LinearKind::Dense.to_string(), "dense");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinearKind {
    /// Trits in a layout.
    Ternary(Layout),
    /// f32: the error of ternary weights would have been over the bound.
    Dense,
}

impl fmt::Display for LinearKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ternary(layout) => write!(f, "ternary, {layout}"),
            Self::Dense => f.write_str("dense"),
        }
    }
}

impl TernaryLinear {
    /// A layer with the weights of `weight`, f32 activations and the [shared executor](shared_cpu).
    ///
    /// # Errors
    ///
    /// [`NnError::Shape`] for a bias that is not `[out]`, [`NnError::Spec`] for its device or dtype, [`NnError::Cpu`] for
    /// more columns than the kernels take.
    pub fn new(weight: &TritTensor, bias: Option<Tensor>) -> Result<Self, CandleError> {
        let cpu = shared_cpu()?;
        let layout = choose_layout(weight, cpu.isa());
        Self::of(Matrix::Ternary(cpu.pack(weight, layout)?), bias, cpu)
    }

    /// A layer from a dense weight `[out, in]`, ternary by the rule of `how`, or dense where the error would be over
    /// its bound; and the statistics of the ternary weights.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// use trike_candle::{Layout, LinearKind, Ternarize, TernarizeOptions, TernaryLinear};
    /// use trike_trit::Granularity;
    ///
    /// // One weight is a thousand times as large as the others.
    /// let mut values = vec![0.5f32; 64 * 64];
    /// values[7] = 500.0;
    /// let w = Tensor::from_vec(values, (64, 64), &Device::Cpu)?;
    /// let rule = Ternarize::AbsMean(Granularity::Tensor);
    /// let (layer, stats) = TernaryLinear::from_weight(&w, None, rule)?;
    /// assert_eq!(layer.kind(), LinearKind::Dense);
    /// assert!(stats.relative_error > 0.99);
    ///
    /// let options = TernarizeOptions::new(rule).with_max_error(f32::INFINITY);
    /// let (layer, _) = TernaryLinear::from_weight(&w, None, options)?;
    /// assert_eq!(layer.kind(), LinearKind::Ternary(Layout::TwoBit));
    /// # Ok::<(), trike_candle::CandleError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`quantize_tensor`](crate::quantize_tensor) and [`new`](Self::new), and [`NnError::Spec`] for a bound that is negative
    /// or not a number.
    pub fn from_weight(
        weight: &Tensor,
        bias: Option<Tensor>,
        how: impl Into<TernarizeOptions>,
    ) -> Result<(Self, QuantizationStats), CandleError> {
        let how = how.into();
        how.validate()?;
        let (trits, stats, dense) = quantize(weight, how.rule)?;
        let layer = if stats.relative_error > how.max_error {
            Self::of(Matrix::Dense(DenseMatrix::from_tensor(dense)), bias, shared_cpu()?)?
        } else {
            Self::new(&trits, bias)?
        };
        Ok((layer, stats))
    }

    fn of(weight: Matrix, bias: Option<Tensor>, cpu: Cpu) -> Result<Self, CandleError> {
        if let Some(bias) = &bias {
            to_f32(bias)?;
            check_len("axes of a bias", 1, bias.rank())?;
            check_len("length of a bias", weight.rows(), bias.elem_count())?;
        }
        Ok(Self {
            weight: Arc::new(weight),
            bias,
            activations: ActivationPrecision::F32,
            cpu,
            #[cfg(feature = "gpu")]
            device: None,
        })
    }

    /// [`new`](Self::new), and the product is computed on a device: each call copies its input there and its output back, which
    /// [`device_use`](Self::device_use) counts. That pays for large layers and many rows only, and is for code that stays with
    /// Candle's tensors on the CPU; [`CubeBackend`](trike_nn::CubeBackend) leaves a whole decoder on the device.
    ///
    /// Gradients are computed on the host, where the weights are held too.
    ///
    /// ```no_run
    /// # use trike_trit::{Encoding, Scales, TritTensor};
    /// use trike_candle::TernaryLinear;
    /// use trike_nn::cube::{Device, DeviceSpec};
    ///
    /// # let trits = TritTensor::from_trits(2, 3, &[1, 0, -1, 1, 1, 1], Encoding::TwoBit, Scales::tensor(0.5))?;
    /// let layer = TernaryLinear::new_on(&Device::open(DeviceSpec::Auto)?, &trits, None)?;
    /// assert_eq!(layer.device_use().map(|used| used.read_backs), Some(0));
    /// # Ok::<(), trike_candle::CandleError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and [`NnError::Cube`] for what the device does not take.
    #[cfg(feature = "gpu")]
    pub fn new_on(
        device: &trike_nn::cube::Device,
        weight: &TritTensor,
        bias: Option<Tensor>,
    ) -> Result<Self, CandleError> {
        let layer = Self::new(weight, bias)?;
        let device = crate::on_device::OnDevice::load(device, weight, layer.activations)?;
        Ok(Self { device: Some(Arc::new(device)), ..layer })
    }

    /// The device's memory and the copies that this layer made; `None` for a layer of the host. Of what
    /// [`with_activations`](Self::with_activations) makes of a layer, the copies are counted apart.
    #[cfg(feature = "gpu")]
    pub fn device_use(&self) -> Option<trike_nn::DeviceUse> {
        self.device.as_ref().and_then(|device| device.used())
    }

    /// Loads `weight` (`out_features x in_features`) and, where the checkpoint has one, `bias`, by the checkpoint's own
    /// names under the prefix of `vb`.
    ///
    /// Parts that Trike packed (`weight.trits`, `weight.scales`, ...) are taken as they are, and `how` says what happens
    /// to a dense weight, which is read as f32, whatever dtype `vb` asks for: a [`Ternarize`], or [`TernarizeOptions`] for
    /// another bound on the error than the default. The sizes are checked against the parts as
    /// far as these show them: a layer wider than a packed tensor by less than the padding of its rows reads zeros there.
    ///
    /// ```
    /// # use std::collections::HashMap;
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_nn::VarBuilder;
    /// use trike_candle::{Ternarize, TernaryLinear};
    ///
    /// # let dense = Tensor::new(&[[0.5f32, 0.0, -0.5]], &Device::Cpu)?;
    /// # let tensors = HashMap::from([("model.layers.0.mlp.up_proj.weight".to_owned(), dense)]);
    /// # let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    /// let layer = TernaryLinear::load(3, 1, vb.pp("model.layers.0.mlp.up_proj"), Ternarize::Exact)?;
    /// assert_eq!(layer.dequantize()?.to_vec2::<f32>()?, [[0.5, 0.0, -0.5]]);
    /// # Ok::<(), trike_candle::CandleError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`NnError::Load`], which names the weight, with the reason: no such tensor, another shape, damaged parts, a
    /// device that is not the CPU, or a dense weight that [`Ternarize::Exact`] does not take.
    pub fn load(
        in_features: usize,
        out_features: usize,
        vb: VarBuilder<'_>,
        how: impl Into<TernarizeOptions>,
    ) -> Result<Self, CandleError> {
        let how = how.into();
        let load = || {
            check_device(vb.device())?;
            let bias = vb.contains_tensor("bias").then(|| vb.get(out_features, "bias")).transpose()?;
            if packed::is_packed(&vb) {
                return Self::new(&packed::read(&vb, out_features, in_features)?, bias);
            }
            Ok(Self::from_weight(&load_dense(in_features, out_features, &vb)?, bias, how)?.0)
        };
        load().map_err(|source: CandleError| {
            let name = format!("{}.weight", vb.prefix());
            NnError::Load { name: name.clone(), source: Box::new(Unreadable { name, source }) }.into()
        })
    }

    /// Precision of the activations of ternary weights: f32 at first, and always f32 with weights that stayed dense.
    #[must_use]
    pub fn with_activations(self, activations: ActivationPrecision) -> Self {
        #[cfg(feature = "gpu")]
        let device = self.device.as_ref().map(|device| Arc::new(device.with_activations(activations)));
        Self {
            activations,
            #[cfg(feature = "gpu")]
            device,
            ..self
        }
    }

    /// Uses another executor.
    #[must_use]
    pub fn with_cpu(self, cpu: Cpu) -> Self {
        Self { cpu, ..self }
    }

    /// Length of an input.
    pub fn in_features(&self) -> usize {
        self.weight.cols()
    }

    /// Length of an output.
    pub fn out_features(&self) -> usize {
        self.weight.rows()
    }

    /// The bias, `[out]`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// Precision of the activations of ternary weights.
    pub fn activations(&self) -> ActivationPrecision {
        self.activations
    }

    /// How the weights are held: ternary and in which layout, or dense.
    pub fn kind(&self) -> LinearKind {
        match &*self.weight {
            Matrix::Ternary(matrix) => LinearKind::Ternary(matrix.layout()),
            // No constructor makes another matrix.
            Matrix::Int8(_) | Matrix::Dense(_) => LinearKind::Dense,
        }
    }

    /// Bytes of the resident weights: codes and scales, padding included.
    pub fn bytes(&self) -> usize {
        self.weight.bytes()
    }

    /// The weights in f32, `[out, in]`.
    ///
    /// # Errors
    ///
    /// Those of the kernels and of Candle, on matrices that do not fit in memory.
    pub fn dequantize(&self) -> Result<Tensor, CandleError> {
        dequantize(&self.cpu, &self.weight)
    }

    fn apply(&self, x: &Tensor) -> Result<Tensor, CandleError> {
        check_width("input of a ternary linear layer", x, self.in_features())?;
        let op = LinearOp {
            weight: Arc::clone(&self.weight),
            activations: self.activations,
            cpu: self.cpu.clone(),
            #[cfg(feature = "gpu")]
            device: self.device.clone(),
        };
        let mut y = to_f32(x)?.apply_op1(op)?;
        if let Some(bias) = &self.bias {
            y = y.broadcast_add(&to_f32(bias)?)?;
        }
        Ok(y.to_dtype(x.dtype())?)
    }
}

impl Module for TernaryLinear {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        Ok(self.apply(x)?)
    }
}

/// Why a layer could not be loaded, with its name.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {source}")]
struct Unreadable {
    name: String,
    source: CandleError,
}

/// A `candle_nn::Linear` as a ternary one, by BitNet's rule with one scale for the matrix, and its statistics. A
/// layer whose error would be over the default bound of [`TernarizeOptions`] stays dense. The bias is kept.
///
/// [`TernaryLinear::from_weight`] is the same with a choice of the rule and the bound.
///
/// # Errors
///
/// As [`TernaryLinear::from_weight`].
pub fn convert_linear(linear: &Linear) -> Result<(TernaryLinear, QuantizationStats), CandleError> {
    let rule = Ternarize::AbsMean(Granularity::Tensor);
    TernaryLinear::from_weight(linear.weight(), linear.bias().cloned(), rule)
}

/// The dense weight under the prefix of `vb`.
fn load_dense(cols: usize, rows: usize, vb: &VarBuilder<'_>) -> Result<Tensor, CandleError> {
    for (other, what) in [("weight.int8", "int8 codes"), ("weight_scale", "another packing of trits")] {
        if vb.contains_tensor(other) {
            let rule = "must be dense or packed by Trike";
            return Err(NnError::Spec { field: "a weight", rule, got: format!("{what} (`{other}`)") }.into());
        }
    }
    let f32 = candle_core::DType::F32;
    Ok(vb.get_with_hints_dtype((rows, cols), "weight", candle_nn::Init::default(), f32)?)
}

fn dequantize(cpu: &Cpu, weight: &Matrix) -> Result<Tensor, CandleError> {
    let (rows, cols) = (weight.rows(), weight.cols());
    let mut values = vec![0.0; rows * cols];
    // Rows of a tensor are numbered in 32 bits, as `TritTensor` checks.
    cpu.embed(weight, &(0..rows as u32).collect::<Vec<_>>(), &mut values)?;
    Ok(Tensor::from_vec(values, (rows, cols), &candle_core::Device::Cpu)?)
}

/// `x W^T` on contiguous f32.
struct LinearOp {
    weight: Arc<Matrix>,
    activations: ActivationPrecision,
    cpu: Cpu,
    #[cfg(feature = "gpu")]
    device: Option<Arc<crate::on_device::OnDevice>>,
}

impl CustomOp1 for LinearOp {
    fn name(&self) -> &'static str {
        "ternary_linear"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Strides) -> candle_core::Result<(CpuStorage, Shape)> {
        let x = floats(self.name(), storage, layout)?;
        let mut dims = layout.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = self.weight.rows();
        }
        #[cfg(feature = "gpu")]
        if let Some(device) = &self.device {
            return Ok((CpuStorage::F32(device.linear(x)?), dims.into()));
        }
        let mut y = vec![0.0; dims.iter().product()];
        self.cpu.linear(x, &self.weight, self.activations, &mut y).map_err(CandleError::from)?;
        Ok((CpuStorage::F32(y), dims.into()))
    }

    /// Rounding of the activations, if any, counts as the identity (the straight-through estimator).
    fn bwd(&self, x: &Tensor, _y: &Tensor, grad: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let weight = dequantize(&self.cpu, &self.weight)?;
        let rows = self.weight.rows();
        let grad = grad.reshape((grad.elem_count() / rows, rows))?;
        Ok(Some(grad.matmul(&weight)?.reshape(x.shape())?))
    }
}
