//! `trike pull`, `list`, `show` and `rm`.

use comfy_table::{CellAlignment, Table, presets};

use super::{bytes, facts, or_dash, plain};
use crate::{
    commands::{KnownOutcome, ListOutcome, LocalModel, RmOutcome, ShowOutcome},
    output::Show,
};

impl Show for LocalModel {
    fn text(&self) -> String {
        format!("{}: {} in {}\n", self.name, bytes(self.bytes), self.path)
    }
}

impl Show for ListOutcome {
    fn text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(["name", "size", "changed"]);
        right(&mut table, 1);
        for model in &self.models {
            table.add_row([model.name.clone(), bytes(model.bytes), or_dash(model.modified.map(date))]);
        }
        plain(table)
    }
}

impl Show for KnownOutcome {
    fn text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(["name", "format", "download", "licence"]);
        right(&mut table, 2);
        for model in self.models {
            let row = [model.name, model.format, &bytes(model.bytes), model.license];
            table.add_row(row);
        }
        plain(table) + "\n`trike chat NAME` downloads a model and starts it.\n"
    }
}

impl Show for RmOutcome {
    fn text(&self) -> String {
        let line =
            |model: &crate::commands::Removed| format!("removed {}: {}\n", model.name, bytes(model.bytes));
        self.removed.iter().map(line).collect()
    }
}

impl Show for ShowOutcome {
    fn text(&self) -> String {
        let types: Vec<String> = self.types.iter().map(|(name, n)| format!("{name} {}", bytes(*n))).collect();
        let sampling = serde_json::to_value(self.sampling).unwrap_or_default();
        let sampling: Vec<String> = sampling
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        facts([
            ("path", self.path.clone()),
            ("format", self.format.to_owned()),
            (
                "architecture",
                format!("{}, {} layers of width {}", self.architecture, self.layers, self.hidden),
            ),
            ("parameters", count(self.parameters)),
            ("weights", format!("{}: {}", if self.ternary { "ternary" } else { "dense" }, types.join(", "))),
            ("size", bytes(self.bytes)),
            ("context", format!("{} tokens", self.context)),
            ("tokenizer", self.tokens.map_or("none".to_owned(), |tokens| format!("{tokens} tokens"))),
            ("chat", if self.chat { "yes" } else { "no chat template: use `trike run`" }.to_owned()),
            ("sampling", if sampling.is_empty() { "-".to_owned() } else { sampling.join(", ") }),
        ])
    }
}

fn right(table: &mut Table, column: usize) {
    if let Some(column) = table.column_mut(column) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// A number of parameters.
fn count(n: u64) -> String {
    match n {
        0..1_000_000 => n.to_string(),
        1_000_000..1_000_000_000 => format!("{:.1} million", n as f64 / 1e6),
        _ => format!("{:.1} billion", n as f64 / 1e9),
    }
}

/// The day of a time in seconds since 1970, in UTC.
fn date(seconds: u64) -> String {
    // Days since 0000-03-01 in the Gregorian calendar, whose eras of 400 years have 146,097 days.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    format!("{:04}-{month:02}-{day:02}", 400 * era + year)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (seconds, day) in [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_795_392_000, "2026-11-23"),
            (4_107_542_399, "2100-02-28"),
            (4_107_542_400, "2100-03-01"),
        ] {
            assert_eq!(date(seconds), day);
        }
    }
}
