//! Text to ids: the three encoders, and special tokens in text.

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
};

use super::{
    Tokenizer, TokenizerError, pieces::Pieces, specials::Found, spm::SpEncoder, tiktoken::RankEncoder,
};

#[derive(Clone)]
pub(super) enum Encoder {
    Hf(Arc<HfEncoder>),
    SentencePiece(Arc<SpEncoder>),
    Ranks(Arc<RankEncoder>),
}

/// The crate's tokenizer, and a copy of it that encodes special tokens as text.
#[derive(Clone)]
pub(super) struct HfEncoder {
    tokenizer: tokenizers::Tokenizer,
    /// Built on first use, since it is as large as the other tokenizer.
    literal: OnceLock<tokenizers::Tokenizer>,
}

impl HfEncoder {
    pub(super) fn new(tokenizer: tokenizers::Tokenizer) -> Self {
        Self { tokenizer, literal: OnceLock::new() }
    }

    fn literal(&self) -> &tokenizers::Tokenizer {
        self.literal.get_or_init(|| {
            let mut literal = self.tokenizer.clone();
            literal.set_encode_special_tokens(true);
            literal
        })
    }
}

impl Encoder {
    pub(super) fn id_of(&self, token: &str) -> Option<u32> {
        match self {
            Self::Hf(encoder) => encoder.tokenizer.token_to_id(token),
            Self::SentencePiece(encoder) => encoder.id_of(token),
            Self::Ranks(encoder) => encoder.id_of(token),
        }
    }

    pub(super) fn name_of(&self, id: u32, pieces: &Pieces) -> Option<String> {
        match self {
            Self::Hf(encoder) => encoder.tokenizer.id_to_token(id),
            Self::SentencePiece(encoder) => encoder.name_of(id).map(str::to_owned),
            Self::Ranks(_) => {
                let name = std::str::from_utf8(pieces.get(id).ok()?).ok()?;
                (!name.is_empty()).then(|| name.to_owned())
            }
        }
    }

    /// Appends the ids of `text`, with special tokens encoded as text.
    fn encode_literal(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        match self {
            Self::Hf(encoder) => {
                let encoding = encoder.literal().encode_fast(text, false).map_err(TokenizerError::Json)?;
                out.extend_from_slice(encoding.get_ids());
                Ok(())
            }
            Self::SentencePiece(encoder) => encoder.encode(text, out),
            Self::Ranks(encoder) => encoder.encode(text, out),
        }
    }

    /// [`encode_literal`](Self::encode_literal) of a text that follows a special token.
    fn encode_after_special(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        match self {
            Self::SentencePiece(encoder) => encoder.encode_after_special(text, out),
            _ => self.encode_literal(text, out),
        }
    }
}

/// Placeholder characters for special tokens that occur in a user's text, while a template processes that text.
///
/// They are private-use characters that do not occur in the texts, so a rendered prompt contains one of them
/// exactly where a user's text contained a special token, and there the text is restored.
#[derive(Debug, Default)]
pub(crate) struct Shield {
    stand_ins: Vec<(char, String)>,
}

impl Shield {
    /// Chooses a placeholder for each special token that occurs in one of `texts`. `None` if the texts use up the whole private-use
    /// area.
    pub(crate) fn new(tokenizer: &Tokenizer, texts: &[&str]) -> Option<Self> {
        let mut spelled: Vec<String> = Vec::new();
        for text in texts {
            let mut from = 0;
            while let Some(found) = tokenizer.specials.find(text, from) {
                let token = &text[found.start..found.end];
                if !spelled.iter().any(|s| s == token) {
                    spelled.push(token.to_owned());
                }
                from = found.end;
            }
        }
        if spelled.is_empty() {
            return Some(Self::default());
        }
        let used: std::collections::HashSet<char> = texts.iter().flat_map(|t| t.chars()).collect();
        let mut free = ('\u{100000}'..='\u{10fffd}').filter(|c| !used.contains(c));
        let stand_ins: Option<Vec<_>> =
            spelled.into_iter().map(|token| Some((free.next()?, token))).collect();
        Some(Self { stand_ins: stand_ins? })
    }

    /// `text` with its special tokens (leftmost, then longest matches) replaced by placeholders.
    pub(crate) fn cover(&self, tokenizer: &Tokenizer, text: &str) -> String {
        let mut covered = String::with_capacity(text.len());
        let mut from = 0;
        while let Some(found) = tokenizer.specials.find(text, from) {
            let token = &text[found.start..found.end];
            covered.push_str(&text[from..found.start]);
            match self.stand_ins.iter().find(|(_, t)| t == token) {
                Some(&(stand_in, _)) => covered.push(stand_in),
                None => covered.push_str(token),
            }
            from = found.end;
        }
        covered.push_str(&text[from..]);
        covered
    }

    /// The inverse of [`cover`](Self::cover).
    pub(crate) fn uncover(&self, text: &str) -> String {
        let mut uncovered = text.to_owned();
        for (stand_in, token) in &self.stand_ins {
            uncovered = uncovered.replace(*stand_in, token);
        }
        uncovered
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.stand_ins.is_empty()
    }
}

