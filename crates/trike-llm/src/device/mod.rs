//! Choosing and opening a device, and loading a model onto it.

mod host;
mod plan;

use std::{fmt, path::Path, str::FromStr};

use serde::Serialize;
use trike_core::{DeviceSpec, Runtime, UnknownDevice};
use trike_cpu::Cpu;
#[cfg(feature = "gpu")]
use trike_nn::{Backend, CubeBackend};
use trike_nn::{CpuBackend, KvPrecision, KvSpec};
use trike_trit::{Encoding, Granularity};

use crate::{LanguageModel, LlmError, LoadOptions, Model, ModelFile, Synthetic, SyntheticModel};

pub use host::fitting_context;
pub use plan::memory_plan;

/// The device that a model runs on: the CPU, a device by name, or the first available device.
///
/// Every build parses all names; a build without the runtime returns an error when the device is opened.
///
/// ```
/// use trike_llm::DeviceChoice;
///
/// assert_eq!("cpu".parse::<DeviceChoice>()?, DeviceChoice::Cpu);
/// assert_eq!("cuda".parse::<DeviceChoice>()?.to_string(), "cuda:0");
/// assert!("cuda:first".parse::<DeviceChoice>().is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The CPU.
    #[default]
    Cpu,
    /// The first device that is not a software driver, otherwise the CPU.
    Auto,
    /// A device of a runtime, by its zero-based index.
    Numbered(Runtime, usize),
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Cpu => f.write_str("cpu"),
            Self::Auto => DeviceSpec::Auto.fmt(f),
            Self::Numbered(runtime, index) => DeviceSpec::Numbered(runtime, index).fmt(f),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = UnknownDevice;

    fn from_str(name: &str) -> Result<Self, UnknownDevice> {
        match name.parse()? {
            DeviceSpec::Auto => Ok(Self::Auto),
            // The CPU is one device, and models run on Trike's own CPU kernels instead of CubeCL's CPU runtime.
            DeviceSpec::Numbered(Runtime::Cpu, _) if name == "cpu" => Ok(Self::Cpu),
            DeviceSpec::Numbered(Runtime::Cpu, _) => Err(UnknownDevice { name: name.to_owned() }),
            DeviceSpec::Numbered(runtime, index) => Ok(Self::Numbered(runtime, index)),
        }
    }
}

impl DeviceChoice {
    /// Opens the device. `Auto` never selects a software driver.
    ///
    /// # Errors
    ///
    /// [`LlmError::NotBuilt`] when the build does not have the runtime, [`LlmError::Nn`] when the machine does not have the
    /// device.
    pub fn open(self) -> Result<Device, LlmError> {
        #[cfg(feature = "gpu")]
        {
            use trike_nn::{NnError, cube::CubeError};
            let spec = match self {
                Self::Cpu => return Ok(Device(Kind::Cpu)),
                Self::Auto => DeviceSpec::Auto,
                Self::Numbered(runtime, index) => DeviceSpec::Numbered(runtime, index),
            };
            match trike_nn::cube::Device::open(spec) {
                Ok(device) => Ok(Device(Kind::Gpu(device))),
                Err(CubeError::NoDevice { .. }) if self == Self::Auto => Ok(Device(Kind::Cpu)),
                Err(CubeError::NotLinked { .. }) => Err(LlmError::NotBuilt { device: spec }),
                Err(error) => Err(NnError::from(error).into()),
            }
        }
        #[cfg(not(feature = "gpu"))]
        match self {
            Self::Cpu | Self::Auto => Ok(Device(Kind::Cpu)),
            Self::Numbered(runtime, index) => {
                Err(LlmError::NotBuilt { device: DeviceSpec::Numbered(runtime, index) })
            }
        }
    }
}

/// An open device, on which a model can be loaded.
#[derive(Debug)]
pub struct Device(Kind);

#[derive(Debug)]
enum Kind {
    Cpu,
    #[cfg(feature = "gpu")]
    Gpu(trike_nn::cube::Device),
}

impl Device {
    /// The CPU.
    pub fn cpu() -> Self {
        Self(Kind::Cpu)
    }

