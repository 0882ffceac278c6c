//! Pre-tokenizers of byte-level vocabularies: how a text falls into the pieces inside which bytes are merged.

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

/// How a byte-level vocabulary splits text, by the name that GGUF has for it in `tokenizer.ggml.pre`.
///
/// The names are those of the model that first used the rule. All rules keep every byte of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PreTokenizer {
    /// Words, numbers and signs, each with the space before it.
    Gpt2,
    /// Words with one sign or space before them, numbers in threes, line ends with the signs before them. A piece
    /// that is a token stays whole, whatever the merges say. Also the rule of tiktoken's Llama-3 vocabulary.
    LlamaBpe,
    /// As [`LlamaBpe`](Self::LlamaBpe) with single digits, and every token made by merges.
    Qwen2,
}

impl PreTokenizer {
    /// The rule of a name in `tokenizer.ggml.pre`, `None` for one that is not implemented.
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

    /// Whether sequences start with BOS where the file does not say.
    pub(super) fn adds_bos(self) -> bool {
        self == Self::LlamaBpe
    }

    /// The expression that matches one piece after another. Every character belongs to one of the alternatives,
    /// so nothing is left between matches.
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

    /// The rule and then GPT-2's stand-ins for bytes.
    pub(super) fn byte_level(self) -> Result<PreTokenizerWrapper, TokenizerError> {
        // The expression has split already; the crate's own would split again.
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
    /// Hands the pieces of `text` to `on_piece`, one after another.
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
