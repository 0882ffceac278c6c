//! A page and its blocks.

use serde::Serialize;

use crate::plot::{Drawn, Plot};
use crate::render::{ReportError, render};
use crate::table::{Row, Table};

/// A page under construction. In its texts, backquotes mark code, unless a method says otherwise.
#[derive(Clone, Debug, Serialize)]
pub struct Page {
    title: String,
    byline: Option<String>,
    blocks: Vec<Block>,
}

/// A name and its value; a fact without a value is left out.
pub type Fact<'a> = (&'a str, Option<String>);

/// A large figure: its name, its value, and an error or unit in small type.
pub type Figure<'a> = (&'a str, String, String);

/// A prompt continued by two models. Backquotes are literal.
#[derive(Clone, Debug, Serialize)]
pub struct PairedSample {
    /// The prompt.
    pub prompt: String,
    /// Length of the common prefix of the continuations, as text.
    pub agreement: String,
    /// Names of the models.
    pub names: [String; 2],
    /// Continuation by the first model.
    pub first: String,
    /// The common prefix with the second model's continuation.
    pub same: String,
    /// The rest of the second continuation, highlighted.
    pub other: String,
}

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Block {
    Section { id: Option<String>, title: String },
    Paragraph { text: String, dim: bool },
    Verdict { text: String, class: String },
    List { items: Vec<String> },
    Code { text: String },
    Facts { facts: Vec<(String, String)> },
    Figures { figures: Vec<(String, String, String)> },
    Samples { samples: Vec<PairedSample> },
    Table { table: Table },
    Fold { summary: String, open: bool, table: Table },
    Plot { plot: Box<Drawn> },
}

impl Page {
    /// An empty page.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), byline: None, blocks: Vec::new() }
    }

    /// Sets the line below the title.
    #[must_use]
    pub fn with_byline(self, text: impl Into<String>) -> Self {
        Self { byline: Some(text.into()), ..self }
    }

    /// The page as self-contained HTML.
    ///
    /// # Errors
    ///
    /// [`ReportError`] for a defect of the templates.
    pub fn render(&self) -> Result<String, ReportError> {
        render(self)
    }

    /// Begins a section; `id` is a link target, or empty. Backquotes in the title are literal.
    pub fn section(&mut self, id: &str, title: &str) {
        let id = Some(id.to_owned()).filter(|id| !id.is_empty());
        self.blocks.push(Block::Section { id, title: title.to_owned() });
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Paragraph { text: text.into(), dim: false });
    }

    /// Adds a paragraph in a dim color.
    pub fn dim(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Paragraph { text: text.into(), dim: true });
    }

    /// Adds the main conclusion. `class` of the style sheet determines its color. Backquotes are literal.
    pub fn verdict(&mut self, class: &str, text: impl Into<String>) {
        self.blocks.push(Block::Verdict { text: text.into(), class: class.to_owned() });
    }

    /// Adds a list.
    pub fn list(&mut self, items: impl IntoIterator<Item = String>) {
        self.blocks.push(Block::List { items: items.into_iter().collect() });
    }

    /// Adds lines of code, verbatim.
    pub fn code(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Code { text: text.into() });
    }

    /// Adds names and values.
    pub fn facts<'a>(&mut self, facts: impl IntoIterator<Item = Fact<'a>>) {
        let facts = facts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        self.blocks.push(Block::Facts { facts });
    }

    /// Adds large figures. Backquotes are literal.
    pub fn figures<'a>(&mut self, figures: impl IntoIterator<Item = Figure<'a>>) {
        let figures =
            figures.into_iter().map(|(name, value, small)| (name.to_owned(), value, small)).collect();
        self.blocks.push(Block::Figures { figures });
    }

    /// Adds continuations of prompts, side by side.
    pub fn samples(&mut self, samples: impl IntoIterator<Item = PairedSample>) {
        self.blocks.push(Block::Samples { samples: samples.into_iter().collect() });
    }

    /// Adds a table whose rows become blocks on a narrow screen. Backquotes are literal. The first header names the rows.
    pub fn table(&mut self, header: &[&str], rows: impl IntoIterator<Item = Row>) {
        self.blocks.push(Block::Table { table: Table::new(header, rows) });
    }

    /// Adds a collapsible table with a summary.
    pub fn folded_table(
        &mut self,
        summary: &str,
        open: bool,
        header: &[&str],
        rows: impl IntoIterator<Item = Row>,
    ) {
        self.blocks.push(Block::Fold { summary: summary.to_owned(), open, table: Table::new(header, rows) });
    }

    /// Adds a plot; nothing if it has no finite point.
    pub fn plot(&mut self, plot: &Plot) {
        self.blocks.extend(plot.draw().map(|plot| Block::Plot { plot: Box::new(plot) }));
    }
}
