//! From seconds to shares: what a time means on this machine.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use trike_cpu::Cost;

use crate::ceilings::{Ceilings, threads};
use crate::kernel::TERNARY;
use crate::rival::RivalKind;
use crate::timing::{median, paired_ratio, rounded, spread};

/// What was timed.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What was computed.
    pub problem: String,
    /// By which kernel or rival.
    pub kernel: String,
    /// With which instructions.
    pub isa: String,
    /// On how many threads.
    pub threads: usize,
    /// Whether somebody else's code ran.
    pub rival: bool,
    /// Seconds of one call, one for each round.
    pub samples: Vec<f64>,
    /// Work of one call.
    pub cost: Cost,
    /// The ceilings that it can meet.
    pub limits: Limits,
}

/// The ceilings that a row is set beside. Its rate over another one would say nothing, and move when that one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limits {
    /// Either may be nearer.
    Both,
    /// The memory alone.
    Memory,
    /// The arithmetic alone, because the operands stay in a cache.
    Arithmetic,
}

/// One line of a report: a time, and what it means.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// What was computed, `shape m=tokens` or `model phase`.
    pub problem: String,
    /// By which kernel or rival: weights, then activations.
    pub kernel: String,
    /// With which instructions.
    pub isa: String,
    /// On how many threads.
    pub threads: usize,
    /// Whether somebody else's code ran.
    pub rival: bool,
    /// Bursts that the median is of.
    pub rounds: usize,
    /// Median time of one call, or of one token of a model.
    pub seconds: f64,
    /// Distance of the quartiles over the median.
    pub spread: f64,
    /// Multiply-adds of one call.
    pub macs: u64,
    /// Bytes that must pass at least once in one call.
    pub bytes: u64,
    /// Billions of multiply-adds a second.
    pub gmac_per_second: f64,
    /// Billions of compulsory bytes a second.
    pub gb_per_second: f64,
    /// The bytes over what the same run read from memory with as many threads.
    pub share_of_bandwidth: Option<f64>,
    /// The multiply-adds over what the same run reached in registers with as many threads.
    pub share_of_int8_peak: Option<f64>,
    /// How many times as fast as candle's f32 product at the same problem and threads, in the same rounds.
    pub x_rival: Option<f64>,
    /// How many times as fast as two-bit weights with one scale, with the same instructions too.
    pub x_ternary: Option<f64>,
}

/// The rival that every row is compared with.
pub const BASE: RivalKind = RivalKind::CandleF32;

impl Figure {
    /// What tells the row from others, as `--filter` sees it.
    #[must_use]
    pub fn name(&self) -> String {
        row_name(&self.problem, &self.kernel, &self.isa, self.threads)
    }

    /// The share of the ceiling that is nearer, which is the one that limits.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        match (self.share_of_bandwidth, self.share_of_int8_peak) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        }
    }
}

/// `problem / kernel / isa / t=threads`.
#[must_use]
pub fn row_name(problem: &str, kernel: &str, isa: &str, threads: usize) -> String {
    format!("{problem} / {kernel} / {isa} / t={threads}")
}

/// What the times mean, in the order of `measured`; what has no samples is left out.
#[must_use]
pub fn figures(measured: &[Measured], ceilings: &[Ceilings]) -> Vec<Figure> {
    let figure = |row: &Measured| {
        let seconds = median(&row.samples)?;
        let (macs, bytes) = (row.cost.macs as f64 / seconds, row.cost.bytes as f64 / seconds);
        let of = ceilings.iter().find(|c| c.threads == row.threads);
        let ratio = |is_other: &dyn Fn(&Measured) -> bool| {
            let same = |o: &&Measured| o.problem == row.problem && o.threads == row.threads && is_other(o);
            paired_ratio(&row.samples, &measured.iter().find(same)?.samples).map(rounded)
        };
        let is_reference = |o: &Measured| o.kernel == TERNARY.name && o.isa == row.isa;
        Some(Figure {
            problem: row.problem.clone(),
            kernel: row.kernel.clone(),
            isa: row.isa.clone(),
            threads: row.threads,
            rival: row.rival,
            rounds: row.samples.len(),
            seconds: rounded(seconds),
            spread: rounded(spread(&row.samples)?),
            macs: row.cost.macs,
            bytes: row.cost.bytes,
            gmac_per_second: rounded(macs / 1e9),
            gb_per_second: rounded(bytes / 1e9),
            share_of_bandwidth: of
                .filter(|_| row.limits != Limits::Arithmetic)
                .map(|c| rounded(bytes / c.bytes_per_second)),
            share_of_int8_peak: of
                .filter(|_| row.limits != Limits::Memory)
                .map(|c| rounded(macs / c.macs_per_second)),
            x_rival: if row.kernel == BASE.name() { None } else { ratio(&|o| o.kernel == BASE.name()) },
            x_ternary: if is_reference(row) { None } else { ratio(&is_reference) },
        })
    };
    measured.iter().filter_map(figure).collect()
}

