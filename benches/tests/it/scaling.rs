//! The tables of the book are those of the record.

use std::path::Path;

use trike_bench::with_part;
use trike_benches::scaling::{Report, tables};

#[test]
fn the_chapter_shows_the_record() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the root");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).expect(path);
    let report: Report = serde_json::from_str(&read("benches/scaling.json")).expect("a record");
    let again = Report::of(report.measured.clone()).expect("a report");
    assert_eq!(tables(&again), tables(&report), "the record was evaluated in another way");
    let page = read("docs/src/scaling.md");
    let fresh = with_part(&page, "scaling", &tables(&report)).expect("markers");
    assert!(page == fresh, "fix with: cargo xtask bench-report --ranks --render");
}
