//! Static counts of the kernels behind the benchmark, as a table in the repository.
//!
//! The table is `counts.tsv` beside this file: one [`Row`] per problem and architecture. The compile phase counts the machine
//! code with [`count`] and compares: a count that got worse is a regression, and one that got better makes the row stale.
//! Predictions are made from the table, so it has to be true.

mod sass;

pub(crate) use sass::{Arguments, Counts, Pipe, count};

use anyhow::{Context, Result, ensure};
use std::fmt::{self, Write as _};
use std::path::Path;
use std::sync::LazyLock;

/// The table in the repository.
const TABLE: &str = include_str!("counts.tsv");
/// Relative difference up to which a count is the same: compilers order code by more than its meaning.
const TOLERANCE: f64 = 0.02;

/// Counts of one kernel on one architecture: of its main loop per warp and iteration, and of the kernel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    /// Name of the target.
    pub(crate) target: String,
    /// Name of the problem.
    pub(crate) problem: String,
    /// Name of the kernel.
    pub(crate) kernel: String,
    /// Instructions of an iteration, and bytes in flight.
    pub(crate) counts: Counts,
    /// Weights of an iteration, or elements of keys and values.
    pub(crate) weights: usize,
    /// 32-bit registers per unit.
    pub(crate) registers: usize,
    /// Bytes of spilled registers per unit.
    pub(crate) spilled: usize,
    /// Bytes of shared memory per cube.
    pub(crate) shared: usize,
    /// Warps per multiprocessor: those that fit, or those of all cubes of the problem if they are fewer.
    pub(crate) warps: f64,
}

impl Row {
    /// Instructions of a lane per weight.
    pub(crate) fn per_weight(&self) -> f64 {
        32.0 * self.counts.slots as f64 / self.weights as f64
    }

    /// Multiply-adds per weight: rows of codes that a warp multiplies with each weight. Taken as one where single multiply-adds
    /// do the work, because conversions use them too.
    pub(crate) fn reuse(&self) -> f64 {
        if self.products() == 0 { 1.0 } else { self.counts.macs as f64 / self.weights as f64 }
    }

    /// Instructions of lanes per multiply-add.
    pub(crate) fn slots_per_mac(&self) -> f64 {
        self.per_weight() / self.reuse()
    }

    /// Matrix instructions, or dot products if there are none.
    pub(crate) fn products(&self) -> usize {
        let [tensor, dot] = [Pipe::Tensor, Pipe::Dot].map(|pipe| self.counts.pipes[pipe as usize]);
        if tensor > 0 { tensor } else { dot }
    }

    /// Whether the multiply-adds are those of matrix instructions.
    pub(crate) fn has_matrix_instructions(&self) -> bool {
        self.counts.pipes[Pipe::Tensor as usize] > 0
    }

    /// Bytes of activations loaded per weight.
    pub(crate) fn cached_per_weight(&self) -> f64 {
        self.counts.cached as f64 / self.weights as f64
    }

    /// Bytes of weights, or keys and values, in flight per multiprocessor.
    pub(crate) fn flight_of_multiprocessor(&self) -> f64 {
        self.counts.streamed as f64 * self.warps
    }

    /// Parses a line of the table.
    fn parse(line: &str) -> Option<Self> {
        let mut cells = line.split('\t');
        let mut text = || cells.next().map(str::to_owned);
        let (target, problem, kernel) = (text()?, text()?, text()?);
        let mut numbers = cells.map(str::parse::<f64>);
        let mut next = || numbers.next()?.ok();
        let mut whole = || next().map(|n| n as usize);
        let [slots, conditional, weights, macs] = [whole()?, whole()?, whole()?, whole()?];
        let mut pipes = [0; Pipe::ALL.len()];
        for pipe in &mut pipes {
            *pipe = whole()?;
        }
        let [loaded, cached, streamed, in_flight] = [whole()?, whole()?, whole()?, whole()?];
        let [registers, spilled, shared] = [whole()?, whole()?, whole()?];
        let warps = next()?;
        numbers.next().is_none().then_some(Self {
            target,
            problem,
            kernel,
            counts: Counts { slots, conditional, pipes, macs, loaded, cached, streamed, in_flight },
            weights,
            registers,
            spilled,
            shared,
            warps,
        })
    }

