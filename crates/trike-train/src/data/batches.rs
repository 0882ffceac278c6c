//! Batches of packed documents.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use trike_core::{Bounds, OptionError};

use super::{Documents, Encoder, Tokens, permutation};
use crate::TrainError;

/// Sizes of batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchConfig {
    /// Rows per batch, at least 1.
    pub rows: usize,
    /// Tokens per row, at least 1.
    pub length: usize,
    /// Whether documents are packed: rows are filled with consecutive documents, each of which attends only to itself and may be
    /// cut at the end of a row. Otherwise a row is the beginning of one document.
    pub packed: bool,
    /// Seed of the document order.
    pub seed: u64,
}

impl Default for BatchConfig {
    /// One packed row of 512 tokens.
    fn default() -> Self {
        Self { rows: 1, length: 512, packed: true, seed: 0 }
    }
}

/// Minimum number of tokens that are computed together, for rows shorter than this: enough for efficient matrix products.
pub(crate) const UNIT: usize = 512;

/// Number of rows of `length` tokens that are computed together.
pub(crate) fn unit_rows(length: usize) -> usize {
    UNIT.div_ceil(length.max(1)).max(1)
}

/// Start of a batch in the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Completed passes over all documents.
    pub epoch: u64,
    /// Completed documents of the current pass.
    pub document: usize,
    /// Tokens of the next document that were already inputs.
    pub offset: usize,
}

/// Tokens of some rows, without padding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Tokens of all rows.
    pub ids: Vec<u32>,
    /// The next token of each, if it counts in the loss.
    pub targets: Vec<Option<u32>>,
    /// Ranges of documents: tokens attend causally within their range, and positions start from zero in each.
    pub segments: Vec<Range<usize>>,
}

impl Batch {
    /// Number of targets, by which the loss is divided.
    #[must_use]
    pub fn learned(&self) -> usize {
        self.targets.iter().flatten().count()
    }

    /// Adds the rows of another batch.
    fn append(&mut self, other: Self) {
        let before = self.ids.len();
        self.ids.extend(other.ids);
        self.targets.extend(other.targets);
        self.segments.extend(other.segments.into_iter().map(|s| s.start + before..s.end + before));
    }

    /// Adds up to `most` tokens of a document, starting at `offset`; returns how many.
    fn push(&mut self, tokens: &Tokens, offset: usize, most: usize) -> usize {
        let inputs = tokens.ids.len().saturating_sub(1);
        let end = inputs.min(offset.saturating_add(most));
        let from = self.ids.len();
        for i in offset..end {
            self.ids.push(tokens.ids[i]);
            self.targets.push(tokens.learned[i + 1].then(|| tokens.ids[i + 1]));
        }
        let count = self.ids.len() - from;
        if count > 0 {
            self.segments.push(from..from + count);
        }
        count
    }
}

/// An endless sequence of batches: every pass over the documents has a different order.
#[derive(Debug)]
pub struct Batches<'a> {
    documents: &'a Documents,
    /// The documents that are used, by index.
    used: &'a [u32],
    encoder: Encoder<'a>,
    config: BatchConfig,
    position: Position,
    /// Order of the current pass.
    order: Vec<u32>,
    /// The next document, once it is encoded.
    next: Option<Document>,
    /// Number of consecutive documents without a target.
    barren: usize,
    cut: Cut,
}

/// A document that is being read.
#[derive(Debug)]
struct Document {
    tokens: Tokens,
    /// Whether any of its targets fits in a row.
    is_learned: bool,
}

/// Truncation statistics of unpacked rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Documents read, counted once per pass.
    pub documents: u64,
    /// Documents that were skipped because all of their targets were truncated.
    pub lost_documents: u64,
    /// Target tokens of all documents read.
    pub tokens: u64,
    /// Target tokens that were truncated.
    pub lost_tokens: u64,
}

impl Cut {
    /// A note for the user, for rows of `length` tokens; `None` if nothing was truncated.
    pub(crate) fn note(&self, length: usize) -> Option<String> {
        let percent = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
        (self.lost_tokens > 0).then(|| {
            format!(
                "rows of {length} tokens truncated {:.1} % of the tokens to predict and skipped {:.1} % of the documents, \
                 whose answers begin after the end of the row: use longer or packed rows",
                percent(self.lost_tokens, self.tokens),
                percent(self.lost_documents, self.documents),
            )
        })
    }
}

