//! The compile phase as text: one line per kernel, rule violations, and the totals.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};

use super::expect::{EXPECTED, Expected, TIGHT, UNSUPPORTED, is_kernel, is_listed};
use super::{Built, Code, Resources, Scope, occupancy};
use crate::tally::{Outcome, Tally};
use crate::target::{Family, Target};

/// The compiled kernels, and the outcomes of all checks.
pub struct Report {
    built: Vec<Built>,
    targets: Vec<&'static str>,
    tally: Tally,
    scope: Scope,
}

impl Report {
    /// Checks the builds against the tables.
    pub(super) fn new(built: Vec<Built>, targets: Vec<&'static str>, mut tally: Tally, scope: Scope) -> Self {
        let all_machine_code = scope.missing_tools.is_none() && scope.share.is_none();
        for kernel in &built {
            let name = format!("{}: {} [{}]", kernel.target, kernel.path, kernel.form);
            let outcome = match (&kernel.outcome, &kernel.stopped) {
                (Err(reason), _) => {
                    let source =
                        kernel.source.as_ref().map(|file| format!("\n    source: {}", file.display()));
                    Outcome::Fail(format!("{reason}{}", source.unwrap_or_default()))
                }
                (Ok(_), Some(reason)) => Outcome::Skip(reason.clone()),
                (Ok(_), _) => {
                    Cuda::of(kernel).map_or(Outcome::Pass, |cuda| tight(kernel.path, &kernel.form, &cuda))
                }
            };
            tally.add(&name, outcome);
        }
        let compiled = Compiled::of(&built);
        if scope.everything {
            compiled.check_pairs(&targets, &mut tally);
            compiled.check_stale(all_machine_code, &mut tally);
        }
        // An instruction may be in one form only.
        if all_machine_code {
            compiled.check_instructions(&mut tally);
        }
        Self { built, targets, tally, scope }
    }

    /// Outcomes of all pairs and rules.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The kernels and their resource usage on CUDA, as a table for the book.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let paths: BTreeSet<&str> = self.built.iter().map(|b| b.path).collect();
        for path in paths {
            let mut line = format!("{path}\n");
            for target in &self.targets {
                let forms: Vec<&Built> =
                    self.built.iter().filter(|b| b.path == path && b.target == *target).collect();
                if forms.is_empty() {
                    let row = UNSUPPORTED
                        .iter()
                        .find(|r| is_kernel(path, r.kernel) && is_listed(target, r.targets));
                    let reason = row.map_or("not launched", |r| r.feature);
                    let _ = writeln!(line, "    {target:<13} unsupported: {reason}");
                    continue;
                }
                let _ = write!(line, "    {target:<13} {:>3} forms", forms.len());
                let cuda: Vec<Cuda> = forms.iter().filter_map(|built| Cuda::of(built)).collect();
                if !cuda.is_empty() {
                    let range = |of: &dyn Fn(&Cuda) -> usize| {
                        let values = || cuda.iter().map(of);
                        (values().min().unwrap_or(0), values().max().unwrap_or(0))
                    };
                    let (fewest, most) = range(&|c| c.resources.registers as usize);
                    let (_, spilled) = range(&|c| c.resources.spilled as usize);
                    let (_, shared) = range(&|c| c.resources.shared as usize + c.dynamic_shared);
                    let share = cuda.iter().map(|c| c.occupancy).fold(1.0, f64::min);
                    let _ = write!(
                        line,
                        ", {fewest} to {most} registers, {spilled} B spilled, up to {shared} B shared, occupancy from {:.0} %",
                        100.0 * share
                    );
                }
                line.push('\n');
            }
            text += &line;
        }
        text
    }
}

/// Resource usage of the machine code of a kernel.
struct Cuda {
    resources: Resources,
    dynamic_shared: usize,
    units: u32,
    /// Occupancy, as a fraction.
    occupancy: f64,
}

impl Cuda {
    fn of(built: &Built) -> Option<Self> {
        let target = Target::all().into_iter().find(|target| target.name == built.target)?;
        let Family::Cuda(sm) = target.family else { return None };
        let Code { dynamic_shared, machine, .. } = built.outcome.as_ref().ok()?;
        let (units, resources) = (built.units, machine.as_ref()?.resources);
        let occupancy = occupancy(sm, units, &resources, *dynamic_shared);
        Some(Self { resources, dynamic_shared: *dynamic_shared, units, occupancy })
    }
}

/// Checks occupancy and spills against the table.
fn tight(path: &str, form: &str, cuda: &Cuda) -> Outcome {
    let row = TIGHT.iter().find(|row| is_kernel(path, row.kernel) && form.contains(row.form));
    let (share, spilled) = row.map_or((0.5, 0), |row| (row.occupancy, row.spilled));
    let reason = row.map_or("no row of TIGHT", |row| row.reason);
    if cuda.occupancy < share {
        let Cuda { resources, dynamic_shared, units, occupancy } = cuda;
        return Outcome::Fail(format!(
            "occupancy {:.0} % (cubes of {units}, {} registers, {} B of shared memory), expected {:.0} %: {reason}",
            100.0 * occupancy,
            resources.registers,
            resources.shared as usize + dynamic_shared,
            100.0 * share,
        ));
    }
    if cuda.resources.spilled > spilled {
        let found = cuda.resources.spilled;
        return Outcome::Fail(format!("{found} B spilled, at most {spilled} expected: {reason}"));
    }
    Outcome::Pass
}

