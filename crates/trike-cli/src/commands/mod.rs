//! Commands: each takes its arguments and returns data.

mod bench;
mod chat;
mod completions;
mod convert;
mod device;
mod doctor;
mod edit;
mod eval;
mod hub;
mod inspect;
mod load;
mod logits;
mod perplexity;
mod quantize;
mod run;
mod sampling;
mod shipped;
mod text;

use std::{path::PathBuf, process::ExitCode};

use clap::{CommandFactory, error::ErrorKind};

use crate::{
    args::{Cli, Command, ModelArg},
    interrupt, output,
};

pub(crate) use bench::BenchOutcome;
pub(crate) use device::DeviceOutcome;
pub(crate) use doctor::{Diagnosis, Measured};
pub(crate) use eval::EvalOutcome;
pub(crate) use inspect::MemoryOutcome;
pub(crate) use logits::LogitsOutcome;
pub(crate) use perplexity::PerplexityOutcome;
pub(crate) use quantize::QuantizeOutcome;
pub(crate) use run::RunOutcome;

/// Runs the command and prints its result.
pub(crate) fn dispatch(cli: Cli) -> anyhow::Result<ExitCode> {
    let quiet = cli.quiet;
    match cli.command {
        Command::Run(args) if args.json.json => {
            let outcome = run::run(&args, quiet, &mut |_| Ok(()))?;
            output::show(&outcome, true)?;
            return Ok(finished(&outcome));
        }
        Command::Run(args) => {
            let outcome = run::run(&args, quiet, &mut output::stream)?;
            output::end_stream()?;
            if !quiet {
                output::note(&outcome.speed());
            }
            return Ok(finished(&outcome));
        }
        Command::Chat(args) => chat::chat(&args, quiet)?,
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
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Convert(args) => output::show(&convert::convert(&args, quiet)?, args.json.json)?,
        Command::Quantize(args) => output::show(&quantize::quantize(&args, quiet)?, args.json.json)?,
        Command::Edit(args) => output::show(&edit::edit(&args)?, args.json.json)?,
        Command::Perplexity(args) => output::show(&perplexity::perplexity(&args, quiet)?, args.json.json)?,
        Command::Eval(args) => output::show(&eval::eval(&args, quiet)?, args.json.json)?,
        Command::Logits(args) => output::show(&logits::logits(&args, quiet)?, args.json.json)?,
        Command::Bench(args) => {
            output::show(&bench::bench(&args, quiet)?, args.json || args.output == "json")?;
        }
        Command::Doctor(args) => output::show(&doctor::doctor(&args, quiet)?, args.json.json)?,
        Command::Completions(args) => output::stream(&completions::script(args.shell)?)?,
        Command::Man(args) => output::stream(&completions::manual(&args.dir)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn finished(outcome: &RunOutcome) -> ExitCode {
    if outcome.is_interrupted() { ExitCode::from(interrupt::CODE) } else { ExitCode::SUCCESS }
}

impl ModelArg {
    /// The given model, or the bundled one.
    fn path(&self, quiet: bool) -> anyhow::Result<PathBuf> {
        match &self.model {
            Some(path) => hub::resolve(path, quiet),
            None => shipped::find(),
        }
    }
}

/// Error for conflicting options, formatted by clap.
fn conflict(message: &str) -> anyhow::Error {
    Cli::command().error(ErrorKind::ArgumentConflict, message).into()
}
