//! The backend on the kernels of a device.
//!
//! [`CubeBackend`] contains the device and its settings; module `tensors` has activations and transfers to and from the host,
//! `matrices` resident weights, `operations` and `attention` the kernel launches, `recordings` the recorded step of one token,
//! `stages` layers on several devices, and `tune` kernels chosen by measurement.

mod attention;
mod matrices;
mod operations;
mod recordings;
mod stages;
mod tensors;
mod tune;

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, Weak};

use trike_cube::attention::CubeKvCache;
use trike_cube::linear::CubeTernaryMatrix;
use trike_cube::{Buffer, CubeDevice, Graphs, Strategy};
use trike_trit::{Edit, TritTensor};

pub use self::matrices::{CubeMatrix, CubeRope};
pub use self::recordings::CubeRecorded;
use self::stages::Stage;
use self::tensors::Traffic;
pub use self::tensors::{CubeInputs, CubeTensor};
use crate::backend::Input;
use crate::{
    ActivationPolicy, AttentionSpec, Backend, BackendBase, BackendCaches, BackendOps, BackendPlacement,
    BackendSteps, BackendTransfers, BackendWeights, CacheCapabilities, CacheSpec, DeviceUse, GatedActivation,
    KernelTuning, KvPrecision, Largest, Layout, MatrixEdit, MemoryPlan, NnError, RopeSpec, RunStep,
    StepCaches, StepInputs, StepLogits, Tensor, TokenStep, check,
};

/// Runs a decoder on a device of `trike-cube`.
///
/// Tensors stay on the device: ids and positions are copied to it once per step, logits are copied back. A step of one token of
/// each sequence is recorded and replayed if the device supports it ([`CubeBackend::with_graphs`]).
///
/// [`CubeBackend::pipeline`] combines several devices.
///
/// ```no_run
/// use trike_cube::{CubeDevice, DeviceSpec};
/// use trike_nn::{ActivationPrecision, BackendBase, CubeBackend};
///
/// let device = CubeDevice::open(DeviceSpec::Auto)?;
/// let backend = CubeBackend::new(device, ActivationPrecision::F32);
/// println!("{}", backend.name());
/// # Ok::<(), trike_cube::CubeError>(())
/// ```
#[derive(Debug)]
pub struct CubeBackend {
    device: CubeDevice,
    activations: ActivationPolicy,
    /// The requested layout; chosen per matrix when `None`.
    layout: Option<Layout>,
    /// Whether steps are recorded; cleared if the device does not support it.
    graphs: AtomicBool,
    /// Locked while a step is recorded.
    record_alone: Mutex<()>,
    traffic: Traffic,
    /// The ternary matrices that were loaded, for [`Backend::tune`].
    resident: Mutex<Vec<Weak<CubeTernaryMatrix>>>,
    /// Stage number of this backend, if it is part of a pipeline.
    index: usize,
    /// The stages on other devices, in the order of their layers.
    later: Vec<Stage>,
}

impl CubeBackend {
    /// A backend on a device; `activations` is the activation precision of ternary layers, or the policy that chooses it per
    /// layer.
    pub fn new(device: CubeDevice, activations: impl Into<ActivationPolicy>) -> Self {
        let graphs = device.capabilities().graphs != Graphs::None;
        Self {
            device,
            activations: activations.into(),
            layout: None,
            graphs: graphs.into(),
            record_alone: Mutex::new(()),
            traffic: Traffic::default(),
            resident: Mutex::default(),
            index: 0,
            later: Vec::new(),
        }
    }

    /// The layout of ternary matrices loaded after this call, if the device has a kernel for the tensor in it; otherwise two-bit.
    /// By default, the layout predicted to be fastest is chosen per matrix ([`choose_layout`](trike_cube::linear::choose_layout)).
    /// Each stage of a pipeline has its own.
    #[must_use]
    pub fn with_layout(self, layout: Option<Layout>) -> Self {
        Self { layout, ..self }
    }

    /// The device, or the first one of a pipeline.
    pub fn device(&self) -> &CubeDevice {
        &self.device
    }

    /// Compares a plan with the free memory of the device. For a device that does not report its memory, the check passes and
    /// an allocation may fail later.
    ///
    /// # Errors
    ///
    /// [`NnError::Memory`].
    pub fn check_memory(&self, plan: &MemoryPlan) -> Result<(), NnError> {
        match self.available()? {
            Some(available) if plan.total() > available => {
                Err(NnError::Memory { device: self.name(), plan: *plan, needed: plan.total(), available })
            }
            _ => Ok(()),
        }
    }

