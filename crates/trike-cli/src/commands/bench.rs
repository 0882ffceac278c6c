//! `trike bench`.

use serde::Serialize;
use trike::{
    ActivationPrecision, Cpu, HeadPrecision, Isa, ModelFile,
    llm::bench::{self, BenchOptions, BenchReport},
};

use super::load;
use crate::{
    args::{self, BenchArgs, ModelArg},
    progress::Progress,
};

/// Tokens of the prompt unless another number is given; the one of llama-bench.
const PROMPT: usize = 512;

/// Speeds of a model. The field names are the schema of `trike bench -o json`.
#[derive(Debug, Serialize)]
pub(crate) struct BenchOutcome {
    pub(crate) model: BenchModel,
    /// Instruction set.
    pub(crate) isa: &'static str,
    /// What ternary layers take.
    pub(crate) activations: &'static str,
    /// Type of cached keys and values.
    pub(crate) kv: &'static str,
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
    let options = |context: usize| BenchOptions {
        prompt: args.prompt.unwrap_or(PROMPT.min(context)),
        generate: args.generate,
        threads: args.threads.clone(),
        repetitions: args.repetitions,
        kv: args.kv,
    };
    let mut activations = args.activations.unwrap_or(ActivationPrecision::F32);
    let (model, report) = match args.synthetic {
        Some(size) => {
            let making = Progress::start(format!("making {}", size.name()), quiet);
            let mut model = bench::synthetic(size, args.encoding, activations, &mut |done, total| {
                making.set(done, total);
            })?;
            drop(making);
            let progress = Progress::start("measuring", quiet);
            let options = options(model.decoder.spec().context);
            let report =
                bench::run(&mut model.decoder, &options, &mut |done, total| progress.set(done, total))?;
            let facts = BenchModel {
                name: format!("synthetic {}", size.name()),
                resident_bytes: model.decoder.weight_bytes(),
                encoding: Some(args.encoding.name()),
                stored_bytes: Some(model.stored_bytes),
                load_seconds: Some(model.load_seconds),
            };
            (facts, report)
        }
        None => {
            let from_environment = || std::env::var_os("TRIKE_MODEL").map(Into::into);
            let model = ModelArg { model: args.model.clone().or_else(from_environment) };
            let file = ModelFile::open(model.path(quiet)?)?;
            // The run brings its own threads.
            let cpu = Cpu::new(1)?;
            let mut model = load(&file, &cpu, None, args.activations, HeadPrecision::Auto, quiet)?;
            activations = model.decoder().backend().activations();
            let progress = Progress::start("measuring", quiet);
            let options = options(model.decoder().spec().context);
            let report = model.bench(&options, &mut |done, total| progress.set(done, total))?;
            let facts = BenchModel {
                name: file.path().display().to_string(),
                resident_bytes: model.decoder().weight_bytes(),
                encoding: None,
                stored_bytes: None,
                load_seconds: None,
            };
            (facts, report)
        }
    };
    Ok(BenchOutcome {
        model,
        isa: Isa::detect().name(),
        activations: args::activations_name(activations),
        kv: args::kv_name(args.kv),
        report,
    })
}
