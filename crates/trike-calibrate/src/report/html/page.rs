//! Building blocks of the page.

use std::fmt::Write;

/// Cells with more bytes may wrap.
const LONGEST_LINE: usize = 32;

/// A cell of a table.
pub(super) enum Cell {
    /// Text.
    Text(String),
    /// Text with a bar, whose length is a fraction of the cell's width.
    Bar(String, f64),
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl Cell {
    /// A number with a bar relative to the largest one of its column; empty if there is none.
    pub(super) fn bar(value: Option<f64>, most: f64, text: impl Fn(f64) -> String) -> Self {
        match value {
            None => Self::Text(String::new()),
            Some(v) if v.is_finite() && most > 0.0 => Self::Bar(text(v), (v / most).clamp(0.0, 1.0)),
            Some(v) => Self::Text(text(v)),
        }
    }
}

/// A row of a table.
pub(super) struct Row {
    /// The first cell.
    pub(super) name: String,
    /// The full name, if `name` is short for it.
    pub(super) title: Option<String>,
    /// Whether the row describes the model of the report.
    pub(super) own: bool,
    pub(super) cells: Vec<Cell>,
}

impl Row {
    pub(super) fn new(name: impl Into<String>, cells: impl IntoIterator<Item = Cell>) -> Self {
        Self { name: name.into(), title: None, own: false, cells: cells.into_iter().collect() }
    }

    /// A row of a layer, under the short form of its name.
    pub(super) fn layer(name: &str, cells: impl IntoIterator<Item = Cell>) -> Self {
        let short = name.strip_prefix("model.").unwrap_or(name);
        let short = short.strip_suffix(".weight").unwrap_or(short);
        Self { title: Some(name.to_owned()), ..Self::new(short, cells) }
    }
}

/// An HTML page under construction. Writing to a `String` cannot fail.
#[derive(Default)]
pub(super) struct Page(pub(super) String);

impl Page {
    pub(super) fn raw(&mut self, html: &str) {
        self.0.push_str(html);
    }

    pub(super) fn text(&mut self, text: &str) {
        self.0.push_str(&escape(text));
    }

    pub(super) fn section(&mut self, id: &str, title: &str) {
        let _ = writeln!(self.0, "<h2 id=\"{id}\">{}</h2>", escape(title));
    }

    /// A paragraph, in which text in backquotes is code.
    pub(super) fn paragraph(&mut self, text: &str) {
        self.styled("p", "", text);
    }

    /// A paragraph in a dim color.
    pub(super) fn dim(&mut self, text: &str) {
        self.styled("p", " class=\"dim\"", text);
    }

    pub(super) fn item(&mut self, text: &str) {
        self.styled("li", "", text);
    }

    fn styled(&mut self, tag: &str, attributes: &str, text: &str) {
        let _ = writeln!(self.0, "<{tag}{attributes}>{}</{tag}>", code(&escape(text)));
    }

    /// Names and values; those without a value are left out.
    pub(super) fn facts(&mut self, facts: &[(&str, Option<String>)]) {
        self.raw("<dl class=\"facts\">\n");
        for (name, value) in facts {
            if let Some(value) = value {
                let _ = writeln!(self.0, "<dt>{}</dt><dd>{}</dd>", escape(name), code(&escape(value)));
            }
        }
        self.raw("</dl>\n");
    }

    /// A large figure and its error or unit.
    pub(super) fn figure(&mut self, name: &str, value: &str, small: &str) {
        let (name, value, small) = (escape(name), escape(value), escape(small));
        let _ = writeln!(self.0, "<div><dt>{name}</dt><dd>{value} <small>{small}</small></dd></div>");
    }

    /// A table, of which each row becomes a block on a narrow screen.
    pub(super) fn table(&mut self, header: &[&str], rows: impl IntoIterator<Item = Row>) {
        self.raw("<div class=\"wide\"><table class=\"stack\">\n<thead><tr>");
        for name in header {
            let _ = write!(self.0, "<th scope=\"col\">{}</th>", escape(name));
        }
        self.raw("</tr></thead>\n<tbody>\n");
        for row in rows {
            self.raw(if row.own { "<tr class=\"own\">" } else { "<tr>" });
            let title = row.title.map_or_else(String::new, |t| format!(" title=\"{}\"", escape(&t)));
            let _ = write!(self.0, "<th scope=\"row\"{title}>{}</th>", escape(&row.name));
            for (cell, label) in row.cells.iter().zip(header.iter().skip(1)) {
                let (text, style) = match cell {
                    // Sentences may wrap, numbers may not.
                    Cell::Text(text) if text.len() > LONGEST_LINE => (text, " class=\"text\"".to_owned()),
                    Cell::Text(text) => (text, String::new()),
                    Cell::Bar(text, share) => {
                        (text, format!(" class=\"bar\" style=\"--v:{:.1}%\"", 100.0 * share))
                    }
                };
                let _ = write!(self.0, "<td data-label=\"{}\"{style}>{}</td>", escape(label), escape(text));
            }
            self.raw("</tr>\n");
        }
        self.raw("</tbody></table></div>\n");
    }

    /// A part that is folded away if it is long.
    pub(super) fn details(&mut self, summary: &str, open: bool, content: impl FnOnce(&mut Self)) {
        let open = if open { " open" } else { "" };
        let _ = writeln!(self.0, "<details{open}><summary>{}</summary>", escape(summary));
        content(self);
        self.raw("</details>\n");
    }
}

/// Escapes the characters that HTML reserves, and control characters.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push('\n'),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Marks what is between two backquotes as code; a backquote without a partner stays.
fn code(escaped: &str) -> String {
    let parts: Vec<&str> = escaped.split('`').collect();
    let mut out = String::new();
    for (i, part) in parts.iter().enumerate() {
        match (i % 2 == 1, i + 1 < parts.len()) {
            (true, true) => {
                let _ = write!(out, "<code>{part}</code>");
            }
            (true, false) => {
                let _ = write!(out, "`{part}");
            }
            (false, _) => out.push_str(part),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_name_becomes_markup() {
        let mut page = Page::default();
        page.table(&["a", "b"], [Row::layer("<script>\u{1b}&\"", [Cell::from("\"><b>")])]);
        assert!(page.0.contains("&lt;script&gt;\u{fffd}&amp;&quot;") && !page.0.contains("<script"));
        assert!(!page.0.contains("<b>"));
    }

    #[test]
    fn backquotes_become_code() {
        for (text, html) in [
            ("a `b` c", "a <code>b</code> c"),
            ("a `b", "a `b"),
            ("`a` `b`", "<code>a</code> <code>b</code>"),
        ] {
            assert_eq!(code(text), html);
        }
    }
}