    /// Free bytes of the device, within its limit if it was opened with one; `None` if it does not report them.
    ///
    /// # Errors
    ///
    /// When the device is lost.
    pub fn available(&self) -> Result<Option<u64>, NnError> {
        // Memory of earlier models in the runtime's pools is free but unusable for weights of other sizes: release it.
        self.device.release()?;
        Ok(self.device.memory().available())
    }

    /// The name of the device.
    fn device_name(&self) -> String {
        format!("{} ({})", self.device.spec(), self.device.name())
    }
}

impl BackendBase for CubeBackend {
    type Tensor = CubeTensor;
    type Matrix = CubeMatrix;
    type Vector = Buffer<f32>;
    type Rope = CubeRope;
    type Cache = CubeKvCache;
    type Inputs = CubeInputs;
    type Recorded = CubeRecorded;

    fn name(&self) -> String {
        self.each().map(Self::device_name).collect::<Vec<_>>().join(", ")
    }
}

impl BackendWeights for CubeBackend {
    fn load_matrix(&self, weight: Tensor) -> Result<CubeMatrix, NnError> {
        self.upload_matrix(weight, false)
    }

    fn load_table(&self, weight: Tensor) -> Result<CubeMatrix, NnError> {
        self.upload_matrix(weight, true)
    }

    fn load_matrices(
        &self,
        weights: &mut dyn Iterator<Item = Result<Tensor, NnError>>,
    ) -> Result<Vec<CubeMatrix>, NnError> {
        self.upload_matrices(weights.collect::<Result<_, _>>()?)
    }

    fn edit(
        &self,
        matrix: &mut CubeMatrix,
        edits: &[Edit],
        edited: &TritTensor,
    ) -> Result<MatrixEdit, NnError> {
        self.edit_matrix(matrix, edits, edited)
    }

    fn matrix_bytes(&self, matrix: &CubeMatrix) -> usize {
        matrix.bytes()
    }

    fn matrix_layout(&self, matrix: &CubeMatrix) -> Option<Layout> {
        matrix.layout()
    }

    fn load_vector(&self, values: Vec<f32>) -> Result<Buffer<f32>, NnError> {
        Ok(self.device.upload_weights(&values)?)
    }

    fn load_rope(&self, spec: &RopeSpec, head_dim: usize, context: usize) -> Result<CubeRope, NnError> {
        CubeRope::upload(self, spec, head_dim, context)
    }
}

impl BackendCaches for CubeBackend {
    fn new_cache(&self, spec: &CacheSpec) -> Result<CubeKvCache, NnError> {
        let cache = CubeKvCache::empty(&self.device, self.cache_shape(spec))?;
        Ok(cache.with_keys(&self.device, spec.keys)?)
    }

    fn new_caches(&self, spec: &CacheSpec, count: usize) -> Result<Vec<CubeKvCache>, NnError> {
        let caches = CubeKvCache::several(&self.device, self.cache_shape(spec), count)?;
        Ok(caches
            .into_iter()
            .map(|cache| cache.with_keys(&self.device, spec.keys))
            .collect::<Result<_, _>>()?)
    }
}

impl BackendTransfers for CubeBackend {
    fn receive(&self, from: &Self, x: &CubeTensor, width: usize) -> Result<CubeTensor, NnError> {
        check::norm(x.width, width)?;
        self.receive_tensor(from, x)
    }

    fn upload(&self, values: &[f32], width: usize) -> Result<CubeTensor, NnError> {
        self.upload_tensor(values, width)
    }

    fn to_host(&self, x: &CubeTensor) -> Result<Vec<f32>, NnError> {
        self.read_tensor(x)
    }

    fn inputs(&self, inputs: StepInputs) -> Result<CubeInputs, NnError> {
        self.upload_inputs(inputs)
    }
}

impl BackendOps for CubeBackend {
    fn embed(&self, table: &CubeMatrix, inputs: &CubeInputs, factor: f32) -> Result<CubeTensor, NnError> {
        let x = self.look_up(table, inputs)?;
        if factor != 1.0 {
            self.device.scale(&x.buffer, factor)?;
        }
        Ok(x)
    }

    fn rms_norm(&self, x: &CubeTensor, weight: &Buffer<f32>, eps: f32) -> Result<CubeTensor, NnError> {
        check::norm(x.width, weight.len())?;
        self.norm(x, weight, eps)
    }

    fn head_norm(&self, x: &CubeTensor, weight: &Buffer<f32>, eps: f32) -> Result<CubeTensor, NnError> {
        check::head_norm(x.width, weight.len())?;
        self.norm(x, weight, eps)
    }

