//! `trike inspect`.

use serde::Serialize;
use trike::{
    HeadPrecision, Inspection, KvSpec, LoadOptions, ModelFile, memory_plan,
    nn::{NnError, StagePlan},
};

use super::{
    conflict,
    kv::{ChosenOutcome, KvRequest},
};
use crate::{
    args::{InspectArgs, KeysChoice, KvChoice, TOP_K},
    output,
    progress::Progress,
};

/// Describes a model.
pub(crate) fn inspect(args: &InspectArgs, quiet: bool) -> anyhow::Result<Inspection> {
    let path = args.model.path(quiet)?;
    let progress = Progress::start("counting", quiet);
    Ok(trike::inspect(path, &mut |done, total| progress.set(done, total))?)
}

/// Memory of a model on a device, in bytes. The field names are the schema of `trike inspect --memory --json`.
#[derive(Debug, Serialize)]
pub(crate) struct MemoryOutcome {
    pub(crate) model: String,
    /// Weights in memory.
    pub(crate) weights: u64,
    /// KV cache of one sequence, with the sign codes of its keys.
    pub(crate) cache: u64,
    /// The sign codes alone, with `--keys`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) index: Option<u64>,
    /// Capacity of the cache, in tokens.
    pub(crate) positions: usize,
    /// KV cache precision.
    pub(crate) kv: String,
    /// The choice of `--kv auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kv_chosen: Option<ChosenOutcome>,
    /// Activations of one prefill step.
    pub(crate) scratch: u64,
    pub(crate) total: u64,
    /// The layers of each device of `--device`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) devices: Vec<DeviceLayers>,
}

/// The part of a model on one device, in bytes.
#[derive(Debug, Serialize)]
pub(crate) struct DeviceLayers {
    pub(crate) name: String,
    /// First layer, and number of layers.
    pub(crate) first_layer: usize,
    pub(crate) layers: usize,
    pub(crate) weights: u64,
    pub(crate) cache: u64,
    pub(crate) scratch: u64,
    pub(crate) total: u64,
    /// Free memory, if the device reports it.
    pub(crate) available: Option<u64>,
}

impl From<StagePlan> for DeviceLayers {
    fn from(stage: StagePlan) -> Self {
        Self {
            name: stage.device,
            first_layer: stage.layers.start,
            layers: stage.layers.len(),
            weights: stage.plan.weights,
            cache: stage.plan.cache,
            scratch: stage.plan.scratch,
            total: stage.plan.total(),
            available: stage.available,
        }
    }
}

/// Plans the memory of a model for one full-context sequence.
pub(crate) fn memory(args: &InspectArgs, quiet: bool) -> anyhow::Result<MemoryOutcome> {
    let file = ModelFile::open(args.model.path(quiet)?)?;
    let spec = &file.config().spec;
    let keys = args.keys.unwrap_or(KeysChoice::All).selector(TOP_K)?;
    let request = KvRequest { choice: args.kv, bound: args.kv_kl }.checked(true)?;
    // Defaults of a command without precision options.
    let options = LoadOptions::default().with_head(HeadPrecision::Auto);
    let known = request.known(&file, &options)?;
    if args.kv == Some(KvChoice::Auto) && known.precision.is_none() {
        return Err(conflict(
            "--kv auto: not chosen for this model yet; `trike run --kv auto` chooses, with the same --kv-kl",
        ));
    }
    let precision = known.precision.unwrap_or(file.default_kv().into());
    precision.check(spec.layers).map_err(NnError::from).map_err(trike::LlmError::from)?;
    let kv = KvSpec::new(precision, spec.context).with_keys(keys);
    let options = options.with_sequence(kv);
    let plan = memory_plan(&file, &options, &kv)?;
    let devices = match &args.device {
        Some(choice) => super::load::open(choice, quiet)?.plan(&file, &options)?,
        None => Vec::new(),
    };
    Ok(MemoryOutcome {
        model: output::model_name(file.path()),
        weights: plan.weights,
        cache: plan.cache,
        index: args.keys.map(|_| kv.index_bytes(spec)),
        positions: kv.capacity,
        kv: kv.precision.to_string(),
        kv_chosen: known.chosen,
        scratch: plan.scratch,
        total: plan.total(),
        devices: devices.into_iter().map(DeviceLayers::from).collect(),
    })
}
