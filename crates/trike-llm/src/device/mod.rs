//! Where a model runs.

mod plan;

use std::{fmt, str::FromStr};

use serde::Serialize;
use trike_cpu::Cpu;
use trike_nn::{ActivationPrecision, Backend, CpuBackend, DeviceUse, KvPrecision, KvSpec};
use trike_trit::Encoding;

use crate::{
    LanguageModel, LlmError, LoadOptions, ModelFile,
    bench::{self, BenchOptions, BenchReport, Synthetic},
};

pub use plan::memory_plan;

/// Runtimes that reach devices; which of them a build has is a matter of features of the same names.
const RUNTIMES: [&str; 5] = ["wgpu", "vulkan", "cuda", "hip", "metal"];

/// Where a model runs: the processor, a device by its name, or the first device there is.
///
/// ```
/// use trike_llm::Place;
///
/// assert_eq!("cpu".parse::<Place>()?, Place::Cpu);
/// assert_eq!("cuda".parse::<Place>()?.to_string(), "cuda:0");
/// assert!("cuda:first".parse::<Place>().is_err());
/// # Ok::<(), trike_llm::LlmError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// The processor.
    #[default]
    Cpu,
    /// The first device that is not a software driver, or else the processor.
    Auto,
    /// A device: a runtime and a number, `vulkan:0`. A build without the runtime refuses it when it is used.
    Device {
        /// The runtime's name.
        runtime: &'static str,
        /// Counted from zero.
        index: usize,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Auto => f.write_str("auto"),
            Self::Device { runtime, index } => write!(f, "{runtime}:{index}"),
        }
    }
}

impl FromStr for Place {
    type Err = LlmError;

    fn from_str(name: &str) -> Result<Self, LlmError> {
        match name {
            "cpu" => return Ok(Self::Cpu),
            "auto" => return Ok(Self::Auto),
            _ => {}
        }
        let (runtime, index) = name.split_once(':').unwrap_or((name, "0"));
        let runtime = RUNTIMES.into_iter().find(|known| *known == runtime);
        // `parse` alone would take a sign.
        let digits = !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit());
        match (runtime, index.parse()) {
            (Some(runtime), Ok(index)) if digits => Ok(Self::Device { runtime, index }),
            _ => Err(LlmError::Option {
                option: "--device",
                expected: "cpu, auto, or wgpu, vulkan, cuda, hip or metal with a number (cuda:0)",
                got: name.to_owned(),
            }),
        }
    }
}

/// What is done with a model, whatever it runs on.
pub trait Use {
    /// What comes out.
    type Out;

    /// Does it.
    fn with<B: Backend>(self, model: LanguageModel<B>) -> Self::Out;
}

/// A place, opened: with it a model can be loaded.
#[derive(Debug)]
pub struct Opened(Where);

#[derive(Debug)]
enum Where {
    Cpu,
    #[cfg(feature = "gpu")]
    Device(trike_nn::cube::Device),
}

impl Place {
    /// Opens the place. `auto` never takes a software driver.
    ///
    /// # Errors
    ///
    /// [`LlmError::NoDevice`] when the build or the machine does not have the device.
    pub fn open(&self) -> Result<Opened, LlmError> {
        let failed = |reason: String| LlmError::NoDevice { device: self.to_string(), reason };
        #[cfg(feature = "gpu")]
        {
            use trike_nn::cube::{CubeError, Device, DeviceSpec};
            let spec = match self {
                Self::Cpu => return Ok(Opened(Where::Cpu)),
                Self::Auto => DeviceSpec::Auto,
                Self::Device { .. } => {
                    self.to_string().parse().map_err(|e: trike_core::UnknownDevice| failed(e.to_string()))?
                }
            };
            match Device::open(spec) {
                Ok(device) => Ok(Opened(Where::Device(device))),
                Err(CubeError::NoDevice { .. }) if *self == Self::Auto => Ok(Opened(Where::Cpu)),
                Err(error) => {
                    // The name is said once.
                    let reason = error.to_string();
                    let named = format!("device {self}: ");
                    Err(failed(reason.strip_prefix(&named).map_or(reason.clone(), str::to_owned)))
                }
            }
        }
        #[cfg(not(feature = "gpu"))]
        match self {
            Self::Cpu | Self::Auto => Ok(Opened(Where::Cpu)),
            Self::Device { runtime, .. } => Err(failed(format!(
                "this build has no {runtime} runtime, build with the feature `{runtime}`"
            ))),
        }
    }
}

impl Opened {
    /// Whether it is the processor.
    pub fn is_cpu(&self) -> bool {
        matches!(self.0, Where::Cpu)
    }