/// The kernels of each target, and the contents of their PTX.
struct Compiled<'a> {
    targets: BTreeMap<&'a str, BTreeSet<&'a str>>,
    built: &'a [Built],
}

impl<'a> Compiled<'a> {
    fn of(built: &'a [Built]) -> Self {
        let mut targets: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for kernel in built {
            targets.entry(kernel.path).or_default().insert(kernel.target);
        }
        Self { targets, built }
    }

    /// Checks that every kernel is launched on every target, or listed as unsupported.
    fn check_pairs(&self, all: &[&str], tally: &mut Tally) {
        for (path, has) in &self.targets {
            for target in all.iter().filter(|t| !has.contains(**t)) {
                let known =
                    UNSUPPORTED.iter().any(|r| is_kernel(path, r.kernel) && is_listed(target, r.targets));
                if !known {
                    let found = "never launched on this target, and not listed in UNSUPPORTED".to_owned();
                    tally.add(&format!("{target}: {path}"), Outcome::Fail(found));
                }
            }
        }
    }

    /// Checks that no row of the tables is stale.
    fn check_stale(&self, all_machine_code: bool, tally: &mut Tally) {
        let mut stale = |table: &str, kernel: &str, why: String| {
            tally.add(&format!("{table}: {kernel}"), Outcome::Fail(why));
        };
        for row in UNSUPPORTED {
            for entry in row.targets {
                // A row may only list targets on which no kernel of that name is launched.
                let launched = self.targets.iter().any(|(path, has)| {
                    is_kernel(path, row.kernel) && has.iter().any(|target| is_listed(target, &[entry]))
                });
                let exists = self.targets.keys().any(|path| is_kernel(path, row.kernel));
                if launched || !exists {
                    let why = if exists { "the kernel is launched on it" } else { "no kernel has this name" };
                    stale("UNSUPPORTED", row.kernel, format!("stale row for {entry}: {why}"));
                }
            }
        }
        let unknown = |kernel: &str| !self.targets.keys().any(|path| is_kernel(path, kernel));
        let formless = |row: &Expected| {
            !self.built.iter().any(|b| is_kernel(b.path, row.kernel) && b.form.contains(row.form))
        };
        for row in EXPECTED.iter().filter(|row| formless(row)) {
            stale("EXPECTED", row.kernel, "stale row: no kernel has this name and form".to_owned());
        }
        for row in TIGHT {
            let is_of_row = |b: &&Built| is_kernel(b.path, row.kernel) && b.form.contains(row.form);
            let mut of_row = self.built.iter().filter(is_of_row);
            let needed =
                of_row.any(|b| Cuda::of(b).is_some_and(|c| c.occupancy < 0.5 || c.resources.spilled > 0));
            if unknown(row.kernel) || (all_machine_code && !needed) {
                stale(
                    "TIGHT",
                    row.kernel,
                    "stale row: occupancy and spills are within the default limits".to_owned(),
                );
            }
        }
    }

    /// Checks that kernels contain their required instructions.
    fn check_instructions(&self, tally: &mut Tally) {
        for row in EXPECTED {
            let mut by_target: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
            let of_row = |b: &&Built| is_kernel(b.path, row.kernel) && b.form.contains(row.form);
            for kernel in self.built.iter().filter(of_row) {
                if let Ok(Code { machine: Some(machine), .. }) = &kernel.outcome {
                    let found = by_target.entry(kernel.target).or_default();
                    found.extend(machine.instructions.iter().map(String::as_str));
                }
            }
            for (target, found) in by_target {
                for expected in row.instructions {
                    let name = format!("{target}: {} uses {expected}", row.kernel);
                    let there = found.iter().any(|instruction| instruction.starts_with(expected));
                    let missing = || Outcome::Fail("not found in the PTX of any form".to_owned());
                    tally.add(&name, if there { Outcome::Pass } else { missing() });
                }
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.table())?;
        if !self.scope.rows.is_empty() {
            writeln!(f, "main loops, per warp and iteration:")?;
        }
        for row in &self.scope.rows {
            writeln!(f, "{row}")?;
        }
        for target in &self.targets {
            let kernels = self.built.iter().filter(|b| b.target == *target).count();
            let bytes: usize = self
                .built
                .iter()
                .filter(|b| b.target == *target)
                .filter_map(|b| Some(b.outcome.as_ref().ok()?.source_bytes))
                .sum();
            writeln!(f, "{target}: {kernels} kernels, {bytes} bytes of source")?;
        }
        if let Some(reason) = &self.scope.missing_tools {
            writeln!(f, "CUDA stops at the generated source: {reason}")?;
        }
        if let Some(share) = self.scope.share {
            writeln!(
                f,
                "part {share} of the forms, and the first form of each kernel without its machine code"
            )?;
        }
        writeln!(f, "{}", self.scope.times)
    }
}
