//! Plots and tables of measurements that no report repeats: other engines beside Trike, and quantized models beside dense ones.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::book::{Page, with_part};
use crate::engine_speeds::EngineSpeeds;
use crate::quality::QualityRecord;

const ENGINES: &str = "engines.json";
const QUALITY: &str = "quality.json";

/// The plots of the README, and the pages of the book with the tables of the same figures.
///
/// # Errors
///
/// If a data file in the folder of records is missing or invalid, or a page lacks its markers.
pub fn published_pages(records: &Path, book: &Path) -> Result<Vec<Page>> {
    let record = |name: &str| read(&records.join(name));
    let speeds = EngineSpeeds::parse(&record(ENGINES)?).context(ENGINES)?;
    let quality = QualityRecord::parse(&record(QUALITY)?).context(QUALITY)?;
    let page = |path: &str, part: &str, text: &str| -> Result<Page> {
        let page = read(&book.join(path))?;
        Ok((path.to_owned(), with_part(&page, part, text).context(path.to_owned())?))
    };
    Ok(vec![
        ("plots/speed.svg".to_owned(), speeds.plot()),
        ("plots/quality.svg".to_owned(), quality.plot()),
        page("benchmarks.md", "engines", &speeds.table())?,
        page("guide/quantize.md", "quality", &quality.table())?,
    ])
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect_file;

    /// Fixed by `cargo xtask bench-report --render` too.
    #[test]
    fn plots_and_tables_show_the_data_files() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let book = root.join("docs/src");
        for (path, text) in published_pages(&root.join("benches/records"), &book).unwrap() {
            expect_file![book.join(path)].assert_eq(&text);
        }
    }
}
