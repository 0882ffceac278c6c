//! The `trike` command: run, inspect, convert and measure ternary language models.
//!
//! Start from [`args::Cli`], which is what a user can say. The decision that shaped this crate: it parses, calls the
//! `trike` library and renders, in three places that do not mix. A command returns data and never prints; only
//! `output` writes to the terminal, and only this crate reads the environment. The price is one struct of data for
//! each command, which is also the schema of its `--json`.
//!
//! * what can be said: [`args`]
//! * what is done: [`commands`]
//! * what is brought from the hub, with the feature `hub`: `download`
//! * what is shown: [`output`], [`progress`]; results as text: [`render`]
//! * what is written beside that: [`npy`]
//! * what to do about an error, and which flag it is about: [`advice`]
//! * Ctrl-C: [`interrupt`]
#![forbid(unsafe_code)]

mod advice;
mod args;
mod commands;
#[cfg(feature = "hub")]
mod download;
mod interrupt;
mod npy;
mod output;
mod progress;
mod render;

use std::process::ExitCode;

use clap::Parser;

/// The run failed.
const FAILURE: u8 = 1;
/// The command line asked for something that does not exist or is out of range; clap's number too.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = args::Cli::parse();
    interrupt::install();
    match commands::dispatch(cli) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(usage) = error.downcast_ref::<clap::Error>() {
                usage.exit();
            }
            output::error(&error, advice::advice(&error).as_deref());
            ExitCode::from(if advice::is_usage(&error) { USAGE } else { FAILURE })
        }
    }
}

/// Whoever read the output has seen enough.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind)
    };
    error.chain().any(|cause| kind(cause) == Some(std::io::ErrorKind::BrokenPipe))
}
