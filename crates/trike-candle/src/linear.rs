//! The ternary linear layer.

use std::{fmt, sync::Arc};

use candle_core::{CpuStorage, CustomOp1, Layout as Strides, Shape, Tensor};
use candle_nn::{Linear, Module, VarBuilder};
use trike_core::{ActivationPolicy, ActivationPrecision, Layout};
use trike_cpu::{Cpu, CpuOps, DenseMatrix, Matrix, choose_layout};
use trike_trit::{Granularity, TritTensor};

use crate::exec::{check_device, check_len, check_width, floats, shared_cpu, to_f32};
use crate::packed;
use crate::quantize::{QuantizationStats, Ternarize, TernarizeOptions, quantize};
use crate::{CandleError, NnError};

/// `y = x W^T + b` with ternary `W` (`out x in`, any number of planes, any scales): a replacement for
/// `candle_nn::Linear`.
///
/// `x` is `[..., in]` on the CPU in f32, f16 or bf16 with any leading axes, `y` is `[..., out]` in the dtype of `x`.
///
/// Activations are rounded to int8 by default ([`ActivationPolicy::Int8`]), as in decoders: one scale per token or, for weights with
/// scales per group, one per group of the same size. NaN and infinite inputs are then an error.
/// [`with_activations`](Self::with_activations) selects f32 or another precision.
///
/// Gradients flow to `x` (`grad_x = grad_y W`) and to a bias that is a variable; the weights are constants. The backward
/// pass dequantizes `W` to f32 temporarily.
///
/// The weights are packed in the fastest layout, chosen by the same table as for decoders ([`choose_layout`]). A dense weight
/// stays dense if its ternarization error exceeds [`TernarizeOptions::max_error`]. [`kind`](Self::kind) returns the result.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use candle_nn::Module;
/// use trike_candle::{ActivationPrecision, TernaryLinear};
/// use trike_trit::{Encoding, Scales, TritTensor};
///
/// let trits = TritTensor::from_trits(2, 3, &[1, 0, -1, 1, 1, 1], Encoding::TwoBit, Scales::tensor(0.5))?;
/// let layer = TernaryLinear::new(&trits, Some(Tensor::new(&[10f32, 20.0], &Device::Cpu)?))?;
/// let x = Tensor::new(&[[1f32, 2.0, 4.0]], &Device::Cpu)?;
/// let exact = layer.clone().with_activations(ActivationPrecision::F32);
/// assert_eq!(exact.forward(&x)?.to_vec2::<f32>()?, [[8.5, 23.5]]);
/// // Codes 32, 64 and 127 in steps of 4 / 127.
/// let y = layer.forward(&x)?.to_vec2::<f32>()?;
/// assert!((y[0][0] - 8.504).abs() < 1e-3 && (y[0][1] - 23.512).abs() < 1e-3);
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

