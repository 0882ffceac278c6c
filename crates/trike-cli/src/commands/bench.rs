//! `trike bench`.

use std::collections::BTreeMap;

use serde::Serialize;
use trike::{
    Cpu, Device, Isa, KvOptions, KvPrecision, KvSpec, LlmError, LoadOptions, Model, ModelFile,
    eval::bench::{self, BenchOptions, BenchReport},
    llm::{PROMPT_STEP, Synthetic},
    nn::NnError,
};

use super::{
    DeviceOutcome, conflict,
    kv::{ChosenOutcome, Kv, KvRequest},
    load::{layouts, load, open, prompt_share},
    tuned::{self, TunedRow},
};
use crate::{
    args::{self, BenchArgs, KvChoice, PrecisionArgs},
    output,
    progress::Progress,
};

/// Default number of prompt tokens, as in llama-bench.
const PROMPT: usize = 512;

/// Speeds of a model. The field names are the schema of `trike bench -o json`.
#[derive(Debug, Serialize)]
pub(crate) struct BenchOutcome {
    pub(crate) model: BenchModel,
    /// Instruction set; `None` on a device.
    pub(crate) isa: Option<&'static str>,
    /// Name of the backend.
    pub(crate) backend: String,
    /// Activation precision of ternary layers.
    pub(crate) activations: String,
    /// KV cache precision.
    pub(crate) kv: String,
    /// The choice of `--kv auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kv_chosen: Option<ChosenOutcome>,
    /// Selection of keys.
    pub(crate) keys: &'static str,
    /// Number of keys selected by their codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) keys_top_k: Option<usize>,
    /// Fraction of key blocks that prompts attend to, unless it is 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_keys: Option<f64>,
    /// `None` on the CPU.
    pub(crate) device: Option<DeviceOutcome>,
    /// Kernels chosen by `--tune`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tuned: Vec<TunedRow>,
    #[serde(flatten)]
    pub(crate) report: BenchReport,
}

/// The benchmarked model.
#[derive(Debug, Serialize)]
pub(crate) struct BenchModel {
    /// Path, or size of the synthetic model.
    pub(crate) name: String,
    /// Bytes of all weights in memory.
    pub(crate) resident_bytes: usize,
    /// Number of ternary matrices by layout.
    pub(crate) layouts: BTreeMap<&'static str, usize>,
    /// Stored encoding of a synthetic model.
    pub(crate) encoding: Option<&'static str>,
    /// Bytes of its linear layers in that encoding.
    pub(crate) stored_bytes: Option<u64>,
    /// Seconds to generate, encode and pack it.
    pub(crate) load_seconds: Option<f64>,
}

/// Measures a model's speed.
pub(crate) fn bench(args: &BenchArgs, quiet: bool) -> anyhow::Result<BenchOutcome> {
    let device = open(&args.device.device, quiet)?;
    let on_host = device.is_cpu();
    if !on_host && args.threads.len() > 1 {
        let given = args.threads.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        return Err(conflict(&format!("--threads: expected one value with --device, got {given}")));
    }
    if on_host && args.tune {
        return Err(conflict("--tune: the CPU has no kernels to choose from; choose a GPU with --device"));
    }
    let settings = args.keys.options(on_host)?;
    let request = KvRequest { choice: Some(args.kv), bound: args.kv_kl }.checked(on_host)?;
    let (measured, mut model, chosen) = match args.synthetic {
        Some(size) => synthetic(args, device, size, settings, quiet)?,
        None => stored(args, request, device, settings, quiet)?,
    };
    let wanted = chosen.precision.unwrap_or(KvPrecision::F16.into());
    // Mixed precisions are refused above on a device, and the CPU supports all of them.
    let kv = match wanted.is_uniform() {
        true => model.capabilities().cache_precision(wanted.base()).into(),
        false => wanted,
    };
    if kv != wanted && !quiet {
        output::note(&format!("--kv {wanted}: not supported by {}, using {kv}", model.backend()));
    }
    let options = options(args, model.config().spec.context).with_kv(settings.with_precision(kv));
    let tuned = if args.tune { tuned::tune(&*model, &options.step_tokens(), quiet)? } else { Vec::new() };
    let progress = Progress::start("measuring", quiet);
    let report = bench::run(&mut *model, &options, &mut |done, total| progress.set(done, total))?;
    Ok(BenchOutcome {
        model: measured,
        isa: on_host.then(|| isa(args).name()),
        backend: model.backend(),
        activations: args::activations_name(&model.activations()),
        kv: kv.to_string(),
        kv_chosen: chosen.chosen,
        keys: settings.keys.name(),
        keys_top_k: settings.keys.top_k(),
        prompt_keys: prompt_share(settings.prompt_keys),
        device: DeviceOutcome::of(&*model),
        tuned,
        report,
    })
}

