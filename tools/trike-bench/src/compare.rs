//! Regressions of a run against an earlier one.

use std::fmt;

use crate::figure::Figure;
use crate::record::Record;

/// Difference between two runs on the same machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Comparison {
    /// Number of rows in both runs.
    pub(crate) compared: usize,
    /// Rows slower by more than the threshold.
    pub(crate) regressions: Vec<Regression>,
    /// Names of rows that only the earlier run has.
    pub(crate) gone: Vec<String>,
}

/// A row that became slower.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Regression {
    /// Name of the row.
    pub(crate) name: String,
    /// Fractions of the limiting ceiling, before and after.
    pub(crate) share: Option<(f64, f64)>,
    /// Speedups over the rival (over two-bit weights if no rival ran), before and after.
    pub(crate) ratio: Option<(f64, f64)>,
}

/// Compares the rows of `after` with those of `before`, excluding rivals.
///
/// A row regressed when its fraction of the limiting ceiling *and* its speedup over the rival fell by more than
/// `threshold` (0.1 is 10 %). Other load on the machine or a faster rival lowers only one of them; a slower kernel lowers
/// both. A row that has only one of them is judged by that one.
pub(crate) fn compare(before: &Record, after: &Record, threshold: f64) -> Comparison {
    let ours =
        |record: &'_ Record| -> Vec<Figure> { record.rows.iter().filter(|r| !r.rival).cloned().collect() };
    let mut comparison = Comparison::default();
    let now = ours(after);
    for old in ours(before) {
        let Some(new) = now.iter().find(|row| row.name() == old.name()) else {
            comparison.gone.push(old.name());
            continue;
        };
        comparison.compared += 1;
        let share = old.share().zip(new.share());
        let ratio = old.x_rival.zip(new.x_rival).or(old.x_ternary.zip(new.x_ternary));
        let fell = |(old, new): (f64, f64)| new < old * (1.0 - threshold);
        let judged: Vec<bool> = [share, ratio].into_iter().flatten().map(fell).collect();
        if !judged.is_empty() && judged.iter().all(|&fell| fell) {
            comparison.regressions.push(Regression { name: old.name(), share, ratio });
        }
    }
    comparison
}

impl fmt::Display for Regression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.name)?;
        if let Some((old, new)) = self.share {
            write!(f, " {:.1} % -> {:.1} % of the ceiling", 100.0 * old, 100.0 * new)?;
        }
        if let Some((old, new)) = self.ratio {
            let comma = if self.share.is_some() { "," } else { "" };
            write!(f, "{comma} {old:.2} -> {new:.2} times the reference")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::{example, on_device};

    /// The example with one row's figures changed.
    fn changed(change: impl Fn(&mut Figure)) -> Record {
        let mut record = example();
        change(&mut record.rows[0]);
        record
    }

    fn with(share: f64, ratio: Option<f64>) -> Record {
        changed(|row| {
            (row.share_of_bandwidth, row.share_of_int8_peak) = (Some(share), Some(0.01));
            (row.x_rival, row.x_ternary) = (ratio, None);
        })
    }

    #[test]
    fn a_fall_over_the_threshold_is_a_regression_and_one_of_it_is_none() {
        let before = with(0.8, Some(16.0));
        for (share, ratio, regressions) in [
            (0.8 * 0.9 + 1e-9, 16.0 * 0.9 + 1e-9, 0),
            (0.8 * 0.9, 16.0 * 0.9, 0),
            (0.8 * 0.9 - 1e-9, 16.0 * 0.9 - 1e-9, 1),
            // One of them alone is the machine's noise or the rival's progress.
            (0.8 * 0.9 - 1e-9, 16.0 * 0.9, 0),
            (0.8 * 0.9, 16.0 * 0.9 - 1e-9, 0),
            (0.9, 17.0, 0),
        ] {
            let comparison = compare(&before, &with(share, Some(ratio)), 0.1);
            assert_eq!(comparison.regressions.len(), regressions, "{share} {ratio}");
            assert_eq!((comparison.compared, comparison.gone.len()), (4, 0));
        }
        // Without a rival the share alone decides.
        let before = with(0.8, None);
        for (share, regressions) in [(0.7201, 0), (0.8 * 0.9, 0), (0.7199, 1)] {
            assert_eq!(compare(&before, &with(share, None), 0.1).regressions.len(), regressions, "{share}");
        }
    }

    #[test]
    fn rows_of_devices_are_judged_alike() {
        let mut slower = on_device();
        let row = &mut slower.rows[1];
        (row.share_of_bandwidth, row.share_of_int8_peak, row.share_of_f16_peak) =
            (Some(0.1), None, Some(0.2));
        (row.x_rival, row.x_ternary) = (Some(2.0), None);
        let comparison = compare(&on_device(), &slower, 0.1);
        assert_eq!((comparison.compared, comparison.regressions.len()), (2, 1));
        let name = "square m=1 / ternary/128 x int8 / cuda: ";
        assert!(comparison.regressions[0].to_string().starts_with(name), "{}", comparison.regressions[0]);
    }

    #[test]
    fn a_regression_names_the_row_and_both_figures() {
        let found = compare(&with(0.8, Some(16.0)), &with(0.4, Some(8.0)), 0.1).regressions;
        assert_eq!(
            found[0].to_string(),
            "square m=1 / ternary x int8 / avx512-vnni / t=1: 80.0 % -> 40.0 % of the ceiling, \
             16.00 -> 8.00 times the reference"
        );
        let alone = Regression { share: None, ..found[0].clone() };
        assert!(alone.to_string().ends_with("t=1: 16.00 -> 8.00 times the reference"));
    }

    #[test]
    fn rivals_may_be_slow_and_rows_may_come_and_go() {
        let mut after = example();
        let rival = after.rows.iter_mut().find(|row| row.rival).unwrap();
        (rival.share_of_bandwidth, rival.share_of_int8_peak) = (Some(0.001), Some(0.001));
        assert_eq!(compare(&example(), &after, 0.1), Comparison { compared: 4, ..Comparison::default() });
        after.rows.remove(0);
        let comparison = compare(&example(), &after, 0.1);
        assert_eq!(comparison.gone, ["square m=1 / ternary x int8 / avx512-vnni / t=1"]);
        assert!(
            compare(&after, &example(), 0.1).gone.is_empty(),
            "a new row has nothing to be compared with"
        );
    }
}
