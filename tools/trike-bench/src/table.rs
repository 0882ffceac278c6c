//! Markdown tables, and formatting of numbers.

use std::fmt;

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// For text.
    Left,
    /// For numbers.
    Right,
}

/// A Markdown table.
///
/// ```
/// use trike_bench::{Align, Table};
///
/// let mut table = Table::new(&[("kernel", Align::Left), ("time", Align::Right)]);
/// table.row(["ternary", "3 us"].map(str::to_owned));
/// assert_eq!(table.to_string(), "| kernel | time |\n|---|--:|\n| ternary | 3 us |\n");
/// ```
#[derive(Clone, Debug)]
pub struct Table(String);

impl Table {
    /// An empty table with these columns.
    #[must_use]
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let mut this = Self(String::new());
        this.row(columns.iter().map(|(title, _)| (*title).to_owned()));
        for (_, align) in columns {
            this.0 += if *align == Align::Left { "|---" } else { "|--:" };
        }
        this.0 += "|\n";
        this
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        for cell in cells {
            self.0 += "| ";
            self.0 += &cell;
            self.0.push(' ');
        }
        self.0 += "|\n";
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `share` as a whole percentage.
#[must_use]
pub fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// Milliseconds from 1 ms, else microseconds.
pub(crate) fn time(seconds: f64) -> String {
    if seconds >= 1e-3 { format!("{:.2} ms", seconds * 1e3) } else { format!("{:.1} us", seconds * 1e6) }
}
