//! Line coverage of the tests. Not part of `ci`: it recompiles everything.

use crate::workspace::Workspace;
use anyhow::{Result, bail};
use xshell::cmd;

/// Minimum line coverage, in percent.
const MIN_LINES: &str = "80";

/// Runs cargo-llvm-cov over the published crates.
pub(crate) fn run(ws: &Workspace) -> Result<()> {
    if cmd!(ws.sh, "cargo llvm-cov --version").quiet().ignore_stdout().ignore_stderr().run().is_err() {
        bail!(
            "cargo-llvm-cov is not installed; install it with:\n  \
             rustup component add llvm-tools\n  cargo install --locked cargo-llvm-cov"
        );
    }
    // Build tools, test helpers and benches are excluded.
    cmd!(
        ws.sh,
        "cargo llvm-cov --locked --workspace --exclude xtask --exclude trike-benches --exclude-from-report trike-testkit --fail-under-lines {MIN_LINES}"
    )
    .quiet()
    .run()?;
    Ok(())
}
