//! Byte-level BPE vocabularies, as stored in GGUF files (`tokenizer.ggml.model = "gpt2"`).

use std::collections::HashMap;

use tokenizers::{
    AddedToken,
    models::bpe::{BPE, Vocab},
    normalizers::{NormalizerWrapper, Replace},
};

use super::{
    TokenizerError,
    hf::{Affixes, HfTokenizer, byte_level_alphabet},
    limits::{check_token, check_tokens},
    pieces::{Pieces, byte_token},
    rules::Form,
    specials::SpecialTokens,
    split::PreTokenizer,
    spm::{PieceType, SPACE_SYMBOL},
};

/// A byte-level BPE vocabulary in memory.
///
/// `tokens` and `types` have one entry per id. Every character of a normal token represents a byte, as in GPT-2 (for the few
/// pre-tokenizers without such a mapping it is text, and a byte is `<0xHH>`); control and user-defined tokens are plain text. Byte
/// tokens may be missing: such bytes are dropped from texts, as in the `tokenizers` package and llama.cpp.
#[derive(Clone, Debug)]
pub struct BpeVocab {
    /// The tokens.
    pub tokens: Vec<String>,
    /// Their types.
    pub types: Vec<PieceType>,
    /// Merges in order of priority: two tokens separated by a space.
    pub merges: Vec<String>,
    /// The pre-tokenizer.
    pub pre: PreTokenizer,
    /// The beginning-of-sequence token.
    pub bos: Option<u32>,
    /// The tokens that end a sequence.
    pub eos: Vec<u32>,
    /// Whether a sequence starts with BOS; `None` = the pre-tokenizer's default.
    pub add_bos: Option<bool>,
}

/// Validates the vocabulary and builds the `tokenizers` encoder with Trike's decode table.
pub(super) fn build(vocab: &BpeVocab) -> Result<HfTokenizer, TokenizerError> {
    let count = vocab.tokens.len();
    check_tokens(count as u64)?;
    check_tokens(vocab.merges.len() as u64)?;
    if count == 0 {
        return Err(TokenizerError::malformed("the vocabulary", "at least one token", "none"));
    }
    if vocab.types.len() != count {
        return Err(TokenizerError::malformed(
            "token types",
            "as many entries as tokens",
            format!("{} for {count}", vocab.types.len()),
        ));
    }
    let alphabet = byte_level_alphabet();
    let mut pieces = Pieces::default();
    let mut ids = Vocab::default();
    ids.reserve(count);
    let (mut specials, mut added) = (Vec::new(), Vec::new());
    for (id, (token, kind)) in (0u32..).zip(vocab.tokens.iter().zip(&vocab.types)) {
        check_token(token.len())?;
        let marks_sequence = vocab.bos == Some(id) || vocab.eos.contains(&id);
        match kind {
            // Some files have no types or declare these tokens as text.
            _ if marks_sequence => specials.push((token.as_str(), id)),
            PieceType::Control | PieceType::Unknown => specials.push((token.as_str(), id)),
            PieceType::UserDefined if !token.is_empty() => added.push(token.as_str()),
            _ => {}
        }
        let known = match kind {
            _ if marks_sequence => Vec::new(),
            PieceType::Control | PieceType::Unknown | PieceType::Unused => Vec::new(),
            PieceType::UserDefined => token.clone().into_bytes(),
            PieceType::Normal | PieceType::Byte => text_of(token, vocab.pre.form(), &alphabet),
        };
        pieces.push(Some(&known))?;
        // Unused entries fill gaps in the numbering; no text may encode to one.
        if *kind != PieceType::Unused && !token.is_empty() {
            ids.entry(token.clone()).or_insert(id);
        }
    }
    let specials = SpecialTokens::new(specials);
    let model = BPE::builder()
        .vocab_and_merges(ids, merges(&vocab.merges)?)
        .ignore_merges(vocab.pre.ignores_merges())
        .byte_fallback(vocab.pre.form() != Form::Bytes)
        .build()
        .map_err(TokenizerError::Vocabulary)?;
    let mut encoder = tokenizers::Tokenizer::new(model);
    if vocab.pre.form() == Form::Escaped {
        let spaces = Replace::new(" ", SPACE_SYMBOL).map_err(TokenizerError::Vocabulary)?;
        encoder.with_normalizer(Some(NormalizerWrapper::from(spaces))).map_err(TokenizerError::Vocabulary)?;
    }
    encoder.with_pre_tokenizer(Some(vocab.pre.for_encoding()?));
    let token = |content: &str, special| AddedToken::from(content.to_owned(), special).normalized(false);
    let special = specials.iter().map(|(content, _)| token(content, true));
    encoder.add_special_tokens(special.collect::<Vec<_>>()).map_err(TokenizerError::Vocabulary)?;
    let added = added.into_iter().filter(|content| specials.id_of(content).is_none());
    encoder
        .add_tokens(added.map(|content| token(content, false)).collect::<Vec<_>>())
        .map_err(TokenizerError::Vocabulary)?;
    let adds_bos = Some(vocab.add_bos.unwrap_or(vocab.pre.adds_bos()));
    let affixes = Affixes { adds_bos, ..Affixes::default() };
    Ok(HfTokenizer { encoder, pieces, specials, strips_leading_space: false, affixes })
}

/// The bytes of a text token.
fn text_of(token: &str, form: Form, alphabet: &HashMap<char, u8>) -> Vec<u8> {
    let bytes = match form {
        Form::Bytes => token.chars().map(|c| alphabet.get(&c).copied()).collect(),
        Form::Plain => byte_token(token).map(|byte| vec![byte]),
        Form::Escaped => match byte_token(token) {
            Some(byte) => Some(vec![byte]),
            None => Some(token.replace(SPACE_SYMBOL, " ").into_bytes()),
        },
    };
    bytes.unwrap_or_else(|| token.to_owned().into_bytes())
}

