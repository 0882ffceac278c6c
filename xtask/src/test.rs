//! All tests and doc tests of the workspace, with the totals of all test binaries as the last line.

use crate::{tally::Tally, toolchain::FEATURES, workspace::Workspace};
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use xshell::cmd;

/// Unit, integration and example tests, but no benches.
const TESTS: &[&str] = &["--lib", "--bins", "--tests", "--examples"];

/// Runs `cargo test` for targets and for docs, and echoes the output. The Python module has its tests in Python: `wheel`.
///
/// Continues after failures. Returns the line of totals, which is also the last line printed.
pub(crate) fn run(ws: &Workspace) -> Result<String> {
    let mut tally = Tally::default();
    let targets = cargo_test(ws, TESTS, &mut tally)?;
    let docs = cargo_test(ws, &["--doc"], &mut tally)?;
    println!();
    // Once more at the end: between the outputs of two thousand passed tests they are not found.
    for line in tally.failures() {
        println!("{line}");
    }
    for (reason, count) in tally.reasons() {
        println!("{count} skipped: {reason}");
    }
    println!("{tally}");
    ensure!(
        tally.ignored == 0,
        "{} tests are ignored; skip at run time with a reason instead",
        tally.ignored
    );
    ensure!(tally.is_green() && targets && docs, "tests failed: {tally}");
    Ok(tally.to_string())
}

/// Returns whether cargo succeeded; the output of the test binaries is added to `tally` and echoed to stdout.
fn cargo_test(ws: &Workspace, what: &[&str], tally: &mut Tally) -> Result<bool> {
    let tests = cmd!(
        ws.sh,
        "cargo test --locked --workspace --exclude trike-py {FEATURES...} --no-fail-fast {what...} -- --show-output"
    );
    let mut child = Command::from(tests)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo test")?;
    let stdout = child.stdout.take().context("cargo test has no stdout")?;
    for line in BufReader::new(stdout).split(b'\n') {
        // Tests may print invalid UTF-8, which must not end the run.
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        tally.line(line.trim_end());
    }
    Ok(child.wait()?.success())
}
