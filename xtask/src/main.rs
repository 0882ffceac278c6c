//! All checks of the repository as one command: `cargo xtask ci`.
//!
//! Start from [`steps::STEPS`], the list of checks from the cheapest to the most expensive. Each check is one file and
//! one subcommand, so that a failed step can be rerun alone.
//!
//! Rules are written in Rust over `cargo metadata` and plain text instead of relying on installed tools. A bare
//! machine with only Rust can then run all of them; the cost is that they see text, not syntax.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a build tool reports on both")]

mod bench_report;
mod book;
mod cargo;
mod coverage;
mod deny;
mod deps;
mod examples;
mod floats;
mod gpu_bench;
mod gpu_bundle;
mod gpu_test;
mod house;
mod layering;
mod llvm;
mod load_test;
mod modules;
mod package;
mod pages;
mod rank_bench;
mod ranks;
mod readme;
mod release;
mod rust_version;
mod share;
mod source;
mod spdx;
mod steps;
mod tally;
mod test;
mod tidy;
mod tokens;
mod toolchain;
mod type_names;
mod units;
mod wheel;
mod workspace;

use anyhow::Result;
use clap::Parser;
use share::Share;
use std::process::ExitCode;
use workspace::Workspace;

/// All checks of the repository as one command.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Run the checks of a commit and one of the nightly ones, and stop at the first failure.
    Ci {
        /// Run all checks, those of the night too.
        #[arg(long)]
        all: bool,
    },
    /// Check formatting with rustfmt.
    Fmt,
    /// Check file lengths, module docs, forbidden words, float tolerances in tests, white space, names of public types, and links of the book.
    Tidy,
    /// Check dependencies and `unsafe` against the package table, and modules for cycles.
    Layering {
        /// First regenerate the tables of the handbook from xtask/src/house.rs.
        #[arg(long)]
        update: bool,
    },
    /// Check licences, banned crates and sources against deny.toml.
    Deny,
    /// Check dependency counts and forbidden dependencies.
    Deps,
    /// Check the manifest and package contents of each publishable crate, and package all of them in release order.
    Package,
    /// Run Clippy over all targets, with warnings denied.
    Clippy,
    /// Run Clippy and build the API docs with all features.
    AllFeatures,
    /// Check each published crate alone, without default features and with them.
    Features {
        /// Check a part of the crates, such as 0/8. Default: all of them.
        #[arg(long, default_value_t = Share::WHOLE)]
        share: Share,
    },
    /// Link the command with CUDA and ROCm, without LLVM, and start it.
    Link,
    /// Run ranks of MPI, and compare their sums.
    Ranks,
    /// Run the examples that have no tests, with small inputs.
    Examples,
    /// Run all tests and doc tests, with totals at the end.
    Test,
    /// Build the API docs, with missing docs denied.
    Doc,
    /// Build the Python package's wheel, install it into a bare environment, and run its tests and examples there; the last line is
    /// the wheel's path.
    Wheel {
        /// Compile like the tests, as `ci` does: much faster, for a wheel that nobody should publish.
        #[arg(long)]
        dev: bool,
    },
    /// Run the commands of the README.
    Readme,
    /// Print how many units cargo compiles for each step, from its unit graph (outside of `ci`; compiles nothing).
    Units {
        /// Also print which units a step compiles again, with other features than an earlier one.
        #[arg(long)]
        again: bool,
    },
    /// Measure the line coverage of the tests (outside of `ci`; needs cargo-llvm-cov).
    Coverage,
    /// Compile the GPU kernels for every target without a GPU, and run them on every device found.
    GpuTest(gpu_test::Options),
    /// Build the archive of a release for one target, and check it (outside of `ci`); with `--dry-run`, also all packages,
    /// the installer and the container description.
    Release(release::Options),
    /// Put `trike serve` under load on loopback, and `llama-server` beside it where it is found (outside of `ci`).
    LoadTest(load_test::Options),
    /// Fail unless the compiler in use is the oldest that the manifests promise (outside of `ci`).
    RustVersion,
    /// Build a folder that tests and times the GPU kernels on another machine (outside of `ci`).
    GpuBundle,
    /// Run the benchmarks, compare them with the last record, and record them (outside of `ci`); with `--gpu`, the
    /// benchmarks of devices; with `--ranks`, training on ranks of MPI.
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
        Ok(code) => code,
        Err(e) => {
            // Not `{e:?}`: failed checks are ordinary outcomes, and a backtrace would bury the findings.
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(ws: &Workspace, command: &Command) -> Result<ExitCode> {
    let one = |name| steps::run_one(ws, name, Share::WHOLE);
    let done = match command {
        Command::Ci { all } => steps::run_all(ws, *all),
        Command::Fmt => one("fmt"),
        Command::Tidy => one("tidy"),
        Command::Layering { update } => {
            if *update {
                pages::update(ws)?;
            }
            one("layering")
        }
        Command::Deny => one("deny"),
        Command::Deps => one("deps"),
        Command::Package => one("package"),
        Command::Clippy => one("clippy"),
        Command::AllFeatures => one("all-features"),
        Command::Features { share } => steps::run_one(ws, "features", *share),
        Command::Link => one("link"),
        Command::Ranks => one("ranks"),
        Command::Examples => one("examples"),
        // Without the frame of a step, so that the totals are the last line.
        Command::Test => test::run(ws),
        Command::Doc => one("doc"),
        // Without the frame of a step, as for `test`.
        Command::GpuTest(options) => gpu_test::run(ws, options),
        Command::GpuBundle => gpu_bundle::run(ws),
        Command::Release(options) => release::run(ws, options),
        Command::LoadTest(options) => load_test::run(ws, options),
        Command::RustVersion => rust_version::run(ws),
        // Without the frame of a step, so that the path is the last line.
        Command::Wheel { dev } => wheel::run(ws, *dev),
        Command::Readme => one("readme"),
        Command::Units { again } => units::run(ws, *again),
        Command::Coverage => coverage::run(ws),
        // A void run has a status of its own.
        Command::BenchReport { options } => return bench_report::run(ws, options),
    };
    done.map(|()| ExitCode::SUCCESS)
}
