//! The figures of a load.

use super::client::Answer;
use std::fmt;
use std::time::Duration;

/// One line of the table.
pub(super) struct Row {
    server: String,
    load: String,
    answers: usize,
    /// New tokens per second of all.
    rate: f64,
    /// Seconds to the first text: median, p95.
    first: (f64, f64),
    /// Milliseconds between texts: median, p95.
    gap: (f64, f64),
    /// Slowest client over the mean, in tokens per second.
    fairness: f64,
}

/// A percentile of sorted values; 0 without any.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last * percent).div_ceil(100)).copied().unwrap_or(0.0)
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

impl Row {
    pub(super) const HEAD: &str =
        "server        load         answers  tokens/s  first s (p95)    between ms (p95)  fairness";

    pub(super) fn of(server: &str, load: &str, answers: &[Answer], wall: Duration) -> Self {
        let tokens: usize = answers.iter().map(|answer| answer.tokens).sum();
        let first = sorted(answers.iter().map(|answer| answer.first.as_secs_f64()));
        let gaps = sorted(answers.iter().flat_map(|answer| &answer.gaps).map(|gap| gap.as_secs_f64() * 1e3));
        let rates = sorted(answers.iter().map(|answer| answer.tokens as f64 / answer.total.as_secs_f64()));
        let mean = rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        Self {
            server: server.to_owned(),
            load: load.to_owned(),
            answers: answers.len(),
            rate: tokens as f64 / wall.as_secs_f64(),
            first: (percentile(&first, 50), percentile(&first, 95)),
            gap: (percentile(&gaps, 50), percentile(&gaps, 95)),
            fairness: rates.first().copied().unwrap_or(0.0) / mean,
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, load, answers, rate, first, gap, fairness } = self;
        let first = format!("{:.3} ({:.3})", first.0, first.1);
        let gap = format!("{:.1} ({:.1})", gap.0, gap.1);
        write!(f, "{server:<13} {load:<12} {answers:>7} {rate:>9.1}  {first:<16} {gap:<17} {fairness:>8.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_load() {
        let answer = |first: u64, total: u64| Answer {
            tokens: 10,
            first: Duration::from_millis(first),
            total: Duration::from_millis(total),
            gaps: vec![Duration::from_millis(5); 9],
        };
        let row = Row::of("a", "2 clients", &[answer(100, 1000), answer(300, 2000)], Duration::from_secs(2));
        assert_eq!((row.rate, row.first, row.gap), (10.0, (0.3, 0.3), (5.0, 5.0)));
        assert_eq!(row.fairness, 5.0 / 7.5);
        assert_eq!(percentile(&[1.0, 2.0, 3.0], 50), 2.0);
        assert_eq!(percentile(&[], 95), 0.0);
    }
}
