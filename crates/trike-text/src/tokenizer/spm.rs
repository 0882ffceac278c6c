//! The SentencePiece BPE algorithm over a scored vocabulary.
//!
//! The `tokenizers` crate ranks *pairs*; SentencePiece scores *results* and breaks ties by position: the
//! leftmost pair wins. No ranking of pairs can express that. With `ab`, `bc` and `ca` of equal score, `abc`
//! must become `ab c`, `bca` `bc a` and `cab` `ca b`; a ranking would require ab < bc < ca < ab. Ties
//! occur: the sixteen pieces of spaces of the Llama 2 vocabulary share one score, and so do all tokens of
//! a vocabulary without scores. The merge step is therefore implemented exactly here, as is
//! the rest of SentencePiece's encoder: frozen user-defined pieces, resegmentation of unused pieces, byte
//! fallback for unknown text.

use std::collections::HashMap;

use super::{
    TokenizerError,
    limits::{check_token, check_tokens},
    merge::{Mergeable, Merger},
    pieces::{Pieces, byte_token},
};

/// The character that represents a space in SentencePiece.
pub(super) const SPACE_SYMBOL: &str = "\u{2581}";
/// The text that SentencePiece decodes the unknown piece to.
const UNKNOWN_SURFACE: &str = " \u{2047} ";

/// Type of a piece of a SentencePiece vocabulary; the numbers are those of the `.model` file and of
/// `tokenizer.ggml.token_type` in GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PieceType {
    /// Text, produced by merging.
    Normal,
    /// The token for text that has no piece.
    Unknown,
    /// Never text: `<s>`, `</s>`.
    Control,
    /// Text that is matched before any merge and never split.
    UserDefined,
    /// Used in merges, but split again in the result.
    Unused,
    /// One byte, written `<0xHH>`.
    Byte,
}

impl PieceType {
    /// The type with a number of the file format, 1 to 6.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }

    /// The number of the type in the file format.
    #[must_use]
    pub fn number(self) -> u32 {
        self as u32 + 1
    }
}

/// A SentencePiece BPE vocabulary, from any file format.
///
/// `tokens`, `scores` and `types` have one entry per id. Spaces in tokens are written as U+2581, as in
/// SentencePiece and GGUF files.
#[derive(Clone, Debug)]
pub struct SpVocab {
    /// The pieces.
    pub tokens: Vec<String>,
    /// Their scores: the merge with the higher-scored result is applied first.
    pub scores: Vec<f32>,
    /// Their types.
    pub types: Vec<PieceType>,
    /// The beginning-of-sequence token.
    pub bos: Option<u32>,
    /// The tokens that end a sequence.
    pub eos: Vec<u32>,
    /// The piece for unknown text; needed only if byte pieces are missing.
    pub unk: Option<u32>,
    /// Put a space before the text (`add_dummy_prefix`, `tokenizer.ggml.add_space_prefix`).
    pub add_space_prefix: bool,
    /// Drop spaces at both ends and all but one of each run (`remove_extra_whitespaces`).
    pub remove_extra_spaces: bool,
}

/// Representation of spaces in pieces.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SpaceForm {
    /// As U+2581.
    Symbol,
    /// As spaces (llama2.c).
    Plain,
}

/// Treatment of text that has no piece.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ByteFallback {
    /// Byte pieces if all 256 exist, else the unknown piece.
    WhereComplete,
    /// Byte pieces, as specified by the file; all 256 must exist.
    Required,
    /// The unknown piece.
    Off,
}

/// Encodes text with an [`SpVocab`].
#[derive(Clone)]
pub(super) struct SpEncoder {
    /// Pieces that a merge may produce.
    mergeable: HashMap<Box<str>, Mergeable>,
    /// Every piece by its name, control tokens included.
    ids: HashMap<Box<str>, u32>,
    user_defined: HashMap<Box<str>, u32>,
    /// Distinct byte lengths of user-defined pieces, longest first.
    user_defined_lengths: Vec<usize>,
    /// Ids of the 256 byte pieces; `None` unless all exist.
    bytes: Option<Box<[u32; 256]>>,
    unk: Option<u32>,
    add_space_prefix: bool,
    /// Whether only the first text of a sequence gets a leading space.
    prefix_once: bool,
    remove_extra_spaces: bool,
    space: SpaceForm,
}

