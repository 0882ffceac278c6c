//! Rates, fractions of the measured peaks, and speedups, computed from the measured times.

use serde::{Deserialize, Serialize};
use trike_core::Cost;

use crate::ceiling::{Ceiling, Limit, ceiling};
use crate::table::{Align, Table, percent, time};
use crate::timing::{median, paired_ratio, rounded, spread};

/// Timing samples of one kernel or rival at one problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Name of the problem.
    pub problem: String,
    /// Kernel or rival.
    pub kernel: String,
    /// Instruction set; on a device, its runtime.
    pub isa: String,
    /// Host threads; 0 on a device.
    pub threads: usize,
    /// True for third-party code.
    pub rival: bool,
    /// Specialization of the kernel; empty if it has only one.
    pub blueprint: String,
    /// Seconds per call, one sample per round.
    pub samples: Vec<f64>,
    /// Work of one call.
    pub cost: Cost,
    /// The ceilings that can limit it; fractions of the others would be meaningless.
    pub limits: &'static [Limit],
    /// How its calls reached a device.
    pub launching: Launching,
}

/// How the timed calls of a row reached a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Launching {
    /// Calls per replay of a recorded graph; 0 where the host launched each call, and for calls on the host.
    pub recorded: usize,
    /// Seconds per call where the host launches each by itself, if `seconds` is that of a graph.
    pub live_seconds: Option<f64>,
}

/// One row of a report: a time, and the rates and ratios derived from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Name of the problem: `shape m=tokens` or `model phase`.
    pub problem: String,
    /// Kernel or rival: weights, then activations.
    pub kernel: String,
    /// Specialization of the kernel; empty if it has only one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub blueprint: String,
    /// Instruction set; on a device, its runtime.
    pub isa: String,
    /// Host threads; 0 on a device.
    pub threads: usize,
    /// True for third-party code.
    pub rival: bool,
    /// Number of samples of the median.
    pub rounds: usize,
    /// Median time per call, or per token of a model.
    pub seconds: f64,
    /// Interquartile range divided by the median.
    pub spread: f64,
    /// Calls per replay of the recorded graph that was timed; 0 where each call was launched by itself.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub recorded: usize,
    /// Time per call where the host launches each by itself; what it exceeds `seconds` by is waiting for the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_seconds: Option<f64>,
    /// Multiply-adds per call.
    pub macs: u64,
    /// Compulsory memory traffic per call, in bytes.
    pub bytes: u64,
    /// Billions of multiply-adds per second.
    pub gmac_per_second: f64,
    /// Billions of compulsory bytes per second.
    pub gb_per_second: f64,
    /// Fraction of the memory bandwidth measured in the same run with as many threads.
    pub share_of_bandwidth: Option<f64>,
    /// Fraction of the int8 multiply-add rate measured in the same run with as many threads.
    pub share_of_int8_peak: Option<f64>,
    /// Fraction of the multiply-add rate of f16 matrix instructions measured in the same run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_of_f16_peak: Option<f64>,
    /// Speedup over the [reference rival](Bases::rival) at the same problem and threads, in the same rounds.
    pub x_rival: Option<f64>,
    /// Speedup over two-bit weights with one scale ([`Bases::kernel`]), also with the same instruction set.
    pub x_ternary: Option<f64>,
}

/// For fields that are left out of a record when they are zero.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// Reference rows for the speedups of the other rows of a problem.
#[derive(Clone, Copy, Debug)]
pub struct Bases {
    /// Reference rival.
    pub rival: &'static str,
    /// Reference kernel of Trike.
    pub kernel: &'static str,
}

impl Figure {
    /// Unique name of the row, matched by `--filter`.
    #[must_use]
    pub fn name(&self) -> String {
        row_name(&self.problem, &self.kernel, &self.isa, self.threads)
    }

    /// Fraction of the limiting ceiling, i.e. the largest of the three.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        let shares = [self.share_of_bandwidth, self.share_of_int8_peak, self.share_of_f16_peak];
        shares.into_iter().flatten().reduce(f64::max)
    }
}

/// `problem / kernel / isa / t=threads`, without threads on a device.
#[must_use]
pub fn row_name(problem: &str, kernel: &str, isa: &str, threads: usize) -> String {
    let name = format!("{problem} / {kernel} / {isa}");
    if threads == 0 { name } else { format!("{name} / t={threads}") }
}