fn merges(lines: &[String]) -> Result<Vec<(String, String)>, TokenizerError> {
    (0..)
        .zip(lines)
        .map(|(index, line): (usize, _)| match line.split_once(' ') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() && !right.contains(' ') => {
                Ok((left.to_owned(), right.to_owned()))
            }
            _ => Err(TokenizerError::malformed(
                format!("merge {index}"),
                "two tokens with one space between them",
                format!("{line:?}"),
            )),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Tokenizer;

    /// 256 bytes, `he` (256), a control token (257), an added text (258), a hole (259).
    fn vocab() -> BpeVocab {
        let mut alphabet: Vec<(u8, char)> = byte_level_alphabet().into_iter().map(|(c, b)| (b, c)).collect();
        alphabet.sort_unstable();
        let mut tokens: Vec<String> = alphabet.iter().map(|(_, c)| c.to_string()).collect();
        tokens.extend(["he", "<|end|>", "\u{e9} \u{e9}", "[PAD259]"].map(str::to_owned));
        let mut types = vec![PieceType::Normal; 260];
        types[257] = PieceType::Control;
        types[258] = PieceType::UserDefined;
        types[259] = PieceType::Unused;
        let merges = vec!["h e".to_owned()];
        BpeVocab { tokens, types, merges, pre: PreTokenizer::Qwen2, bos: None, eos: vec![257], add_bos: None }
    }

    #[test]
    fn each_type_is_what_it_says() {
        let t = Tokenizer::from_byte_level_vocab(&vocab()).unwrap();
        assert_eq!((t.vocab_size(), t.eos(), t.bos(), t.adds_bos()), (260, &[257][..], None, false));
        let text = "he\u{e9} \u{e9}<|end|>[PAD259]";
        let ids = t.encode(text, false).unwrap();
        assert_eq!(ids[..3], [256, 258, 257]);
        assert!(!ids.contains(&259), "a hole of the numbering is no text");
        assert_eq!(t.decode(&ids).unwrap(), "he\u{e9} \u{e9}[PAD259]");
        let literal = t.encode_literal(text).unwrap();
        assert!(!literal.contains(&257) && literal[1] == 258, "added tokens stay, special ones are text");
        assert_eq!(t.decode(&literal).unwrap(), text);
        assert_eq!(t.token_bytes(259).unwrap(), b"");
        assert_eq!(t.turn_ends(), [257]);
        // In a file without types, the tokens named by its metadata are still special.
        let untyped = BpeVocab { types: vec![PieceType::Normal; 260], ..vocab() };
        let t = Tokenizer::from_byte_level_vocab(&untyped).unwrap();
        assert_eq!(t.encode("<|end|>", false).unwrap(), [257]);
    }

    /// As in the `tokenizers` package with the same vocabulary and no unknown token.
    #[test]
    fn bytes_without_a_token_are_dropped() {
        let mut holed = vocab();
        holed.tokens[4] = "other".to_owned();
        holed.tokens[0xc3] = "another".to_owned();
        let t = Tokenizer::from_byte_level_vocab(&holed).unwrap();
        assert_eq!(t.encode("h\u{4}e\u{e9}\u{4}", false).unwrap(), [b'h'.into(), b'e'.into(), 0xa9]);
        assert_eq!(t.encode_literal("\u{4}",).unwrap(), [0_u32; 0]);
    }

    #[test]
    fn text_may_be_written_as_it_is() {
        let tokens = ["a", "\u{2581}", "\u{2581}a", "<0xC3>", "<0xA9>", "\n", "\n\n", "<e>"];
        let mut types = vec![PieceType::Normal; tokens.len()];
        types[3..5].fill(PieceType::Byte);
        types[7] = PieceType::Control;
        let vocab = BpeVocab {
            tokens: tokens.map(str::to_owned).to_vec(),
            types,
            merges: ["\u{2581} a", "\n \n"].map(str::to_owned).to_vec(),
            pre: PreTokenizer::from_name("gemma4").unwrap(),
            bos: None,
            eos: vec![7],
            add_bos: None,
        };
        let t = Tokenizer::from_byte_level_vocab(&vocab).unwrap();
        let text = "a a  a\n\n\u{e9}\n";
        let ids = t.encode(text, false).unwrap();
        assert_eq!(ids, [0, 2, 1, 2, 6, 3, 4, 5]);
        assert_eq!(t.decode(&ids).unwrap(), text);
    }

    #[test]
    fn broken_vocabularies_are_refused() {
        let refused = |vocab: &BpeVocab| Tokenizer::from_byte_level_vocab(vocab).unwrap_err().to_string();
        assert!(refused(&BpeVocab { types: Vec::new(), ..vocab() }).contains("0 for 260"));
        assert!(refused(&BpeVocab { eos: vec![260], ..vocab() }).contains("260"));
        for merge in ["he", "h", " he", "h e e", "h ", ""] {
            let error = refused(&BpeVocab { merges: vec![merge.to_owned()], ..vocab() });
            assert!(error.contains("merge 0"), "{merge:?}: {error}");
        }
        for merge in ["h x", "zz e"] {
            let error = refused(&BpeVocab { merges: vec![merge.to_owned()], ..vocab() });
            assert!(error.starts_with("the vocabulary"), "{merge:?}: {error}");
        }
        let empty = BpeVocab { tokens: vec![], types: vec![], merges: vec![], eos: vec![], ..vocab() };
        assert!(Tokenizer::from_byte_level_vocab(&empty).is_err());
    }
}
