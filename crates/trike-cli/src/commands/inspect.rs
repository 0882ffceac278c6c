//! `trike inspect`.

use serde::Serialize;
use trike::{Cpu, Inspection, ModelFile, Place, memory_plan};

use super::Wanted;
use crate::{
    args::{self, InspectArgs, PrecisionArgs},
    progress::Progress,
};

/// Describes a checkpoint.
pub(crate) fn inspect(args: &InspectArgs, quiet: bool) -> anyhow::Result<Inspection> {
    let path = super::hub::resolve(&args.model, quiet)?;
    let progress = Progress::start("counting", quiet);
    Ok(trike::inspect(path, &mut |done, total| progress.set(done, total))?)
}

/// What a model takes on a device, in bytes. The field names are the schema of `trike inspect --memory --json`.
#[derive(Debug, Serialize)]
pub(crate) struct MemoryOutcome {
    pub(crate) model: String,
    /// Weights as the kernels hold them.
    pub(crate) weights: u64,
    /// Keys and values of one sequence.
    pub(crate) cache: u64,
    /// Positions that these are for.
    pub(crate) positions: usize,
    /// Type of the keys and values.
    pub(crate) kv: &'static str,
    /// Tensors of a step of the prompt.
    pub(crate) scratch: u64,
    pub(crate) total: u64,
}

/// Plans the memory of a model for a sequence over its context.
pub(crate) fn memory(args: &InspectArgs, quiet: bool) -> anyhow::Result<MemoryOutcome> {
    let file = ModelFile::open(super::hub::resolve(&args.model, quiet)?)?;
    let precision = PrecisionArgs { activations: None, head: None, kv: None };
    let cpu = Cpu::new(1)?;
    let wanted = Wanted::new(&file, &Place::Cpu, &cpu, &precision, quiet);
    let plan = memory_plan(&file, &wanted.options(), &wanted.kv)?;
    Ok(MemoryOutcome {
        model: file.path().display().to_string(),
        weights: plan.weights,
        cache: plan.cache,
        positions: wanted.kv.capacity,
        kv: args::kv_name(wanted.kv.precision),
        scratch: plan.scratch,
        total: plan.total(),
    })
}
