//! The book's chapter matches the last record.

use std::fs;
use std::path::Path;

use trike_bench::{load_all, newest};
use trike_benches::{CHAPTER, chapter};

#[test]
fn the_chapter_is_that_of_the_last_record() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("below the root");
    let (folder, book) = (root.join("benches/records"), root.join("docs/src"));
    let records = load_all(&folder).expect("records");
    let Some((path, record)) = newest(&records, false) else {
        assert!(!book.join(CHAPTER).exists(), "a chapter without a record");
        return;
    };
    let pages = chapter(record, path);
    let charts = fs::read_dir(book.join("figures")).map_or(0, Iterator::count);
    assert_eq!(charts, pages.len() - 1, "fix with: cargo xtask bench-report --render");
    for (name, text) in pages {
        let shown = fs::read_to_string(book.join(&name)).unwrap_or_default();
        assert!(shown == text, "{name} shows another record; fix with: cargo xtask bench-report --render");
    }
}

#[test]
fn records_lie_where_they_belong() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (path, record) in load_all(&root.join("records")).expect("records") {
        assert_eq!(path, record.path(), "move it there");
        assert!(record.complete && !record.quick, "{} is no full run", path.display());
    }
}
