//! Rendering of a page to HTML through templates.

use std::fmt::Write;

use minijinja::{AutoEscape, Environment, Value, syntax::SyntaxConfig, value::Serde};
use serde::Serialize;

/// Templates by name. The style sheet is a template so that it can be included.
const TEMPLATES: [(&str, &str); 4] = [
    ("page.html", include_str!("../templates/page.html")),
    ("table.html", include_str!("../templates/table.html")),
    ("plot.svg", include_str!("../templates/plot.svg")),
    ("style.css", include_str!("../templates/style.css")),
];

/// An error in a template.
#[derive(Debug, thiserror::Error)]
#[error("the page of the report cannot be made: {0}")]
pub struct ReportError(#[from] minijinja::Error);

/// Renders a page, whose fields are the variables of the template.
pub(crate) fn render(page: &impl Serialize) -> Result<String, ReportError> {
    let mut environment = Environment::new();
    let syntax =
        SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true).build()?;
    environment.set_syntax(syntax);
    // Everything is escaped, in SVG as well, by the function below: minijinja's own keeps control characters.
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_formatter(|out, _, value| {
        match value.as_str() {
            Some(text) if value.is_safe() => out.write_str(text)?,
            Some(text) => out.write_str(&escape(text))?,
            None => write!(out, "{value}")?,
        }
        Ok(())
    });
    environment.add_filter("code", marked);
    for (name, source) in TEMPLATES {
        environment.add_template(name, source)?;
    }
    Ok(environment.get_template("page.html")?.render(Serde(page))?)
}

/// Escapes the characters that HTML reserves, and control characters.
fn escape(text: &str) -> String {
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

/// The template filter for texts in which backquotes mark code.
fn marked(text: &str) -> Value {
    Value::from_safe_string(code(&escape(text)))
}

/// Marks text between two backquotes as code; an unpaired backquote is literal.
fn code(escaped: &str) -> String {
    let parts: Vec<&str> = escaped.split('`').collect();
    let mut out = String::new();
    for (i, part) in parts.iter().enumerate() {
        match (i % 2 == 1, i + 1 < parts.len()) {
            (true, true) => {
                // Writing to a `String` cannot fail.
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
    use crate::{Axis, Cell, Line, Page, PairedSample, Plot, Point, Row};

    #[test]
    fn nothing_in_a_name_becomes_markup() {
        let bad = "<script>\u{1b}&\"";
        let mut page = Page::new(bad).with_byline(bad);
        page.section("id", bad);
        page.paragraph(bad);
        page.dim(bad);
        page.verdict("close", bad);
        page.list([bad.to_owned()]);
        page.code(bad);
        page.facts([(bad, Some(bad.to_owned())), ("absent", None)]);
        page.figures([(bad, bad.to_owned(), bad.to_owned())]);
        let text = || bad.to_owned();
        page.samples([PairedSample {
            prompt: text(),
            agreement: text(),
            names: [text(), text()],
            first: text(),
            same: text(),
            other: text(),
        }]);
        let row = || Row::new(bad, [Cell::from(bad), Cell::bar(Some(1.0), 2.0, |_| bad.to_owned())]);
        page.table(&[bad, bad, bad], [row().with_title(bad).with_own(true)]);
        page.folded_table(bad, true, &[bad, bad, bad], [row()]);
        page.plot(&Plot {
            id: text(),
            label: text(),
            caption: text(),
            size: (100.0, 50.0),
            x: Axis { to: 1.0, ticks: vec![(0.5, text())], name: text(), ..Axis::default() },
            y: Axis { to: 1.0, ticks: vec![(0.5, text())], ..Axis::default() },
            points: vec![Point { name: text(), title: text(), ..Point::default() }],
            ..Plot::default()
        });
        let html = page.render().unwrap();
        assert!(!html.contains("<script") && !html.contains('\u{1b}') && !html.contains("absent"), "{html}");
        assert_eq!(html.matches("&lt;script&gt;\u{fffd}&amp;&quot;").count(), 47, "{html}");
        assert!(html.contains("style=\"--v:50.0%\"") && html.contains("<tr class=\"own\">"), "{html}");
        assert!(html.contains("prefers-color-scheme:dark") && !html.contains("{{"), "{html}");
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
        let mut page = Page::new("`a`");
        page.paragraph("`<b>`");
        let html = page.render().unwrap();
        assert!(html.contains("<h1>`a`</h1>") && html.contains("<p><code>&lt;b&gt;</code></p>"), "{html}");
    }

    #[test]
    fn points_are_within_the_plot_or_left_out() {
        let plot = Plot {
            size: (440.0, 250.0),
            margins: (52.0, 64.0, 22.0, 40.0),
            x: Axis { to: 5.0, ..Axis::default() },
            y: Axis { from: -6.0, to: 1.0, ..Axis::default() },
            lines: vec![Line { points: vec![(0.0, -6.0), (1.0, f64::NAN), (5.0, 1.0)], dashed: true }],
            points: [-6.0, 0.5, f64::INFINITY].map(|y| Point { at: (5.0, y), ..Point::default() }).into(),
            ..Plot::default()
        };
        let mut page = Page::new("");
        page.plot(&plot);
        let html = page.render().unwrap();
        assert!(html.contains("<polyline class=\"dashed\" points=\"52.0,210.0 376.0,22.0\"/>"), "{html}");
        assert_eq!(html.matches("<circle").count(), 2);
        assert!(html.contains("<circle cx=\"376.0\" cy=\"210.0\" r=\"4\"/>"), "{html}");
        // Without a finite point there is no plot.
        let mut page = Page::new("");
        page.plot(&Plot { lines: Vec::new(), points: vec![Point::default()], ..Plot::default() });
        assert!(!page.render().unwrap().contains("<svg"));
    }
}
