//! Figures of this machine. Outside `ci`: minutes on a quiet machine, and meaningless on a busy one.

use crate::{gpu_bench, rank_bench, workspace::Workspace};
use anyhow::{Context, Result};
use std::process::{Command, ExitCode};

/// Builds and runs the report in the profile that users get, with its own options and exit status; after `--gpu` the one of
/// devices, and after `--ranks` that of ranks.
pub(crate) fn run(ws: &Workspace, options: &[String]) -> Result<ExitCode> {
    if let Some((first, options)) = options.split_first()
        && first == "--gpu"
    {
        return gpu_bench::run(ws, options).map(|()| ExitCode::SUCCESS);
    }
    if options.first().is_some_and(|first| first == "--ranks" || first.starts_with("--ranks=")) {
        return rank_bench::run(ws, options);
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
    let code = status.code().with_context(|| format!("the report ended with {status}"))?;
    Ok(u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from))
}