/// Storage of the weights of a [`TernaryLinear`].
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
    /// f32: the error of ternary weights exceeds the bound.
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
    /// A layer with the weights of `weight`, int8 activations and the [shared executor](shared_cpu).
    ///
    /// # Errors
    ///
    /// [`NnError::Shape`] for a bias that is not `[out]`, [`NnError::Spec`] for its device or dtype, [`NnError::Cpu`] for
    /// more columns than the kernels support.
    pub fn new(weight: &TritTensor, bias: Option<Tensor>) -> Result<Self, CandleError> {
        let cpu = shared_cpu()?;
        let layout = choose_layout(weight, cpu.isa());
        Self::of(Matrix::Ternary(cpu.pack(weight, layout)?), bias, cpu)
    }

    /// A layer from a dense weight `[out, in]`, ternarized by the rule of `how`, or dense if the error exceeds its bound; also
    /// returns the statistics of the ternary weights.
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
    /// As [`quantize_tensor`](crate::quantize_tensor) and [`new`](Self::new), and [`NnError::Spec`] for a negative or NaN bound.
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
            activations: precision_of(ActivationPolicy::default(), &weight),
            weight: Arc::new(weight),
            bias,
            cpu,
            #[cfg(feature = "gpu")]
            device: None,
        })
    }

    /// [`new`](Self::new) with the product on a device: each call copies its input to the device and its output back, as counted
    /// by [`device_use`](Self::device_use). This pays off only for large layers and many rows, and is meant for code that uses
    /// Candle's tensors on the CPU; [`CubeBackend`](trike_nn::CubeBackend) keeps a whole decoder on the device.
    ///
    /// Gradients are computed on the host, which keeps a copy of the weights.
    ///
    /// ```no_run
    /// # use trike_trit::{Encoding, Scales, TritTensor};
    /// use trike_candle::TernaryLinear;
    /// use trike_nn::cube::{CubeDevice, DeviceSpec};
    ///
    /// # let trits = TritTensor::from_trits(2, 3, &[1, 0, -1, 1, 1, 1], Encoding::TwoBit, Scales::tensor(0.5))?;
    /// let layer = TernaryLinear::new_on(&CubeDevice::open(DeviceSpec::Auto)?, &trits, None)?;
    /// assert_eq!(layer.device_use().map(|used| used.read_backs), Some(0));
    /// # Ok::<(), trike_candle::CandleError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and [`NnError::Cube`] if the device does not support the layer.
    #[cfg(feature = "gpu")]
    pub fn new_on(
        device: &trike_nn::cube::CubeDevice,
        weight: &TritTensor,
        bias: Option<Tensor>,
    ) -> Result<Self, CandleError> {
        let layer = Self::new(weight, bias)?;
        let device = crate::on_device::OnDevice::load(device, weight, layer.activations)?;
        Ok(Self { device: Some(Arc::new(device)), ..layer })
    }

    /// The device's memory use and the copies made by this layer; `None` for a layer on the host. The layer returned by
    /// [`with_activations`](Self::with_activations) counts its copies separately.
    #[cfg(feature = "gpu")]
    pub fn device_use(&self) -> Option<trike_nn::DeviceUse> {
        self.device.as_ref().and_then(|device| device.used())
    }

    /// Loads `weight` (`out_features x in_features`) and, if the checkpoint has one, `bias`, by the checkpoint's names under
    /// the prefix of `vb`.
    ///
    /// Parts packed by Trike (`weight.trits`, `weight.scales`, ...) are used unchanged. A dense weight is read as f32, regardless
    /// of the dtype of `vb`, and ternarized by `how`: a [`Ternarize`], or [`TernarizeOptions`] for a different error bound. The
    /// sizes are checked against the parts as far as possible: a layer wider than a packed tensor by less than the padding of
    /// its rows reads zeros in the extra columns.
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
    /// [`NnError::Load`], which names the weight, with the reason: no such tensor, a shape mismatch, invalid parts, a
    /// device other than the CPU, or a dense weight that is not ternary with [`Ternarize::Exact`].
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

    /// Sets the precision of the activations, or the policy that chooses it: [`ActivationPolicy::Int8`] by default, and always f32
    /// for weights that stayed dense.
    ///
    /// ```
    /// # use trike_trit::{Encoding, Granularity, GroupSize, Scales, TritTensor};
    /// use trike_candle::{ActivationPolicy, ActivationPrecision, TernaryLinear};
    ///
    /// let scales = Scales::new(Granularity::Group(GroupSize::G64), vec![0.5, 2.0], None);
    /// let trits = TritTensor::from_trits(1, 128, &[1; 128], Encoding::TwoBit, scales)?;
    /// let layer = TernaryLinear::new(&trits, None)?;
    /// assert_eq!(layer.activations(), ActivationPrecision::Int8PerGroup(GroupSize::G64));
    /// let layer = layer.with_activations(ActivationPrecision::F32);
    /// assert_eq!(layer.activations(), ActivationPrecision::F32);
    /// let layer = layer.with_activations(ActivationPolicy::Int8);
    /// assert_eq!(layer.activations(), ActivationPrecision::Int8PerGroup(GroupSize::G64));
    /// # Ok::<(), trike_candle::CandleError>(())
    /// ```
    #[must_use]
    pub fn with_activations(self, activations: impl Into<ActivationPolicy>) -> Self {
        let activations = precision_of(activations.into(), &self.weight);
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

    /// Input width.
    pub fn in_features(&self) -> usize {
        self.weight.cols()
    }

    /// Output width.
    pub fn out_features(&self) -> usize {
        self.weight.rows()
    }

    /// The bias, `[out]`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// Precision of the activations; f32 for weights that stayed dense.
    pub fn activations(&self) -> ActivationPrecision {
        self.activations
    }

    /// Storage of the weights: ternary in some layout, or dense.
    pub fn kind(&self) -> LinearKind {
        match &*self.weight {
            Matrix::Ternary(matrix) => LinearKind::Ternary(matrix.layout()),
            // No constructor creates an int8 matrix.
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
    /// Errors of the kernels and of Candle for matrices that do not fit in memory.
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

/// Error of loading a layer, with its name.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {source}")]
struct Unreadable {
    name: String,
    source: CandleError,
}

/// Converts a `candle_nn::Linear` by BitNet's rule with one scale per matrix, and returns statistics. A
/// layer whose error exceeds the default bound of [`TernarizeOptions`] stays dense. The bias is kept.
///
/// For another rule or bound, use [`TernaryLinear::from_weight`].
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

/// The precision that a policy chooses for a matrix.
fn precision_of(policy: ActivationPolicy, weight: &Matrix) -> ActivationPrecision {
    match weight {
        Matrix::Ternary(matrix) => policy.precision(matrix.group()),
        // No constructor creates an int8 matrix, and products with dense weights are f32.
        Matrix::Int8(_) | Matrix::Dense(_) => ActivationPrecision::F32,
    }
}

fn dequantize(cpu: &Cpu, weight: &Matrix) -> Result<Tensor, CandleError> {
    let (rows, cols) = (weight.rows(), weight.cols());
    let mut values = vec![0.0; rows * cols];
    // `TritTensor` limits the number of rows to 32 bits.
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

    /// Rounding of the activations, if any, is treated as the identity (straight-through estimator).
    fn bwd(&self, x: &Tensor, _y: &Tensor, grad: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let weight = dequantize(&self.cpu, &self.weight)?;
        let rows = self.weight.rows();
        let grad = grad.reshape((grad.elem_count() / rows, rows))?;
        Ok(Some(grad.matmul(&weight)?.reshape(x.shape())?))
    }
}
