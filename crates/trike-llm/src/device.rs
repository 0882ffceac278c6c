//! Where a model runs.

use std::{fmt, str::FromStr};

use serde::Serialize;
use trike_cpu::Cpu;
use trike_format::StoredType;
use trike_nn::{Backend, CpuBackend, KvSpec, MemoryPlan, WeightName};
use trike_trit::Encoding;

use crate::{LanguageModel, LlmError, LoadOptions, ModelFile, generate::STEP, load::HEAD_GROUP};

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
                    self.to_string().parse().map_err(|e: CubeError| failed(e.to_string()))?
                }
            };
            match Device::open(spec) {
                Ok(device) => Ok(Opened(Where::Device(device))),
                Err(CubeError::NoDevice { .. }) if *self == Self::Auto => Ok(Opened(Where::Cpu)),
                Err(error) => Err(failed(error.to_string())),
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

    /// Loads a model there and hands it to `user`. On a device the plan for a sequence of `kv` is compared with its memory
    /// first. `cpu` computes when the place is the processor.
    ///
    /// # Errors
    ///
    /// As [`LanguageModel::load_on`], and [`NnError::Memory`](trike_nn::NnError::Memory) before anything is loaded.
    pub fn load<U: Use>(
        self,
        file: &ModelFile,
        options: &LoadOptions,
        cpu: &Cpu,
        kv: &KvSpec,
        progress: &mut dyn FnMut(usize, usize),
        user: U,
    ) -> Result<U::Out, LlmError> {
        let activations = options.activations.unwrap_or(file.config().family.activations());
        match self.0 {
            Where::Cpu => {
                let backend = CpuBackend::new(cpu.clone(), activations);
                Ok(user.with(LanguageModel::load_on(backend, file, options, progress)?))
            }
            #[cfg(feature = "gpu")]
            Where::Device(device) => {
                let backend = trike_nn::CubeBackend::new(device, activations);
                backend.check_memory(&memory_plan(file, options, kv)?)?;
                Ok(user.with(LanguageModel::load_on(backend, file, options, progress)?))
            }
        }
    }
}

/// What a model is going to need on a device: its weights as kernels hold them there, a sequence of `kv`, and the tensors of a
/// step of a prompt. Only headers are read, so the scales of packed trits are taken from their size in the file.
///
/// # Errors
///
/// When a weight is missing.
pub fn memory_plan(file: &ModelFile, options: &LoadOptions, kv: &KvSpec) -> Result<MemoryPlan, LlmError> {
    let int8_head = options.rounds_head(file);
    let spec = &file.config().spec;
    let mut weights = 0u64;
    for name in file.weights() {
        let info = file.info(name)?;
        let is_head = match name {
            WeightName::Head => true,
            WeightName::Embedding => spec.tied_head,
            _ => false,
        };
        let form = match &info.kind {
            StoredType::F32 | StoredType::F16 | StoredType::Bf16 if is_head && int8_head => {
                Form::Int8(HEAD_GROUP)
            }
            _ if file.ternarizes(name) => Form::Trits { planes: 1, group: None },
            kind => Form::of(kind),
        };
        let (rows, cols) = match info.shape[..] {
            [rows, cols] => (rows as u64, cols as u64),
            // Vectors are f32.
            _ => {
                weights = weights.saturating_add(info.elements().saturating_mul(4));
                continue;
            }
        };
        weights = weights.saturating_add(form.bytes(rows, cols, info.bytes));
    }
    Ok(MemoryPlan::new(spec, weights, kv, STEP))
}

/// How the kernels hold a matrix.
enum Form {
    /// Bytes a weight.
    Dense(u64),
    /// A byte a weight and an f32 for each group of columns.
    Int8(usize),
    /// Two bits a trit, and a scale a row or for each group of columns.
    Trits { planes: u64, group: Option<u64> },
    /// Two bits a trit; how many scales there are is not in the header.
    Packed { planes: u64, encoding: Encoding },
}

impl Form {
    fn of(kind: &StoredType) -> Self {
        let trits = |group| Self::Trits { planes: 1, group };
        match kind {
            StoredType::F32 => Self::Dense(4),
            StoredType::F16 | StoredType::Bf16 => Self::Dense(2),
            StoredType::Q8_0 | StoredType::Q4_0 | StoredType::Q5_0 => Self::Int8(32),
            StoredType::Q6K => Self::Int8(16),
            StoredType::Int8 { group } => Self::Int8(*group),
            StoredType::Tq1_0 | StoredType::Tq2_0 => trits(Some(256)),
            StoredType::Q2_0(group) => trits(Some(group.get() as u64)),
            StoredType::Pq2_0 | StoredType::Ptq1_0 => trits(Some(128)),
            StoredType::I2S | StoredType::BitNet => trits(None),
            StoredType::Trits { encoding, depth, .. } => {
                Self::Packed { planes: *depth as u64, encoding: *encoding }
            }
            // What has minima, or is not known, is held in floats.
            _ => Self::Dense(4),
        }
    }

    /// Bytes of a matrix that takes `stored` bytes in the file.
    fn bytes(&self, rows: u64, cols: u64, stored: u64) -> u64 {
        let padded = rows.saturating_mul(cols.next_multiple_of(16));
        let codes = |planes: u64| {
            let plane = rows.next_multiple_of(16).saturating_mul(cols.next_multiple_of(128)) / 4;
            plane.saturating_mul(planes)
        };
        match *self {
            Self::Dense(each) => padded.saturating_mul(each),
            Self::Int8(group) => {
                let scales = rows.saturating_mul(cols.div_ceil(group.max(1) as u64));
                padded.saturating_add(scales.saturating_mul(4))
            }
            // Scales are f16 where they can be: a file with f32 scales has one a tensor.
            Self::Trits { planes, group } => {
                let groups = group.map_or(1, |group| cols.div_ceil(group));
                let scales = rows.next_multiple_of(16).saturating_mul(groups).saturating_mul(planes);
                codes(planes).saturating_add(scales.saturating_mul(2))
            }
            Self::Packed { planes, encoding } => {
                let weights = rows.saturating_mul(cols).saturating_mul(planes);
                // The rest of what the file holds is scales; of a sparse encoding not even that is known.
                let trits = match encoding {
                    Encoding::Base3 => weights / 5,
                    Encoding::TwoBit | Encoding::Planes => weights / 4,
                    _ => stored,
                };
                let row_scales = rows.next_multiple_of(16).saturating_mul(2 * planes);
                codes(planes).saturating_add(stored.saturating_sub(trits).max(row_scales))
            }
        }
    }
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

    #[test]
    fn forms_take_what_the_kernels_lay_out() {
        let trits = Form::Trits { planes: 2, group: Some(128) };
        // Two planes of 16 x 256 trits, and two scales for each of 16 rows and planes.
        assert_eq!(trits.bytes(10, 200, 0), 2 * 16 * 256 / 4 + 2 * 16 * 2 * 2);
        assert_eq!(Form::Dense(2).bytes(10, 20, 0), 10 * 32 * 2);
        assert_eq!(Form::Int8(32).bytes(10, 64, 0), 10 * 64 + 10 * 2 * 4);
    }
}
