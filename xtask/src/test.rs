//! Every test and doc test of the workspace, with the totals over all test binaries as the last line.

use crate::{tally::Tally, workspace::Workspace};
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use xshell::cmd;

/// Unit, integration and example tests, but no benches: those are timed, not tested.
const TESTS: &[&str] = &["--lib", "--bins", "--tests", "--examples"];
/// What exists only with features that are off by default: the command's downloads, and models and hypervectors on a device,
/// which is the software Vulkan driver. Features are unified over the whole workspace here too, where `trike-gpu-test` turns the
/// runtime on already, so that only `trike-vsa`, the crates from `trike-nn` up and an HTTP client are compiled again.
const FEATURES: &[&str] = &["--features", "trike-cli/hub,trike-cli/wgpu"];
/// The command's part of them, by the names of its modules.
const COMMAND: (&[&str], &[&str]) = (&["--bin", "trike", "--test", "cli"], &["device", "download"]);
/// The libraries'.
const LIBRARIES: (&[&str], &[&str]) = (&["--test", "device"], &[]);

/// Runs `cargo test` for targets, for those of features that are off, and for docs, and echoes their output.
///
/// A failure does not stop the rest. Returns the line of totals, which is also the last line printed.
pub(crate) fn run(ws: &Workspace) -> Result<String> {
    let mut tally = Tally::default();
    let targets = cargo_test(ws, TESTS, &[], &mut tally)?;
    let mut featured = true;
    for (what, filters) in [COMMAND, LIBRARIES] {
        featured &= cargo_test(ws, &[FEATURES, what].concat(), filters, &mut tally)?;
    }
    let docs = cargo_test(ws, &["--doc"], &[], &mut tally)?;
    println!();
    for (reason, count) in tally.reasons() {
        println!("{count} skipped: {reason}");
    }
    println!("{tally}");
    ensure!(tally.ignored == 0, "{} tests are ignored; a test runs, or skips with a reason", tally.ignored);
    ensure!(tally.is_green() && targets && featured && docs, "tests failed: {tally}");
    Ok(tally.to_string())
}

/// Whether cargo was content; what its test binaries printed goes into `tally` and to stdout.
fn cargo_test(ws: &Workspace, what: &[&str], filters: &[&str], tally: &mut Tally) -> Result<bool> {
    let tests =
        cmd!(ws.sh, "cargo test --locked --workspace --no-fail-fast {what...} -- --show-output {filters...}");
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
