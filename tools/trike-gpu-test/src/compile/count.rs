//! Counts of the machine code of the kernels behind the benchmark, compared with the table.

use anyhow::{Context, Result, anyhow, ensure};

use super::capture::CountedLaunch;
use super::cuda::occupancy;
use super::disassemble::{kept, listing_of};
use super::{Built, Code};
use crate::bench::counted::Counted;
use crate::counts::{Arguments, Row, count, difference, table};
use crate::tally::{Outcome, Tally};
use crate::target::CudaSm;

/// Compares the kernels of one target with the table, and returns their rows; `skipped` is why nothing can be counted.
pub(super) fn check(
    built: &[Built],
    counted: &[CountedLaunch],
    sm: CudaSm,
    skipped: Option<&str>,
    tally: &mut Tally,
) -> Vec<Row> {
    let mut rows = Vec::new();
    for counted in counted {
        let kernel = &built[counted.launch];
        let problem = &counted.problem;
        let name = format!("{}: counts of {}, {}", kernel.target, problem.problem(), problem.kernel());
        let reason = kernel.stopped.as_deref().or(skipped);
        let outcome = match (reason, row_of(kernel, counted, sm)) {
            (Some(reason), _) => Outcome::Skip(reason.to_owned()),
            (None, Ok(row)) => {
                let found = difference(&row);
                rows.push(row);
                found.map_or(Outcome::Pass, Outcome::Fail)
            }
            (None, Err(e)) => Outcome::Fail(format!("{e:#}")),
        };
        tally.add(&name, outcome);
    }
    rows
}

/// Counts a kernel that was built.
fn row_of(built: &Built, counted: &CountedLaunch, sm: CudaSm) -> Result<Row> {
    let Code { machine, dynamic_shared, .. } = built.outcome.as_ref().map_err(|e| anyhow!("{e}"))?;
    let resources = machine.as_ref().context("it has no machine code")?.resources;
    let source = built.source.as_ref().context("it has no source")?;
    let listing = kept(&listing_of(source)).context("its machine code was not disassembled")?;
    let problem = &counted.problem;
    let (streamed, cached) = (problem.streamed(), problem.cached());
    let counts = count(&listing, Arguments { base: sm.arguments_at(), streamed, cached })
        .with_context(|| format!("in {}", listing_of(source).display()))?;
    ensure!(counts.loaded > 0, "the main loop loads nothing of arguments {streamed:?}");
    let resident = occupancy(sm, built.units, &resources, *dynamic_shared) * f64::from(sm.warps);
    let cubes: f64 = counted.settings.cubes.iter().map(|&n| f64::from(n)).product();
    let launched = cubes * f64::from(built.units.div_ceil(32)) / f64::from(sm.count);
    Ok(Row {
        target: built.target.to_owned(),
        problem: problem.problem(),
        kernel: problem.kernel(),
        weights: (counts.loaded as f64 * problem.per_byte()).round() as usize,
        counts,
        registers: resources.registers as usize,
        spilled: resources.spilled as usize,
        shared: resources.shared as usize + dynamic_shared,
        warps: resident.min(launched),
    })
}

/// Rows of the table whose problem is no longer counted.
pub(super) fn stale() -> Vec<String> {
    let known: Vec<(String, String)> = Counted::all().iter().map(|c| (c.problem(), c.kernel())).collect();
    let is_stale = |row: &&Row| !known.contains(&(row.problem.clone(), row.kernel.clone()));
    let told = table().iter().filter(is_stale);
    told.map(|row| format!("{} {}, {}", row.target, row.problem, row.kernel)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_counted_problem_and_no_other() {
        assert_eq!(stale(), [""; 0]);
        for counted in Counted::all() {
            let of_problem = table()
                .iter()
                .filter(|row| row.problem == counted.problem() && row.kernel == counted.kernel());
            assert_eq!(of_problem.count(), 3, "{} {}", counted.problem(), counted.kernel());
        }
    }
}