    /// The names of the columns.
    fn header() -> String {
        let mut names = vec!["target", "problem", "kernel", "slots", "conditional", "weights", "macs"];
        names.extend(Pipe::ALL.map(Pipe::name));
        names.extend([
            "loaded",
            "cached",
            "streamed",
            "in flight",
            "registers",
            "spilled",
            "shared",
            "warps",
        ]);
        names.join("\t")
    }

    /// The line of the table.
    fn line(&self) -> String {
        let Counts { slots, conditional, pipes, macs, loaded, cached, streamed, in_flight } = &self.counts;
        let Self { registers, spilled, shared, .. } = self;
        let mut line = format!(
            "{}\t{}\t{}\t{slots}\t{conditional}\t{}\t{macs}",
            self.target, self.problem, self.kernel, self.weights
        );
        for pipe in pipes {
            let _ = write!(line, "\t{pipe}");
        }
        let _ = write!(
            line,
            "\t{loaded}\t{cached}\t{streamed}\t{in_flight}\t{registers}\t{spilled}\t{shared}\t{:.3}",
            self.warps
        );
        line
    }

    fn is_of(&self, other: &Self) -> bool {
        (&self.target, &self.problem, &self.kernel) == (&other.target, &other.problem, &other.kernel)
    }

    /// Differences from a row of the table, each as a sentence.
    fn differences(&self, row: &Self) -> Vec<String> {
        // Whether less is worse.
        let measures: [(&str, f64, f64, bool); 5] = [
            ("instructions per weight", row.per_weight(), self.per_weight(), false),
            ("instructions per multiply-add", row.slots_per_mac(), self.slots_per_mac(), false),
            ("bytes in flight per warp", row.counts.streamed as f64, self.counts.streamed as f64, true),
            (
                "bytes in flight per multiprocessor",
                row.flight_of_multiprocessor(),
                self.flight_of_multiprocessor(),
                true,
            ),
            ("bytes spilled", row.spilled as f64, self.spilled as f64, false),
        ];
        let differs = |expected: f64, got: f64| (got - expected).abs() > TOLERANCE * expected.abs();
        let changed = measures.into_iter().filter(|&(_, expected, got, _)| differs(expected, got));
        let told = changed.map(|(what, expected, got, less_is_worse)| {
            let is_worse = (got < expected) == less_is_worse;
            let verdict = if is_worse { "a regression" } else { "better than the table" };
            format!("{what}: expected {}, got {}, {verdict}", short(expected), short(got))
        });
        told.collect()
    }
}

/// Three significant digits or more.
fn short(value: f64) -> String {
    if value >= 100.0 || value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.3}") }
}

/// One line of a report.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, problem, kernel, counts, weights, registers, spilled, shared, warps } = self;
        write!(f, "    {problem}, {kernel}, {target}: {} instructions", counts.slots)?;
        if counts.conditional > 0 {
            write!(f, " ({} of them conditional)", counts.conditional)?;
        }
        write!(f, " for {weights} weights")?;
        write!(f, " ({:.2} per weight, {:.0} multiply-adds each;", self.per_weight(), self.reuse())?;
        let pipes = Pipe::ALL.into_iter().zip(counts.pipes).filter(|&(_, count)| count > 0);
        for (pipe, count) in pipes {
            write!(f, " {} {count}", pipe.name())?;
        }
        write!(f, "), {} B of {} B in flight are theirs", counts.streamed, counts.in_flight)?;
        write!(f, ", {warps:.1} warps with {:.1} KB", self.flight_of_multiprocessor() / 1e3)?;
        write!(f, ", {registers} registers, {spilled} B spilled, {shared} B shared")
    }
}

/// Rows of the table in the repository.
pub(crate) fn table() -> &'static [Row] {
    static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| parse(TABLE));
    &ROWS
}

fn parse(table: &str) -> Vec<Row> {
    table.lines().skip(1).filter_map(Row::parse).collect()
}

/// Compares a row with the table: `None` if nothing differs, else what does and what to do.
pub(crate) fn difference(row: &Row) -> Option<String> {
    difference_from(table(), row)
}

fn difference_from(table: &[Row], row: &Row) -> Option<String> {
    const REMEDY: &str = "cargo xtask gpu-test --phase compile --accept-counts";
    let Some(expected) = table.iter().find(|expected| expected.is_of(row)) else {
        return Some(format!("counts.tsv has no row; to add it: {REMEDY}"));
    };
    let found = row.differences(expected);
    (!found.is_empty()).then(|| format!("{}; to accept: {REMEDY}", found.join("; ")))
}

