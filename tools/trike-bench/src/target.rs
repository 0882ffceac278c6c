//! Performance targets, as data.

use crate::figure::Figure;
use crate::record::Record;
use crate::table::{Align, Table};

/// A performance figure of a record, and its target value.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Description of the figure.
    pub what: &'static str,
    /// Problem of the row.
    pub problem: &'static str,
    /// Kernels of the row; the best one counts.
    pub kernels: &'static [&'static str],
    /// Instruction set of the row; `None` for the machine's best or the device's runtime.
    pub isa: Option<&'static str>,
    /// Threads of the row; 0 on a device.
    pub threads: usize,
    /// Quantity of the row.
    pub measure: Measure,
    /// Minimum value that meets the target.
    pub least: f64,
}

/// Quantity of a row that a target refers to.
#[derive(Clone, Copy, Debug)]
pub enum Measure {
    /// Fraction of the memory bandwidth.
    Bandwidth,
    /// Fraction of the int8 peak.
    Int8Peak,
    /// Speedup over the reference rival.
    Rival,
    /// Speedup over two-bit weights.
    Ternary,
    /// Speedup over another kernel with the same problem, instruction set and threads.
    Kernel(&'static str),
    /// 10^12 operations per second; a multiply-add is two operations.
    TeraOperations,
    /// Calls per second, or tokens per second of a model.
    Rate,
}

impl Target {
    /// The measured value; `None` if the record lacks the row.
    #[must_use]
    pub fn measured(&self, record: &Record) -> Option<f64> {
        let isa = self.isa.unwrap_or(record.isa());
        let of = |kernel: &&str| {
            let row = record.row(self.problem, kernel, isa, self.threads)?;
            match self.measure {
                Measure::Bandwidth => row.share_of_bandwidth,
                Measure::Int8Peak => row.share_of_int8_peak,
                Measure::Rival => row.x_rival,
                Measure::Ternary => row.x_ternary,
                Measure::Kernel(other) => {
                    let other = record.row(self.problem, other, isa, self.threads)?;
                    // Both ratios have the same base and were measured in the same rounds.
                    let relative = |row: &Figure| row.x_ternary.unwrap_or(1.0);
                    Some(relative(row) / relative(other))
                }
                Measure::TeraOperations => Some(2.0 * row.gmac_per_second / 1e3),
                Measure::Rate => Some(1.0 / row.seconds),
            }
        };
        self.kernels.iter().filter_map(of).reduce(f64::max)
    }

    /// Formats a value with its unit.
    #[must_use]
    pub fn text(&self, value: f64) -> String {
        match self.measure {
            Measure::Bandwidth | Measure::Int8Peak => format!("{:.1} %", 100.0 * value),
            Measure::Rival | Measure::Ternary | Measure::Kernel(_) => format!("{value:.2}x"),
            Measure::TeraOperations | Measure::Rate => format!("{value:.0}"),
        }
    }
}

/// Predicted value of a target.
type Predict<'a> = &'a dyn Fn(&Target) -> Option<f64>;

/// A table of the targets with the measured values of a record, and with predictions if given.
#[must_use]
pub fn target_table(targets: &[Target], record: Option<&Record>, predict: Option<Predict<'_>>) -> String {
    use Align::{Left, Right};
    let on_host = targets.iter().any(|target| target.threads > 0);
    let mut columns = vec![("figure", Left)];
    columns.extend(on_host.then_some(("threads", Right)));
    columns.extend(predict.map(|_| ("predicted", Right)));
    columns.extend([("measured", Right), ("target", Right), ("reached", Left)]);
    let mut table = Table::new(&columns);
    for target in targets {
        let measured = record.and_then(|record| target.measured(record));
        let show = |value: Option<f64>| value.map_or("-".to_owned(), |value| target.text(value));
        let mut cells = vec![target.what.to_owned()];
        cells.extend(on_host.then(|| target.threads.to_string()));
        cells.extend(predict.map(|predict| show(predict(target))));
        let reached = measured.map_or("-", |value| if value >= target.least { "yes" } else { "no" });
        cells.extend([show(measured), target.text(target.least), reached.to_owned()]);
        table.row(cells);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{example, on_device};
    use trike_testkit::assert_near;

    const ONE: Target = Target {
        what: "one token",
        problem: "square m=1",
        kernels: &["ternary x int8"],
        isa: None,
        threads: 1,
        measure: Measure::Bandwidth,
        least: 0.85,
    };

    #[test]
    fn records_answer_targets() {
        let first = ONE.measured(&example()).unwrap();
        assert_near!(first, 0.8248, abs = 1e-4);
        assert_eq!(ONE.text(first), "82.5 %");
        assert!(Target { problem: "square m=2", ..ONE }.measured(&example()).is_none());
        let over =
            Target { kernels: &["ternary/128 x int8"], measure: Measure::Kernel("ternary x int8"), ..ONE };
        assert_eq!(over.measured(&example()).map(|x| over.text(x)), Some("0.90x".into()));
        let table = target_table(&[ONE], Some(&example()), None);
        assert!(table.ends_with("| one token | 1 | 82.5 % | 85.0 % | no |\n"), "{table}");
    }

    #[test]
    fn the_best_of_some_kernels_counts_on_a_device() {
        let kernels = &["ternary x int8", "ternary/128 x int8", "no such kernel"];
        let of = |measure| Target { kernels, threads: 0, measure, least: 100.0, ..ONE };
        let rate = of(Measure::Rate);
        assert_eq!(rate.measured(&on_device()).map(|x| rate.text(x)), Some("8000".into()));
        let tera = of(Measure::TeraOperations);
        let measured = tera.measured(&on_device()).unwrap();
        assert_near!(measured, 0.268_436, abs = 1e-9);
        let table = target_table(&[rate, tera], Some(&on_device()), Some(&|_| Some(90.0)));
        assert!(table.contains("| figure | predicted | measured | target | reached |"), "{table}");
        assert!(table.contains("| one token | 90 | 8000 | 100 | yes |"), "{table}");
        let nothing = target_table(&[rate], None, Some(&|_| None));
        assert!(nothing.ends_with("| one token | - | - | 100 | - |\n"), "{nothing}");
    }
}
