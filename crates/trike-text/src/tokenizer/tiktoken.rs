//! Reads a tiktoken `.model`: one line per token with its bytes in base64 and its rank.
//!
//! The file contains neither the pre-tokenizer nor the special tokens. Only one vocabulary of this format is used by
//! Llama-like checkpoints: Llama 3's, recognized by its number of tokens. Any other is an error.

use super::{
    TokenizerError,
    limits::{check_token, check_tokens},
    pieces::Pieces,
    ranks::Ranks,
    specials::SpecialTokens,
    split::{PreTokenizer, Splitter},
};

/// Tokens in Llama 3's file; its special tokens follow.
const LLAMA3_TOKENS: usize = 128_000;
/// Number of special tokens of Llama 3, most of them reserved.
const LLAMA3_SPECIALS: u32 = 256;

/// A tiktoken vocabulary with its pre-tokenizer.
#[derive(Clone)]
pub(super) struct RankEncoder {
    ranks: Ranks,
    splitter: Splitter,
}

pub(super) struct Tiktoken {
    pub(super) encoder: RankEncoder,
    pub(super) pieces: Pieces,
    pub(super) specials: SpecialTokens,
    pub(super) bos: u32,
    /// End of text and end of turn.
    pub(super) eos: [u32; 2],
}

impl RankEncoder {
    /// Appends the ids of `text`; no special token is recognized in it.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), TokenizerError> {
        self.splitter.pieces(text, |piece| self.ranks.encode(piece.as_bytes(), out))
    }

    pub(super) fn id_of(&self, token: &str) -> Option<u32> {
        self.ranks.id_of(token.as_bytes())
    }
}

/// Whether the first line is a base64 token, a space and a rank.
pub(super) fn is_tiktoken(bytes: &[u8]) -> bool {
    let line = bytes.split(|&b| b == b'\n').next().unwrap_or_default();
    let mut words = line.trim_ascii_end().split(|&b| b == b' ');
    let (Some(token), Some(rank), None) = (words.next(), words.next(), words.next()) else { return false };
    let base64 = |b: &u8| b.is_ascii_alphanumeric() || b"+/=".contains(b);
    !token.is_empty() && token.iter().all(base64) && !rank.is_empty() && rank.iter().all(u8::is_ascii_digit)
}

pub(super) fn parse(bytes: &[u8]) -> Result<Tiktoken, TokenizerError> {
    let tokens = parse_lines(bytes)?;
    if tokens.len() != LLAMA3_TOKENS {
        return Err(TokenizerError::unsupported(
            format!("a tiktoken vocabulary of {} tokens", tokens.len()),
            "only Llama 3's (128000 tokens) has a known pre-tokenizer; pass the tokenizer.json of the same model",
        ));
    }
    let mut pieces = Pieces::default();
    for token in &tokens {
        pieces.push(Some(token))?;
    }
    let first = LLAMA3_TOKENS as u32;
    let names: Vec<String> = (0..LLAMA3_SPECIALS).map(llama3_special).collect();
    for _ in &names {
        pieces.push(Some(b""))?;
    }
    Ok(Tiktoken {
        encoder: RankEncoder { ranks: Ranks::new(&tokens)?, splitter: PreTokenizer::LlamaBpe.splitter()? },
        pieces,
        specials: SpecialTokens::new(names.iter().map(String::as_str).zip(first..)),
        bos: first,
        eos: [first + 1, first + 9],
    })
}

/// Llama 3's special tokens. Later models of the family named some of the reserved ones.
fn llama3_special(index: u32) -> String {
    match index {
        0 => "<|begin_of_text|>".to_owned(),
        1 => "<|end_of_text|>".to_owned(),
        6 => "<|start_header_id|>".to_owned(),
        7 => "<|end_header_id|>".to_owned(),
        9 => "<|eot_id|>".to_owned(),
        2..=5 => format!("<|reserved_special_token_{}|>", index - 2),
        8 => "<|reserved_special_token_4|>".to_owned(),
        _ => format!("<|reserved_special_token_{}|>", index - 5),
    }
}

/// The tokens in the order of their ranks.
fn parse_lines(bytes: &[u8]) -> Result<Vec<Vec<u8>>, TokenizerError> {
    let mut tokens: Vec<Vec<u8>> = Vec::new();
    for (index, line) in bytes.split(|&b| b == b'\n').map(<[u8]>::trim_ascii_end).enumerate() {
        if line.is_empty() {
            continue;
        }
        let malformed = |got: String| {
            TokenizerError::malformed(
                format!("line {}", index + 1),
                "a token in base64, a space and the next rank",
                got,
            )
        };
        let shown = || String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned();
        let mut words = line.split(|&b| b == b' ');
        let (Some(token), Some(rank), None) = (words.next(), words.next(), words.next()) else {
            return Err(malformed(shown()));
        };
        check_tokens(tokens.len() as u64 + 1)?;
        check_token(token.len() / 4 * 3)?;
        let token = base64(token).filter(|t| !t.is_empty()).ok_or_else(|| malformed(shown()))?;
        // Ranks without gaps are ids; the one supported vocabulary lists them in order.
        if rank != tokens.len().to_string().as_bytes() {
            return Err(malformed(shown()));
        }
        tokens.push(token);
    }
    Ok(tokens)
}

/// Decodes standard base64 with padding, strictly: only the canonical encoding is accepted.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let padding = text.iter().rev().take_while(|&&b| b == b'=').count();
    if !text.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    let digits = &text[..text.len() - padding];
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    let (mut bits, mut count) = (0u32, 0);
    for &digit in digits {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    (bits == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_has_one_spelling() {
        for (text, bytes) in
            [("", &b""[..]), ("IQ==", b"!"), ("Zm8=", b"fo"), ("Zm9v", b"foo"), ("/+8A", b"\xff\xef\0")]
        {
            assert_eq!(base64(text.as_bytes()).as_deref(), Some(bytes), "{text}");
        }
        for text in ["I", "IQ", "IQ=", "IR==", "I===", "====", "I Q=", "Zm9=v", "Zm9v\n"] {
            assert_eq!(base64(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn lines_are_checked_and_named() {
        assert_eq!(parse_lines(b"IQ== 0\nIg== 1\r\n\n").unwrap(), [b"!", b"\""]);
        for (text, place) in [
            ("IQ== 0\nIg== 2\n", "line 2"),
            ("IQ== 1\n", "line 1"),
            ("IQ== 0 0\n", "line 1"),
            ("IQ==\n", "line 1"),
            ("= 0\n", "line 1"),
            (" 0\n", "line 1"),
            ("IQ== 00\n", "line 1"),
        ] {
            let error = parse_lines(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(place), "{error}");
        }
    }

    #[test]
    fn another_vocabulary_is_refused_by_its_size() {
        let error = parse(b"IQ== 0\nIg== 1\n").err().unwrap().to_string();
        assert!(error.contains("of 2 tokens") && error.contains("tokenizer.json"), "{error}");
    }

    #[test]
    fn the_special_tokens_have_their_names() {
        let names: Vec<String> = (0..256).map(llama3_special).collect();
        assert_eq!(names[5], "<|reserved_special_token_3|>");
        assert_eq!(names[8], "<|reserved_special_token_4|>");
        assert_eq!(names[10], "<|reserved_special_token_5|>");
        assert_eq!(names[255], "<|reserved_special_token_250|>");
        let mut distinct = names.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), 256);
    }
}
