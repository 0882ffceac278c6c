//! Figures of this machine. Outside `ci`: minutes on a quiet machine, and meaningless on a busy one.

use crate::{gpu_bench, workspace::Workspace};
use anyhow::{Result, ensure};
use std::process::Command;

/// Builds and runs the report in the profile that users get, with its own options; after `--gpu` the one of devices.
pub(crate) fn run(ws: &Workspace, options: &[String]) -> Result<()> {
    if let Some((first, options)) = options.split_first()
        && first == "--gpu"
    {
        return gpu_bench::run(ws, options);
    }
    // Not through the shell helper: its echo of the command would stand in front of the tables.
    let status = Command::new(env!("CARGO"))
        .args([
            "run",
            "--quiet",
            "--release",
            "--locked",
            "-p",
            "trike-benches",
            "--bin",
            "bench-report",
            "--",
        ])
        .args(options)
        .current_dir(&ws.root)
        .status()?;
    ensure!(status.success(), "the report ended with {status}");
    Ok(())
}
