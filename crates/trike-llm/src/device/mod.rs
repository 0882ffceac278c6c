//! Choosing and opening a device, and loading a model onto it.

mod choice;
mod host;
mod plan;
mod ranks;

use std::path::Path;

use serde::Serialize;
use trike_core::DeviceSpec;
use trike_cpu::Cpu;
#[cfg(feature = "gpu")]
use trike_nn::{
    ActivationPolicy, Backend, BackendBase, CubeBackend, DecoderSpec, LayerWeights, NnError, StageDevice,
};
use trike_nn::{CpuBackend, KvPrecision, KvSpec, StagePlan};
use trike_trit::{Encoding, Granularity};

#[cfg(feature = "gpu")]
use crate::generate::PROMPT_STEP;
use crate::{LanguageModel, LlmError, LoadOptions, Model, ModelFile, Synthetic, SyntheticModel};

pub use choice::{DeviceChoice, DeviceShare, InvalidDevice};
pub use host::fitting_context;
pub use plan::memory_plan;
pub use ranks::{ModelParallel, RankModel, RankPlan, RankPlans};

impl DeviceChoice {
    /// Opens the device or devices. `Auto` never selects a software driver.
    ///
    /// # Errors
    ///
    /// [`LlmError::NotBuilt`] when the build does not have the runtime, [`LlmError::Nn`] when the machine does not have the
    /// device.
    pub fn open(&self) -> Result<Device, LlmError> {
        #[cfg(feature = "gpu")]
        {
            use trike_nn::cube::CubeError;
            let open = |spec| match trike_nn::cube::CubeDevice::open(spec) {
                Ok(device) => Ok(device),
                Err(CubeError::NotLinked { .. }) => Err(LlmError::NotBuilt { device: spec }),
                Err(error) => Err(NnError::from(error).into()),
            };
            let devices = match self {
                Self::Cpu => return Ok(Device(Kind::Cpu)),
                Self::Auto => match open(DeviceSpec::Auto) {
                    Ok(device) => vec![(device, None)],
                    Err(LlmError::Nn(NnError::Cube(CubeError::NoDevice { .. }))) => {
                        return Ok(Device(Kind::Cpu));
                    }
                    Err(error) => return Err(error),
                },
                Self::Numbered(runtime, index) => vec![(open(DeviceSpec::Numbered(*runtime, *index))?, None)],
                Self::Several(shares) => {
                    let each = shares.iter().map(|share| Ok((open(share.spec())?, share.layers)));
                    each.collect::<Result<_, LlmError>>()?
                }
            };
            Ok(Device(Kind::Gpus(devices)))
        }
        #[cfg(not(feature = "gpu"))]
        {
            let device = match self {
                Self::Cpu | Self::Auto => None,
                Self::Numbered(runtime, index) => Some(DeviceSpec::Numbered(*runtime, *index)),
                Self::Several(shares) => shares.first().map(DeviceShare::spec),
            };
            device.map_or(Ok(Device(Kind::Cpu)), |device| Err(LlmError::NotBuilt { device }))
        }
    }
}

/// An open device on which a model can be loaded, or several for the layers of one model.
#[derive(Debug)]
pub struct Device(Kind);

#[derive(Debug)]
enum Kind {
    Cpu,
    /// One device or several, with the requested number of layers on each.
    #[cfg(feature = "gpu")]
    Gpus(Vec<(trike_nn::cube::CubeDevice, Option<usize>)>),
}

impl Device {
    /// The CPU.
    pub fn cpu() -> Self {
        Self(Kind::Cpu)
    }

    /// The device of the kernels for GPUs, the first one of several; `None` for the CPU.
    #[cfg(feature = "gpu")]
    pub fn into_cube(self) -> Option<trike_nn::cube::CubeDevice> {
        match self.0 {
            Kind::Cpu => None,
            Kind::Gpus(devices) => devices.into_iter().next().map(|(device, _)| device),
        }
    }

    /// Whether this is the CPU.
    pub fn is_cpu(&self) -> bool {
        matches!(self.0, Kind::Cpu)
    }

    /// Names of the devices, as in their tables of tuned kernels; empty for the CPU.
    pub fn names(&self) -> Vec<String> {
        match &self.0 {
            Kind::Cpu => Vec::new(),
            #[cfg(feature = "gpu")]
            Kind::Gpus(devices) => devices.iter().map(|(device, _)| device.name().to_owned()).collect(),
        }
    }

    /// Uses the kernels of a table ([`Model::tune`]) on all devices of the name in it. Returns the number of choices in use: 0 for
    /// the CPU or if no device has that name.
    ///
    /// # Errors
    ///
    /// [`LlmError::Nn`] for a text that is not a table, or a table of other kernels.
    pub fn use_tuned(&self, table: &str) -> Result<usize, LlmError> {
        match &self.0 {
            Kind::Cpu => {
                let _ = table;
                Ok(0)
            }
            #[cfg(feature = "gpu")]
            Kind::Gpus(devices) => {
                let table = trike_nn::cube::linear::Tuned::parse(table).map_err(NnError::from)?;
                let mut used = 0;
                for (device, _) in devices.iter().filter(|(device, _)| device.name() == table.device()) {
                    device.use_tuned(&table).map_err(NnError::from)?;
                    used = table.len();
                }
                Ok(used)
            }
        }
    }