    /// The device of the kernels for GPUs; `None` for the CPU.
    #[cfg(feature = "gpu")]
    pub fn into_cube(self) -> Option<trike_nn::cube::Device> {
        match self.0 {
            Kind::Cpu => None,
            Kind::Gpu(device) => Some(device),
        }
    }

    /// Whether this is the CPU.
    pub fn is_cpu(&self) -> bool {
        matches!(self.0, Kind::Cpu)
    }

    /// Loads a model onto the device. On a GPU, the memory plan for a sequence of [`LoadOptions::sequence`] is first checked
    /// against the device's free memory and its largest allocation. `progress` is called with the weights loaded and in total.
    ///
    /// # Errors
    ///
    /// As [`LanguageModel::load_on`]; [`NnError::Memory`](trike_nn::NnError::Memory) and [`LlmError::TooLarge`] before anything
    /// is loaded.
    pub fn load(
        self,
        file: &ModelFile,
        options: &LoadOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Box<dyn Model>, LlmError> {
        match self.0 {
            Kind::Cpu => Ok(Box::new(LanguageModel::load_with(file, options, progress)?)),
            #[cfg(feature = "gpu")]
            Kind::Gpu(device) => {
                let backend =
                    CubeBackend::new(device, options.activations_of(file)).with_layout(options.layout);
                let kv = supported(&backend, options.sequence_of(file));
                backend.check_memory(&memory_plan(file, options, &kv)?)?;
                let limit = backend.device().capabilities().max_buffer_bytes;
                plan::check_pieces(&plan::pieces(file, options, &kv)?, &backend.name(), limit)?;
                Ok(Box::new(LanguageModel::load_on(backend, file, options, progress)?))
            }
        }
    }

    /// Loads a model of random trits with the given encoding and scales (`weights`), for benchmarks. Its context is that of
    /// [`Synthetic::spec`], or the capacity of the planned sequence if that is more. Of the options, the tokenizer and the
    /// precision of the head are not used. `progress` is called with the weights generated and in total.
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
            Kind::Gpu(device) => {
                let backend = CubeBackend::new(device, activations).with_layout(options.layout);
                let kv = supported(&backend, kv);
                backend.check_memory(&plan::synthetic_plan(&size.spec(), &kv))?;
                SyntheticModel::load_on(backend, size, weights, kv.capacity, progress)
            }
        }
    }
}

/// Opens the model at `path` on a device, with its own tokenizer and the default options.
///
/// # Errors
///
/// As [`ModelFile::open`], [`DeviceChoice::open`] and [`Device::load`], and [`LlmError::NoTokenizer`].
pub fn open(path: impl AsRef<Path>, device: &DeviceChoice) -> Result<Box<dyn Model>, LlmError> {
    let file = ModelFile::open(path)?;
    let options = LoadOptions::default().with_tokenizer(file.tokenizer(None)?);
    device.open()?.load(&file, &options, &mut |_, _| ())
}

/// `kv` in a precision that the backend supports: f16 or f32 instead of int8, f32 if it has no f16.
#[cfg(feature = "gpu")]
fn supported(backend: &impl Backend, kv: KvSpec) -> KvSpec {
    KvSpec { precision: backend.cache_precision(kv.precision), ..kv }
}

/// A device of this machine, as reports show it.
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
    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        for name in ["cpu", "auto", "wgpu:0", "vulkan:1", "cuda:12", "hip:0", "metal:3"] {
            assert_eq!(name.parse::<DeviceChoice>().expect(name).to_string(), name);
        }
        for name in
            ["", "gpu", "cuda:", "cuda:-1", "cuda:+1", "cuda:0:0", "CUDA:0", "cpu:0", "cpu:1", "auto:0"]
        {
            let error = name.parse::<DeviceChoice>().expect_err(name);
            assert_eq!(error, UnknownDevice { name: name.to_owned() });
        }
    }

    #[test]
    fn a_missing_device_is_refused_by_its_name() {
        let refused = DeviceChoice::Numbered(Runtime::Cuda, 4242).open().expect_err("no machine has so many");
        assert!(refused.to_string().contains("cuda"), "{refused}");
        assert!(DeviceChoice::Cpu.open().expect("always there").is_cpu());
    }
}