/// Writes the table with the rows of a run in place of the old ones; a run of everything drops the others.
///
/// # Errors
/// When the file cannot be written, or there is nothing to write.
pub(crate) fn accept(file: &Path, rows: &[Row], everything: bool) -> Result<()> {
    ensure!(!rows.is_empty(), "nothing was counted");
    let text = accepted(table(), rows, everything);
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn accepted(old: &[Row], rows: &[Row], everything: bool) -> String {
    let new = |old: &Row| rows.iter().find(|row| row.is_of(old));
    let mut all: Vec<&Row> = old.iter().filter(|_| !everything).map(|old| new(old).unwrap_or(old)).collect();
    let added: Vec<&Row> = rows.iter().filter(|row| !all.iter().any(|old| old.is_of(row))).collect();
    all.extend(added);
    let lines = all.iter().map(|row| row.line());
    std::iter::once(Row::header()).chain(lines).fold(String::new(), |text, line| text + &line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        let mut pipes = [0; Pipe::ALL.len()];
        pipes[Pipe::Dot as usize] = 16;
        pipes[Pipe::Alu as usize] = 44;
        let counts = Counts {
            slots: 60,
            conditional: 4,
            pipes,
            macs: 2048,
            loaded: 512,
            cached: 1024,
            streamed: 512,
            in_flight: 1536,
        };
        Row {
            target: "cuda-sm90a".to_owned(),
            problem: "down-8b m=1".to_owned(),
            kernel: "two bits, row scales".to_owned(),
            counts,
            weights: 2048,
            registers: 40,
            spilled: 0,
            shared: 4100,
            warps: 31.0,
        }
    }

    #[test]
    fn a_row_is_the_line_that_it_was_written_as() {
        assert_eq!(Row::parse(&row().line()), Some(row()));
        assert_eq!(Row::header().split('\t').count(), row().line().split('\t').count());
        assert_eq!(Row::parse(&format!("{}\t1", row().line())), None);
        assert_eq!(Row::parse("cuda-sm90a\tdown-8b m=1\ttwo bits\t1"), None);
        assert_eq!((row().per_weight(), row().reuse()), (0.9375, 1.0));
    }

    #[test]
    fn what_got_worse_and_what_got_better_is_told() {
        assert_eq!(difference_from(&[row()], &row()), None);
        let told = |change: fn(&mut Row)| {
            let mut changed = row();
            change(&mut changed);
            changed.differences(&row())
        };
        assert_eq!(told(|row| row.counts.slots += 1), [""; 0], "within the tolerance");
        assert_eq!(
            told(|row| row.counts.slots += 2),
            [
                "instructions per weight: expected 0.938, got 0.969, a regression",
                "instructions per multiply-add: expected 0.938, got 0.969, a regression"
            ]
        );
        let twice = |row: &mut Row| row.counts.streamed = 1024;
        let found = told(twice);
        assert_eq!(found[0], "bytes in flight per warp: expected 512, got 1024, better than the table");
        assert_eq!(told(|row| row.spilled = 4), ["bytes spilled: expected 0, got 4, a regression"]);
        // Unrolled twice: the same work per weight.
        let unrolled = told(|row| (row.counts.slots, row.counts.macs, row.weights) = (120, 4096, 4096));
        assert_eq!(unrolled, [""; 0]);
        assert!(difference_from(&[], &row()).is_some_and(|why| why.contains("no row")));
    }

    #[test]
    fn accepted_rows_replace_old_ones() {
        let mut other = row();
        other.problem = "down-8b m=2".to_owned();
        let mut changed = row();
        changed.counts.slots = 50;
        let some = accepted(&[row(), other.clone()], std::slice::from_ref(&changed), false);
        assert_eq!(parse(&some), [changed.clone(), other]);
        let all = accepted(&[row()], std::slice::from_ref(&changed), true);
        assert_eq!(parse(&all), [changed]);
    }

    #[test]
    fn every_line_of_the_table_is_read() {
        assert_eq!(table().len(), TABLE.lines().count() - 1);
        assert_eq!(TABLE.lines().next(), Some(Row::header().as_str()));
    }
}
