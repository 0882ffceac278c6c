//! The list of checks, and the summary table with times.

use crate::cargo::Call;
use crate::share::Share;
use crate::{
    deny, deps, examples, gpu_test, layering, package, ranks, readme, test, tidy, toolchain, wheel,
    workspace::Workspace,
};
use anyhow::{Result, anyhow};
use std::fmt::Write as _;
use std::time::{Duration, Instant, SystemTime};

/// One check of `cargo xtask ci`; the name is also its subcommand.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) when: When,
    /// The calls of cargo that compile something, in their order.
    pub(crate) calls: fn(&Workspace) -> Vec<Call>,
    /// Returns a note for the table; may be empty.
    run: fn(&Workspace, Share) -> Result<String>,
    /// Command that fixes the failure or reruns the step.
    remedy: &'static str,
}

/// When a step runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum When {
    /// In every run of `ci`.
    Commit,
    /// In `ci --all`. Without `--all` one of these steps runs, chosen by the date, and only one of its shares.
    Nightly { shares: u64 },
}

impl When {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Nightly { .. } => "nightly",
        }
    }
}

/// All steps: those of a commit, cheapest first, then the nightly ones.
///
/// `doc` follows `clippy` because it reuses its build, and `gpu-test` follows `test` for the same reason. `readme` is last because it
/// compiles in release mode.
pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        when: When::Commit,
        calls: |_| Vec::new(),
        run: |ws, _| toolchain::fmt(ws),
        remedy: "fix with: cargo fmt --all",
    },
    Step {
        name: "tidy",
        when: When::Commit,
        calls: |_| Vec::new(),
        run: |ws, _| tidy::run(ws),
        remedy: "rerun with: cargo xtask tidy",
    },
    Step {
        name: "layering",
        when: When::Commit,
        calls: |_| Vec::new(),
        run: |ws, _| layering::run(ws),
        remedy: "rerun with: cargo xtask layering; regenerate the tables of the handbook with: cargo xtask layering --update",
    },
    Step {
        name: "deny",
        when: When::Commit,
        calls: |_| Vec::new(),
        run: |ws, _| deny::run(ws),
        remedy: "rerun with: cargo xtask deny",
    },
    Step {
        name: "deps",
        when: When::Commit,
        calls: |_| Vec::new(),
        run: |ws, _| deps::run(ws),
        remedy: "rerun with: cargo xtask deps",
    },
    Step {
        name: "package",
        when: When::Commit,
        calls: |_| Vec::new(),
        run: |ws, _| package::run(ws),
        remedy: "rerun with: cargo xtask package",
    },
    Step {
        name: "clippy",
        when: When::Commit,
        calls: |_| vec![toolchain::clippy_call()],
        run: |ws, _| toolchain::clippy(ws),
        remedy: "rerun with: cargo xtask clippy",
    },
    Step {
        name: "doc",
        when: When::Commit,
        calls: |_| vec![toolchain::doc_call()],
        run: |ws, _| toolchain::doc(ws),
        remedy: "rerun with: cargo xtask doc",
    },
    Step {
        name: "test",
        when: When::Commit,
        calls: |_| test::calls().to_vec(),
        run: |ws, _| test::step(ws),
        remedy: "rerun with: cargo xtask test",
    },
    Step {
        name: "gpu-test",
        when: When::Nightly { shares: 8 },
        calls: |_| vec![gpu_test::call(&[])],
        run: gpu_test::step,
        remedy: "rerun with: cargo xtask gpu-test",
    },
    Step {
        name: "ranks",
        when: When::Nightly { shares: 1 },
        calls: |_| vec![ranks::call()],
        run: |ws, _| ranks::run(ws),
        remedy: "rerun with: cargo xtask ranks",
    },
    Step {
        name: "examples",
        when: When::Nightly { shares: 1 },
        calls: |_| vec![examples::call()],
        run: |ws, _| examples::run(ws),
        remedy: "rerun with: cargo xtask examples",
    },
    Step {
        name: "link",
        when: When::Nightly { shares: 1 },
        calls: |_| vec![toolchain::link_call()],
        run: |ws, _| toolchain::link(ws),
        remedy: "rerun with: cargo xtask link",
    },
    Step {
        name: "all-features",
        when: When::Nightly { shares: 1 },
        calls: |_| toolchain::all_features_calls().to_vec(),
        run: |ws, _| toolchain::all_features(ws),
        remedy: "rerun with: cargo xtask all-features",
    },
    Step {
        name: "features",
        when: When::Nightly { shares: 8 },
        calls: toolchain::features_calls,
        run: toolchain::features,
        remedy: "rerun with: cargo xtask features",
    },
    Step {
        name: "wheel",
        when: When::Nightly { shares: 1 },
        calls: |_| vec![wheel::call()],
        run: |ws, _| wheel::step(ws),
        remedy: "rerun with: cargo xtask wheel --dev",
    },
    Step {
        name: "readme",
        when: When::Nightly { shares: 1 },
        calls: |_| vec![readme::call()],
        run: |ws, _| readme::run(ws),
        remedy: "rerun with: cargo xtask readme",
    },
];