impl SpEncoder {
    /// Validates the vocabulary and builds the encoder with its decode table.
    pub(super) fn new(
        vocab: &SpVocab,
        space: SpaceForm,
        fallback: ByteFallback,
    ) -> Result<(Self, Pieces), TokenizerError> {
        let count = vocab.tokens.len();
        check_tokens(count as u64)?;
        for (name, length) in [("scores", vocab.scores.len()), ("token types", vocab.types.len())] {
            if length != count {
                return Err(TokenizerError::malformed(
                    name,
                    "as many entries as tokens",
                    format!("{length} for {count}"),
                ));
            }
        }
        if count == 0 {
            return Err(TokenizerError::malformed("the vocabulary", "at least one token", "none"));
        }
        let mut encoder = Self {
            mergeable: HashMap::with_capacity(count),
            ids: HashMap::with_capacity(count),
            user_defined: HashMap::new(),
            user_defined_lengths: Vec::new(),
            bytes: None,
            unk: vocab.unk,
            add_space_prefix: vocab.add_space_prefix,
            prefix_once: false,
            remove_extra_spaces: vocab.remove_extra_spaces,
            space,
        };
        let mut bytes = [None; 256];
        let mut pieces = Pieces::default();
        for (index, token) in vocab.tokens.iter().enumerate() {
            check_token(token.len())?;
            let (score, kind) = (vocab.scores[index], vocab.types[index]);
            // `check_tokens` limits the count to far below 2^32.
            let id = index as u32;
            if !score.is_finite() {
                return Err(TokenizerError::malformed(
                    format!("score of token {id} {token:?}"),
                    "a finite number",
                    score.to_string(),
                ));
            }
            encoder.ids.entry(token.as_str().into()).or_insert(id);
            match kind {
                PieceType::Normal | PieceType::Unused | PieceType::UserDefined => {
                    if token.is_empty() {
                        // GGUF files use empty tokens as padding; they match no text.
                        pieces.push(Some(b""))?;
                        continue;
                    }
                    // Adding zero turns -0.0 into 0.0, so that both order as equal, as with `==`.
                    let entry = Mergeable { id, score: score + 0.0, unused: kind == PieceType::Unused };
                    encoder.mergeable.entry(token.as_str().into()).or_insert(entry);
                    if kind == PieceType::UserDefined {
                        encoder.user_defined.entry(token.as_str().into()).or_insert(id);
                        encoder.user_defined_lengths.push(token.len());
                    }
                    let text = match space {
                        SpaceForm::Symbol => token.replace(SPACE_SYMBOL, " "),
                        SpaceForm::Plain => token.clone(),
                    };
                    pieces.push(Some(text.as_bytes()))?;
                }
                PieceType::Unknown => {
                    encoder.unk.get_or_insert(id);
                    pieces.push(Some(UNKNOWN_SURFACE.as_bytes()))?;
                }
                PieceType::Control => pieces.push(Some(b""))?,
                PieceType::Byte => {
                    let Some(byte) = byte_token(token) else {
                        return Err(TokenizerError::malformed(
                            format!("byte token {id}"),
                            "<0xHH>",
                            format!("{token:?}"),
                        ));
                    };
                    bytes[usize::from(byte)].get_or_insert(id);
                    pieces.push(Some(&[byte]))?;
                }
            }
        }
        encoder.user_defined_lengths.sort_unstable_by(|a, b| b.cmp(a));
        encoder.user_defined_lengths.dedup();
        if let Some(id) = encoder.unk {
            pieces.get(id)?;
        }
        encoder.bytes = if fallback == ByteFallback::Off { None } else { all_bytes(&bytes) };
        if fallback == ByteFallback::Required && encoder.bytes.is_none() {
            let missing = bytes.iter().filter(|id| id.is_none()).count();
            return Err(TokenizerError::malformed(
                "byte_fallback",
                "a piece for each of the 256 bytes",
                format!("{missing} without one"),
            ));
        }
        Ok((encoder, pieces))
    }