    /// Loads a model there and hands it to `user`. On a device the plan for a sequence of `kv` is compared with its memory and
    /// with its largest allocation first. `cpu` computes when the place is the processor.
    ///
    /// # Errors
    ///
    /// As [`LanguageModel::load_on`], and before anything is loaded [`NnError::Memory`](trike_nn::NnError::Memory) and
    /// [`LlmError::TooLarge`].
    pub fn load<U: Use>(
        self,
        file: &ModelFile,
        options: &LoadOptions,
        cpu: &Cpu,
        kv: &KvSpec,
        progress: &mut dyn FnMut(usize, usize),
        user: U,
    ) -> Result<U::Out, LlmError> {
        // Only a device has memory to compare a plan with.
        #[cfg(not(feature = "gpu"))]
        let _ = kv;
        let activations = options.activations.unwrap_or(file.config().family.activations());
        match self.0 {
            Where::Cpu => {
                let backend = CpuBackend::new(cpu.clone(), activations);
                Ok(user.with(LanguageModel::load_on(backend, file, options, progress)?))
            }
            #[cfg(feature = "gpu")]
            Where::Device(device) => {
                let backend = trike_nn::CubeBackend::new(device, activations);
                let kv = held(&backend, kv);
                backend.check_memory(&memory_plan(file, options, &kv)?)?;
                let limit = backend.device().capabilities().max_buffer_bytes;
                plan::check_pieces(&plan::pieces(file, options, &kv)?, &backend.name(), limit)?;
                Ok(user.with(LanguageModel::load_on(backend, file, options, progress)?))
            }
        }
    }

    /// Makes a model of random trits there, as [`bench::synthetic`] does, and measures it. `made` is called with the number of
    /// weights made and to make, `progress` as [`bench::run`] does.
    ///
    /// # Errors
    ///
    /// What the backend says of memory, and as [`bench::run`].
    pub fn bench_synthetic(
        self,
        size: Synthetic,
        encoding: Encoding,
        activations: ActivationPrecision,
        options: &BenchOptions,
        made: &mut dyn FnMut(usize, usize),
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<SyntheticBench, LlmError> {
        match self.0 {
            Where::Cpu => {
                let mut model = bench::synthetic(size, encoding, activations, made)?;
                let report = bench::run(&mut model.decoder, options, progress)?;
                Ok(SyntheticBench::new(&model, options.kv, report))
            }
            #[cfg(feature = "gpu")]
            Where::Device(device) => {
                let backend = trike_nn::CubeBackend::new(device, activations);
                let positions = options.prompt.max(options.generate).max(1);
                let kv = held(&backend, &KvSpec::new(options.kv, positions));
                backend.check_memory(&plan::synthetic_plan(&size.spec(), &kv))?;
                let model = bench::synthetic_on(backend, size, encoding, made)?;
                let report = bench::run_on(
                    &model.decoder,
                    &BenchOptions { kv: kv.precision, ..options.clone() },
                    progress,
                )?;
                Ok(SyntheticBench::new(&model, kv.precision, report))
            }
        }
    }
}

/// A model of random trits, measured.
#[derive(Clone, Debug)]
pub struct SyntheticBench {
    /// Where it ran.
    pub backend: String,
    /// Bytes of all weights as the kernels hold them.
    pub weight_bytes: usize,
    /// Bytes of the linear layers in their encoding.
    pub stored_bytes: u64,
    /// Seconds to make, encode and pack the weights.
    pub load_seconds: f64,
    /// What was used of a device.
    pub device: Option<DeviceUse>,
    /// Type of cached keys and values, which is f32 where a device has no f16.
    pub kv: KvPrecision,
    /// The speeds.
    pub report: BenchReport,
}

impl SyntheticBench {
    fn new<B: Backend>(model: &bench::SyntheticModel<B>, kv: KvPrecision, report: BenchReport) -> Self {
        Self {
            backend: model.decoder.backend().name(),
            weight_bytes: model.decoder.weight_bytes(),
            stored_bytes: model.stored_bytes,
            load_seconds: model.load_seconds,
            device: model.decoder.backend().device_use(),
            kv,
            report,
        }
    }
}

/// Keys and values as a backend holds them.
#[cfg(feature = "gpu")]
fn held(backend: &impl Backend, kv: &KvSpec) -> KvSpec {
    if backend.can_cache(kv.precision) { *kv } else { KvSpec { precision: KvPrecision::F32, ..*kv } }
}

/// A device of this machine, as reports show it.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// The name that `--device` takes.
    pub name: String,
    /// The adapter, or why it could not be opened.
    pub adapter: String,
    /// Whether it computes on the host.
    pub software: bool,
    /// Bytes of memory, where the runtime says so.
    pub memory: Option<u64>,
    /// What kernels can make use of.
    pub features: Vec<&'static str>,
}

/// Every device that this build reaches; a build without the feature `gpu` reaches none.
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
    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for name in ["cpu", "auto", "wgpu:0", "vulkan:1", "cuda:12", "hip:0", "metal:3"] {
            assert_eq!(name.parse::<Place>().expect(name).to_string(), name);
        }
        for name in ["", "gpu", "cuda:", "cuda:-1", "cuda:+1", "cuda:0:0", "CUDA:0", "cpu:0", "auto:0"] {
            assert!(matches!(name.parse::<Place>(), Err(LlmError::Option { .. })), "{name:?}");
        }
    }

    #[test]
    fn a_place_that_is_not_there_is_refused_by_its_name() {
        let refused =
            Place::Device { runtime: "cuda", index: 4242 }.open().expect_err("no machine has so many");
        assert!(refused.to_string().contains("cuda"), "{refused}");
        assert!(Place::Cpu.open().expect("always there").is_cpu());
    }
}
