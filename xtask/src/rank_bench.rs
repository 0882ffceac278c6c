//! Figures of training on ranks that MPI starts: the report `bench-scaling`, with the programs that it starts.

use crate::workspace::Workspace;
use anyhow::{Context, Result};
use std::process::{Command, ExitCode};
use xshell::cmd;

/// Builds the command and the probe in the profile that users get, and runs the report.
pub(crate) fn run(ws: &Workspace, options: &[String]) -> Result<ExitCode> {
    let programs = ws.metadata.target_directory.as_std_path().join("release");
    let mut arguments = Vec::new();
    let needs_none = ["--render", "--help", "-h"];
    if !options.iter().any(|option| needs_none.contains(&option.as_str())) {
        cmd!(ws.sh, "cargo build --quiet --release --locked -p trike-cli --features mpi").quiet().run()?;
        cmd!(ws.sh, "cargo build --quiet --release --locked -p trike-comm --features mpi --example exchange")
            .quiet()
            .run()?;
        arguments.extend(["--trike".into(), programs.join("trike").into_os_string()]);
        arguments.extend(["--exchange".into(), programs.join("examples/exchange").into_os_string()]);
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
            "bench-scaling",
            "--",
        ])
        .args(arguments)
        .args(options)
        .current_dir(&ws.root)
        .status()?;
    let code = status.code().with_context(|| format!("the report ended with {status}"))?;
    Ok(u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from))
}
