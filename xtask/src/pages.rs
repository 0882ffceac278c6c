//! Generated parts of the handbook, between marker comments.

use crate::house::{HOUSE, Row};
use crate::workspace::Workspace;
use anyhow::{Context, Result};
use std::fmt::Write as _;

const ARCHITECTURE: &str = "docs/src/architecture.md";
const CONTRIBUTING: &str = "docs/src/contributing.md";
const REMEDY: &str = "cargo xtask layering --update";

/// A generated part of a page.
struct Part {
    page: &'static str,
    /// Name in the markers.
    name: &'static str,
    text: fn(&[Row]) -> String,
}

const PARTS: &[Part] = &[
    Part { page: ARCHITECTURE, name: "packages", text: packages },
    Part { page: CONTRIBUTING, name: "unsafe", text: places_of_unsafe },
    Part { page: CONTRIBUTING, name: "release order", text: release_order },
];

/// Pages that differ from the package table.
pub(crate) fn findings(ws: &Workspace) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for part in PARTS {
        let page = ws.sh.read_file(part.page)?;
        if with_part(&page, part.name, &(part.text)(HOUSE)).context(part.page)? != page {
            findings.push(format!(
                "{}: `{}` differs from xtask/src/house.rs; rewrite it with: {REMEDY}",
                part.page, part.name
            ));
        }
    }
    Ok(findings)
}

/// Rewrites the pages that differ.
pub(crate) fn update(ws: &Workspace) -> Result<()> {
    for part in PARTS {
        let page = ws.sh.read_file(part.page)?;
        let updated = with_part(&page, part.name, &(part.text)(HOUSE)).context(part.page)?;
        if updated != page {
            ws.sh.write_file(part.page, updated)?;
            println!("rewrote `{}` in {}", part.name, part.page);
        }
    }
    Ok(())
}

/// Replaces the text between the markers of `name`.
fn with_part(page: &str, name: &str, text: &str) -> Result<String> {
    let open = format!("<!-- generated: {name} ({REMEDY}) -->\n");
    let close = format!("<!-- end of {name} -->\n");
    let start = page.find(&open).with_context(|| format!("the marker `{}` is missing", open.trim()))?;
    let start = start + open.len();
    let len = page[start..].find(&close).with_context(|| format!("`{}` is missing", close.trim()))?;
    Ok(format!("{}\n{text}\n{}", &page[..start], &page[start + len..]))
}

/// The table of packages: purpose, dependencies, and places of `unsafe`.
fn packages(house: &[Row]) -> String {
    let mut out = "| layer | package | purpose | workspace packages | registry packages | `unsafe` |\n\
                   |---|---|---|---|---|---|\n"
        .to_owned();
    for row in house {
        let layer = if row.is_dev() { "dev".to_owned() } else { row.layer.to_string() };
        let (uses, registry) = (list(row.uses), list(row.registry));
        let reasons = distinct(row.unsafe_in.iter().map(|(_, reason)| *reason));
        let reasons = if reasons.is_empty() { "no".to_owned() } else { reasons.join(", ") };
        let _ =
            writeln!(out, "| {layer} | `{}` | {} | {uses} | {registry} | {reasons} |", row.name, row.purpose);
    }
    out
}

/// Names without the common prefix; optional ones last.
fn list(names: &'static str) -> String {
    let short = |name: &'static str| name.strip_prefix("trike-").unwrap_or(name);
    let of = |optional| {
        let names = Row::names(names).filter(|(_, o)| *o == optional);
        names.map(|(name, _)| short(name)).collect::<Vec<_>>().join(", ")
    };
    match (of(false), of(true)) {
        (always, features) if features.is_empty() => always,
        (always, features) if always.is_empty() => format!("{features} (features)"),
        (always, features) => format!("{always}; {features} (features)"),
    }
}

fn distinct<'a>(items: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

/// Files and folders with `unsafe`, one line per package.
fn places_of_unsafe(house: &[Row]) -> String {
    let mut out = String::new();
    for row in house.iter().filter(|row| !row.unsafe_in.is_empty()) {
        let reasons = distinct(row.unsafe_in.iter().map(|(_, reason)| *reason)).into_iter().map(|reason| {
            let places = row.unsafe_in.iter().filter(|(_, r)| *r == reason);
            let places: Vec<_> = places.map(|(place, _)| format!("`{place}`")).collect();
            format!("{reason} ({})", places.join(", "))
        });
        let _ = writeln!(out, "* `{}`: {}", row.name, reasons.collect::<Vec<_>>().join("; "));
    }
    out
}

/// Published packages, one line per layer.
fn release_order(house: &[Row]) -> String {
    let mut out = String::new();
    let published: Vec<_> = house.iter().filter(|row| !row.is_dev()).collect();
    for (at, layer) in published.chunk_by(|a, b| a.layer == b.layer).enumerate() {
        let names: Vec<_> = layer.iter().map(|row| format!("`{}`", row.name)).collect();
        let _ = writeln!(out, "{}. {}", at + 1, names.join(", "));
    }
    let dev: Vec<_> = house.iter().filter(|row| row.is_dev()).map(|row| format!("`{}`", row.name)).collect();
    let _ = writeln!(out, "\nNever published: {}.", dev.join(", "));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::house::DEV;

    const SMALL: &[Row] = &[
        Row {
            layer: 0,
            name: "trike-ground",
            purpose: "trits",
            uses: "",
            registry: "half",
            unsafe_in: &[("src/a.rs", "SIMD"), ("src/b", "SIMD"), ("src/c.rs", "mmap")],
        },
        Row {
            layer: 1,
            name: "trike-files",
            purpose: "files",
            uses: "trike-ground",
            registry: "",
            unsafe_in: &[],
        },
        Row {
            layer: 1,
            name: "trike-models",
            purpose: "models",
            uses: "trike-ground trike-cube?",
            registry: "rand?",
            unsafe_in: &[],
        },
        Row { layer: DEV, name: "xtask", purpose: "checks", uses: "", registry: "", unsafe_in: &[] },
    ];

    #[test]
    fn parts_say_what_the_rows_say() {
        assert_eq!(
            packages(SMALL).lines().skip(2).collect::<Vec<_>>(),
            [
                "| 0 | `trike-ground` | trits |  | half | SIMD, mmap |",
                "| 1 | `trike-files` | files | ground |  | no |",
                "| 1 | `trike-models` | models | ground; cube (features) | rand (features) | no |",
                "| dev | `xtask` | checks |  |  | no |",
            ]
        );
        let places = "* `trike-ground`: SIMD (`src/a.rs`, `src/b`); mmap (`src/c.rs`)\n";
        assert_eq!(places_of_unsafe(SMALL), places);
        let order = "1. `trike-ground`\n2. `trike-files`, `trike-models`\n\nNever published: `xtask`.\n";
        assert_eq!(release_order(SMALL), order);
    }

    #[test]
    fn only_the_text_between_the_markers_changes() {
        let page =
            |inner: &str| format!("# A\n<!-- generated: x ({REMEDY}) -->\n{inner}<!-- end of x -->\nrest\n");
        let written = page("\nnew\n\n");
        assert_eq!(with_part(&page(""), "x", "new\n").unwrap(), written);
        assert_eq!(with_part(&page("old\n"), "x", "new\n").unwrap(), written);
        assert_eq!(with_part(&written, "x", "new\n").unwrap(), written);
        for (page, message) in [("# A\n", "generated: x"), (&page("").replace("end of x", ""), "end of x")] {
            let error = with_part(page, "x", "").unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
