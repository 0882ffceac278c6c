//! `trike run --parallel`: a model on several ranks.

use std::{rc::Rc, time::Instant};

use trike::{
    DeviceChoice, LlmError, LoadOptions, ModelFile,
    comm::{CommError, Communicator, Mpi},
    llm::{ModelParallel, RankModel, RankPlan, RankPlans, Session},
    nn::NnError,
};

use super::{
    conflict, print,
    rank_outcome::RanksOutcome,
    run::{PreparedPrompt, Sink},
    text,
};
use crate::{
    args::{KvChoice, RunArgs},
    commands::RunOutcome,
    output,
    progress::Progress,
    ranks,
};

/// Continues a prompt on all ranks: rank 0 reads the prompt and prints the text.
pub(super) fn run(args: &RunArgs, parallel: ModelParallel, quiet: bool) -> anyhow::Result<u8> {
    ranks::run(|comm| {
        let is_first = comm.rank() == 0;
        // The plans are part of the JSON.
        let has_notes = is_first && !quiet && !args.json.json;
        if comm.size() == 1 && has_notes {
            output::note("--parallel: one rank, which has the whole model; mpirun -n N starts several");
        }
        // Rank 0 first, so that a missing model is downloaded only once into a shared cache.
        let of_first = if is_first { prepare(args, quiet).map(Some) } else { Ok(None) };
        let text = ranks::together(comm, of_first)?;
        let of_others = if text.is_some() { Ok(None) } else { open(args).map(Some) };
        let other = ranks::together(comm, of_others)?;
        let (file, options) = match (&text, &other) {
            (Some(text), _) => (&text.file, text.options()),
            (None, Some((file, options))) => (file, options.clone()),
            (None, None) => anyhow::bail!("a rank without a model"),
        };
        let plans = plan(comm, file, &options, parallel)?;
        if has_notes {
            for (rank, plan) in plans.ranks().iter().enumerate() {
                output::note(&line(rank, plan));
            }
        }
        let start = Instant::now();
        let options = options.with_cpu(args.cpu.shared_cpu(plans.ranks()[comm.rank()].sharing)?);
        let progress = Progress::start(format!("loading {}", file.path().display()), quiet || !is_first);
        let model = plans.load(Rc::clone(comm), file, &options, &mut |done, total| progress.set(done, total));
        drop(progress);
        let model = ranks::together(comm, model.map_err(anyhow::Error::from))?;
        let load_seconds = start.elapsed().as_secs_f64();
        match text {
            None => {
                model.decoder().follow().map_err(LlmError::from)?;
                Ok(crate::SUCCESS)
            }
            Some(text) => print(args.json.json, quiet, |sink| {
                generate(text, &model, comm, &plans, load_seconds, quiet, sink)
            }),
        }
    })
}

/// The text of rank 0.
fn prepare(args: &RunArgs, quiet: bool) -> anyhow::Result<PreparedPrompt> {
    if args.device.device != DeviceChoice::Cpu {
        return Err(conflict(
            "the argument '--parallel' cannot be used with '--device': ranks compute on the CPU; for several GPUs of one \
             machine use --device cuda:0,cuda:1 without mpirun",
        ));
    }
    let prompt = text::prompt(args)?.ok_or_else(text::no_prompt)?;
    let kv = args.kv.options(true)?;
    let request = args.precision.kv_request(true)?;
    let mut text = PreparedPrompt::prepare(args, ModelFile::open(args.model.path(quiet)?)?, &prompt, kv)?;
    let kv = request.known(&text.file, &text.load)?;
    if args.precision.kv == Some(KvChoice::Auto) && kv.precision.is_none() {
        return Err(conflict(
            "--kv auto: not chosen for this model yet, and ranks cannot; run it once without --parallel, with the same options",
        ));
    }
    text.set_kv(&kv);
    Ok(text)
}

/// The model on a rank other than 0.
fn open(args: &RunArgs) -> anyhow::Result<(ModelFile, LoadOptions)> {
    let file = ModelFile::open(args.model.path(true)?)?;
    let options = args.precision.options(&file, &args.cpu.cpu()?);
    Ok((file, options))
}

/// The division of the model. If the ranks disagree, or the model cannot be divided or does not fit, all ranks return the same
/// error.
fn plan(
    comm: &Mpi,
    file: &ModelFile,
    options: &LoadOptions,
    parallel: ModelParallel,
) -> anyhow::Result<RankPlans> {
    match RankPlans::new(comm, file, options, parallel) {
        Err(
            error @ (LlmError::Nn(NnError::Comm(CommError::Differs { .. }) | NnError::Spec { .. })
            | LlmError::RankMemory { .. }),
        ) => ranks::alike(comm, Err(error.into())),
        result => Ok(result?),
    }
}

/// Description of a rank's part.
fn line(rank: usize, part: &RankPlan) -> String {
    let RankPlan { host, layers, plan, .. } = part;
    let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    let on = if host.is_empty() { String::new() } else { format!(" on {host}") };
    format!(
        "rank {rank}{on}: layers {} to {}; {} of weights, {} of keys and values, {} of activations",
        layers.start,
        layers.end - 1,
        megabytes(plan.weights),
        megabytes(plan.cache),
        megabytes(plan.scratch)
    )
}

fn generate(
    text: PreparedPrompt,
    model: &RankModel<Mpi>,
    comm: &Mpi,
    plans: &RankPlans,
    load_seconds: f64,
    quiet: bool,
    sink: &mut Sink<'_>,
) -> anyhow::Result<RunOutcome> {
    let before = comm.traffic();
    let mut outcome = text.generate(model, &mut Session::default(), load_seconds, quiet, sink)?;
    outcome.ranks = Some(RanksOutcome::new(plans, before, comm.traffic()));
    Ok(outcome)
}
