//! The gated MLP.

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};
use candle_nn::{Module, VarBuilder};
use trike_cpu::{Cpu, CpuOps, GatedActivation};

use crate::exec::{floats, shared_cpu, to_f32};
use crate::linear::TernaryLinear;
use crate::quantize::TernarizeOptions;
use crate::{ActivationPolicy, CandleError, NnError};

/// `activation(gate) * up`, elementwise: as in SwiGLU with [`GatedActivation::SiLu`] (Shazeer, 2020), as in BitNet
/// 2B4T with [`GatedActivation::SquaredReLu`].
///
/// Both tensors have the same shape and dtype, on the CPU in f32, f16 or bf16. Gradients flow to both.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use trike_candle::{GatedActivation, gated, shared_cpu};
///
/// let (gate, up) = (Tensor::new(&[2f32, -1.0], &Device::Cpu)?, Tensor::new(&[3f32, 3.0], &Device::Cpu)?);
/// let y = gated(&shared_cpu()?, &gate, &up, GatedActivation::SquaredReLu)?;
/// assert_eq!(y.to_vec1::<f32>()?, [12.0, 0.0]);
/// # Ok::<(), trike_candle::CandleError>(())
/// ```
///
/// # Errors
///
/// [`CandleError::Candle`] when shapes or dtypes differ, [`NnError::Spec`] for an unsupported device or dtype.
pub fn gated(
    cpu: &Cpu,
    gate: &Tensor,
    up: &Tensor,
    activation: GatedActivation,
) -> Result<Tensor, CandleError> {
    let op = "gated";
    if gate.shape() != up.shape() {
        let (lhs, rhs) = (gate.shape().clone(), up.shape().clone());
        return Err(candle_core::Error::ShapeMismatchBinaryOp { lhs, rhs, op }.into());
    }
    if gate.dtype() != up.dtype() {
        let (lhs, rhs) = (gate.dtype(), up.dtype());
        return Err(candle_core::Error::DTypeMismatchBinaryOp { lhs, rhs, op }.into());
    }
    let y = to_f32(gate)?.apply_op2(&to_f32(up)?, GatedOp { cpu: cpu.clone(), activation })?;
    Ok(y.to_dtype(gate.dtype())?)
}

/// `down(activation(gate x) * up x)`, the MLP of Llama-like models with ternary weights.
///
/// `x` is `[..., hidden]`; dtypes and gradients are those of [`TernaryLinear`].
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::Module;
/// use trike_candle::{SwiGlu, Ternarize, quantize_tensor, TernaryLinear};
///
/// let layer = |rows, cols| {
///     let w = Tensor::ones((rows, cols), DType::F32, &Device::Cpu)?;
///     TernaryLinear::new(&quantize_tensor(&w, Ternarize::Exact)?.0, None)
/// };
/// let mlp = SwiGlu::new(layer(6, 4)?, layer(6, 4)?, layer(4, 6)?)?;
/// let y = mlp.forward(&Tensor::ones((1, 4), DType::F32, &Device::Cpu)?)?;
/// let silu = 4.0 / (1.0 + (-4f32).exp());
/// assert!((y.to_vec2::<f32>()?[0][0] - 6.0 * 4.0 * silu).abs() < 1e-4);
/// # Ok::<(), trike_candle::CandleError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SwiGlu {
    gate: TernaryLinear,
    up: TernaryLinear,
    down: TernaryLinear,
    activation: GatedActivation,
    cpu: Cpu,
}

impl SwiGlu {
    /// An MLP with SiLU from its three projections, `intermediate x hidden` twice and `hidden x intermediate`.
    ///
    /// # Errors
    ///
    /// [`NnError::WeightShape`] for a projection whose shape does not match the gate's.
    pub fn new(gate: TernaryLinear, up: TernaryLinear, down: TernaryLinear) -> Result<Self, CandleError> {
        let (intermediate, hidden) = (gate.out_features(), gate.in_features());
        check_layer("up_proj", &up, intermediate, hidden)?;
        check_layer("down_proj", &down, hidden, intermediate)?;
        Ok(Self { gate, up, down, activation: GatedActivation::SiLu, cpu: shared_cpu()? })
    }