impl<'a> Batches<'a> {
    /// Batches of the documents `used`, starting at `position`.
    ///
    /// # Errors
    ///
    /// [`TrainError::TooFewDocuments`] for none, [`TrainError::Option`] for sizes of zero and for a position outside the data.
    pub fn new(
        documents: &'a Documents,
        used: &'a [u32],
        encoder: Encoder<'a>,
        config: BatchConfig,
        position: Position,
    ) -> Result<Self, TrainError> {
        if used.is_empty() {
            return Err(TrainError::TooFewDocuments { documents: 0, needed: 1 });
        }
        OptionError::check("rows of a batch", Bounds::at_least(1usize), config.rows)?;
        OptionError::check("tokens of a row", Bounds::at_least(1usize), config.length)?;
        let documents_before = Bounds::at_least(0usize).at_most(used.len() - 1);
        OptionError::check("documents before the position", documents_before, position.document)?;
        let order = permutation(used.len(), config.seed, position.epoch);
        let cut = Cut::default();
        Ok(Self { documents, used, encoder, config, position, order, next: None, barren: 0, cut })
    }

    /// Truncation statistics so far.
    #[must_use]
    pub fn cut(&self) -> Cut {
        self.cut
    }

    /// Start of the next batch.
    #[must_use]
    pub fn position(&self) -> Position {
        self.position
    }

    /// The next batch.
    ///
    /// # Errors
    ///
    /// [`TrainError::NothingToLearn`] when a whole pass has no targets, [`TrainError::CutAway`] when all targets are truncated, and
    /// errors of [`Documents::read`] and of the encoder.
    pub fn next_batch(&mut self) -> Result<Batch, TrainError> {
        let mut batch = Batch::default();
        for _ in 0..self.config.rows {
            batch.append(self.next_row()?);
        }
        Ok(batch)
    }

    /// The rows of the next `batches` batches in units: as many consecutive rows as have [`UNIT`] tokens when they are full, at
    /// least one. The units do not depend on how the rows are divided into batches.
    pub(crate) fn next_units(&mut self, batches: usize) -> Result<Vec<Batch>, TrainError> {
        let mut left = self.config.rows.saturating_mul(batches);
        let rows = unit_rows(self.config.length);
        let mut units = Vec::new();
        while left > 0 {
            let mut unit = Batch::default();
            for _ in 0..rows.min(left) {
                unit.append(self.next_row()?);
            }
            left -= rows.min(left);
            units.push(unit);
        }
        Ok(units)
    }

    fn next_row(&mut self) -> Result<Batch, TrainError> {
        let BatchConfig { length, packed, .. } = self.config;
        let mut row = Batch::default();
        let mut left = length;
        while left > 0 {
            let offset = self.position.offset;
            let Document { tokens, is_learned } = self.document()?;
            let inputs = tokens.ids.len().saturating_sub(1);
            if !*is_learned {
                self.advance()?;
                continue;
            }
            let taken = row.push(tokens, offset, left);
            left -= taken;
            if !packed || offset + taken >= inputs {
                self.advance()?;
            } else {
                self.position.offset += taken;
            }
            if !packed {
                break;
            }
        }
        Ok(row)
    }

    /// The document at the position.
    fn document(&mut self) -> Result<&Document, TrainError> {
        if self.next.is_none() {
            let index = self.used[self.order[self.position.document] as usize] as usize;
            let record = self.documents.read(index)?;
            let tokens = self.encoder.encode(&record).map_err(|e| self.documents.not_encoded(index, &e))?;
            let all = tokens.count();
            // Each input token of a row predicts the next one.
            let kept = if self.config.packed { all } else { tokens.count_to(self.config.length) };
            self.barren = if kept == 0 { self.barren + 1 } else { 0 };
            self.cut.documents += 1;
            self.cut.lost_documents += u64::from(kept == 0 && all > 0);
            self.cut.tokens += all as u64;
            self.cut.lost_tokens += (all - kept) as u64;
            self.next = Some(Document { tokens, is_learned: kept > 0 });
        }
        self.next.as_ref().ok_or(TrainError::NothingToLearn { documents: 0 })
    }