/// Rows of the report, in the order of `measured`; entries without samples are left out.
#[must_use]
pub fn figures(measured: &[Measured], ceilings: &[Ceiling], bases: Bases) -> Vec<Figure> {
    let figure = |row: &Measured| {
        let seconds = median(&row.samples)?;
        let (macs, bytes) = (row.cost.macs as f64 / seconds, row.cost.bytes as f64 / seconds);
        let share = |limit: Limit, rate: f64| {
            let most = ceiling(ceilings, limit, row.threads).filter(|_| row.limits.contains(&limit))?;
            Some(rounded(rate / most))
        };
        let ratio = |is_other: &dyn Fn(&Measured) -> bool| {
            let same = |o: &&Measured| o.problem == row.problem && o.threads == row.threads && is_other(o);
            paired_ratio(&row.samples, &measured.iter().find(same)?.samples).map(rounded)
        };
        let is_reference = |o: &Measured| o.kernel == bases.kernel && o.isa == row.isa;
        Some(Figure {
            problem: row.problem.clone(),
            kernel: row.kernel.clone(),
            blueprint: row.blueprint.clone(),
            isa: row.isa.clone(),
            threads: row.threads,
            rival: row.rival,
            rounds: row.samples.len(),
            seconds: rounded(seconds),
            spread: rounded(spread(&row.samples)?),
            recorded: row.launching.recorded,
            live_seconds: row.launching.live_seconds.map(rounded),
            macs: row.cost.macs,
            bytes: row.cost.bytes,
            gmac_per_second: rounded(macs / 1e9),
            gb_per_second: rounded(bytes / 1e9),
            share_of_bandwidth: share(Limit::Memory, bytes),
            share_of_int8_peak: share(Limit::Int8, macs),
            share_of_f16_peak: share(Limit::F16, macs),
            x_rival: if row.kernel == bases.rival { None } else { ratio(&|o| o.kernel == bases.rival) },
            x_ternary: if is_reference(row) { None } else { ratio(&is_reference) },
        })
    };
    measured.iter().filter_map(figure).collect()
}

