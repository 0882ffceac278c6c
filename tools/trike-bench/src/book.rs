//! Generated pages of the book, and generated parts of pages.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// A file of the book: its path under the book's sources, and its text.
pub type Page = (String, String);

/// Writes pages into the book's sources.
///
/// # Errors
///
/// When a file cannot be written.
pub fn write_pages(book: &Path, pages: &[Page]) -> Result<()> {
    for (path, text) in pages {
        let file = book.join(path);
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&file, text).with_context(|| format!("cannot write {path}"))?;
    }
    Ok(())
}

/// The page with the text between `<!-- name: begin -->` and `<!-- name: end -->` replaced by `part`.
///
/// # Errors
///
/// When the page lacks one of the two markers.
pub fn with_part(page: &str, name: &str, part: &str) -> Result<String> {
    let [begin, end] = ["begin", "end"].map(|side| format!("<!-- {name}: {side} -->"));
    let (before, rest) = page.split_once(&begin).with_context(|| format!("no line {begin}"))?;
    let (_, after) = rest.split_once(&end).with_context(|| format!("no line {end}"))?;
    Ok(format!("{before}{begin}\n\n{part}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_replaced_and_the_rest_stays() {
        let page = "# A\n\n<!-- tables: begin -->\nold\n<!-- tables: end -->\n\nB\n";
        let new = with_part(page, "tables", "| new |\n").unwrap();
        assert_eq!(new, "# A\n\n<!-- tables: begin -->\n\n| new |\n\n<!-- tables: end -->\n\nB\n");
        assert_eq!(with_part(&new, "tables", "| new |\n").unwrap(), new);
        assert!(
            with_part(page, "charts", "").unwrap_err().to_string().contains("no line <!-- charts: begin")
        );
    }

    #[test]
    fn pages_are_written_with_their_folders() {
        let book = tempfile::tempdir().unwrap();
        let page = |path: &str| (path.to_owned(), "x".to_owned());
        write_pages(book.path(), &[page("a.md"), page("charts/b.svg")]).unwrap();
        assert_eq!(fs::read_to_string(book.path().join("charts/b.svg")).unwrap(), "x");
    }
}