    pub(super) fn id_of(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    pub(super) fn name_of(&self, id: u32) -> Option<&str> {
        self.ids.iter().find(|&(_, &other)| other == id).map(|(name, _)| &**name)
    }

    /// Sets whether only the first text of a sequence gets a leading space, and text after special tokens does not.
    pub(super) fn set_prefix_once(&mut self, prefix_once: bool) {
        self.prefix_once = prefix_once;
    }

    /// Appends the ids of `text`; no special token is recognized in it.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        self.encode_normalized(&self.normalize(text, self.add_space_prefix), out)
    }

    /// [`encode`](Self::encode) of a text that follows a special token.
    pub(super) fn encode_after_special(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        self.encode_normalized(&self.normalize(text, self.add_space_prefix && !self.prefix_once), out)
    }

    fn encode_normalized(&self, normalized: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        let mut merger = Merger::new(&self.mergeable, normalized, |text| self.user_defined_prefix(text));
        merger.run();
        let mut previous_unknown = false;
        // A stack instead of recursion: an unused piece may split into many.
        let mut stack = Vec::new();
        // Symbol 0 only grows to the right, so it stays first.
        let mut next = if merger.symbols.is_empty() { None } else { Some(0) };
        while let Some(index) = next {
            let symbol = merger.symbols[index];
            next = symbol.next;
            stack.push((symbol.start, symbol.len));
            while let Some((start, len)) = stack.pop() {
                let piece = &normalized[start..start + len];
                let entry = self.mergeable.get(piece);
                // Only the result of a merge can be split; a single character is kept.
                let split =
                    if entry.is_some_and(|e| e.unused) { merger.split_of_unused.get(piece) } else { None };
                if let Some(&left) = split {
                    stack.push((start + left, len - left));
                    stack.push((start, left));
                    continue;
                }
                let mut unknown = false;
                if let Some(entry) = entry {
                    out.push(entry.id);
                } else if let Some(bytes) = &self.bytes {
                    out.extend(piece.bytes().map(|byte| bytes[usize::from(byte)]));
                } else if let Some(unk) = self.unk {
                    // A run of unknown text is one token.
                    if !previous_unknown {
                        out.push(unk);
                    }
                    unknown = true;
                } else if let Some(character) = piece.chars().next() {
                    return Err(TokenizerError::Unencodable { character, offset: start });
                }
                previous_unknown = unknown;
            }
        }
        Ok(())
    }

    fn normalize(&self, text: &str, prefix: bool) -> String {
        let text = if self.remove_extra_spaces { text.trim_matches(' ') } else { text };
        let mut normalized = String::with_capacity(text.len() + text.len() / 2 + 3);
        if text.is_empty() {
            return normalized;
        }
        let space = match self.space {
            SpaceForm::Symbol => SPACE_SYMBOL,
            SpaceForm::Plain => " ",
        };
        if prefix {
            normalized.push_str(space);
        }
        let mut previous_space = false;
        for character in text.chars() {
            if character != ' ' {
                normalized.push(character);
            } else if !(self.remove_extra_spaces && previous_space) {
                normalized.push_str(space);
            }
            previous_space = character == ' ';
        }
        if self.remove_extra_spaces {
            // SentencePiece trims the result here, so a U+2581 of the original text is removed too.
            normalized.truncate(normalized.trim_end_matches(space).len());
        }
        normalized
    }

    /// Length of the longest user-defined piece that `text` starts with.
    fn user_defined_prefix(&self, text: &str) -> Option<usize> {
        self.user_defined_lengths
            .iter()
            .copied()
            .find(|&len| text.get(..len).is_some_and(|prefix| self.user_defined.contains_key(prefix)))
    }
}

fn all_bytes(found: &[Option<u32>; 256]) -> Option<Box<[u32; 256]>> {
    let mut ids = Box::new([0; 256]);
    for (slot, id) in ids.iter_mut().zip(found) {
        *slot = (*id)?;
    }
    Some(ids)
}

#[cfg(test)]
#[path = "spm_tests.rs"]
mod tests;