/// The rows as a Markdown table, with a problem column if the problems differ. Columns that do not apply are left out:
/// threads on a device, f16 on the host.
///
/// ```
/// use trike_bench::{Bases, Ceiling, Launching, Limit, Measured, figure_table, figures};
/// use trike_core::Cost;
///
/// let ceiling = |limit, per_second| Ceiling { limit, threads: 1, per_second, variant: "a loop".into() };
/// let row = |kernel: &str, seconds| Measured {
///     problem: "square m=1".into(),
///     kernel: kernel.into(),
///     isa: "avx2".into(),
///     threads: 1,
///     rival: false,
///     blueprint: String::new(),
///     samples: vec![seconds],
///     cost: Cost { macs: 4_000_000, bytes: 1_000_000 },
///     limits: &[Limit::Memory, Limit::Int8],
///     launching: Launching::default(),
/// };
/// let bases = Bases { rival: "candle f32", kernel: "ternary" };
/// let ceilings = [ceiling(Limit::Memory, 20e9), ceiling(Limit::Int8, 400e9)];
/// let rows = figures(&[row("ternary", 1e-4), row("candle f32", 4e-4)], &ceilings, bases);
/// let text = figure_table(&rows, bases);
/// assert!(text.contains("| ternary | avx2 | 1 | 100.0 us | 0 % | 40.0 | 10.0 | 50 % | 10 % | 4.00 | - |"), "{text}");
/// ```
#[must_use]
pub fn figure_table(rows: &[Figure], bases: Bases) -> String {
    use Align::{Left, Right};
    let mixed = rows.iter().any(|row| row.problem != rows[0].problem);
    let on_device = rows.iter().any(|row| row.threads == 0);
    let rival = format!("x {}", bases.rival);
    let mut columns = vec![("kernel", Left), ("isa", Left)];
    if mixed {
        columns.insert(0, ("problem", Left));
    }
    if !on_device {
        columns.push(("threads", Right));
    }
    columns.extend(["time", "spread", "GMAC/s", "GB/s", "of bandwidth", "of int8 peak"].map(|c| (c, Right)));
    if on_device {
        columns.insert(columns.len() - 5, ("launched alone", Right));
        columns.push(("of f16 peak", Right));
    }
    columns.extend([(rival.as_str(), Right), ("x 2-bit", Right)]);
    let mut table = Table::new(&columns);
    let share = |share: Option<f64>| share.map_or("-".to_owned(), percent);
    let times = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |r| format!("{r:.2}"));
    for row in rows {
        let mut cells = vec![row.kernel.clone(), row.isa.clone()];
        if mixed {
            cells.insert(0, row.problem.clone());
        }
        if !on_device {
            cells.push(row.threads.to_string());
        }
        cells.push(time(row.seconds));
        if on_device {
            cells.push(row.live_seconds.map_or("-".to_owned(), time));
        }
        cells.extend([
            percent(row.spread),
            format!("{:.1}", row.gmac_per_second),
            format!("{:.1}", row.gb_per_second),
            share(row.share_of_bandwidth),
            share(row.share_of_int8_peak),
        ]);
        if on_device {
            cells.push(share(row.share_of_f16_peak));
        }
        cells.extend([times(row.x_rival), times(row.x_ternary)]);
        table.row(cells);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASES: Bases = Bases { rival: "candle f32", kernel: "ternary x int8" };

    #[test]
    fn what_is_not_known_is_a_dash() {
        let row = Measured {
            problem: "ugly m=1".into(),
            kernel: "ternary".into(),
            isa: "scalar".into(),
            threads: 2,
            rival: false,
            blueprint: String::new(),
            samples: vec![2e-3, 1e-3, 3e-3],
            cost: Cost { macs: 2_000_000, bytes: 0 },
            limits: &[Limit::Memory, Limit::Int8],
            launching: Launching::default(),
        };
        let nothing = Measured { samples: Vec::new(), ..row.clone() };
        let text = figure_table(&figures(&[row, nothing], &[], BASES), BASES);
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
            blueprint: String::new(),
            samples: vec![seconds; 3],
            cost: Cost { macs: 1, bytes: 1 },
            limits: &[Limit::Memory, Limit::Int8],
            launching: Launching::default(),
        };
        let all = [
            row(BASES.kernel, "avx2", 1, 2.0),
            row("other", "avx2", 1, 1.0),
            row(BASES.kernel, "scalar", 1, 8.0),
            row("other", "scalar", 2, 8.0),
            row(BASES.rival, "gemm", 1, 6.0),
        ];
        let found: Vec<_> = figures(&all, &[], BASES).iter().map(|f| (f.x_rival, f.x_ternary)).collect();
        let want =
            [(Some(3.0), None), (Some(6.0), Some(2.0)), (Some(0.75), None), (None, None), (None, None)];
        assert_eq!(found, want);
    }

    #[test]
    fn a_row_has_the_shares_of_its_limits_alone() {
        let ceiling = |limit, per_second| Ceiling { limit, threads: 0, per_second, variant: String::new() };
        let ceilings = [ceiling(Limit::Memory, 1e12), ceiling(Limit::Int8, 4e12), ceiling(Limit::F16, 2e12)];
        let row = |limits| Measured {
            problem: "square m=1".into(),
            kernel: "trike f16".into(),
            isa: "cuda".into(),
            threads: 0,
            rival: false,
            blueprint: "tiles of 16".into(),
            samples: vec![1e-6],
            cost: Cost { macs: 1_000_000, bytes: 500_000 },
            limits,
            launching: Launching { recorded: 64, live_seconds: Some(8e-6) },
        };
        let of = |limits| {
            let figure = figures(&[row(limits)], &ceilings, BASES).remove(0);
            let shares = [figure.share_of_bandwidth, figure.share_of_int8_peak, figure.share_of_f16_peak];
            (shares, figure.share())
        };
        assert_eq!(of(&[Limit::Memory, Limit::F16]), ([Some(0.5), None, Some(0.5)], Some(0.5)));
        assert_eq!(of(&[Limit::Int8]), ([None, Some(0.25), None], Some(0.25)));
        let figure = figures(&[row(&[])], &ceilings, BASES).remove(0);
        assert_eq!((figure.name().as_str(), figure.share()), ("square m=1 / trike f16 / cuda", None));
        let text = figure_table(&[figure], BASES);
        assert!(text.contains("| of int8 peak | of f16 peak | x candle f32 |") && !text.contains("threads"));
    }
}
