//! Loading onto the host, after checking that the model fits into the memory available to this process.

use std::path::Path;

use trike_cpu::{Cpu, MemoryLimit, free_memory};
use trike_nn::{CpuBackend, Eviction, KvSpec, MemoryPlan};

use super::memory_plan;
use crate::{LanguageModel, LlmError, LoadOptions, ModelFile, PreparedRequest, WeightSource};

/// Bytes not included in any plan: buffers while weights are packed, and the program itself.
const OTHER: u64 = 32 << 20;
/// Address space reserved for threads, most of it unused.
const THREADS: u64 = 64 << 20;

impl LanguageModel<CpuBackend> {
    /// Loads a model onto the CPU, with its own tokenizer: from a path, or by a [name](ModelFile::find).
    ///
    /// # Errors
    ///
    /// As [`ModelFile::find`] and [`ModelFile::tokenizer`], and for damaged weights. Errors name the file.
    pub fn load(name: impl AsRef<Path>) -> Result<Self, LlmError> {
        let file = ModelFile::find(name)?;
        let options = LoadOptions::default().with_tokenizer(file.tokenizer(None)?);
        Self::load_with(&file, &options, &mut |_, _| ())
    }

    /// Loads an open model onto the CPU. `progress` is called with the weights loaded and in total. If no tokenizer is given or
    /// found, the model runs on token ids only.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load), except that a missing tokenizer is not an error; one that does not match the model is. Before
    /// anything is loaded, [`LlmError::HostMemory`] when the memory of the machine, the control group or the address space is too
    /// small.
    pub fn load_with(
        file: &ModelFile,
        options: &LoadOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, LlmError> {
        check_host(file, options)?;
        let cpu = options.cpu.clone().map_or_else(|| Cpu::new(0), Ok)?;
        let backend = CpuBackend::new(cpu, options.activations_of(file)).with_layout(options.layout);
        Self::load_on(backend, file, options, progress)
    }

    /// Replaces the threads and the instruction set.
    pub fn set_cpu(&mut self, cpu: Cpu) {
        self.decoder_mut().backend_mut().set_cpu(cpu);
    }
}

/// The longest KV cache that fits into host memory together with the weights of a model: the capacity of `kv`, or fewer positions
/// in steps of 256, at least 1. If the system does not report its limits, everything fits.
///
/// # Errors
///
/// When a weight is missing.
pub fn fitting_context(file: &ModelFile, options: &LoadOptions, kv: &KvSpec) -> Result<usize, LlmError> {
    let plan = memory_plan(file, options, kv)?;
    let mapped = mapped(file)?;
    let each = (plan.cache / kv.capacity.max(1) as u64).max(1);
    let fits = |(limit, free): (MemoryLimit, u64)| {
        let rest = needed(&MemoryPlan { cache: 0, ..plan }, mapped, limit);
        let positions = usize::try_from(free.saturating_sub(rest) / each).unwrap_or(usize::MAX);
        if positions >= kv.capacity { kv.capacity } else { (positions / 256 * 256).max(1) }
    };
    Ok(free_memory().into_iter().map(fits).min().unwrap_or(kv.capacity))
}

/// Checks that the weights of a model, and the planned KV cache if there is one, fit into host memory.
fn check_host(file: &ModelFile, options: &LoadOptions) -> Result<(), LlmError> {
    let least = KvSpec::new(file.default_kv(), 1);
    let plan = memory_plan(file, options, &options.sequence.unwrap_or(least))?;
    check(&plan, mapped(file)?, &free_memory())
}

/// Checks a plan against the limits. `mapped` bytes of the weights are read from mapped files, whose pages the system can evict.
pub(crate) fn check(plan: &MemoryPlan, mapped: u64, free: &[(MemoryLimit, u64)]) -> Result<(), LlmError> {
    for &(limit, available) in free {
        let needed = needed(plan, mapped, limit);
        if needed > available {
            return Err(LlmError::HostMemory { needed, plan: *plan, available, limit: limit.name() });
        }
    }
    Ok(())
}

fn needed(plan: &MemoryPlan, mapped: u64, limit: MemoryLimit) -> u64 {
    let total = plan.total().saturating_add(OTHER);
    match limit {
        MemoryLimit::AddressSpace => total.saturating_add(THREADS),
        MemoryLimit::Machine | MemoryLimit::Group => total.saturating_sub(mapped),
    }
}

/// Bytes of weights that are mapped in the layout of the kernels.
fn mapped(file: &ModelFile) -> Result<u64, LlmError> {
    let mut bytes = 0;
    for name in file.weights() {
        if WeightSource::tiles(file, name)?.is_some() {
            bytes += file.info(name)?.bytes;
        }
    }
    Ok(bytes)
}

impl PreparedRequest {
    /// Shortens the context to the number of tokens for which the host has memory besides the weights, and returns it; `None` if
    /// the whole text fits, if its context or window was given, or if not even the prompt fits: then loading fails with the sizes.
    ///
    /// # Errors
    ///
    /// As [`fitting_context`].
    pub fn fit(&mut self, file: &ModelFile, load: &LoadOptions) -> Result<Option<usize>, LlmError> {
        if self.options.context.is_some() || self.kv.window.is_some() {
            return Ok(None);
        }
        let fitting = fitting_context(file, load, &self.kv)?;
        if fitting >= self.kv.capacity || fitting <= self.ids.len() {
            return Ok(None);
        }
        self.options.context = Some(fitting);
        // Generation ends when the cache is full.
        self.kv = self.kv.with_capacity(fitting).with_eviction(Eviction::Never);
        Ok(Some(fitting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_is_too_small_is_named() {
        let plan = MemoryPlan { weights: 1 << 30, cache: 1 << 28, scratch: 0 };
        let needed = plan.total() + OTHER;
        check(&plan, 0, &[(MemoryLimit::Machine, needed)]).expect("just enough");
        check(&plan, 0, &[]).expect("nothing is known");
        let free = [(MemoryLimit::Machine, u64::MAX), (MemoryLimit::Group, needed - 1)];
        let error = check(&plan, 0, &free).expect_err("one byte less").to_string();
        assert!(error.contains("its control group") && error.contains("1.38 GB"), "{error}");
        check(&plan, 1 << 30, &free).expect("mapped weights can be dropped");
        let space = [(MemoryLimit::AddressSpace, needed + THREADS - 1)];
        check(&plan, 1 << 30, &space).expect_err("mapped weights need addresses");
    }
}
