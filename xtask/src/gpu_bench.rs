//! Figures of devices: the benchmarks of the GPU test binary, which also keeps records and writes the tables of the book.
//!
//! A machine that only has a GPU runs the bundle instead; the last line of each run says where its record belongs.

use crate::gpu_test::drivers;
use crate::llvm;
use crate::workspace::Workspace;
use anyhow::{Result, ensure};
use clap::Parser;
use std::process::Command;
use xshell::cmd;

/// Time the kernels on devices, record the results, and update the performance chapter from the newest record.
#[derive(Parser)]
#[command(name = "cargo xtask bench-report --gpu", bin_name = "cargo xtask bench-report --gpu")]
struct Options {
    /// Devices, comma-separated, such as `cuda:0,vulkan:0`; by default all GPUs, through CUDA and HIP if this machine has
    /// the driver, and through Vulkan.
    #[arg(long, value_delimiter = ',', default_value = "all")]
    device: Vec<String>,
    /// Only problems whose name contains this; nothing is recorded.
    #[arg(long)]
    filter: Option<String>,
    /// A few tiny problems, also on software drivers; nothing is recorded.
    #[arg(long)]
    tiny: bool,
    /// Fall of a row's share of the ceiling and of its ratio to the rival that is a regression, in per cent.
    #[arg(long, value_name = "PERCENT", default_value = "10")]
    threshold: String,
    /// Record the run as the new baseline although rows regressed.
    #[arg(long)]
    accept: bool,
    /// Only render the tables of the chapter from the newest record, without measuring.
    #[arg(long, conflicts_with_all = ["device", "filter", "tiny", "threshold", "accept"])]
    render: bool,
}

/// The subcommand.
pub(crate) fn run(ws: &Workspace, options: &[String]) -> Result<()> {
    let name = "cargo xtask bench-report --gpu".to_owned();
    let options = Options::parse_from(std::iter::once(&name).chain(options));
    let runtimes = runtimes(ws, &options);
    if options.render {
        return binary(ws, &runtimes, &["report"]);
    }
    let folder = ws.metadata.target_directory.join("gpu-test/bench");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)?;
    let file = folder.join("run.json").into_string();
    // A build without SPIR-V has the software driver only.
    let devices =
        if options.tiny && options.device == ["all"] { "auto".to_owned() } else { options.device.join(",") };
    let mut arguments = vec!["bench", "--device", &devices, "--output", &file];
    arguments.extend(options.filter.iter().flat_map(|filter| ["--filter", filter.as_str()]));
    if options.tiny {
        arguments.extend(["--tiny", "--software", "--windows", "3", "--window-ms", "5", "--rotate-mib", "1"]);
    }
    binary(ws, &runtimes, &arguments)?;
    if options.tiny {
        println!("not recorded: only full runs are recorded");
        return Ok(());
    }
    let mut files = Vec::new();
    for entry in folder.read_dir_utf8()? {
        files.push(entry?.into_path().into_string());
    }
    files.sort();
    let mut arguments = vec!["report", "--threshold", &options.threshold];
    arguments.extend(files.iter().flat_map(|file| ["--record", file.as_str()]));
    arguments.extend(options.accept.then_some("--accept"));
    binary(ws, &runtimes, &arguments)
}

/// The runtimes to build for the devices.
fn runtimes(ws: &Workspace, options: &Options) -> Vec<String> {
    let mut all = Vec::new();
    for device in &options.device {
        match device.split(':').next().unwrap_or_default() {
            runtime @ ("cuda" | "hip" | "metal" | "vulkan") => all.push(runtime.to_owned()),
            // A build with SPIR-V does not open software drivers.
            "all" | "auto" if !options.tiny => {
                all.extend(drivers(ws));
                all.push("vulkan".to_owned());
            }
            _ => {}
        }
    }
    all.sort();
    all.dedup();
    all
}

/// Builds the test binary as users build theirs, and runs it in the root.
fn binary(ws: &Workspace, runtimes: &[String], arguments: &[&str]) -> Result<()> {
    let features: String =
        runtimes.iter().fold("rivals".to_owned(), |all, runtime| format!("{all},trike-cube/{runtime}"));
    let _stubs = llvm::stubbed(ws)?;
    let run = cmd!(
        ws.sh,
        "cargo run --quiet --release --locked -p trike-gpu-test --features {features} --bin trike-gpu-test -- {arguments...}"
    );
    // Not through the shell helper: its echo of the command would stand in front of the tables.
    let status = Command::from(run).status()?;
    ensure!(status.success(), "trike-gpu-test ended with {status}");
    Ok(())
}