/// The ceilings, a line each.
#[must_use]
pub fn ceilings_text(ceilings: &[Ceilings]) -> String {
    let mut text = String::new();
    for c in ceilings {
        let _ = writeln!(
            text,
            "* {}: {:.1} GB/s from memory ({}), {:.0} GMAC/s in int8 ({})",
            threads(c.threads),
            c.bytes_per_second / 1e9,
            c.bytes_variant,
            c.macs_per_second / 1e9,
            c.macs_variant
        );
    }
    text
}

/// The rows as a Markdown table, the problem of each in front unless all have the same.
///
/// ```
/// use trike_benches::{Ceilings, Limits, Measured, figures, table};
/// use trike_cpu::Cost;
///
/// let ceilings = Ceilings {
///     threads: 1,
///     bytes_per_second: 20e9,
///     bytes_variant: "one stream".into(),
///     macs_per_second: 400e9,
///     macs_variant: "vpdpbusd".into(),
/// };
/// let row = |kernel: &str, seconds| Measured {
///     problem: "square m=1".into(),
///     kernel: kernel.into(),
///     isa: "avx2".into(),
///     threads: 1,
///     rival: false,
///     samples: vec![seconds],
///     cost: Cost { macs: 4_000_000, bytes: 1_000_000 },
///     limits: Limits::Both,
/// };
/// let text = table(&figures(&[row("ternary", 1e-4), row("candle f32", 4e-4)], &[ceilings]));
/// assert!(text.contains("| ternary | avx2 | 1 | 100.0 us | 0 % | 40.0 | 10.0 | 50 % | 10 % | 4.00 | - |"), "{text}");
/// ```
#[must_use]
pub fn table(rows: &[Figure]) -> String {
    let mixed = rows.iter().any(|row| row.problem != rows[0].problem);
    let (head, rule) = if mixed { ("| problem ", "|---") } else { ("", "") };
    let mut text = format!(
        "{head}| kernel | isa | threads | time | spread | GMAC/s | GB/s | of bandwidth | of int8 peak | x {} | x 2-bit |\n\
         {rule}|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        BASE.name()
    );
    for row in rows {
        if mixed {
            let _ = write!(text, "| {} ", row.problem);
        }
        let share = |share: Option<f64>| share.map_or("-".to_owned(), percent);
        let times = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |r| format!("{r:.2}"));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {:.1} | {:.1} | {} | {} | {} | {} |",
            row.kernel,
            row.isa,
            row.threads,
            time(row.seconds),
            percent(row.spread),
            row.gmac_per_second,
            row.gb_per_second,
            share(row.share_of_bandwidth),
            share(row.share_of_int8_peak),
            times(row.x_rival),
            times(row.x_ternary),
        );
    }
    text
}

/// Whole per cent.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
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
        let row = Measured {
            problem: "ugly m=1".into(),
            kernel: "ternary".into(),
            isa: "scalar".into(),
            threads: 2,
            rival: false,
            samples: vec![2e-3, 1e-3, 3e-3],
            cost: Cost { macs: 2_000_000, bytes: 0 },
            limits: Limits::Both,
        };
        let nothing = Measured { samples: Vec::new(), ..row.clone() };
        let text = table(&figures(&[row, nothing], &[]));
        assert!(
            text.ends_with("| ternary | scalar | 2 | 2.00 ms | 50 % | 1.0 | 0.0 | - | - | - | - |\n"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 3, "a row without samples is none");
    }

    #[test]
    fn ratios_are_of_the_same_problem_threads_and_instructions() {
        let row = |kernel: &str, isa: &str, threads, seconds| Measured {
            problem: "square m=1".into(),
            kernel: kernel.into(),
            isa: isa.into(),
            threads,
            rival: false,
            samples: vec![seconds; 3],
            cost: Cost { macs: 1, bytes: 1 },
            limits: Limits::Both,
        };
        let all = [
            row(TERNARY.name, "avx2", 1, 2.0),
            row("other", "avx2", 1, 1.0),
            row(TERNARY.name, "scalar", 1, 8.0),
            row("other", "scalar", 2, 8.0),
            row(BASE.name(), "gemm", 1, 6.0),
        ];
        let found: Vec<_> = figures(&all, &[]).iter().map(|f| (f.x_rival, f.x_ternary)).collect();
        let want =
            [(Some(3.0), None), (Some(6.0), Some(2.0)), (Some(0.75), None), (None, None), (None, None)];
        assert_eq!(found, want);
    }
}
