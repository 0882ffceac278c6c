//! Splitting of a text into sequences of tokens.

use crate::{LlmError, tokenizer::Tokenizer};

/// Separator of the documents of a text, a special token of several tokenizers.
pub const STORY_MARK: &str = "<|endoftext|>";

/// How a text is split into sequences. Each starts with BOS, if the tokenizer has one, and has no EOS; sequences are truncated to
/// the model's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Stories separated by `<|endoftext|>`, trimmed of white space; empty ones are dropped.
    Stories,
    /// Lines, trimmed likewise.
    Lines,
    /// The whole text, tokenized at once and split into windows of the context length.
    Window,
    /// Windows as in `llama-perplexity`, for comparable results: BOS replaces each window's first token, the incomplete last window
    /// is dropped, and only the tokens of the second half of each window are scored.
    LlamaCpp,
}

impl Split {
    /// The default split of a text: stories if it contains `<|endoftext|>`, else windows.
    ///
    /// ```
    /// use trike_llm::Split;
    ///
    /// assert_eq!(Split::of("Once.<|endoftext|>Twice."), Split::Stories);
    /// assert_eq!(Split::of("Once.\nTwice."), Split::Window);
    /// ```
    #[must_use]
    pub fn of(text: &str) -> Self {
        if text.contains(STORY_MARK) { Self::Stories } else { Self::Window }
    }
}

/// Splits a text into at most `limit` token sequences of at most `context` tokens each.
///
/// # Errors
///
/// Errors of the tokenizer.
pub fn sequences(
    tokenizer: &Tokenizer,
    text: &str,
    split: Split,
    context: usize,
    limit: Option<usize>,
) -> Result<Vec<Vec<u32>>, LlmError> {
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let whole = |part: &str| -> Result<Vec<u32>, LlmError> {
        let mut ids = tokenizer.encode(part, bos.is_some())?;
        ids.truncate(context);
        Ok(ids)
    };
    let parts = |mark: &str| {
        let parts = text.split(mark).map(str::trim).filter(|part| !part.is_empty());
        parts.take(limit.unwrap_or(usize::MAX)).map(whole).collect()
    };
    match split {
        Split::Stories => parts(STORY_MARK),
        Split::Lines => parts("\n"),
        Split::Window => {
            let ids = tokenizer.encode(text, false)?;
            let room = context.saturating_sub(usize::from(bos.is_some())).max(1);
            let windows = ids.chunks(room).take(limit.unwrap_or(usize::MAX));
            Ok(windows.map(|ids| bos.into_iter().chain(ids.iter().copied()).collect()).collect())
        }
        Split::LlamaCpp => {
            let ids = tokenizer.encode(text, bos.is_some())?;
            let windows = ids.chunks_exact(context.max(2)).take(limit.unwrap_or(usize::MAX));
            let first = |window: &[u32]| bos.into_iter().chain(window.first().copied()).take(1);
            Ok(windows.map(|w| first(w).chain(w[1..].iter().copied()).collect()).collect())
        }
    }
}
