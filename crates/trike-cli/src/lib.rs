//! The `trike` command: run, inspect, convert and measure ternary language models.
//!
//! Start from [`run`], which the program and the Python package call, and from `args::Cli`, the command line. The main
//! design decision: parsing, calling the `trike` library and rendering are separate modules. A command returns data and
//! never prints; only `output` writes to the terminal, and only this crate reads the environment. The cost is one data
//! struct per command, which is also the schema of its `--json`.
//!
//! * command line: `args`
//! * commands: `commands`
//! * terminal output: `output`, `progress`; results as text: `render`
//! * `.npy` files: `npy`
//! * names of models as users write them: `naming`
//! * advice on errors and the flags they refer to: `advice`
//! * the sections of the handbook that explain errors: `topics`; the errors that lead to them: `causes`
//! * Ctrl-C: `interrupt`; ranks of `mpirun`, with the feature `mpi`: `ranks`
//! * examples, JSON fields and manual pages: `manual`; the command line and date in reports: `invocation`
#![forbid(unsafe_code)]

mod advice;
mod args;
mod causes;
mod commands;
mod interrupt;
mod invocation;
mod manual;
mod naming;
mod npy;
mod output;
mod progress;
#[cfg(feature = "mpi")]
mod ranks;
mod render;
mod topics;

use std::ffi::OsString;

use topics::Topic;

/// Exit code of a finished run.
const SUCCESS: u8 = 0;
/// Exit code of a failed run.
const FAILURE: u8 = 1;
/// Exit code of wrong usage (missing or out-of-range values), the same as clap's.
const USAGE: u8 = 2;

/// Runs a command line, whose first word is the name of the program, and returns its exit code.
///
/// A call is a whole run of the program: it installs the Ctrl-C handler, and exits the process on `--help`, `--version`, wrong
/// usage and Ctrl-C.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    output::seconds();
    let args: Vec<OsString> = args.into_iter().collect();
    let cli =
        args::Cli::read(&args).unwrap_or_else(|error| advice::reword(args::reworded(error, &args)).exit());
    invocation::remember(args);
    interrupt::install();
    trike::format::exit_on_unreadable_map(FAILURE);
    match commands::dispatch(cli) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => SUCCESS,
        Err(error) => {
            if let Some(usage) = error.downcast_ref::<clap::Error>() {
                usage.exit();
            }
            output::error(&error, advice::advice(&error).as_deref(), causes::topic(&error).map(Topic::name));
            exit_code(&error)
        }
    }
}

/// The exit code of an error.
fn exit_code(error: &anyhow::Error) -> u8 {
    let is_usage = advice::is_usage(error) || error.is::<clap::Error>();
    if is_usage { USAGE } else { FAILURE }
}

/// Whether the reader of the output closed the pipe.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind)
    };
    error.chain().any(|cause| kind(cause) == Some(std::io::ErrorKind::BrokenPipe))
}
