//! `trike-gpu-test compile`, `run`, `emulate` and `bench`: one binary for `cargo xtask gpu-test` and for the bundle.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test tool reports on both")]

use anyhow::{Result, bail, ensure};
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use trike_cube::Runtime;
use trike_gpu_test::{Share, Tally, bench, emulate, run};

/// Compiles Trike's GPU kernels for every target without a GPU, runs them on every device found, and times them.
#[derive(Parser)]
#[command(name = "trike-gpu-test")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compile every kernel for CUDA, HIP, Metal, SPIR-V and WGSL; needs no GPU.
    Compile {
        /// Folder `nvidia` of the packages of NVIDIA's compilers; without it CUDA stops at the generated source.
        #[arg(long)]
        nvidia: Option<PathBuf>,
        /// Reason for the report why `--nvidia` is missing.
        #[arg(long, default_value = "no --nvidia was given", conflicts_with = "nvidia")]
        why_no_nvidia: String,
        /// Reason for the report why the packages lack NVIDIA's disassembler, if they do.
        #[arg(long, default_value = "the folder has no nvdisasm")]
        why_no_nvdisasm: String,
        /// Table of counts to replace by those of this run.
        #[arg(long, value_name = "FILE")]
        accept_counts: Option<PathBuf>,
        /// Only targets whose name contains this.
        #[arg(long)]
        target: Option<String>,
        /// Only cases whose name contains this.
        #[arg(long)]
        filter: Option<String>,
        /// The part of the forms to build, such as 0/8; default: all.
        #[arg(long)]
        share: Option<Share>,
        /// Output folder of the generated sources.
        #[arg(long, default_value = "target/gpu-test")]
        out: PathBuf,
    },
    /// Run every suite on every device and compare with the CPU.
    Run {
        /// Runtimes to search for devices, comma-separated: cuda, hip, metal, vulkan, wgpu; all by default.
        #[arg(long = "runtime", value_delimiter = ',', value_parser = runtime)]
        runtimes: Vec<Runtime>,
        /// Only cases whose name contains this.
        #[arg(long)]
        filter: Option<String>,
        /// The part of the cases to run on a software device, such as 0/8; default: all.
        #[arg(long)]
        share: Option<Share>,
        /// Fail if no device is found.
        #[arg(long)]
        device_required: bool,
    },
    /// Compile kernels for CUDA with the host's g++, run them on emulated threads, and compare with the CPU; needs no GPU.
    Emulate {
        /// Only cases whose name contains this, of every suite; default: those with matrix instructions.
        #[arg(long)]
        filter: Option<String>,
        /// The part of the cases to run, such as 0/8; default: all.
        #[arg(long)]
        share: Option<Share>,
        /// Folder for sources and programs; cleared first.
        #[arg(long, default_value = "target/gpu-test/emulate")]
        out: PathBuf,
    },
    /// Time the operations on one device; `--output` keeps a record.
    Bench(bench::Options),
    /// Time many kernels for one problem, to fit the rates from which plans are made.
    Explore(bench::explore::Options),
    /// Keep the record of a run, and write the tables of the book's chapter on performance from the newest one.
    Report(bench::report::Options),
}

fn runtime(name: &str) -> Result<Runtime, String> {
    let known = || Runtime::ALL.map(Runtime::name).join(", ");
    Runtime::ALL.into_iter().find(|r| r.name() == name).ok_or_else(|| format!("expected one of {}", known()))
}

fn main() -> ExitCode {
    match execute(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> Result<()> {
    match command {
        Command::Compile {
            nvidia,
            why_no_nvidia,
            why_no_nvdisasm,
            accept_counts,
            target,
            filter,
            share,
            out,
        } => {
            use trike_gpu_test::compile::{Disassembler, Options, Toolkit, run};
            let disassembler = nvidia.as_deref().and_then(|folder| Disassembler::find(folder).ok());
            let disassembler = disassembler.ok_or(why_no_nvdisasm);
            let toolkit = match nvidia {
                Some(folder) => Ok(Toolkit::find(&folder)?),
                None => Err(why_no_nvidia),
            };
            let options = Options {
                target: target.as_deref(),
                filter: filter.as_deref(),
                share,
                toolkit,
                disassembler,
                accept_counts: accept_counts.as_deref(),
                out: &out,
            };
            let report = run(&options, |line| println!("{line}"))?;
            print!("{report}");
            finish(report.tally(), true)
        }
        Command::Run { runtimes, filter, share, device_required } => {
            let options = run::Options { runtimes, filter, share, device_required };
            let tally = run::run(&options, |line| println!("{line}"));
            finish(&tally, false)
        }
        Command::Emulate { filter, share, out } => {
            let options = emulate::Options { filter, share, out };
            let tally = emulate::run(&options, |line| println!("{line}"))?;
            finish(&tally, true)
        }
        Command::Bench(options) => {
            let mut problems = Vec::new();
            for (spec, file) in options.runs()? {
                // The other devices go on.
                let record = match bench::run(&options, spec, file, |line| println!("{line}")) {
                    Ok(record) => record,
                    Err(e) => {
                        problems.push(format!("{e:#}"));
                        continue;
                    }
                };
                let (figures, failures, path) = (record.rows.len(), record.failures.len(), record.path());
                println!(
                    "{figures} figures, {failures} failures; a full run belongs to benches/records/{}",
                    path.display()
                );
                if failures > 0 {
                    problems.push(format!("{spec}: {failures} kernels failed"));
                }
            }
            ensure!(problems.is_empty(), "{}", problems.join("; "));
            Ok(())
        }
        Command::Explore(options) => bench::explore::run(&options, |line| println!("{line}")),
        Command::Report(options) => {
            let is_good = bench::report::run(&options, |line| println!("{line}"))?;
            ensure!(is_good, "the run is void, or rows regressed");
            Ok(())
        }
    }
}

/// Prints failures, skip reasons, and the totals as the last line.
fn finish(tally: &Tally, print_failures: bool) -> Result<()> {
    if print_failures {
        for (case, found) in tally.failures() {
            println!("FAILED {case}\n    {found}");
        }
    }
    for (reason, cases) in tally.skips() {
        println!("{cases} skipped: {reason}");
    }
    println!("{tally}");
    if !tally.failures().is_empty() {
        bail!("{} failed", tally.failures().len());
    }
    Ok(())
}
