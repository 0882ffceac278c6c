//! The list of checks, and the summary table with times.

use crate::{
    deny, deps, gpu_test, layering, package, ranks, readme, test, tidy, toolchain, wheel,
    workspace::Workspace,
};
use anyhow::{Result, anyhow};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// One check of `cargo xtask ci`; the name is also its subcommand.
pub(crate) struct Step {
    name: &'static str,
    /// Returns a note for the table; may be empty.
    run: fn(&Workspace) -> Result<String>,
    /// Command that fixes the failure or reruns the step.
    remedy: &'static str,
}

/// All steps, cheapest first.
///
/// `doc` runs before `test` because it reuses the build of `clippy` and takes seconds; `gpu-test` runs after it
/// because most of its binaries are built by then; `wheel` compiles like the tests, but not with their features;
/// `readme` is last because it compiles in release mode.
pub(crate) const STEPS: &[Step] = &[
    Step { name: "fmt", run: toolchain::fmt, remedy: "fix with: cargo fmt --all" },
    Step { name: "tidy", run: tidy::run, remedy: "rerun with: cargo xtask tidy" },
    Step {
        name: "layering",
        run: layering::run,
        remedy: "rerun with: cargo xtask layering; regenerate the tables of the handbook with: cargo xtask layering --update",
    },
    Step { name: "deny", run: deny::run, remedy: "rerun with: cargo xtask deny" },
    Step { name: "deps", run: deps::run, remedy: "rerun with: cargo xtask deps" },
    Step { name: "package", run: package::run, remedy: "rerun with: cargo xtask package" },
    Step { name: "clippy", run: toolchain::clippy, remedy: "rerun with: cargo xtask clippy" },
    Step { name: "features", run: toolchain::features, remedy: "rerun with: cargo xtask features" },
    Step { name: "doc", run: toolchain::doc, remedy: "rerun with: cargo xtask doc" },
    Step { name: "test", run: test::run, remedy: "rerun with: cargo xtask test" },
    Step { name: "ranks", run: ranks::run, remedy: "rerun with: cargo xtask ranks" },
    Step { name: "link", run: toolchain::link, remedy: "rerun with: cargo xtask link" },
    Step { name: "gpu-test", run: gpu_test::step, remedy: "rerun with: cargo xtask gpu-test" },
    Step { name: "wheel", run: wheel::step, remedy: "rerun with: cargo xtask wheel --dev" },
    Step { name: "readme", run: readme::run, remedy: "rerun with: cargo xtask readme" },
];

/// Runs all steps and stops at the first failure; the table is printed in any case.
pub(crate) fn run_all(ws: &Workspace) -> Result<()> {
    let start = Instant::now();
    let mut rows = Vec::new();
    let mut outcome = Ok(());
    for step in STEPS {
        let (elapsed, result) = timed(ws, step);
        let note = result.as_ref().map_or_else(|_| "FAILED".to_owned(), Clone::clone);
        rows.push((step.name, elapsed, note));
        if let Err(e) = result {
            outcome = Err(e);
            break;
        }
    }
    let not_run = STEPS.len() - rows.len();
    rows.push((
        "total",
        start.elapsed(),
        if not_run == 0 { String::new() } else { format!("{not_run} not run") },
    ));
    println!("\n{}", table(&rows));
    outcome
}

/// Runs the step with this name.
pub(crate) fn run_one(ws: &Workspace, name: &str) -> Result<()> {
    let step = STEPS.iter().find(|s| s.name == name);
    let step = step.ok_or_else(|| anyhow!("no step is called {name}"))?;
    timed(ws, step).1.map(drop)
}

fn timed(ws: &Workspace, step: &Step) -> (Duration, Result<String>) {
    println!("== {}", step.name);
    let start = Instant::now();
    let result = (step.run)(ws);
    let result = result.map_err(|e| anyhow!("step `{}` failed: {e:#}\n{}", step.name, step.remedy));
    let elapsed = start.elapsed();
    println!(
        "== {}: {:.1} s{}",
        step.name,
        elapsed.as_secs_f64(),
        if result.is_ok() { "" } else { ", FAILED" }
    );
    (elapsed, result)
}

fn table(rows: &[(&str, Duration, String)]) -> String {
    let mut out = format!("{:<10} {:>9}  note\n", "step", "seconds");
    for (name, elapsed, note) in rows {
        let line = format!("{name:<10} {:>9.1}  {note}", elapsed.as_secs_f64());
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The contributing page has one row for each step, in their order.
    #[test]
    fn the_contributing_page_lists_every_step() {
        let ws = Workspace::load().unwrap();
        let page = ws.sh.read_file("docs/src/contributing.md").unwrap();
        let table = page.lines().skip_while(|line| !line.starts_with("| step |")).skip(2);
        let rows = table.map_while(|line| line.strip_prefix("| `")?.split('`').next());
        assert_eq!(rows.collect::<Vec<_>>(), STEPS.iter().map(|step| step.name).collect::<Vec<_>>());
    }

    #[test]
    fn the_table_lists_steps_with_seconds_and_notes() {
        let rows = [
            ("fmt", Duration::from_millis(1_240), String::new()),
            ("test", Duration::from_secs(75), "3 passed, 0 failed, 1 skipped".to_owned()),
        ];
        let expected = "step         seconds  note\n\
                        fmt              1.2\n\
                        test            75.0  3 passed, 0 failed, 1 skipped\n";
        assert_eq!(table(&rows), expected);
    }
}