/// Days since 1970, in UTC.
fn today() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs() / (24 * 60 * 60))
}

/// The nightly step of a day, and its share. The day after has the next step; the next share of a step follows when all steps have had
/// their turn.
fn of_the_day(day: u64) -> (&'static Step, Share) {
    let nightly =
        || STEPS.iter().filter_map(|step| Some((step, step.when)).filter(|(_, when)| *when != When::Commit));
    let count = nightly().count() as u64;
    let turn = nightly().nth((day % count) as usize);
    let (step, when) = turn.expect("a remainder is below the count");
    let of = match when {
        When::Nightly { shares } => shares,
        When::Commit => 1,
    };
    (step, Share { index: day / count % of, of })
}

/// Runs the steps of a commit and the nightly one of the day, or all steps, and stops at the first failure; the table is printed in
/// any case.
pub(crate) fn run_all(ws: &Workspace, all: bool) -> Result<()> {
    let start = Instant::now();
    let mut plan: Vec<(&Step, Share)> = STEPS.iter().map(|step| (step, Share::WHOLE)).collect();
    if !all {
        plan.retain(|(step, _)| step.when == When::Commit);
        let (step, share) = of_the_day(today());
        println!("today also {}, share {share}; all steps: cargo xtask ci --all", step.name);
        plan.push((step, share));
    }
    let count = plan.len();
    let mut rows = Vec::new();
    let mut outcome = Ok(());
    for (step, share) in plan {
        let (elapsed, result) = timed(ws, step, share);
        let mut note = result.as_ref().map_or_else(|_| "FAILED".to_owned(), Clone::clone);
        if share != Share::WHOLE {
            note = format!("share {share}: {note}");
        }
        rows.push((step.name, elapsed, note));
        if let Err(e) = result {
            outcome = Err(e);
            break;
        }
    }
    let not_run = count - rows.len();
    rows.push((
        "total",
        start.elapsed(),
        if not_run == 0 { String::new() } else { format!("{not_run} not run") },
    ));
    println!("\n{}", table(&rows));
    outcome
}

/// Runs the step with this name.
pub(crate) fn run_one(ws: &Workspace, name: &str, share: Share) -> Result<()> {
    let step = STEPS.iter().find(|s| s.name == name);
    let step = step.ok_or_else(|| anyhow!("no step is called {name}"))?;
    timed(ws, step, share).1.map(drop)
}

fn timed(ws: &Workspace, step: &Step, share: Share) -> (Duration, Result<String>) {
    println!("== {}", step.name);
    let start = Instant::now();
    let result = (step.run)(ws, share);
    let result = result.map_err(|e| {
        let share = if share == Share::WHOLE { String::new() } else { format!(" --share {share}") };
        anyhow!("step `{}` failed: {e:#}\n{}{share}", step.name, step.remedy)
    });
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
    let mut out = format!("{:<12} {:>9}  note\n", "step", "seconds");
    for (name, elapsed, note) in rows {
        let line = format!("{name:<12} {:>9.1}  {note}", elapsed.as_secs_f64());
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
        let rows = table.map_while(|line| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            Some((cells.next()?.trim_end_matches('`'), cells.next()?))
        });
        let listed = STEPS.iter().map(|step| {
            let by_eighths = matches!(step.when, When::Nightly { shares: 8 });
            (step.name, if by_eighths { "nightly, by eighths" } else { step.when.name() })
        });
        assert_eq!(rows.collect::<Vec<_>>(), listed.collect::<Vec<_>>());
    }

    /// After 8 steps x 8 days every share of every step has run.
    #[test]
    fn every_share_of_every_nightly_step_has_its_day() {
        let nightly: Vec<(&Step, u64)> = STEPS
            .iter()
            .filter_map(|step| match step.when {
                When::Commit => None,
                When::Nightly { shares } => Some((step, shares)),
            })
            .collect();
        let longest = nightly.iter().map(|(_, shares)| shares).max().unwrap();
        let days = 20_000..20_000 + longest * nightly.len() as u64;
        let turns: Vec<(&str, Share)> =
            days.map(of_the_day).map(|(step, share)| (step.name, share)).collect();
        for (step, shares) in nightly {
            for index in 0..shares {
                let turn = (step.name, Share { index, of: shares });
                assert!(turns.contains(&turn), "{} {}", turn.0, turn.1);
            }
        }
    }

    #[test]
    fn the_table_lists_steps_with_seconds_and_notes() {
        let rows = [
            ("fmt", Duration::from_millis(1_240), String::new()),
            ("test", Duration::from_secs(75), "3 passed, 0 failed, 1 skipped".to_owned()),
        ];
        let expected = "step           seconds  note\n\
                        fmt                1.2\n\
                        test              75.0  3 passed, 0 failed, 1 skipped\n";
        assert_eq!(table(&rows), expected);
    }
}