    /// Advances to the next document.
    fn advance(&mut self) -> Result<(), TrainError> {
        // Two passes without the one document that may be first in one pass and last in the next.
        if self.barren >= 2 * self.used.len() - 1 {
            let (documents, length) = (self.used.len(), self.config.length);
            return Err(match self.cut.lost_documents {
                0 => TrainError::NothingToLearn { documents },
                _ => TrainError::CutAway { documents, length },
            });
        }
        self.next = None;
        self.position.offset = 0;
        self.position.document += 1;
        if self.position.document == self.used.len() {
            self.position = Position { epoch: self.position.epoch + 1, ..Position::default() };
            self.order = permutation(self.used.len(), self.config.seed, self.position.epoch);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use trike_text::chat::ChatTemplate;
    use trike_text::tokenizer::Tokenizer;

    use super::*;

    fn tokenizer() -> Tokenizer {
        let json =
            trike_models::TINY.iter().find(|(name, _)| *name == "tokenizer.json").expect("a tokenizer").1;
        let tokenizer = Tokenizer::from_hf_json_bytes(json).expect("a tokenizer");
        let last = tokenizer.vocab_size() as u32 - 1;
        tokenizer.with_special(Some(last - 1), vec![last]).expect("ids of the vocabulary")
    }

    fn documents(lines: &[String]) -> (tempfile::TempDir, Documents) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.jsonl");
        std::fs::write(&path, lines.join("\n")).expect("it is written");
        let documents = Documents::open(&[path]).expect("documents");
        (dir, documents)
    }

    fn stories(count: usize) -> Vec<String> {
        let story = |i: usize| format!("{{\"text\": \"{} {i}\"}}", "once upon a time ".repeat(1 + i * 7 % 5));
        (0..count).map(story).collect()
    }

    fn config(rows: usize, length: usize, packed: bool) -> BatchConfig {
        BatchConfig { rows, length, packed, seed: 9 }
    }

    #[test]
    fn packed_rows_are_full_and_have_every_token_of_a_pass_once() {
        let tokenizer = tokenizer();
        let (_dir, documents) = documents(&stories(23));
        let used: Vec<u32> = (0..23).collect();
        let encoder = Encoder::new(&tokenizer, None);
        let mut want: Vec<(u32, u32)> = Vec::new();
        for i in 0..23 {
            let ids = encoder.encode(&documents.read(i).expect("a text")).expect("tokens").ids;
            want.extend(ids.windows(2).map(|two| (two[0], two[1])));
        }
        for (rows, length) in [(1, 1), (3, 16), (2, 100)] {
            let config = config(rows, length, true);
            let mut batches =
                Batches::new(&documents, &used, encoder, config, Position::default()).expect("batches");
            let mut got = Vec::new();
            while got.len() < want.len() {
                let batch = batches.next_batch().expect("a batch");
                assert_eq!((batch.ids.len(), batch.learned()), (rows * length, rows * length));
                assert_eq!(batch.segments.iter().map(ExactSizeIterator::len).sum::<usize>(), rows * length);
                assert!(batch.segments.iter().all(|s| s.end.div_ceil(length) == s.start / length + 1));
                got.extend(batch.ids.iter().copied().zip(batch.targets.into_iter().flatten()));
            }
            got.truncate(want.len());
            let sorted = |mut pairs: Vec<(u32, u32)>| {
                pairs.sort_unstable();
                pairs
            };
            assert_eq!(sorted(got), sorted(want.clone()));
        }
    }

    #[test]
    fn batches_continue_where_they_stopped() {
        let tokenizer = tokenizer();
        let (_dir, documents) = documents(&stories(7));
        let used = [0, 2, 3, 5, 6];
        let encoder = Encoder::new(&tokenizer, None);
        for packed in [true, false] {
            let batches = |from| {
                Batches::new(&documents, &used, encoder, config(2, 12, packed), from).expect("batches")
            };
            let mut all = batches(Position::default());
            for _ in 0..12 {
                let from = all.position();
                let want = all.next_batch().expect("a batch");
                assert_eq!(batches(from).next_batch().expect("a batch"), want);
            }
            assert!(all.position().epoch > 0);
        }
        let outside = Position { document: 5, ..Position::default() };
        assert!(Batches::new(&documents, &used, encoder, config(1, 1, true), outside).is_err());
        assert!(Batches::new(&documents, &[], encoder, config(1, 1, true), Position::default()).is_err());
        assert!(Batches::new(&documents, &used, encoder, config(0, 1, true), Position::default()).is_err());
    }

    #[test]
    fn answers_are_learned() {
        let tokenizer = tokenizer();
        let source = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}\
                      {% if add_generation_prompt %}[assistant] {% endif %}";
        let template = ChatTemplate::from_source(source).expect("a template");
        let line = r#"{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "The cat."},
            {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "It was hungry."}]}"#;
        let record = super::super::DataRecord::from_json(line).expect("a chat");
        let encoder = Encoder::new(&tokenizer, Some(&template));
        let tokens = encoder.encode(&record).expect("tokens");
        let of = |learned: bool| {
            let ids: Vec<u32> = tokens
                .ids
                .iter()
                .zip(&tokens.learned)
                .filter(|&(_, &l)| l == learned)
                .map(|(&id, _)| id)
                .collect();
            tokenizer.decode(&ids).expect("text")
        };
        let (learned, other) = (of(true), of(false));
        assert!(learned.contains("The cat.") && learned.contains("It was hungry."), "{learned}");
        assert!(!learned.contains("Wh") && other.contains("Who?") && other.contains("Why?"), "{other}");
        let without = Encoder::new(&tokenizer, None);
        assert!(matches!(without.encode(&record), Err(super::super::EncodeError::NoTemplate)));
        let asked = r#"{"instruction": "Say hi.", "output": "Hi!"}"#;
        let asked = super::super::DataRecord::from_json(asked).expect("an instruction");
        for encoder in [encoder, without] {
            let tokens = encoder.encode(&asked).expect("tokens");
            assert!(tokens.count() > 0 && tokens.count() < 12, "{tokens:?}");
        }
    }

    /// Unpacked rows: a document whose answer begins after the end of the row is skipped and counted.
    #[test]
    fn answers_after_the_end_of_a_row_are_skipped() {
        let tokenizer = tokenizer();
        let encoder = Encoder::new(&tokenizer, None);
        let asked = |words: usize| {
            format!("{{\"instruction\": \"{}\", \"output\": \"Yes, it is.\"}}", "why ".repeat(words))
        };
        let tokens = |line: &String| {
            let record = super::super::DataRecord::from_json(line).expect("a record");
            encoder.encode(&record).expect("tokens")
        };
        let (short, long) = (asked(1), asked(200));
        let length = tokens(&short).ids.len();
        let used: Vec<u32> = (0..3).collect();
        let (_dir, none) = documents(&[long.clone(), long.clone(), long.clone()]);
        let batches = |documents, length, packed| {
            Batches::new(documents, &used, encoder, config(1, length, packed), Position::default())
                .expect("batches")
        };
        let refused = batches(&none, length, false).next_batch();
        let Err(TrainError::CutAway { documents: 3, length: of_row }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(of_row, length);
        let mut packed = batches(&none, length, true);
        let learned: usize = (0..40).map(|_| packed.next_batch().expect("a batch").learned()).sum();
        assert!(learned > 0 && packed.cut().note(length).is_none(), "{learned}");
        // Two of three documents are truncated; rows that are one token shorter truncate one token of the third.
        let (_dir, some) = documents(&[long.clone(), short.clone(), long.clone()]);
        let answer = tokens(&short).count() as u64;
        for less in [0, 1] {
            let mut batches = batches(&some, length - 1 - less, false);
            for _ in 0..4 {
                assert_eq!(batches.next_batch().expect("a batch").learned() as u64, answer - less as u64);
            }
            let Cut { documents, lost_documents, tokens: all, lost_tokens } = batches.cut();
            assert!(lost_documents >= 2 * (documents / 3) && lost_documents < documents, "{documents}");
            let kept = (documents - lost_documents) * (answer - less as u64);
            assert_eq!(all - lost_tokens, kept);
            let note = batches.cut().note(length - 1 - less).expect("a note");
            let share = 100.0 * lost_tokens as f64 / all as f64;
            assert!(note.contains(&format!("{share:.1} % of the tokens")), "{note}");
        }
    }

    #[test]
    fn documents_without_anything_to_learn_are_passed_over() {
        let tokenizer = tokenizer();
        let encoder = Encoder::new(&tokenizer, None).with_eos(false);
        let empty = "{\"text\": \"\"}".to_owned();
        let used: Vec<u32> = (0..3).collect();
        let (_dir, some) = documents(&[empty.clone(), stories(1).remove(0), empty.clone()]);
        let mut batches =
            Batches::new(&some, &used, encoder, config(1, 8, true), Position::default()).expect("batches");
        for _ in 0..5 {
            assert_eq!(batches.next_batch().expect("a batch").learned(), 8);
        }
        let (_dir, none) = documents(&[empty.clone(), empty.clone(), empty]);
        let mut batches =
            Batches::new(&none, &used, encoder, config(1, 8, true), Position::default()).expect("batches");
        assert!(matches!(batches.next_batch(), Err(TrainError::NothingToLearn { documents: 3 })));
    }
}
