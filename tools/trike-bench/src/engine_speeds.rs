//! Speed of whole models beside other engines, measured by hand: the data file, its plot and its table.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::ceiling::threads_text;
use crate::drawing::{Drawing, Font, Ink};
use crate::table::{Align, Table};

/// Contents of `benches/records/engines.json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EngineSpeeds {
    date: String,
    machine: String,
    /// Model and machine in a few words, for the plot.
    caption: String,
    /// The model that all engines ran.
    model: String,
    /// Prompt tokens.
    prompt: usize,
    /// How samples became the figures.
    method: String,
    /// Trike, then the other engines.
    engines: Vec<TimedEngine>,
    rows: Vec<SpeedRow>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct TimedEngine {
    name: String,
    version: String,
    file: String,
    command: String,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpeedRow {
    phase: Phase,
    threads: usize,
    /// In the order of the engines.
    tokens_per_second: Vec<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Phase {
    Decode,
    Prompt,
}

const WIDTH: usize = 760;
/// Left end of the bars; names are right-aligned before it.
const LEFT: f64 = 142.0;
/// Length of the longest bar.
const LENGTH: f64 = 520.0;
/// Top of the first panel.
const TOP: f64 = 84.0;
const BAR: f64 = 26.0;
/// From the top of a bar to that of the next.
const STEP: f64 = 32.0;

impl EngineSpeeds {
    /// Parses the data file.
    ///
    /// # Errors
    ///
    /// If `text` is not JSON of this schema, has no other engine, or has a row without a positive speed for each engine.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let this: Self = serde_json::from_str(text)?;
        let engines = this.engines.len();
        ensure!(engines >= 2, "expected Trike and at least one other engine, got {engines} engines");
        for row in &this.rows {
            let speeds = row.tokens_per_second.len();
            ensure!(speeds == engines, "expected a speed for each of {engines} engines, got {speeds}");
            let valid = |speed: &f64| speed.is_finite() && *speed > 0.0;
            ensure!(row.tokens_per_second.iter().all(valid), "speeds must be positive: {row:?}");
        }
        for phase in [Phase::Decode, Phase::Prompt] {
            this.plotted(phase).with_context(|| format!("no row of {phase:?}"))?;
        }
        Ok(this)
    }

    /// The row of a phase with the most threads.
    fn plotted(&self, phase: Phase) -> Option<&SpeedRow> {
        self.rows.iter().filter(|row| row.phase == phase).max_by_key(|row| row.threads)
    }

    fn phase_text(&self, phase: Phase) -> String {
        match phase {
            Phase::Decode => "Generating text".to_owned(),
            Phase::Prompt => format!("Reading a prompt of {} tokens", self.prompt),
        }
    }

    /// The smallest speedup of Trike over another engine in any row, rounded down to one decimal.
    fn least_speedup(&self) -> f64 {
        let of = |row: &SpeedRow| {
            row.tokens_per_second[0] / row.tokens_per_second[1..].iter().fold(0.0, |a, &b| f64::max(a, b))
        };
        let least = self.rows.iter().map(of).fold(f64::INFINITY, f64::min);
        (10.0 * least).floor() / 10.0
    }

    /// The plot: one panel per phase, one bar per engine, with the most threads that were timed.
    pub(crate) fn plot(&self) -> String {
        let names: Vec<&str> = self.engines.iter().map(|engine| engine.name.as_str()).collect();
        let (ours, others) = (names[0], names[1..].join(" and "));
        let title = format!("{ours}: at least {:.1} times as fast as {others}", self.least_speedup());
        let rows = [Phase::Decode, Phase::Prompt].map(|phase| self.plotted(phase));
        let panel = 24.0 + names.len() as f64 * STEP + 20.0;
        let height = (TOP + 2.0 * panel + 8.0).ceil() as usize;
        let mut drawing = Drawing::new(WIDTH, height, &title);
        let threads = threads_text(rows[0].map_or(1, |row| row.threads));
        let subtitle = format!("Tokens per second: {}, {threads}", self.caption);
        drawing.text(24.0, 58.0, Font::of(14), Ink::Muted, &subtitle);
        for (i, row) in rows.into_iter().flatten().enumerate() {
            let top = TOP + i as f64 * panel;
            drawing.text(24.0, top + 14.0, Font::of(15).bold(), Ink::Text, &self.phase_text(row.phase));
            let largest = row.tokens_per_second.iter().copied().fold(0.0, f64::max);
            for (j, (&speed, name)) in row.tokens_per_second.iter().zip(&names).enumerate() {
                let (y, length) = (top + 26.0 + j as f64 * STEP, speed / largest * LENGTH);
                let (ink, font) =
                    if j == 0 { (Ink::First, Font::of(15).bold()) } else { (Ink::Other, Font::of(15)) };
                drawing.text(LEFT - 10.0, y + 18.0, font.anchored("end"), Ink::Text, name);
                drawing.bar([LEFT, y], length, BAR, ink);
                drawing.text(LEFT + length + 8.0, y + 18.0, font, Ink::Text, &figure(speed));
            }
        }
        drawing.to_svg()
    }

    /// The table of the handbook, with its provenance.
    pub(crate) fn table(&self) -> String {
        let mut columns = vec![("", Align::Left), ("threads", Align::Right)];
        columns.extend(self.engines.iter().map(|engine| (engine.name.as_str(), Align::Right)));
        let mut table = Table::new(&columns);
        for row in &self.rows {
            let speeds = row.tokens_per_second.iter().copied().map(figure);
            table.row([self.phase_text(row.phase), row.threads.to_string()].into_iter().chain(speeds));
        }
        let mut text = format!(
            "Tokens per second, {}, {}. Machine: {}. Model: {}.\n\n{table}\n",
            self.method, self.date, self.machine, self.model
        );
        for TimedEngine { name, version, file, command } in &self.engines {
            let _ = writeln!(text, "* {name}, {version}: `{command}`; {file}.");
        }
        text
    }
}

/// Three significant digits, at most one of them after the point.
fn figure(speed: f64) -> String {
    if speed < 100.0 { format!("{speed:.1}") } else { format!("{speed:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    const SMALL: &str = r#"{"date": "2026-11-23", "machine": "a machine", "caption": "a model, a CPU", "model": "a model", "prompt": 512,
        "method": "medians", "engines": [
        {"name": "Trike", "version": "0.1.0", "file": "a file", "command": "trike bench"},
        {"name": "other", "version": "1", "file": "the same", "command": "llama-bench"}],
        "rows": [{"phase": "decode", "threads": 2, "tokens_per_second": [30.7, 16.0]},
        {"phase": "decode", "threads": 1, "tokens_per_second": [19.9, 10]},
        {"phase": "prompt", "threads": 2, "tokens_per_second": [227, 59.44]}]}"#;

    #[test]
    fn the_table_has_all_rows_and_the_plot_those_with_most_threads() {
        let speeds = EngineSpeeds::parse(SMALL).unwrap();
        expect![[r"
            Tokens per second, medians, 2026-11-23. Machine: a machine. Model: a model.

            |  | threads | Trike | other |
            |---|--:|--:|--:|
            | Generating text | 2 | 30.7 | 16.0 |
            | Generating text | 1 | 19.9 | 10.0 |
            | Reading a prompt of 512 tokens | 2 | 227 | 59.4 |

            * Trike, 0.1.0: `trike bench`; a file.
            * other, 1: `llama-bench`; the same.
        "]]
        .assert_eq(&speeds.table());
        let plot = speeds.plot();
        assert!(plot.contains("<title>Trike: at least 1.9 times as fast as other</title>"), "{plot}");
        assert!(plot.contains(">30.7<") && plot.contains(">227<") && !plot.contains(">19.9<"), "{plot}");
    }

    #[test]
    fn incomplete_files_are_refused() {
        for (from, to, message) in [
            ("[227, 59.44]", "[227]", "expected a speed for each of 2 engines, got 1"),
            ("[227, 59.44]", "[227, 0]", "must be positive"),
            ("\"prompt\", \"threads\"", "\"decode\", \"threads\"", "no row of Prompt"),
            ("\"method\"", "\"methods\"", "unknown field"),
        ] {
            let changed = SMALL.replacen(from, to, 1);
            assert_ne!(changed, SMALL);
            let error = EngineSpeeds::parse(&changed).unwrap_err().to_string();
            assert!(error.contains(message), "{from}: {error}");
        }
    }
}
