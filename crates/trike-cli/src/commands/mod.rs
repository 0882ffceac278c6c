//! Commands: each takes its arguments and returns data.

mod bench;
mod chat;
mod completions;
mod convert;
mod device;
mod doctor;
mod edit;
mod embed;
mod eval;
mod explain;
mod hub;
mod inspect;
mod known;
mod kv;
mod load;
mod logits;
mod models;
mod needle;
#[cfg(feature = "mpi")]
mod parallel;
mod perplexity;
mod quantize;
#[cfg(feature = "mpi")]
mod rank_outcome;
mod run;
mod sampling;
#[cfg(feature = "serve")]
mod serve;
mod shipped;
mod text;
mod train;
mod tuned;

use std::path::{Path, PathBuf};

use clap::{CommandFactory, error::ErrorKind};

use crate::{
    FAILURE, SUCCESS,
    args::{Cli, Command, ModelArg, RunArgs},
    interrupt,
    naming::{self, NoModel},
    output,
};

pub(crate) use bench::BenchOutcome;
pub(crate) use device::DeviceOutcome;
pub(crate) use doctor::{Diagnosis, Measured};
pub(crate) use embed::EmbedOutcome;
pub(crate) use eval::EvalOutcome;
pub(crate) use inspect::MemoryOutcome;
pub(crate) use known::KnownOutcome;
pub(crate) use logits::LogitsOutcome;
pub(crate) use models::{ListOutcome, LocalModel, Removed, RmOutcome, ShowOutcome};
pub(crate) use needle::NeedleOutcome;
pub(crate) use perplexity::{LimitOutcome, PerplexityOutcome};
pub(crate) use quantize::QuantizeOutcome;
pub(crate) use run::RunOutcome;
pub(crate) use train::TrainOutcome;

/// Runs the command and prints its result.
pub(crate) fn dispatch(cli: Cli) -> anyhow::Result<u8> {
    let quiet = cli.quiet;
    match cli.command {
        Command::Run(args) => return generate(args, quiet),
        Command::Chat(args) => chat::chat(&chat::with_model(args, quiet)?, quiet)?,
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::serve(&args, quiet)?,
        #[cfg(feature = "hub")]
        Command::Pull(args) => output::show(&models::pull(&args, quiet)?, args.json.json)?,
        Command::List(args) if args.known => output::show(&known::known_models(), args.json.json)?,
        Command::List(args) => output::show(&models::list(&args)?, args.json.json)?,
        Command::Show(args) => output::show(&models::show(&args, quiet)?, args.json.json)?,
        Command::Rm(args) => output::show(&models::rm(&args)?, args.json.json)?,
        Command::Inspect(args) if args.memory => {
            output::show(&inspect::memory(&args, quiet)?, args.json.json)?;
        }
        Command::Inspect(args) => {
            let outcome = inspect::inspect(&args, quiet)?;
            output::show(&outcome, args.json.json)?;
            if outcome.damaged > 0 {
                output::note(&format!(
                    "error: {} of {} tensors are damaged: download or convert the model again",
                    outcome.damaged, outcome.totals.tensors
                ));
                return Ok(FAILURE);
            }
        }
        Command::Convert(args) => output::show(&convert::convert(&args, quiet)?, args.json.json)?,
        Command::Quantize(args) => output::show(&quantize::quantize(&args, quiet)?, args.json.json)?,
        #[cfg(feature = "mpi")]
        Command::Train(args) if crate::ranks::are_started() => return train::train_ranks(&args, quiet),
        Command::Train(args) => {
            let outcome = train::train(&args, quiet)?;
            return trained(&outcome, args.json.json);
        }
        Command::Edit(args) => output::show(&edit::edit(&args)?, args.json.json)?,
        Command::Perplexity(args) => output::show(&perplexity::perplexity(&args, quiet)?, args.json.json)?,
        Command::Eval(args) => output::show(&eval::eval(&args, quiet)?, args.json.json)?,
        Command::Logits(args) => output::show(&logits::logits(&args, quiet)?, args.json.json)?,
        Command::Embed(args) => output::show(&embed::embed(&args, quiet)?, args.json.json)?,
        Command::Bench(args) => {
            output::show(&bench::bench(&args, quiet)?, args.json || args.output == "json")?;
        }
        Command::Doctor(args) => output::show(&doctor::doctor(&args, quiet)?, args.json.json)?,
        Command::Explain(args) => output::stream(&explain::text(args.topic))?,
        Command::Completions(args) => output::stream(&completions::script(args.shell)?)?,
        Command::Man(args) => output::stream(&completions::manual(&args.dir)?)?,
    }
    Ok(SUCCESS)
}

