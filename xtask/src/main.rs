//! Everything that must hold for Trike, as one command: `cargo xtask ci`.
//!
//! Start from [`steps::STEPS`], the list of checks from the cheapest to the dearest. Each check is one file here
//! and one subcommand, so that the failure of a long run can be repeated alone.
//!
//! The decision a reader would question: rules are written in Rust over `cargo metadata` and plain text instead
//! of being left to installed tools. A bare machine with only Rust can then run all of them; the price is that
//! they see text, not syntax.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a build tool reports on both")]

mod bench_report;
mod book;
mod coverage;
mod deny;
mod deps;
mod floats;
mod gpu_bench;
mod gpu_bundle;
mod gpu_test;
mod house;
mod layering;
mod llvm;
mod modules;
mod package;
mod pages;
mod readme;
mod source;
mod spdx;
mod steps;
mod tally;
mod test;
mod tidy;
mod tokens;
mod toolchain;
mod workspace;

use anyhow::Result;
use clap::Parser;
use std::process::ExitCode;
use workspace::Workspace;

/// What must hold, as one command.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Run every check, cheapest first, and stop at the first failure.
    Ci,
    /// Formatting equals what rustfmt prints.
    Fmt,
    /// File lengths, module docs, forbidden words, float tolerances in tests, white space, links of the book.
    Tidy,
    /// Every dependency and every `unsafe` is in the table of packages, and modules of a folder have no cycles.
    Layering {
        /// First rewrite the tables of the handbook that are generated from xtask/src/house.rs.
        #[arg(long)]
        update: bool,
    },
    /// Licences, banned crates and sources, as deny.toml says.
    Deny,
    /// Dependency counts and what must be absent under a crate.
    Deps,
    /// What each publishable crate would ship.
    Package,
    /// Clippy over every target, warnings denied.
    Clippy,
    /// Each published crate alone, without default features and with them.
    Features,
    /// The command with CUDA and ROCm built in, linked without LLVM and started (outside of `ci`).
    Link,
    /// Every test and doc test, with totals at the end.
    Test,
    /// API docs, with missing docs denied.
    Doc,
    /// The commands that the README promises.
    Readme,
    /// Share of lines that the tests execute (outside `ci`; needs cargo-llvm-cov).
    Coverage,
    /// The GPU kernels: compiled for every target without a GPU, run on every device found.
    GpuTest(gpu_test::Options),
    /// A folder that tests and times the GPU kernels on another machine (outside `ci`).
    GpuBundle,
    /// Time the catalogue beside rivals, compare with the last record, and record it (outside `ci`); after `--gpu`, that
    /// of the devices.
    #[command(disable_help_flag = true)]
    BenchReport {
        /// Options of the report; `--help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
}

fn main() -> ExitCode {
    let command = Command::parse();
    match Workspace::load().and_then(|ws| run(&ws, &command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // Not `{e:?}`: a broken rule is an ordinary outcome, and its backtrace would bury the findings.
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(ws: &Workspace, command: &Command) -> Result<()> {
    match command {
        Command::Ci => steps::run_all(ws),
        Command::Fmt => steps::run_one(ws, "fmt"),
        Command::Tidy => steps::run_one(ws, "tidy"),
        Command::Layering { update } => {
            if *update {
                pages::update(ws)?;
            }
            steps::run_one(ws, "layering")
        }
        Command::Deny => steps::run_one(ws, "deny"),
        Command::Deps => steps::run_one(ws, "deps"),
        Command::Package => steps::run_one(ws, "package"),
        Command::Clippy => steps::run_one(ws, "clippy"),
        Command::Features => steps::run_one(ws, "features"),
        Command::Link => toolchain::link(ws).map(|note| println!("{note}")),
        // Without the frame of a step, so that the totals are the last line.
        Command::Test => test::run(ws).map(drop),
        Command::Doc => steps::run_one(ws, "doc"),
        // Without the frame of a step, as for `test`.
        Command::GpuTest(options) => gpu_test::run(ws, options),
        Command::GpuBundle => gpu_bundle::run(ws),
        Command::Readme => steps::run_one(ws, "readme"),
        Command::Coverage => coverage::run(ws),
        Command::BenchReport { options } => bench_report::run(ws, options),
    }
}
