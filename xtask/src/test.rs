//! Every test and doc test of the workspace, with the totals over all test binaries as the last line.

use crate::{tally::Tally, toolchain::FEATURES, workspace::Workspace};
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use xshell::cmd;

/// Unit, integration and example tests, but no benches: those are timed, not tested.
const TESTS: &[&str] = &["--lib", "--bins", "--tests", "--examples"];

/// Runs `cargo test` for targets and for docs, and echoes their output.
///
/// A failure does not stop the rest. Returns the line of totals, which is also the last line printed.
pub(crate) fn run(ws: &Workspace) -> Result<String> {
    let mut tally = Tally::default();
    let targets = cargo_test(ws, TESTS, &mut tally)?;
    let docs = cargo_test(ws, &["--doc"], &mut tally)?;
    println!();
    for (reason, count) in tally.reasons() {
        println!("{count} skipped: {reason}");
    }
    println!("{tally}");
    ensure!(tally.ignored == 0, "{} tests are ignored; a test runs, or skips with a reason", tally.ignored);
    ensure!(tally.is_green() && targets && docs, "tests failed: {tally}");
    Ok(tally.to_string())
}

/// Whether cargo was content; what its test binaries printed goes into `tally` and to stdout.
fn cargo_test(ws: &Workspace, what: &[&str], tally: &mut Tally) -> Result<bool> {
    let tests = cmd!(
        ws.sh,
        "cargo test --locked --workspace {FEATURES...} --no-fail-fast {what...} -- --show-output"
    );
    let mut child = Command::from(tests)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo test")?;
    let stdout = child.stdout.take().context("cargo test has no stdout")?;
    for line in BufReader::new(stdout).split(b'\n') {
        // A test may print bytes that are no text; they must not end the run.
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        tally.line(line.trim_end());
    }
    Ok(child.wait()?.success())
}
