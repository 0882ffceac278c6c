//! Reports as self-contained HTML pages: tables, figures, plots.
//!
//! Start from [`Page`]: sections and their contents in order, then [`Page::render`].
//!
//! ```
//! use trike_report::{Cell, Page, Row};
//!
//! let mut page = Page::new("A model");
//! page.section("layers", "Layers");
//! page.table(&["layer", "bits"], [Row::new("head", [Cell::bar(Some(8.0), 16.0, |bits| format!("{bits}"))])]);
//! let html = page.render()?;
//! assert!(html.contains("<h2 id=\"layers\">Layers</h2>") && html.contains("--v:50.0%"));
//! # Ok::<(), trike_report::ReportError>(())
//! ```
//!
//! The design decision: a report defines the content of a page, and the templates of this crate its appearance. All pages share one
//! style sheet, for narrow and dark screens and for print, and load nothing: no scripts, fonts or images. The cost: content that
//! fits no block needs a new block here.
//!
//! * pages: [`Page`], [`Fact`], [`Figure`], [`PairedSample`], [`ReportError`]
//! * tables: [`Row`], [`Cell`]
//! * plots: [`Plot`], [`Axis`], [`Line`], [`Point`]
//!
//! `trike-calibrate` and `trike-train` write their reports with it. It has no knowledge of models.
#![forbid(unsafe_code)]

mod page;
mod plot;
mod render;
mod table;

pub use page::{Fact, Figure, Page, PairedSample};
pub use plot::{Axis, Line, Plot, Point};
pub use render::ReportError;
pub use table::{Cell, Row};
