//! Pre-tokenizers of byte-level vocabularies: they split a text into pieces, and merges are confined to a piece.

use std::fmt;

use tokenizers::{
    OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _, PreTokenizerWrapper,
    SplitDelimiterBehavior,
    pre_tokenizers::{
        byte_level::ByteLevel,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

use super::{
    TokenizerError,
    rules::{Form, RULES, Rule},
};

/// Pre-tokenizer of a byte-level vocabulary, by its name in GGUF's `tokenizer.ggml.pre`.
///
/// A rule is named after the model that first used it. All rules keep every byte of the text.
///
/// ```
/// use trike_text::tokenizer::PreTokenizer;
///
/// let rule = PreTokenizer::from_name("smollm").ok_or("a rule of this name")?;
/// assert_eq!(rule.name(), "smollm");
/// assert_eq!(PreTokenizer::from_name("smolm"), None);
/// assert_eq!(PreTokenizer::nearest_name("smolm"), "smollm");
/// assert_eq!(PreTokenizer::from_name("megrez"), Some(PreTokenizer::Qwen2));
/// # Ok::<(), &str>(())
/// ```
#[derive(Clone, Copy)]
pub struct PreTokenizer(&'static Rule);

#[allow(non_upper_case_globals)] // They are spelled as the variants that they were.
impl PreTokenizer {
    /// Words, numbers and punctuation, each with its preceding space, if any.
    pub const Gpt2: Self = Self(&RULES[0]);
    /// Words with one preceding punctuation character or space, numbers in groups of up to three digits, line ends with preceding
    /// punctuation. A piece that is a token is kept, regardless of merges. Also the rule of tiktoken's Llama 3 vocabulary.
    pub const LlamaBpe: Self = Self(&RULES[1]);
    /// As [`LlamaBpe`](Self::LlamaBpe) with single digits, and every token formed by merges.
    pub const Qwen2: Self = Self(&RULES[2]);
    /// The rule of files without a name: separate punctuation, numbers in groups of three digits.
    pub const Default: Self = Self(&RULES[3]);
}

impl PartialEq for PreTokenizer {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for PreTokenizer {}

impl fmt::Debug for PreTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PreTokenizer").field(&self.name()).finish()
    }
}

impl PreTokenizer {
    /// The rule for a name in `tokenizer.ggml.pre`; `None` if no rule has it.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        RULES.iter().find(|rule| rule.names.contains(&name)).map(Self)
    }

    /// The canonical name of the rule.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0.names[0]
    }

    /// The names of all rules.
    pub fn names() -> impl Iterator<Item = &'static str> {
        RULES.iter().flat_map(|rule| rule.names.iter().copied())
    }

    /// The known name closest to `name`.
    #[must_use]
    pub fn nearest_name(name: &str) -> &'static str {
        Self::names().min_by_key(|known| trike_core::edit_distance(name, known)).unwrap_or("default")
    }

    /// Splits each text; the concatenated pieces equal the text. The rule is compiled once for all of them.
    ///
    /// # Errors
    ///
    /// Errors of the expressions, which the tests of this crate compile.
    pub fn split<'t>(
        self,
        texts: impl IntoIterator<Item = &'t str>,
    ) -> Result<Vec<Vec<String>>, TokenizerError> {
        let splitter = self.splitter()?;
        let pieces = |text| {
            let mut pieces = Vec::new();
            splitter.pieces(text, |piece| pieces.push(piece.to_owned()))?;
            Ok(pieces)
        };
        texts.into_iter().map(pieces).collect()
    }

    /// Whether a piece that is a token needs no merges.
    pub(super) fn ignores_merges(self) -> bool {
        self.0.ignores_merges
    }

    /// Whether sequences start with BOS, if the file does not specify it.
    pub(super) fn adds_bos(self) -> bool {
        self.0.adds_bos
    }

    /// How text is represented in the tokens of a vocabulary with this rule.
    pub(super) fn form(self) -> Form {
        self.0.form
    }

    fn splits(self) -> Result<Vec<Split>, TokenizerError> {
        let split = |&expression: &&'static str| {
            let pattern = SplitPattern::Regex(expression.to_owned());
            Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(TokenizerError::Json)
        };
        self.0.expressions.iter().map(split).collect()
    }

    /// The rule as the first step of an encoder of such a vocabulary.
    pub(super) fn for_encoding(self) -> Result<PreTokenizerWrapper, TokenizerError> {
        match self.form() {
            Form::Bytes => self.byte_level(),
            Form::Plain | Form::Escaped => {
                Ok(Sequence::new(self.splits()?.into_iter().map(Into::into).collect()).into())
            }
        }
    }

    /// The rule, followed by GPT-2's mapping of bytes to characters.
    pub(super) fn byte_level(self) -> Result<PreTokenizerWrapper, TokenizerError> {
        let mut steps: Vec<PreTokenizerWrapper> = self.splits()?.into_iter().map(Into::into).collect();
        // The text is already split by the expressions; the crate's own regex would split it again.
        steps.push(ByteLevel::new(false, false, false).into());
        Ok(Sequence::new(steps).into())
    }

    /// The rule alone.
    pub(super) fn splitter(self) -> Result<Splitter, TokenizerError> {
        Ok(Splitter { splits: self.splits()? })
    }
}

