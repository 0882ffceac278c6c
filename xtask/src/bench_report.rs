//! Figures of this machine. Outside `ci`: minutes on a quiet machine, and meaningless on a busy one.

use crate::workspace::Workspace;
use anyhow::{Result, ensure};
use std::process::Command;

/// Builds and runs the report in the profile that users get, with its own options.
pub(crate) fn run(ws: &Workspace, options: &[String]) -> Result<()> {
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
