//! All tests and doc tests of the workspace, with the totals of all test binaries as the last line.

use crate::cargo::Call;
use crate::{tally::Tally, workspace::Workspace};
use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Skips that `ci` accepts, with the reason. Any other skip is a failure there: `.ci/run` installs what tests need.
const ACCEPTED: &[(&str, &str)] = &[
    ("no shared data", "its licences keep the data out of the repository"),
    (
        "no published templates",
        "they are other people's work; `templates.py` beside the test says how to compare a folder",
    ),
    ("no SmolLM2", "a file of 98 MB that a script beside the shared data brings"),
    ("permissions do not bind this user", "in a container everybody is root"),
    ("there is a GPU", "the test is about a machine without one"),
];

/// All targets with tests, then doc tests. Other examples and programs are compiled by Clippy alone.
///
/// The Python module has its tests in Python: `wheel`.
pub(crate) fn calls() -> [Call; 2] {
    let tests = || Call::workspace("test").and(["--no-fail-fast"]).passing_on(["--show-output"]);
    [tests().and(["--tests"]), tests().and(["--doc"])]
}

/// The step of `ci`: also fails on skips for a reason that is not on the list.
pub(crate) fn step(ws: &Workspace) -> Result<String> {
    let tally = all(ws)?;
    let other =
        tally.reasons().filter(|(reason, _)| !ACCEPTED.iter().any(|(accepted, _)| accepted == reason));
    let other: Vec<String> = other.map(|(reason, count)| format!("{count} for `{reason}`")).collect();
    ensure!(
        other.is_empty(),
        "tests were skipped: {}; install what they need (`.ci/run` does), or accept the reason in xtask/src/test.rs",
        other.join(", ")
    );
    Ok(tally.to_string())
}

/// The subcommand; its last line is the totals.
pub(crate) fn run(ws: &Workspace) -> Result<()> {
    all(ws).map(drop)
}

/// Runs `cargo test` for targets and for docs, and echoes the output. Continues after failures.
fn all(ws: &Workspace) -> Result<Tally> {
    let mut tally = Tally::default();
    let mut is_green = true;
    for call in calls() {
        is_green &= cargo_test(ws, &call, &mut tally)?;
    }
    println!();
    // Once more at the end, so that they are visible.
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
    ensure!(tally.is_green() && is_green, "tests failed: {tally}");
    Ok(tally)
}

/// Returns whether cargo succeeded; the output of the test binaries is added to `tally` and echoed to stdout.
fn cargo_test(ws: &Workspace, call: &Call, tally: &mut Tally) -> Result<bool> {
    let mut command = Command::from(call.command(ws));
    if call.selection().iter().any(|word| word == "--doc") {
        // Examples load the bundled model by its name, which unpacks it into the user's cache.
        command.env("XDG_CACHE_HOME", ws.metadata.target_directory.join("tmp/cache"));
    }
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot start cargo test")?;
    let stdout = child.stdout.take().context("cargo test has no stdout")?;
    for line in BufReader::new(stdout).split(b'\n') {
        // Tests may print invalid UTF-8, which must not end the run.
        let line = String::from_utf8_lossy(&line?).into_owned();
        println!("{line}");
        tally.line(line.trim_end());
    }
    Ok(child.wait()?.success())
}