/// The CPU that packs the weights; the benchmark has its own thread counts.
fn cpu(args: &BenchArgs) -> anyhow::Result<Cpu> {
    Ok(Cpu::with_isa(isa(args), 0)?)
}

/// The instruction set of the host.
fn isa(args: &BenchArgs) -> Isa {
    args.isa.unwrap_or_else(Isa::detect)
}

fn options(args: &BenchArgs, context: usize) -> BenchOptions {
    BenchOptions::default()
        .with_prompt(args.prompt.unwrap_or(PROMPT.min(context)))
        .with_generate(args.generate)
        .with_depths(args.depth.clone())
        .with_sequences(args.sequences.clone())
        .with_threads(args.threads.clone())
        .with_isa(args.isa)
        .with_repetitions(args.repetitions)
}

/// The description of a model, the model, and the precisions of its KV cache.
type Subject = (BenchModel, Box<dyn Model>, Kv);

/// A model of random trits.
fn synthetic(
    args: &BenchArgs,
    device: Device,
    size: Synthetic,
    settings: KvOptions,
    quiet: bool,
) -> anyhow::Result<Subject> {
    let KvChoice::Given(kv) = args.kv else {
        return Err(conflict("--kv auto: a synthetic model has no text to choose by; give a precision"));
    };
    kv.check(size.spec().layers).map_err(NnError::from).map_err(LlmError::from)?;
    let load = LoadOptions::default()
        .with_cpu(cpu(args)?)
        .with_activations(args.activations.0.unwrap_or_default())
        .with_layout(args.layout.0)
        .with_sequence(KvSpec::of(
            &settings.with_precision(kv),
            KvPrecision::F16,
            options(args, size.spec().context).positions(),
            PROMPT_STEP,
        ));
    let progress = Progress::start(format!("building {}", size.name()), quiet);
    let made = device.load_synthetic(size, (args.encoding, args.group), &load, &mut |done, total| {
        progress.set(done, total);
    })?;
    let measured = BenchModel {
        name: format!("synthetic {}", size.name()),
        resident_bytes: made.model.weight_bytes(),
        layouts: layouts(&*made.model),
        encoding: Some(args.encoding.name()),
        stored_bytes: Some(made.stored_bytes),
        load_seconds: Some(made.load_seconds),
    };
    Ok((measured, made.model, Kv { precision: Some(kv), chosen: None }))
}

/// A model from a file.
fn stored(
    args: &BenchArgs,
    request: KvRequest,
    device: Device,
    settings: KvOptions,
    quiet: bool,
) -> anyhow::Result<Subject> {
    let file = ModelFile::open(args.model.path(quiet)?)?;
    let context = file.config().spec.context;
    let precision = PrecisionArgs {
        activations: Some(args.activations),
        head: None,
        kv: Some(args.kv),
        kv_kl: args.kv_kl,
        layout: args.layout,
    };
    let wanted = precision.options(&file, &cpu(args)?);
    let known = request.known(&file, &wanted)?;
    let longest = options(args, context).positions().min(context);
    let kv = settings.with_precision(known.precision);
    let longest = KvSpec::of(&kv, file.default_kv(), longest, PROMPT_STEP);
    let wanted = wanted.with_sequence(longest);
    let model = load(device, &file, &wanted, quiet)?;
    let kv = request.choose(known, &file, &wanted, &*model, quiet)?;
    let measured = BenchModel {
        name: output::model_name(file.path()),
        resident_bytes: model.weight_bytes(),
        layouts: layouts(&*model),
        encoding: None,
        stored_bytes: None,
        load_seconds: None,
    };
    Ok((measured, model, kv))
}
