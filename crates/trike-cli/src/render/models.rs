//! `trike pull`, `list`, `show` and `rm`.

use comfy_table::{CellAlignment, Table, presets};

use super::{facts, or_dash, plain};
use crate::{
    commands::{KnownOutcome, ListOutcome, LocalModel, RmOutcome, ShowOutcome},
    invocation,
    output::{Show, bytes},
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
            table.add_row([
                model.name.clone(),
                bytes(model.bytes),
                or_dash(model.modified.map(invocation::day)),
            ]);
        }
        plain(table)
    }
}

impl Show for KnownOutcome {
    fn text(&self) -> String {
        let mut table = Table::new();
        let header = ["name", "parameters", "download", "memory", "tok/s", "chat", "licence"];
        table.load_style(presets::NOTHING).set_header(header);
        (1..5).for_each(|column| right(&mut table, column));
        for model in &self.models {
            table.add_row([
                model.name.to_owned(),
                format!("{:.1}B", model.parameters as f64 / 1e9),
                gigabytes(model.bytes),
                gigabytes(model.memory),
                or_dash(model.tokens_per_second.map(|rate| format!("{rate:.0}"))),
                if model.chat { "yes" } else { "no" }.to_owned(),
                model.license.to_owned(),
            ]);
        }
        let mut text = plain(table) + "\nmemory: with a KV cache of 4,096 tokens";
        if let Some(bandwidth) = self.bandwidth {
            text += &format!(
                "; tok/s: at most, from the memory bandwidth of this machine, {:.1} GB/s",
                bandwidth / 1e9
            );
        }
        text += &match (self.recommended, self.free) {
            (Some(name), _) => format!("\nrecommended here: {name}\n"),
            (None, Some(free)) => format!("\nrecommended here: none, {} of memory are free\n", bytes(free)),
            (None, None) => "\n".to_owned(),
        };
        text + "`trike chat NAME` downloads a model and starts it.\n"
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
        // Through text, to print the digits of the f32 instead of those of its f64 value.
        let sampling = serde_json::to_string(&self.sampling).unwrap_or_default();
        let sampling: serde_json::Value = serde_json::from_str(&sampling).unwrap_or_default();
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

/// A size in gigabytes.
fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
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
