//! Pre-tokenizers of byte-level vocabularies: they split a text into pieces, and merges happen within a piece only.

use tokenizers::{
    OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper,
    SplitDelimiterBehavior,
    pre_tokenizers::{
        byte_level::ByteLevel,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use super::TokenizerError;

/// Pre-tokenizer of a byte-level vocabulary, by its name in GGUF's `tokenizer.ggml.pre`.
///
/// A rule is named after the model that first used it. All rules keep every byte of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PreTokenizer {
    /// Words, numbers and punctuation, each with the space before it, if any.
    Gpt2,
    /// Words with one preceding punctuation character or space, numbers in groups of up to three digits, line ends with
    /// preceding punctuation. A piece that is a token is not split, regardless of merges. Also the rule of tiktoken's Llama 3
    /// vocabulary.
    LlamaBpe,
    /// As [`LlamaBpe`](Self::LlamaBpe) with single digits, and every token formed by merges.
    Qwen2,
}

impl PreTokenizer {
    /// The rule for a name in `tokenizer.ggml.pre`; `None` if it is not implemented.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "gpt-2" | "phi-2" => Self::Gpt2,
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon_e" => Self::LlamaBpe,
            "qwen2" | "deepseek-r1-qwen" => Self::Qwen2,
            _ => return None,
        })
    }

    /// Whether a piece that is a token needs no merges.
    pub(super) fn ignores_merges(self) -> bool {
        self == Self::LlamaBpe
    }

    /// Whether sequences start with BOS, if the file does not specify it.
    pub(super) fn adds_bos(self) -> bool {
        self == Self::LlamaBpe
    }

    /// The regular expression that matches the pieces. Every character is covered by one of the alternatives,
    /// so there are no gaps between matches.
    fn expression(self) -> &'static str {
        match self {
            Self::Gpt2 => r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            Self::LlamaBpe => {
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            }
            Self::Qwen2 => {
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            }
        }
    }

    fn split(self) -> Result<Split, TokenizerError> {
        let pattern = SplitPattern::Regex(self.expression().to_owned());
        Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(TokenizerError::Json)
    }

    /// The rule followed by GPT-2's mapping of bytes to characters.
    pub(super) fn byte_level(self) -> Result<PreTokenizerWrapper, TokenizerError> {
        // The text is already split by the expression; the crate's own regex would split it again.
        let stand_ins = ByteLevel::new(false, false, false);
        Ok(Sequence::new(vec![self.split()?.into(), stand_ins.into()]).into())
    }

    /// The rule alone.
    pub(super) fn splitter(self) -> Result<Splitter, TokenizerError> {
        Ok(Splitter { split: self.split()? })
    }
}

/// A compiled rule.
#[derive(Clone)]
pub(super) struct Splitter {
    split: Split,
}

impl Splitter {
    /// Passes the pieces of `text` to `on_piece`, in order.
    pub(super) fn pieces(&self, text: &str, mut on_piece: impl FnMut(&str)) -> Result<(), TokenizerError> {
        let mut whole = PreTokenizedString::from(text);
        self.split.pre_tokenize(&mut whole).map_err(TokenizerError::Json)?;
        for (piece, ..) in whole.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            on_piece(piece);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(rule: PreTokenizer, text: &str) -> Vec<String> {
        let mut pieces = Vec::new();
        rule.splitter().unwrap().pieces(text, |p| pieces.push(p.to_owned())).unwrap();
        pieces
    }

    #[test]
    fn each_rule_splits_as_its_model_does() {
        use PreTokenizer::{Gpt2, LlamaBpe, Qwen2};
        let text = "I'LL pay  $12345 (now)\n\n  ok";
        assert_eq!(
            pieces(Gpt2, text),
            ["I", "'", "LL", " pay", " ", " $", "12345", " (", "now", ")", "\n\n ", " ok"]
        );
        assert_eq!(
            pieces(LlamaBpe, text),
            ["I", "'LL", " pay", " ", " $", "123", "45", " (", "now", ")\n\n", " ", " ok"]
        );
        assert_eq!(
            pieces(Qwen2, text),
            ["I", "'LL", " pay", " ", " $", "1", "2", "3", "4", "5", " (", "now", ")\n\n", " ", " ok"]
        );
    }

    #[test]
    fn long_runs_stay_whole() {
        for rule in [PreTokenizer::Gpt2, PreTokenizer::LlamaBpe, PreTokenizer::Qwen2] {
            let text = format!("{}a", " ".repeat(200_000));
            let lengths: Vec<usize> = pieces(rule, &text).iter().map(String::len).collect();
            assert_eq!(lengths, [199_999, 2], "{rule:?}");
        }
    }
}
