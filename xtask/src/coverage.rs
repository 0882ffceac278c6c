//! The share of lines that the tests execute. Outside `ci`: it compiles everything once more.

use crate::workspace::Workspace;
use anyhow::{Result, bail};
use xshell::cmd;

/// Under this many percent of lines, `cargo xtask coverage` fails.
const MIN_LINES: &str = "80";

/// Runs cargo-llvm-cov over the crates that users get.
pub(crate) fn run(ws: &Workspace) -> Result<()> {
    if cmd!(ws.sh, "cargo llvm-cov --version").quiet().ignore_stdout().ignore_stderr().run().is_err() {
        bail!(
            "cargo-llvm-cov is not installed; install it with:\n  \
             rustup component add llvm-tools\n  cargo install --locked cargo-llvm-cov"
        );
    }
    // The tool that runs the tests, the tests' own helpers and the benches are not the product.
    cmd!(
        ws.sh,
        "cargo llvm-cov --locked --workspace --exclude xtask --exclude trike-benches --exclude-from-report trike-testkit --fail-under-lines {MIN_LINES}"
    )
    .quiet()
    .run()?;
    Ok(())
}
