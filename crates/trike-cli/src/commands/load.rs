//! Model loading from the common options.

use std::collections::BTreeMap;

use trike::{
    Cpu, Device, DeviceChoice, HeadPrecision, Isa, KvLimit, KvOptions, KvSpec, LoadOptions, Model, ModelFile,
    PromptKeys, llm::fitting_context,
};

use super::{conflict, tuned};
use crate::{
    args::{ActivationChoice, CpuArgs, KeyArgs, KeysChoice, KvArgs, KvChoice, PrecisionArgs, TOP_K},
    output,
    progress::Progress,
};

impl CpuArgs {
    /// The CPU with the chosen threads and instruction set.
    pub(super) fn cpu(&self) -> anyhow::Result<Cpu> {
        Ok(Cpu::with_isa(self.isa.unwrap_or_else(Isa::detect), self.threads)?)
    }

    /// The CPU for one of `sharing` ranks on the same CPUs; an explicit number of threads is per rank.
    #[cfg(feature = "mpi")]
    pub(super) fn shared_cpu(&self, sharing: usize) -> anyhow::Result<Cpu> {
        let threads = match self.threads {
            0 => (Cpu::new(0)?.threads() / sharing.max(1)).max(1),
            threads => threads,
        };
        Ok(Cpu::with_isa(self.isa.unwrap_or_else(Isa::detect), threads)?)
    }
}

impl PrecisionArgs {
    /// Load options of a model, for full-context sequences in the given precision, or else the default.
    pub(super) fn options(&self, file: &ModelFile, cpu: &Cpu) -> LoadOptions {
        let options = LoadOptions::default();
        let options = match self.activations {
            Some(ActivationChoice(Some(policy))) => options.with_activations(policy),
            Some(ActivationChoice(None)) | None => options,
        };
        let kv = match self.kv {
            Some(KvChoice::Given(kv)) => kv,
            Some(KvChoice::Auto) | None => file.default_kv().into(),
        };
        options
            .with_cpu(cpu.clone())
            .with_head(self.head.unwrap_or(HeadPrecision::Auto))
            .with_layout(self.layout.0)
            .with_sequence(KvSpec::new(kv, file.config().spec.context))
    }
}

impl KeyArgs {
    /// The KV cache options of a command that runs on the CPU or not, in the default precision.
    pub(super) fn options(&self, on_host: bool) -> anyhow::Result<KvOptions> {
        if !self.prompt_keys.is_all() && !on_host {
            return Err(conflict("--prompt-keys: only the CPU selects keys of prompts, leave out --device"));
        }
        let keys = match (self.keys, self.keys_top_k) {
            (KeysChoice::All, Some(_)) => {
                return Err(conflict("--keys-top-k: needs --keys signs, got --keys all"));
            }
            (choice, top_k) => choice.selector(top_k.unwrap_or(TOP_K))?,
        };
        Ok(KvOptions::default().with_keys(keys).with_prompt_keys(self.prompt_keys))
    }
}

impl KvArgs {
    /// The KV cache options of a command that runs on the CPU or not, in the default precision.
    pub(super) fn options(&self, on_host: bool) -> anyhow::Result<KvOptions> {
        let options = self.keys.options(on_host)?;
        let limit = match self.evict.kv_limit {
            Some(_) if !on_host => {
                return Err(conflict("--kv-limit: only the CPU evicts, leave out --device"));
            }
            limit => limit.map(|positions| KvLimit { positions, eviction: self.evict.evict }),
        };
        Ok(options.with_limit(limit))
    }
}

/// The fraction of key blocks that prompts attend to, if not 1.
pub(super) fn prompt_share(keys: PromptKeys) -> Option<f64> {
    (!keys.is_all()).then(|| keys.share())
}

/// The longest cache on the CPU that fits into memory: `kv`, or a shorter one, with a note.
pub(super) fn context(
    file: &ModelFile,
    options: &LoadOptions,
    kv: KvSpec,
    quiet: bool,
) -> anyhow::Result<usize> {
    let fitting = fitting_context(file, options, &kv)?;
    if fitting >= kv.capacity {
        return Ok(kv.capacity);
    }
    note_shortened(fitting, kv.capacity, quiet);
    Ok(fitting)
}

/// Notes that a context was shortened to fit into memory.
pub(super) fn note_shortened(fitting: usize, wanted: usize, quiet: bool) {
    if !quiet {
        output::note(&format!(
            "memory for {fitting} of {wanted} tokens: the context is shortened; set it with --context N, or halve the memory per token with --kv int8",
        ));
    }
}

/// Opens a device or several, with a note if `auto` found no GPU.
pub(super) fn open(choice: &DeviceChoice, quiet: bool) -> anyhow::Result<Device> {
    let device = choice.open()?;
    tuned::load(&device, quiet);
    if *choice == DeviceChoice::Auto && device.is_cpu() && !quiet {
        output::note("--device auto: no supported GPU found, running on the CPU");
    }
    Ok(device)
}

/// The number of ternary matrices per layout name.
pub(super) fn layouts(model: &dyn Model) -> BTreeMap<&'static str, usize> {
    model.layouts().into_iter().map(|(layout, count)| (layout.name(), count)).collect()
}

/// Loads a model on a device, with a progress bar.
pub(super) fn load(
    device: Device,
    file: &ModelFile,
    options: &LoadOptions,
    quiet: bool,
) -> anyhow::Result<Box<dyn Model>> {
    let progress = Progress::start(format!("loading {}", file.path().display()), quiet);
    Ok(device.load(file, options, &mut |done, total| progress.set(done, total))?)
}
