//! From seconds to shares: what a time means on this machine.

use std::fmt::Write as _;

use trike_cpu::{Cost, Cpu, CpuError, probe};

/// What the machine can do at most with a number of threads, measured in the run that is judged by it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    /// Threads that the probes ran on.
    pub threads: usize,
    /// Bytes a second from memory.
    pub bytes_per_second: f64,
    /// Int8 multiply-adds a second.
    pub macs_per_second: f64,
}

impl Ceilings {
    /// The best of several variants of each probe, with the best instruction set; takes about a second.
    ///
    /// # Errors
    ///
    /// No threads, or no memory for the buffer that the probe reads.
    pub fn measure(threads: usize) -> Result<Self, CpuError> {
        let cpu = Cpu::new(threads)?;
        Ok(Self {
            threads,
            bytes_per_second: probe::memory_bandwidth(&cpu)?.best().figure,
            macs_per_second: probe::int8_peak(&cpu).best().figure,
        })
    }

    /// The higher of two measurements of each figure; a ceiling that was not reached once is still one.
    #[must_use]
    pub fn best_of(self, other: Self) -> Self {
        Self {
            threads: self.threads,
            bytes_per_second: self.bytes_per_second.max(other.bytes_per_second),
            macs_per_second: self.macs_per_second.max(other.macs_per_second),
        }
    }
}

/// One line of a report.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What was computed.
    pub problem: String,
    /// By which kernel or rival.
    pub kernel: String,
    /// With which instructions.
    pub isa: String,
    /// On how many threads.
    pub threads: usize,
    /// Median time of one call.
    pub seconds: f64,
    /// Work of one call.
    pub cost: Cost,
}

/// The rows as a Markdown table, under a line for each set of ceilings.
///
/// The shares are of the ceilings with the row's number of threads. The last column is the time of `rival` at the same
/// problem and threads over the time of the row: above 1 the row is faster. What is not known is `-`.
///
/// ```
/// use trike_benches::{Ceilings, Row, table};
/// use trike_cpu::Cost;
///
/// let ceilings = Ceilings { threads: 1, bytes_per_second: 20e9, macs_per_second: 400e9 };
/// let cost = Cost { macs: 4_000_000, bytes: 1_000_000 };
/// let row = |kernel: &str, seconds| Row {
///     problem: "square m=1".into(),
///     kernel: kernel.into(),
///     isa: "avx2".into(),
///     threads: 1,
///     seconds,
///     cost,
/// };
/// let text = table(&[row("ternary", 1e-4), row("dense", 4e-4)], &[ceilings], "dense");
/// assert!(text.contains("1 thread: 20.0 GB/s, 400 GMAC/s int8"));
/// assert!(text.contains("| square m=1 | ternary | avx2 | 1 | 100.0 us | 40.0 | 10.0 | 50 % | 10 % | 4.0 |"));
/// ```
#[must_use]
pub fn table(rows: &[Row], ceilings: &[Ceilings], rival: &str) -> String {
    let mut text = String::new();
    for Ceilings { threads, bytes_per_second, macs_per_second } in ceilings {
        let plural = if *threads == 1 { "" } else { "s" };
        let (gb, gmac) = (bytes_per_second / 1e9, macs_per_second / 1e9);
        let _ = writeln!(text, "{threads} thread{plural}: {gb:.1} GB/s, {gmac:.0} GMAC/s int8");
    }
    let _ = writeln!(
        text,
        "\n| problem | kernel | isa | threads | time | GMAC/s | GB/s | of bandwidth | of int8 peak | x {rival} |\n\
         |---|---|---|--:|--:|--:|--:|--:|--:|--:|"
    );
    for row in rows {
        let (macs, bytes) = (row.cost.macs as f64 / row.seconds, row.cost.bytes as f64 / row.seconds);
        let of = ceilings.iter().find(|c| c.threads == row.threads);
        let share = |part: f64, all: fn(&Ceilings) -> f64| {
            of.map_or_else(|| "-".to_owned(), |c| format!("{:.0} %", 100.0 * part / all(c)))
        };
        let same = |r: &&Row| r.problem == row.problem && r.threads == row.threads && r.kernel == rival;
        let ratio = rows.iter().find(same).map(|r| format!("{:.1}", r.seconds / row.seconds));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {:.1} | {:.1} | {} | {} | {} |",
            row.problem,
            row.kernel,
            row.isa,
            row.threads,
            time(row.seconds),
            macs / 1e9,
            bytes / 1e9,
            share(bytes, |c| c.bytes_per_second),
            share(macs, |c| c.macs_per_second),
            ratio.as_deref().unwrap_or("-"),
        );
    }
    text
}

/// Milliseconds or microseconds, whichever reads better.
fn time(seconds: f64) -> String {
    if seconds >= 1e-3 { format!("{:.2} ms", seconds * 1e3) } else { format!("{:.1} us", seconds * 1e6) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_a_dash() {
        let row = Row {
            problem: "ugly m=1".into(),
            kernel: "ternary".into(),
            isa: "scalar".into(),
            threads: 2,
            seconds: 2e-3,
            cost: Cost { macs: 2_000_000, bytes: 0 },
        };
        let text = table(&[row], &[], "dense");
        assert!(
            text.ends_with("| ugly m=1 | ternary | scalar | 2 | 2.00 ms | 1.0 | 0.0 | - | - | - |\n"),
            "{text}"
        );
    }

    #[test]
    fn the_higher_figure_of_each_kind_counts() {
        let [a, b] = [(3.0, 4.0), (2.0, 5.0)].map(|(bytes_per_second, macs_per_second)| Ceilings {
            threads: 2,
            bytes_per_second,
            macs_per_second,
        });
        assert_eq!(a.best_of(b), Ceilings { threads: 2, bytes_per_second: 3.0, macs_per_second: 5.0 });
    }

    #[test]
    fn ceilings_are_positive_numbers() {
        let ceilings = Ceilings::measure(1).expect("one thread and 256 MiB");
        assert_eq!(ceilings.threads, 1);
        assert!(ceilings.bytes_per_second > 1e6 && ceilings.macs_per_second > 1e6, "{ceilings:?}");
    }
}
