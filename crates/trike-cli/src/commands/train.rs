//! `trike train`.

use std::{ops::ControlFlow, path::Path, time::Instant};

use serde::Serialize;
#[cfg(feature = "mpi")]
use trike::comm::{CommError, Communicator, rank_places};
use trike::train::TrainError;
use trike::{
    train::run::{Dataset, Ended, Run, RunConfig, RunEvent, RunPlan, RunReport, Sharing, Whole},
    trit::Granularity,
};

use super::{hub, missing};
#[cfg(feature = "mpi")]
use crate::ranks;
use crate::{args::TrainArgs, interrupt, output, progress::Progress};

/// The result. The fields of either variant are the schema of `trike train --json`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum TrainOutcome {
    /// A run.
    Run(Box<RunReport>),
    /// The plan of a run, with `--check`.
    Plan(RunPlan),
}

impl TrainOutcome {
    /// Whether Ctrl-C ended the run.
    pub(crate) fn is_interrupted(&self) -> bool {
        matches!(self, Self::Run(report) if report.ended == Ended::Interrupted)
    }
}

/// Trains a model.
pub(crate) fn train(args: &TrainArgs, quiet: bool) -> anyhow::Result<TrainOutcome> {
    let run = open(args, quiet, Run::open)?;
    let cpu = args.cpu.cpu()?;
    if args.check {
        let measuring = Progress::start("measuring the time of a step", quiet);
        let plan = run.check(&cpu)?;
        drop(measuring);
        return Ok(TrainOutcome::Plan(plan));
    }
    watched(quiet, |observe| run.train(&cpu, observe))
}

/// Trains a model as one of the ranks started by `mpirun`: rank 0 writes and prints.
#[cfg(feature = "mpi")]
pub(crate) fn train_ranks(args: &TrainArgs, quiet: bool) -> anyhow::Result<u8> {
    ranks::run(|comm| {
        let is_first = comm.rank() == 0;
        let quiet = quiet || !is_first;
        // Ranks with model parallelism read only their part.
        let open = || open(args, quiet, |config| Run::open_ranks(config, &**comm));
        // Rank 0 first, so that a missing model is downloaded only once into a shared cache.
        let of_first = if is_first { open().map(Some) } else { Ok(None) };
        let of_first = ranks::together(comm, of_first)?;
        let of_others = if is_first { Ok(None) } else { open().map(Some) };
        let of_others = ranks::together(comm, of_others)?;
        let Some(run) = of_first.or(of_others) else { anyhow::bail!("a rank without a run") };
        let places = rank_places(&**comm)?;
        let cpu = args.cpu.shared_cpu(places[comm.rank()].sharing)?;
        let is_local = run.config().local_steps > 1;
        let outcome = match args.check {
            true => run.check_ranks(&cpu, &**comm).map(TrainOutcome::Plan).map_err(anyhow::Error::from),
            false => watched(quiet, |observe| run.train_ranks(&cpu, &**comm, observe)),
        };
        let outcome = match outcome {
            Err(error) if is_known(&error, is_local) => ranks::alike(comm, Err(error))?,
            outcome => outcome?,
        };
        if is_first { super::trained(&outcome, args.json.json) } else { Ok(crate::SUCCESS) }
    })
}

/// Whether the error is the same on all ranks. With local steps, a loss is known to one rank only.
#[cfg(feature = "mpi")]
fn is_known(error: &anyhow::Error, is_local: bool) -> bool {
    match error.downcast_ref() {
        Some(TrainError::Diverged { .. }) => !is_local,
        Some(
            TrainError::Comm(CommError::Differs { .. })
            | TrainError::Checkpoint { .. }
            | TrainError::Changed { .. }
            | TrainError::OfRank { .. }
            | TrainError::Option(_),
        ) => true,
        _ => false,
    }
}

/// Opens models and data.
fn open(
    args: &TrainArgs,
    quiet: bool,
    open: impl FnOnce(RunConfig) -> Result<Run, TrainError>,
) -> anyhow::Result<Run> {
    let config = config(args, quiet)?;
    let reading = Progress::start("reading models and data", quiet);
    let run = open(config)?;
    drop(reading);
    Ok(run)
}