    fn linear(&self, x: &CubeTensor, weights: &[&CubeMatrix]) -> Result<Vec<CubeTensor>, NnError> {
        self.products(Input::Plain(x), weights)
    }

    fn linear_of(&self, input: Input<'_, Self>, weights: &[&CubeMatrix]) -> Result<Vec<CubeTensor>, NnError> {
        self.products(input, weights)
    }

    fn linear_add(
        &self,
        input: Input<'_, Self>,
        weight: &CubeMatrix,
        to: &mut CubeTensor,
    ) -> Result<(), NnError> {
        self.add_product(input, weight, to)
    }

    fn add_bias(&self, x: &mut CubeTensor, bias: &Buffer<f32>) -> Result<(), NnError> {
        check::bias(x.width, bias.len())?;
        Ok(self.device.add(&x.buffer, bias, &Strategy::Inferred)?)
    }

    fn add(&self, x: &mut CubeTensor, y: &CubeTensor) -> Result<(), NnError> {
        check::add(x.shape(), y.shape())?;
        Ok(self.device.add(&x.buffer, &y.buffer, &Strategy::Inferred)?)
    }

    fn rope(&self, x: &mut CubeTensor, rope: &CubeRope, inputs: &CubeInputs) -> Result<(), NnError> {
        self.rotate(x, rope, inputs)
    }

    fn attention(
        &self,
        spec: &AttentionSpec,
        q: &CubeTensor,
        k: &CubeTensor,
        v: &CubeTensor,
        inputs: &CubeInputs,
        caches: &mut [&mut CubeKvCache],
    ) -> Result<CubeTensor, NnError> {
        self.attend(spec, [q, k, v], None, inputs, caches)
    }

    fn rotate_and_attend(
        &self,
        spec: &AttentionSpec,
        [q, k, v]: [&mut CubeTensor; 3],
        rope: &CubeRope,
        inputs: &CubeInputs,
        caches: &mut [&mut CubeKvCache],
    ) -> Result<CubeTensor, NnError> {
        self.attend(spec, [&*q, &*k, &*v], Some(rope), inputs, caches)
    }

    fn gated(
        &self,
        gate: &CubeTensor,
        up: &CubeTensor,
        activation: GatedActivation,
    ) -> Result<CubeTensor, NnError> {
        check::gated(gate.shape(), up.shape())?;
        let out = self.tensor(gate.rows(), gate.width)?;
        self.device.gated(&gate.buffer, &up.buffer, activation, &out.buffer, &Strategy::Inferred)?;
        Ok(out)
    }

    fn select_rows(&self, x: &CubeTensor, rows: &[usize]) -> Result<CubeTensor, NnError> {
        self.select(x, rows)
    }
}

impl BackendPlacement for CubeBackend {
    fn stages(&self) -> usize {
        1 + self.later.len()
    }

    fn stage_of(&self, layer: usize) -> usize {
        self.stage_of_layer(layer)
    }

    fn stage(&self, index: usize) -> &Self {
        self.stage_at(index)
    }
}

impl BackendSteps for CubeBackend {
    fn top(&self, x: &CubeTensor, k: usize) -> Result<Option<Vec<Largest>>, NnError> {
        self.find_top(x, k)
    }

    fn tokens(
        &self,
        step: TokenStep<'_, Self>,
        recorded: &mut CubeRecorded,
        caches: StepCaches<'_, '_, Self>,
        run: &mut RunStep<'_, Self>,
    ) -> Result<Vec<StepLogits>, NnError> {
        self.recorded_tokens(step, recorded, caches, run)
    }
}

impl Backend for CubeBackend {
    fn activations(&self) -> ActivationPolicy {
        self.activations
    }

    fn device_use(&self) -> Option<DeviceUse> {
        Some(self.used_by_all())
    }

    fn device_uses(&self) -> Vec<(String, DeviceUse)> {
        self.each().map(|stage| (stage.device_name(), stage.used())).collect()
    }

    fn tune(
        &self,
        tokens: &[usize],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<KernelTuning, NnError> {
        self.tune_all(tokens, progress)
    }

    fn capabilities(&self) -> CacheCapabilities {
        use KvPrecision::{F16, F32, Int8};
        // In a pipeline, layers on a device without f16 are cached in f32.
        let has_f16 = self.devices().any(|device| device.capabilities().f16);
        let kv: &[KvPrecision] = if has_f16 { &[F32, F16, Int8] } else { &[F32, Int8] };
        CacheCapabilities { kv, select: true, ..CacheCapabilities::default() }
    }
}