    /// Loads `gate_proj`, `up_proj` and `down_proj` under the prefix of `vb`; `how` applies to dense weights.
    ///
    /// # Errors
    ///
    /// As [`TernaryLinear::load`], and [`NnError::Spec`] when there is an `ffn_sub_norm`, which this module does not
    /// compute.
    pub fn load(
        hidden: usize,
        intermediate: usize,
        vb: VarBuilder<'_>,
        how: impl Into<TernarizeOptions>,
    ) -> Result<Self, CandleError> {
        let how = how.into();
        refuse_extra(&vb, &["ffn_sub_norm"])?;
        Self::new(
            TernaryLinear::load(hidden, intermediate, vb.pp("gate_proj"), how)?,
            TernaryLinear::load(hidden, intermediate, vb.pp("up_proj"), how)?,
            TernaryLinear::load(intermediate, hidden, vb.pp("down_proj"), how)?,
        )
    }

    /// Sets the activation of the gate.
    #[must_use]
    pub fn with_activation(self, activation: GatedActivation) -> Self {
        Self { activation, ..self }
    }

    /// Sets the activation precision of the projections, as [`TernaryLinear::with_activations`].
    #[must_use]
    pub fn with_activations(self, activations: impl Into<ActivationPolicy>) -> Self {
        let activations = activations.into();
        let [gate, up, down] =
            [self.gate, self.up, self.down].map(|layer| layer.with_activations(activations));
        Self { gate, up, down, ..self }
    }

    /// Uses another executor, in the projections too.
    #[must_use]
    pub fn with_cpu(self, cpu: Cpu) -> Self {
        let [gate, up, down] = [self.gate, self.up, self.down].map(|layer| layer.with_cpu(cpu.clone()));
        Self { gate, up, down, cpu, ..self }
    }
}

impl Module for SwiGlu {
    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        let (gate, up) = (self.gate.forward(x)?, self.up.forward(x)?);
        self.down.forward(&gated(&self.cpu, &gate, &up, self.activation)?)
    }
}

/// Checks the shape of a projection.
fn check_layer(name: &str, layer: &TernaryLinear, rows: usize, cols: usize) -> Result<(), CandleError> {
    check_shape(name, [layer.out_features(), layer.in_features()], [rows, cols])
}

/// Checks the rows and columns of a projection.
pub(crate) fn check_shape(name: &str, got: [usize; 2], expected: [usize; 2]) -> Result<(), CandleError> {
    let ([got_rows, got_cols], [expected_rows, expected_cols]) = (got, expected);
    if got == expected {
        return Ok(());
    }
    let name = name.to_owned();
    Err(NnError::WeightShape { name, expected_rows, expected_cols, got_rows, got_cols }.into())
}

/// Returns an error for checkpoints with norms that the module does not implement.
pub(crate) fn refuse_extra(vb: &VarBuilder<'_>, norms: &[&str]) -> Result<(), CandleError> {
    match norms.iter().map(|norm| format!("{norm}.weight")).find(|name| vb.contains_tensor(name)) {
        None => Ok(()),
        Some(name) => Err(NnError::Spec {
            field: "checkpoint",
            rule: "must not have weights that this module does not implement: use trike-llm, or build the block from parts",
            got: format!("{}.{name}", vb.prefix()),
        }.into()),
    }
}

struct GatedOp {
    cpu: Cpu,
    activation: GatedActivation,
}

impl CustomOp2 for GatedOp {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (gate, up) = (floats(self.name(), s1, l1)?, floats(self.name(), s2, l2)?);
        let mut out = vec![0.0; gate.len()];
        self.cpu.gated(gate, up, self.activation, &mut out).map_err(CandleError::from)?;
        Ok((CpuStorage::F32(out), l1.shape().clone()))
    }

    /// `grad_up = g f(gate)`, `grad_gate = g up f'(gate)`.
    fn bwd(
        &self,
        gate: &Tensor,
        up: &Tensor,
        _res: &Tensor,
        grad: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let (value, slope) = match self.activation {
            GatedActivation::SiLu => {
                let sigmoid = candle_nn::ops::sigmoid(gate)?;
                let value = (gate * &sigmoid)?;
                // s + g s (1 - s) = s + v - v s.
                let slope = ((&sigmoid + &value)? - (&value * &sigmoid)?)?;
                (value, slope)
            }
            GatedActivation::SquaredReLu => {
                let positive = gate.relu()?;
                (positive.sqr()?, (positive * 2.0)?)
            }
        };
        Ok((Some(((grad * up)? * slope)?), Some((grad * value)?)))
    }
}