    /// The memory required on each device, with a sequence of [`LoadOptions::sequence`], and the layers assigned to it; empty for
    /// the CPU. Nothing is loaded.
    ///
    /// # Errors
    ///
    /// As the checks of [`load`](Self::load).
    pub fn plan(&self, file: &ModelFile, options: &LoadOptions) -> Result<Vec<StagePlan>, LlmError> {
        match &self.0 {
            Kind::Cpu => {
                let _ = (file, options);
                Ok(Vec::new())
            }
            #[cfg(feature = "gpu")]
            Kind::Gpus(devices) => {
                let stages = Stages::new(devices, options.activations_of(file), options);
                let weights = |several| plan::layer_weights(file, options, several);
                let plans = stages.plan(&file.config().spec, &options.sequence_of(file), weights)?;
                for ((stage, _), of_stage) in stages.0.iter().zip(&plans) {
                    let kv = supported(stage, options.sequence_of(file));
                    let limit = stage.device().capabilities().max_buffer_bytes;
                    let pieces = plan::pieces(file, options, &kv, &of_stage.layers)?;
                    plan::check_pieces(&pieces, &stage.name(), limit)?;
                }
                Ok(plans)
            }
        }
    }

    /// Loads a model onto the device or devices. On GPUs, the memory plan for a sequence of [`LoadOptions::sequence`] is first
    /// checked against the free memory and the largest allocation of each. On several, each layer is on one device: the embedding
    /// and the first layers on the first, the last layers and the LM head on the last, in proportion to their free memory or as
    /// requested. `progress` is called with the weights loaded and in total.
    ///
    /// # Errors
    ///
    /// As [`LanguageModel::load_on`]; [`NnError::Memory`](trike_nn::NnError::Memory),
    /// [`NnError::SplitMemory`](trike_nn::NnError::SplitMemory), [`LlmError::TooLarge`], and
    /// [`NnError::Spec`](trike_nn::NnError::Spec) for numbers of layers that are not those of the model, before anything is loaded.
    pub fn load(
        self,
        file: &ModelFile,
        options: &LoadOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Box<dyn Model>, LlmError> {
        #[cfg(feature = "gpu")]
        let plans = self.plan(file, options)?;
        match self.0 {
            Kind::Cpu => Ok(Box::new(LanguageModel::load_with(file, options, progress)?)),
            #[cfg(feature = "gpu")]
            Kind::Gpus(devices) => {
                let stages = Stages::new(&devices, options.activations_of(file), options);
                Ok(Box::new(LanguageModel::load_on(stages.pipeline(&plans)?, file, options, progress)?))
            }
        }
    }

    /// Loads a model of random trits with the given encoding and scales (`weights`), for benchmarks. Its context is that of
    /// [`Synthetic::spec`], or the capacity of the planned sequence if that is larger. The tokenizer and the head precision of the
    /// options are ignored. `progress` is called with the weights generated and in total.
    ///
    /// # Errors
    ///
    /// When the memory of the machine or the device is too small.
    pub fn load_synthetic(
        self,
        size: Synthetic,
        weights: (Encoding, Granularity),
        options: &LoadOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<SyntheticModel, LlmError> {
        let activations = options.activations.unwrap_or_default();
        let whole = || KvSpec::new(KvPrecision::F16, size.spec().context);
        let kv = options.sequence.unwrap_or_else(whole);
        match self.0 {
            Kind::Cpu => {
                host::check(&plan::synthetic_plan(&size.spec(), &kv), 0, &trike_cpu::free_memory())?;
                let cpu = options.cpu.clone().map_or_else(|| Cpu::new(0), Ok)?;
                let backend = CpuBackend::new(cpu, activations).with_layout(options.layout);
                SyntheticModel::load_on(backend, size, weights, kv.capacity, progress)
            }
            #[cfg(feature = "gpu")]
            Kind::Gpus(devices) => {
                let stages = Stages::new(&devices, activations, options);
                let spec = size.spec();
                let plans = stages.plan(&spec, &kv, |_| Ok(plan::synthetic_weights(&spec)))?;
                SyntheticModel::load_on(stages.pipeline(&plans)?, size, weights, kv.capacity, progress)
            }
        }
    }
}

/// The backends of one model, one per device, with the requested number of layers.
#[cfg(feature = "gpu")]
struct Stages(Vec<(CubeBackend, Option<usize>)>);

#[cfg(feature = "gpu")]
impl Stages {
    fn new(
        devices: &[(trike_nn::cube::CubeDevice, Option<usize>)],
        activations: ActivationPolicy,
        options: &LoadOptions,
    ) -> Self {
        let backend = |device: &trike_nn::cube::CubeDevice| {
            CubeBackend::new(device.clone(), activations).with_layout(options.layout)
        };
        Self(devices.iter().map(|(device, layers)| (backend(device), *layers)).collect())
    }

    /// Divides the layers between the devices. `weights` returns the sizes of a model on one device or on several.
    fn plan(
        &self,
        spec: &DecoderSpec,
        kv: &KvSpec,
        weights: impl FnOnce(bool) -> Result<LayerWeights, LlmError>,
    ) -> Result<Vec<StagePlan>, LlmError> {
        let memory = |(backend, _): &(CubeBackend, Option<usize>)| {
            let available = backend.available()?;
            Ok(StageDevice { name: backend.name(), available, kv: supported(backend, *kv) })
        };
        let devices = self.0.iter().map(memory).collect::<Result<Vec<_>, LlmError>>()?;
        let weights = weights(devices.len() > 1)?;
        let counts: Option<Vec<usize>> = self.0.iter().map(|(_, layers)| *layers).collect();
        let plans = match counts {
            Some(counts) => weights.split_as(spec, PROMPT_STEP, &devices, &counts),
            None => weights.split(spec, PROMPT_STEP, &devices),
        };
        Ok(plans.map_err(of_one_device)?)
    }

    /// The backend over all devices.
    fn pipeline(self, plans: &[StagePlan]) -> Result<CubeBackend, LlmError> {
        let stages = self.0.into_iter().zip(plans).map(|((backend, _), plan)| (backend, plan.layers.len()));
        Ok(CubeBackend::pipeline(stages)?)
    }
}

/// The error for a single device, without the layers.
#[cfg(feature = "gpu")]
fn of_one_device(error: NnError) -> NnError {
    match error {
        NnError::SplitMemory { stages } => match &stages[..] {
            [StagePlan { device, plan, available: Some(available), .. }] => {
                let (device, needed) = (device.clone(), plan.total());
                NnError::Memory { device, plan: *plan, needed, available: *available }
            }
            _ => NnError::SplitMemory { stages },
        },
        error => error,
    }
}

/// Opens a model, by its path or its [name](ModelFile::find), on a device or on several, with its own tokenizer and the default
/// options.
///
/// # Errors
///
/// As [`ModelFile::find`], [`DeviceChoice::open`] and [`Device::load`], and [`LlmError::NoTokenizer`].
pub fn open(name: impl AsRef<Path>, device: &DeviceChoice) -> Result<Box<dyn Model>, LlmError> {
    let file = ModelFile::find(name)?;
    let options = LoadOptions::default().with_tokenizer(file.tokenizer(None)?);
    device.open()?.load(&file, &options, &mut |_, _| ())
}

/// `kv` in a precision that the backend supports: int8 instead of int4, f32 if it has no f16.
#[cfg(feature = "gpu")]
fn supported(backend: &impl Backend, kv: KvSpec) -> KvSpec {
    KvSpec { precision: backend.capabilities().cache_precision(kv.precision.base()).into(), ..kv }
}

/// A device of this machine, for reports.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// The name for `--device`, such as `cuda:0`.
    pub name: String,
    /// The adapter name, or the error when it could not be opened.
    pub adapter: String,
    /// Whether it is a software driver, which computes on the host.
    pub software: bool,
    /// Bytes of memory, if the runtime reports them.
    pub memory: Option<u64>,
    /// Hardware features that the kernels use.
    pub features: Vec<&'static str>,
}

/// Every device that the runtimes of this build find; none without the feature `gpu`.
pub fn devices() -> Vec<DeviceReport> {
    #[cfg(feature = "gpu")]
    {
        trike_nn::cube::devices().into_iter().map(report).collect()
    }
    #[cfg(not(feature = "gpu"))]
    {
        Vec::new()
    }
}

#[cfg(feature = "gpu")]
fn report(device: trike_nn::cube::DeviceInfo) -> DeviceReport {
    let name = device.spec.to_string();
    match device.capabilities {
        Ok(can) => {
            let all = [
                ("planes", can.planes.is_some()),
                ("f16", can.f16),
                ("bf16", can.bf16),
                ("int8 matrix instructions", can.int8_mma),
                ("f16 matrix instructions", can.f16_mma),
                ("asynchronous copies", can.async_copy),
            ];
            let features = all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect();
            DeviceReport {
                name,
                adapter: can.name,
                software: can.software,
                memory: can.memory_bytes,
                features,
            }
        }
        Err(reason) => {
            DeviceReport { name, adapter: reason, software: false, memory: None, features: Vec::new() }
        }
    }
}

#[cfg(test)]
mod tests {
    use trike_core::Runtime;

    use super::*;

    #[test]
    fn a_missing_device_is_refused_by_its_name() {
        let refused = DeviceChoice::Numbered(Runtime::Cuda, 4242).open().expect_err("no machine has so many");
        assert!(refused.to_string().contains("cuda"), "{refused}");
        assert!(DeviceChoice::Cpu.open().expect("always there").is_cpu());
    }
}