/// Prints the outcome of a training.
fn trained(outcome: &TrainOutcome, json: bool) -> anyhow::Result<u8> {
    output::show(outcome, json)?;
    if outcome.is_interrupted() {
        output::note("interrupted: run the same command again to continue");
        return Ok(interrupt::CODE);
    }
    Ok(SUCCESS)
}

/// Continues a prompt; without one in a terminal, starts a chat if the model can.
fn generate(args: RunArgs, quiet: bool) -> anyhow::Result<u8> {
    let args = text::sorted(args)?;
    let has_prompt = args.text.is_some() || args.prompt.is_some() || args.file.is_some();
    if let Some(name) = args.model.name.as_deref().and_then(Path::to_str)
        && !has_prompt
    {
        // Before the prompt is read from stdin, because the word may have been meant as the prompt.
        hub::check(name).map_err(|error| match error.downcast::<NoModel>() {
            Ok(error) => NoModel { may_be_prompt: true, ..error }.into(),
            Err(error) => error,
        })?;
    }
    #[cfg(feature = "mpi")]
    if let Some(division) = args.parallel {
        return parallel::run(&args, division, quiet);
    }
    let Some(prompt) = text::prompt(&args)? else {
        return match args.json.json {
            true => Err(text::no_prompt()),
            false => chat::start(args.into(), quiet).map(|()| SUCCESS),
        };
    };
    print(args.json.json, quiet, |sink| run::run(&args, &prompt, quiet, sink))
}

/// Prints a text as it is generated, or all of it as JSON.
fn print(
    json: bool,
    quiet: bool,
    generate: impl FnOnce(&mut run::Sink<'_>) -> anyhow::Result<RunOutcome>,
) -> anyhow::Result<u8> {
    if json {
        let outcome = generate(&mut |_| Ok(()))?;
        output::show(&outcome, true)?;
        return Ok(finished(&outcome));
    }
    let outcome = generate(&mut output::stream)?;
    output::end_stream()?;
    if !quiet {
        output::note(&outcome.speed());
    }
    Ok(finished(&outcome))
}

fn finished(outcome: &RunOutcome) -> u8 {
    if outcome.is_interrupted() { interrupt::CODE } else { SUCCESS }
}

impl ModelArg {
    /// The given model, the one of the environment, or the bundled one: its path, or its name even if a link to it was given.
    fn given(&self) -> PathBuf {
        let given = self.chosen().unwrap_or_else(|| PathBuf::from(shipped::NAME));
        match given.to_str().and_then(naming::link) {
            Some(Ok(id)) if !given.exists() => PathBuf::from(id.to_string()),
            _ => given,
        }
    }

    /// The path of the model, which is downloaded if necessary.
    fn path(&self, quiet: bool) -> anyhow::Result<PathBuf> {
        hub::resolve(&self.given(), quiet)
    }
}

/// Error for a missing argument, formatted by clap.
fn missing(message: &str) -> anyhow::Error {
    Cli::command().error(ErrorKind::MissingRequiredArgument, message).into()
}

/// Error for conflicting options, formatted by clap.
fn conflict(message: &str) -> anyhow::Error {
    Cli::command().error(ErrorKind::ArgumentConflict, message).into()
}