/// A compiled rule.
#[derive(Clone)]
pub(super) struct Splitter {
    splits: Vec<Split>,
}

impl Splitter {
    /// Passes the pieces of `text` to `on_piece`, in order.
    pub(super) fn pieces(&self, text: &str, mut on_piece: impl FnMut(&str)) -> Result<(), TokenizerError> {
        let mut whole = PreTokenizedString::from(text);
        for split in &self.splits {
            split.pre_tokenize(&mut whole).map_err(TokenizerError::Json)?;
        }
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
        rule.split([text]).unwrap().remove(0)
    }

    #[test]
    fn each_rule_splits_as_its_model_does() {
        let text = "I'LL pay  $12345 (now)\n\n  ok";
        let rule = |name| PreTokenizer::from_name(name).unwrap();
        assert_eq!(
            pieces(PreTokenizer::Gpt2, text),
            ["I", "'", "LL", " pay", " ", " $", "12345", " (", "now", ")", "\n\n ", " ok"]
        );
        assert_eq!(
            pieces(PreTokenizer::LlamaBpe, text),
            ["I", "'LL", " pay", " ", " $", "123", "45", " (", "now", ")\n\n", " ", " ok"]
        );
        assert_eq!(
            pieces(PreTokenizer::Qwen2, text),
            ["I", "'LL", " pay", " ", " $", "1", "2", "3", "4", "5", " (", "now", ")\n\n", " ", " ok"]
        );
        assert_eq!(
            pieces(rule("smollm"), text),
            ["I", "'", "LL", " pay", " ", " $", "1", "2", "3", "4", "5", " (", "now", ")", "\n\n ", " ok"]
        );
        assert_eq!(pieces(rule("superbpe"), "in 1234567 b"), ["in ", "1", "234", "567", " b"]);
    }

    #[test]
    fn names_are_unique_and_constants_have_theirs() {
        let mut names: Vec<&str> = PreTokenizer::names().collect();
        assert!(names.len() > 90, "{}", names.len());
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        let constants = [
            (PreTokenizer::Gpt2, "gpt-2"),
            (PreTokenizer::LlamaBpe, "llama-bpe"),
            (PreTokenizer::Qwen2, "qwen2"),
            (PreTokenizer::Default, "default"),
        ];
        for (rule, name) in constants {
            assert_eq!((PreTokenizer::from_name(name), rule.name()), (Some(rule), name));
        }
        for (name, nearest) in [("qwen-2", "qwen2"), ("llama_bpe", "llama-bpe"), ("gpt4o", "gpt-4o")] {
            assert_eq!((PreTokenizer::from_name(name), PreTokenizer::nearest_name(name)), (None, nearest));
        }
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