impl Tokenizer {
    /// The ids of a prompt: BOS, if [`adds_bos`](Self::adds_bos), the text, and EOS, if [`adds_eos`](Self::adds_eos).
    ///
    /// # Errors
    ///
    /// [`TokenizerError::EmptyPrompt`] when there are no ids, and as [`encode`](Self::encode).
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<u32>, TokenizerError> {
        let prefix = self.prefix();
        let mut ids = match &*prefix {
            [] => self.encode(prompt, false)?,
            [_] => self.encode(prompt, true)?,
            several => [several, &self.encode(prompt, false)?].concat(),
        };
        ids.extend(self.suffix());
        if ids.is_empty() { Err(TokenizerError::EmptyPrompt) } else { Ok(ids) }
    }

    /// The ids of `text`, after BOS when `add_bos` is set.
    ///
    /// BOS occurs exactly once even if `text` starts with it. Special tokens in `text` are recognized,
    /// as with the same model's `tokenizer.json`; SentencePiece vocabularies do not recognize them, so text cannot
    /// forge them. [`encode_literal`](Self::encode_literal) encodes them as text with any vocabulary.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::NoBos`], and text without a token in a vocabulary without byte tokens or unknown token.
    pub fn encode(&self, text: &str, add_bos: bool) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        let bos = if add_bos { Some(self.bos.ok_or(TokenizerError::NoBos)?) } else { None };
        ids.extend(bos);
        if let Encoder::SentencePiece(encoder) = &self.encoder {
            match self.added.is_empty() {
                true => encoder.encode(text, &mut ids)?,
                false => ids.extend(self.encode_stretches(text, &Shield::default(), false)?),
            }
            return Ok(ids);
        }
        let found = self.encode_with_special(text)?;
        let spelled_out = bos.is_some() && found.first() == bos.as_ref();
        ids.extend_from_slice(&found[usize::from(spelled_out)..]);
        Ok(ids)
    }

    /// The ids of a text that contains special tokens, such as a rendered chat prompt: they are
    /// recognized with every kind of vocabulary, and no BOS is added.
    ///
    /// A SentencePiece vocabulary encodes each stretch between special tokens as a separate text with a leading space, as in
    /// training.
    ///
    /// # Errors
    ///
    /// As [`encode`](Self::encode).
    pub fn encode_with_special(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        match &self.encoder {
            Encoder::Hf(encoder) => {
                let encoding = encoder.tokenizer.encode_fast(text, false).map_err(TokenizerError::Json)?;
                Ok(encoding.get_ids().to_vec())
            }
            Encoder::SentencePiece(_) | Encoder::Ranks(_) => {
                self.encode_stretches(text, &Shield::default(), true)
            }
        }
    }

    /// The ids of a text, with any special tokens in it encoded as text.
    ///
    /// ```no_run
    /// # use trike_text::tokenizer::Tokenizer;
    /// let llama3 = Tokenizer::from_tiktoken("tokenizer.model")?;
    /// assert_eq!(llama3.encode_with_special("<|eot_id|>")?, [128_009]);
    /// assert!(!llama3.encode_literal("<|eot_id|>")?.contains(&128_009));
    /// # Ok::<(), trike_text::tokenizer::TokenizerError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`encode`](Self::encode).
    pub fn encode_literal(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        self.encoder.encode_literal(text, &mut ids)?;
        Ok(ids)
    }

    /// [`encode_with_special`](Self::encode_with_special) of a text with placeholders.
    pub(crate) fn encode_shielded(&self, text: &str, shield: &Shield) -> Result<Vec<u32>, TokenizerError> {
        if shield.is_empty() {
            self.encode_with_special(text)
        } else {
            self.encode_stretches(text, shield, true)
        }
    }

    /// Encodes the stretches between added tokens (and special ones, with `special`) separately.
    fn encode_stretches(
        &self,
        text: &str,
        shield: &Shield,
        special: bool,
    ) -> Result<Vec<u32>, TokenizerError> {
        let find = |from: usize| {
            let found =
                [special.then(|| self.specials.find(text, from)).flatten(), self.added.find(text, from)];
            found.into_iter().flatten().min_by_key(|found| (found.start, std::cmp::Reverse(found.end)))
        };
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        let mut from = 0;
        let stretch = |text: &str, from: usize, ids: &mut Vec<u32>| {
            let uncovered = if shield.is_empty() { Cow::Borrowed(text) } else { shield.uncover(text).into() };
            match (&*uncovered, from) {
                ("", _) => Ok(()),
                (text, 0) => self.encoder.encode_literal(text, ids),
                (text, _) => self.encoder.encode_after_special(text, ids),
            }
        };
        while let Some(Found { start, end, id }) = find(from) {
            stretch(&text[from..start], from, &mut ids)?;
            ids.push(id);
            from = end;
        }
        stretch(&text[from..], from, &mut ids)?;
        Ok(ids)
    }
}
