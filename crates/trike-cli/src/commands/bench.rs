//! `trike bench`.

use std::cell::RefCell;

use serde::Serialize;
use trike::{
    ActivationPrecision, Backend, Cpu, HeadPrecision, Isa, KvPrecision, LanguageModel, LlmError, ModelFile,
    llm::{
        Opened, Use,
        bench::{self, BenchOptions, BenchReport, Synthetic},
    },
};

use super::{DeviceOutcome, Wanted, load};
use crate::{
    args::{self, BenchArgs, ModelArg, PrecisionArgs},
    progress::Progress,
};

/// Tokens of the prompt unless another number is given; the one of llama-bench.
const PROMPT: usize = 512;

/// Speeds of a model. The field names are the schema of `trike bench -o json`.
#[derive(Debug, Serialize)]
pub(crate) struct BenchOutcome {
    pub(crate) model: BenchModel,
    /// Instruction set; none on a device.
    pub(crate) isa: Option<&'static str>,
    /// Where it ran.
    pub(crate) backend: String,
    /// What ternary layers take.
    pub(crate) activations: &'static str,
    /// Type of cached keys and values.
    pub(crate) kv: &'static str,
    /// None on the processor.
    pub(crate) device: Option<DeviceOutcome>,
    #[serde(flatten)]
    pub(crate) report: BenchReport,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub(crate) struct BenchModel {
    /// Path, or size of the synthetic model.
    pub(crate) name: String,
    /// Bytes of all weights as the kernels hold them.
    pub(crate) resident_bytes: usize,
    /// How the trits of a synthetic model were stored.
    pub(crate) encoding: Option<&'static str>,
    /// Bytes of its linear layers in that encoding.
    pub(crate) stored_bytes: Option<u64>,
    /// Seconds to make, encode and pack it.
    pub(crate) load_seconds: Option<f64>,
}

/// Measures a model's speed.
pub(crate) fn bench(args: &BenchArgs, quiet: bool) -> anyhow::Result<BenchOutcome> {
    let opened = super::open(&args.device.device, quiet)?;
    if !opened.is_cpu() && args.threads.len() > 1 {
        return Err(LlmError::Option {
            option: "--threads",
            expected: "one number with --device, where a device computes",
            got: args.threads.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        }
        .into());
    }
    match args.synthetic {
        Some(size) => synthetic(args, opened, size, quiet),
        None => stored(args, opened, quiet),
    }
}

fn options(args: &BenchArgs, context: usize) -> BenchOptions {
    BenchOptions {
        prompt: args.prompt.unwrap_or(PROMPT.min(context)),
        generate: args.generate,
        threads: args.threads.clone(),
        repetitions: args.repetitions,
        kv: args.kv,
    }
}

/// A model of random trits.
fn synthetic(args: &BenchArgs, opened: Opened, size: Synthetic, quiet: bool) -> anyhow::Result<BenchOutcome> {
    let activations = args.activations.unwrap_or(ActivationPrecision::F32);
    // One line after the other.
    let making = RefCell::new(Some(Progress::start(format!("making {}", size.name()), quiet)));
    let mut measuring = None;
    let found = opened.bench_synthetic(
        size,
        args.encoding,
        activations,
        &options(args, size.spec().context),
        &mut |done, total| {
            if let Some(making) = &*making.borrow() {
                making.set(done, total);
            }
        },
        &mut |done, total| {
            drop(making.take());
            measuring.get_or_insert_with(|| Progress::start("measuring", quiet)).set(done, total);
        },
    )?;
    let model = BenchModel {
        name: format!("synthetic {}", size.name()),
        resident_bytes: found.weight_bytes,
        encoding: Some(args.encoding.name()),
        stored_bytes: Some(found.stored_bytes),
        load_seconds: Some(found.load_seconds),
    };
    Ok(BenchOutcome {
        model,
        isa: found.device.is_none().then(|| Isa::detect().name()),
        backend: found.backend,
        activations: args::activations_name(activations),
        kv: args::kv_name(found.kv),
        device: found.device.map(DeviceOutcome::from),
        report: found.report,
    })
}

/// A model of a file.
fn stored(args: &BenchArgs, opened: Opened, quiet: bool) -> anyhow::Result<BenchOutcome> {
    let from_environment = || std::env::var_os("TRIKE_MODEL").map(Into::into);
    let model = ModelArg { model: args.model.clone().or_else(from_environment) };
    let file = ModelFile::open(model.path(quiet)?)?;
    if opened.is_cpu() {
        return on_host(args, &file, quiet);
    }
    let precision = PrecisionArgs { activations: args.activations, head: None, kv: Some(args.kv) };
    let cpu = Cpu::new(args.threads.first().copied().unwrap_or(0))?;
    let mut wanted = Wanted::new(&file, &args.device.device, &cpu, &precision, quiet);
    let options = options(args, file.config().spec.context);
    wanted.kv.capacity = options.prompt.max(options.generate).clamp(1, wanted.kv.capacity);
    let activations = args.activations.unwrap_or(file.config().family.activations());
    wanted.load_in(opened, &file, Measure { file: &file, options, activations, quiet })
}

/// What is done with a model on a device.
struct Measure<'a> {
    file: &'a ModelFile,
    options: BenchOptions,
    activations: ActivationPrecision,
    quiet: bool,
}

impl Use for Measure<'_> {
    type Out = anyhow::Result<BenchOutcome>;

    fn with<B: Backend>(self, model: LanguageModel<B>) -> Self::Out {
        let decoder = model.decoder();
        let backend = decoder.backend();
        let kv = if backend.can_cache(self.options.kv) { self.options.kv } else { KvPrecision::F32 };
        let progress = Progress::start("measuring", self.quiet);
        let options = BenchOptions { kv, ..self.options };
        let report = bench::run_on(decoder, &options, &mut |done, total| progress.set(done, total))?;
        Ok(BenchOutcome {
            model: of_file(self.file, decoder.weight_bytes()),
            isa: None,
            backend: backend.name(),
            activations: args::activations_name(self.activations),
            kv: args::kv_name(kv),
            device: backend.device_use().map(DeviceOutcome::from),
            report,
        })
    }
}

/// A model of a file on the processor, with each number of threads.
fn on_host(args: &BenchArgs, file: &ModelFile, quiet: bool) -> anyhow::Result<BenchOutcome> {
    // The run brings its own threads.
    let cpu = Cpu::new(1)?;
    let mut model = load(file, &cpu, None, args.activations, HeadPrecision::Auto, quiet)?;
    let activations = model.decoder().backend().activations();
    let progress = Progress::start("measuring", quiet);
    let options = options(args, model.decoder().spec().context);
    let report = model.bench(&options, &mut |done, total| progress.set(done, total))?;
    Ok(BenchOutcome {
        model: of_file(file, model.decoder().weight_bytes()),
        isa: Some(Isa::detect().name()),
        backend: model.decoder().backend().name(),
        activations: args::activations_name(activations),
        kv: args::kv_name(args.kv),
        device: None,
        report,
    })
}

fn of_file(file: &ModelFile, resident_bytes: usize) -> BenchModel {
    BenchModel {
        name: file.path().display().to_string(),
        resident_bytes,
        encoding: None,
        stored_bytes: None,
        load_seconds: None,
    }
}
