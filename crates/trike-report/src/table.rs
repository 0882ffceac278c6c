//! Tables.

use serde::Serialize;

/// Maximum bytes of a cell that does not wrap.
const LONGEST_LINE: usize = 32;

/// A cell of a table.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    text: String,
    /// Length of its bar, in percent of the cell's width.
    bar: Option<String>,
    /// Sentences may wrap, numbers may not.
    wraps: bool,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { wraps: text.len() > LONGEST_LINE, text, bar: None }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl Cell {
    /// A number with a bar relative to the column's maximum; empty for `None`.
    #[must_use]
    pub fn bar(value: Option<f64>, most: f64, text: impl Fn(f64) -> String) -> Self {
        let Some(value) = value else { return Self::from("") };
        let bar = (value.is_finite() && most > 0.0)
            .then(|| format!("{:.1}", 100.0 * (value / most).clamp(0.0, 1.0)));
        Self { text: text(value), bar, wraps: false }
    }
}

/// A row of a table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    name: String,
    title: Option<String>,
    own: bool,
    cells: Vec<Cell>,
}

impl Row {
    /// A row; the first cell is its name.
    #[must_use]
    pub fn new(name: impl Into<String>, cells: impl IntoIterator<Item = Cell>) -> Self {
        Self { name: name.into(), title: None, own: false, cells: cells.into_iter().collect() }
    }

    /// Adds the full name as a tooltip, if the name is abbreviated.
    #[must_use]
    pub fn with_title(self, title: impl Into<String>) -> Self {
        Self { title: Some(title.into()), ..self }
    }

    /// Sets whether the row is highlighted as the subject of the report.
    #[must_use]
    pub fn with_own(self, own: bool) -> Self {
        Self { own, ..self }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Table {
    header: Vec<String>,
    rows: Vec<Row>,
}

impl Table {
    pub(crate) fn new(header: &[&str], rows: impl IntoIterator<Item = Row>) -> Self {
        Self {
            header: header.iter().map(|&name| name.to_owned()).collect(),
            rows: rows.into_iter().collect(),
        }
    }
}
