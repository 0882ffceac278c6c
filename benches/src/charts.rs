//! Charts of a record.

use trike_bench::{Chart, Figure, Record, Scale, threads_text};

use crate::models::MODEL_KERNEL;
use crate::rival::BASES;

/// The charts, with their file names.
pub(crate) fn charts(record: &Record) -> Vec<(&'static str, Chart)> {
    let best = |problem: &'static str| {
        move |row: &&Figure| row.problem == problem && (row.rival || row.isa == record.isa())
    };
    let title = |what: &str| format!("{what}, 4096 x 4096, {}", record.isa());
    let both = |problem, of: fn(&Figure) -> Option<f64>, title| {
        let rows: Vec<&Figure> = record.rows.iter().filter(best(problem)).collect();
        by_threads(&rows, |row| row.kernel.clone(), of, title)
    };
    let models: Vec<&Figure> = record.rows.iter().filter(|row| row.kernel == MODEL_KERNEL).collect();
    let nearer = "Whole models: share of the limiting ceiling".to_owned();
    vec![
        (
            "decode",
            both(
                "square m=1",
                |row| row.share_of_bandwidth,
                title("One token: share of the memory bandwidth"),
            ),
        ),
        (
            "prefill",
            both("square m=128", |row| row.share_of_int8_peak, title("128 tokens: share of the int8 peak")),
        ),
        ("rivals", rivals(record)),
        ("models", by_threads(&models, |row| row.problem.clone(), Figure::share, nearer)),
    ]
}

/// One group per name, one bar per number of threads.
fn by_threads(
    rows: &[&Figure],
    name: impl Fn(&Figure) -> String,
    value: impl Fn(&Figure) -> Option<f64>,
    title: String,
) -> Chart {
    let mut series: Vec<usize> = rows.iter().map(|row| row.threads).collect();
    series.sort_unstable();
    series.dedup();
    let mut groups: Vec<(String, Vec<Option<f64>>)> = Vec::new();
    for row in rows {
        let name = name(row);
        let at = groups.iter().position(|(other, _)| *other == name).unwrap_or_else(|| {
            groups.push((name, vec![None; series.len()]));
            groups.len() - 1
        });
        if let Some(bar) = series.iter().position(|&threads| threads == row.threads) {
            groups[at].1[bar] = value(row);
        }
    }
    let series = series.into_iter().map(threads_text).collect();
    Chart { title, series, groups, scale: Scale::Percent }
}

/// Speedup of each kernel and instruction set over the rival, on one thread.
fn rivals(record: &Record) -> Chart {
    let problems = [("square m=1", "one token"), ("square m=128", "128 tokens")];
    let mut groups: Vec<(String, Vec<Option<f64>>)> = Vec::new();
    for (bar, (problem, _)) in problems.iter().enumerate() {
        let rows =
            record.rows.iter().filter(|r| r.problem == *problem && r.threads == 1 && r.x_rival.is_some());
        for row in rows {
            let name = if row.rival { row.kernel.clone() } else { format!("{} {}", row.kernel, row.isa) };
            let at = groups.iter().position(|(other, _)| *other == name).unwrap_or_else(|| {
                groups.push((name, vec![None; problems.len()]));
                groups.len() - 1
            });
            groups[at].1[bar] = row.x_rival;
        }
    }
    Chart {
        title: format!("4096 x 4096 on one thread: speedup over {}", BASES.rival),
        series: problems.iter().map(|(_, name)| (*name).to_owned()).collect(),
        groups,
        scale: Scale::Times,
    }
}