/// Runs a training with a progress bar, until Ctrl-C.
fn watched(
    quiet: bool,
    train: impl FnOnce(&mut dyn FnMut(RunEvent<'_>) -> ControlFlow<()>) -> Result<RunReport, TrainError>,
) -> anyhow::Result<TrainOutcome> {
    interrupt::stop_gracefully();
    let progress = Progress::start("training", quiet);
    let mut drawn = Instant::now();
    let report = train(&mut |event| {
        match event {
            RunEvent::Step { report, steps, tokens_per_second } => {
                progress.set(report.step + 1, steps);
                if drawn.elapsed().as_millis() > 200 {
                    let bits = report.loss.mean() / std::f64::consts::LN_2;
                    progress.say(format!("{bits:.3} bits per token, {tokens_per_second:.0} tokens/s"));
                    drawn = Instant::now();
                }
            }
            RunEvent::Writing { done, of } => {
                progress.set(done, of);
                progress.say(format!("the teacher writes {of} documents"));
            }
            RunEvent::Started(plan) => {
                progress.say("training".to_owned());
                if let (Some(step), false) = (plan.continues, quiet) {
                    output::note(&format!("continuing after step {step} of {}", plan.steps));
                }
            }
            _ => {}
        }
        if interrupt::requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    drop(progress);
    interrupt::resume();
    Ok(TrainOutcome::Run(Box::new(report?)))
}

/// The configuration file, overridden by the options.
fn config(args: &TrainArgs, quiet: bool) -> anyhow::Result<RunConfig> {
    let mut config = match &args.config {
        Some(path) => RunConfig::open(path)?,
        None if args.from.is_none() || args.data.is_empty() || args.output.is_none() => {
            return Err(missing("expected CONFIG, or --from MODEL, --data FILE and --output DIR"));
        }
        None => RunConfig::default(),
    };
    if let Some(from) = &args.from {
        (config.base_model, config.base_model_config) = (Some(from.clone()), None);
    }
    let replace = |to: &mut Option<_>, by: &Option<_>| {
        if by.is_some() {
            to.clone_from(by);
        }
    };
    replace(&mut config.tokenizer, &args.tokenizer);
    replace(&mut config.teacher, &args.teacher);
    if !args.data.is_empty() {
        config.datasets =
            args.data.iter().map(|path| Dataset { path: path.clone(), ..Dataset::default() }).collect();
    }
    if let Some(group) = args.group {
        config.group = match group {
            Granularity::Row => Sharing::Named(Whole::Row),
            Granularity::Tensor => Sharing::Named(Whole::Tensor),
            Granularity::Group(size) => Sharing::Group(size.get()),
        };
    }
    let length = &args.run;
    if length.minutes.is_some() || length.steps.is_some() || length.epochs.is_some() {
        (config.minutes, config.max_steps, config.num_epochs) = (length.minutes, length.steps, length.epochs);
    }
    if config.minutes.is_none() && config.max_steps.is_none() && config.num_epochs.is_none() {
        return Err(missing(
            "expected --minutes, --steps or --epochs, or one of minutes, max_steps and num_epochs in the configuration",
        ));
    }
    config.planes = args.planes.unwrap_or(config.planes);
    config.micro_batch_size = args.batch.unwrap_or(config.micro_batch_size);
    config.sequence_len = args.length.or(config.sequence_len);
    config.learning_rate = args.learning_rate.unwrap_or(config.learning_rate);
    config.seed = args.seed.unwrap_or(config.seed);
    if let Some(device) = &args.device {
        config.device = device.to_string();
    }
    if let Some(output) = &args.output {
        config.output_dir.clone_from(output);
    }
    // Resolve names of the hub and of the bundled model.
    let models = [&mut config.base_model, &mut config.teacher];
    for path in models.into_iter().flatten().filter(|path| path.as_path() != Path::new("none")) {
        *path = hub::resolve(path, quiet)?;
    }
    Ok(config)
}
