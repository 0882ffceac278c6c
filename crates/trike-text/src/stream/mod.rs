//! Streaming detokenization: ids in, pieces of text out.
//!
//! Start from [`TextStream`]. Its invariant: the pieces joined equal
//! [`Tokenizer::decode`] of all ids. It uses only the bytes of each token, so the cost per token
//! is constant; the price is that decoders that depend on earlier tokens are not supported.

use crate::tokenizer::{Tokenizer, TokenizerError};

/// Result of one step of a [`TextStream`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Text that is now final; often empty.
    pub text: String,
    /// Whether a stop string was completed. It and all text after it is not part of any piece.
    pub stopped: bool,
}

/// Converts ids to text piece by piece.
///
/// A character whose bytes are spread over several tokens is returned when it is complete. Text that may be the
/// start of a stop string is held back until that is decided.
///
/// ```
/// use trike_text::{stream::TextStream, tokenizer::{PieceType, SpVocab, Tokenizer}};
///
/// let tokens = ["<s>", "a", "b", "<0xC3>", "<0xA9>"];
/// let mut types = vec![PieceType::Normal; 5];
/// types[0] = PieceType::Control;
/// types[3..].fill(PieceType::Byte);
/// let tokenizer = Tokenizer::from_sentencepiece_vocab(&SpVocab {
///     tokens: tokens.map(str::to_owned).to_vec(),
///     scores: vec![0.0; 5],
///     types,
///     bos: Some(0),
///     eos: vec![],
///     unk: None,
///     add_space_prefix: false,
///     remove_extra_spaces: false,
/// })?;
/// let mut stream = TextStream::new(&tokenizer).with_stops(["ab"])?;
/// assert_eq!(stream.push(3)?.text, "");
/// assert_eq!(stream.push(4)?.text, "é");
/// assert_eq!(stream.push(1)?.text, "", "it may become `ab`");
/// assert!(stream.push(2)?.stopped);
/// assert_eq!(stream.finish(), "");
/// # Ok::<(), trike_text::tokenizer::TokenizerError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TextStream<'t> {
    tokenizer: &'t Tokenizer,
    /// The bytes of an incomplete character, up to three.
    incomplete: Vec<u8>,
    /// Text that may be the start of a stop string.
    held: String,
    stops: Vec<String>,
    /// Whether no byte was received yet, so that the encoder's leading space must still be dropped.
    at_start: bool,
    stopped: bool,
}

impl<'t> TextStream<'t> {
    /// A stream at the start of a text.
    #[must_use]
    pub fn new(tokenizer: &'t Tokenizer) -> Self {
        Self {
            tokenizer,
            incomplete: Vec::new(),
            held: String::new(),
            stops: Vec::new(),
            at_start: tokenizer.strips_leading_space(),
            stopped: false,
        }
    }

    /// A stream that continues `context`, usually the prompt: the text of `context` is not repeated, a space after
    /// it is kept, and an incomplete character at its end is completed.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::UnknownId`] for an id in `context`.
    pub fn after(tokenizer: &'t Tokenizer, context: &[u32]) -> Result<Self, TokenizerError> {
        let mut stream = Self::new(tokenizer);
        for &id in context {
            stream.append(id)?;
        }
        stream.held.clear();
        Ok(stream)
    }

    /// Sets the strings that end the text. Stop strings are searched in this stream's text only, not in the
    /// context before it. If one token completes several, the one that ends first applies.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::EmptyStop`].
    pub fn with_stops<S: Into<String>>(
        mut self,
        stops: impl IntoIterator<Item = S>,
    ) -> Result<Self, TokenizerError> {
        self.stops = stops.into_iter().map(Into::into).collect();
        match self.stops.iter().position(String::is_empty) {
            Some(index) => Err(TokenizerError::EmptyStop { index }),
            None => Ok(self),
        }
    }

    /// Appends the next id. After a stop, every piece is empty and `stopped`.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::UnknownId`]; the stream is unchanged and remains usable.
    pub fn push(&mut self, id: u32) -> Result<Piece, TokenizerError> {
        if !self.stopped {
            self.append(id)?;
        }
        Ok(self.release())
    }

    /// Ends the text and returns the text held back: an incomplete character as U+FFFD, and the start of a stop
    /// string that was not completed.
    #[must_use]
    pub fn finish(mut self) -> String {
        if !self.stopped {
            self.held.push_str(&String::from_utf8_lossy(&self.incomplete));
        }
        let mut piece = self.release();
        if !piece.stopped {
            piece.text.push_str(&self.held);
        }
        piece.text
    }

    /// Whether a stop string was completed.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Appends the complete characters of the next token to `held`.
    fn append(&mut self, id: u32) -> Result<(), TokenizerError> {
        let mut bytes = self.tokenizer.token_bytes(id)?;
        if bytes.is_empty() {
            return Ok(());
        }
        if self.at_start {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.at_start = false;
        }
        self.incomplete.extend_from_slice(bytes);
        let mut done = 0;
        for chunk in self.incomplete.utf8_chunks() {
            let (valid, invalid) = (chunk.valid(), chunk.invalid());
            self.held.push_str(valid);
            done += valid.len();
            // Only an invalid sequence at the very end can still become a character.
            if done + invalid.len() == self.incomplete.len() && may_continue(invalid) {
                break;
            }
            if !invalid.is_empty() {
                self.held.push(char::REPLACEMENT_CHARACTER);
            }
            done += invalid.len();
        }
        self.incomplete.drain(..done);
        Ok(())
    }

    /// Removes from `held` the text that can no longer be part of a stop string.
    fn release(&mut self) -> Piece {
        if self.stopped {
            return Piece { text: String::new(), stopped: true };
        }
        let stop = self
            .stops
            .iter()
            .filter_map(|stop| self.held.find(stop.as_str()).map(|start| (start + stop.len(), start)))
            .min();
        if let Some((_, start)) = stop {
            self.stopped = true;
            self.held.truncate(start);
            return Piece { text: std::mem::take(&mut self.held), stopped: true };
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        Piece { text: std::mem::replace(&mut self.held, rest), stopped: false }
    }
}

/// Whether further bytes could complete `bytes`, which are not UTF-8, to one character.
fn may_continue(bytes: &[u8]) -> bool {
    match std::str::from_utf8(bytes) {
        Ok(_) => false,
        Err(error) => error.valid_up_to() == 0 && error.error_len().is_none(),
    }
}

/// Length in bytes of the longest suffix of `text` that is a prefix of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    (1..=longest).rev().find(|&n| text.as_bytes().ends_with(&stop.as_bytes()[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests;
