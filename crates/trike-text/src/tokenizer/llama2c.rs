//! Reads the tokenizer files of llama2.c: `i32` length of the longest token, then for each token an `f32` score, an `i32`
//! length and the bytes, all little-endian. The token count is not in the file; it is the model's vocabulary size.

use super::{
    TokenizerError,
    limits::{MAX_TOKEN_BYTES, check_token, check_tokens},
    pieces::byte_token,
    spm::{PieceType, SpVocab},
};

/// Ids 0 to 2 are fixed in llama2.c: unknown, BOS, EOS.
const SPECIAL: [&str; 3] = ["<unk>", "<s>", "</s>"];

pub(super) fn parse(bytes: &[u8]) -> Result<SpVocab, TokenizerError> {
    let mut reader = Reader { bytes, at: 0 };
    let longest = i32::from_le_bytes(reader.array("the length of the longest token")?);
    if !(1..=MAX_TOKEN_BYTES as i32).contains(&longest) {
        return Err(TokenizerError::malformed(
            "the llama2.c header",
            "the length of the longest token, 1 to 4096",
            longest.to_string(),
        ));
    }
    let mut vocab = SpVocab {
        tokens: Vec::new(),
        scores: Vec::new(),
        types: Vec::new(),
        bos: Some(1),
        eos: vec![2],
        unk: None,
        add_space_prefix: true,
        remove_extra_spaces: false,
    };
    while reader.at < bytes.len() {
        let id = vocab.tokens.len();
        check_tokens(id as u64 + 1)?;
        let score = f32::from_le_bytes(reader.array("the score of a token")?);
        let length = i32::from_le_bytes(reader.array("the length of a token")?);
        let length = usize::try_from(length).map_err(|_| {
            TokenizerError::malformed(
                format!("the length of token {id}"),
                "zero or more bytes",
                length.to_string(),
            )
        })?;
        check_token(length)?;
        let token = reader.take(length, "the bytes of a token")?;
        let token = std::str::from_utf8(token)
            .map_err(|e| TokenizerError::malformed(format!("token {id}"), "UTF-8", e.to_string()))?;
        vocab.types.push(match id {
            0 => PieceType::Unknown,
            1 | 2 => PieceType::Control,
            _ if byte_token(token).is_some() => PieceType::Byte,
            _ => PieceType::Normal,
        });
        vocab.tokens.push(token.to_owned());
        vocab.scores.push(score);
    }
    for (id, name) in SPECIAL.into_iter().enumerate() {
        // The exporter of llama2.c writes line feeds around `<s>` and `</s>`.
        let got = vocab.tokens.get(id).map_or("no token", |t| t.trim_matches('\n'));
        if got != name {
            return Err(TokenizerError::malformed(format!("token {id} of llama2.c"), name, got));
        }
    }
    Ok(vocab)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize, what: &'static str) -> Result<&'a [u8], TokenizerError> {
        let rest = &self.bytes[self.at..];
        let Some(taken) = rest.get(..length) else {
            return Err(TokenizerError::Truncated {
                what,
                offset: self.at,
                needed: length as u64,
                available: rest.len() as u64,
            });
        };
        self.at += length;
        Ok(taken)
    }

    fn array(&mut self, what: &'static str) -> Result<[u8; 4], TokenizerError> {
        let mut array = [0; 4];
        array.copy_from_slice(self.take(4, what)?);
        Ok(array)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(tokens: &[&str]) -> Vec<u8> {
        let mut bytes = 7i32.to_le_bytes().to_vec();
        for token in tokens {
            bytes.extend(0f32.to_le_bytes());
            bytes.extend((token.len() as i32).to_le_bytes());
            bytes.extend(token.as_bytes());
        }
        bytes
    }

    #[test]
    fn tokens_get_the_types_that_llama2c_builds_in() {
        let vocab = parse(&file(&["<unk>", "\n<s>\n", "\n</s>\n", "<0x41>", " a"])).unwrap();
        use PieceType::{Byte, Control, Normal, Unknown};
        assert_eq!(vocab.types, [Unknown, Control, Control, Byte, Normal]);
        assert_eq!(vocab.tokens[4], " a");
    }

    #[test]
    fn broken_files_are_errors_that_name_the_place() {
        let whole = file(&["<unk>", "<s>", "</s>", "a"]);
        assert!(parse(&whole).is_ok());
        let ends_of_tokens = [4 + 8 + 5, 4 + 8 + 5 + 8 + 3, whole.len() - 9];
        for end in 0..whole.len() {
            let result = parse(&whole[..end]);
            // Without the last token the file is well-formed again; only the model's vocabulary size reveals the cut.
            assert_eq!(result.is_ok(), end == ends_of_tokens[2], "cut at {end}");
        }
        let mut negative = whole.clone();
        negative[8..12].copy_from_slice(&(-1i32).to_le_bytes());
        assert!(parse(&negative).unwrap_err().to_string().contains("token 0"));
        let mut long = whole.clone();
        long[8..12].copy_from_slice(&i32::MAX.to_le_bytes());
        assert!(matches!(parse(&long), Err(TokenizerError::LimitExceeded { .. })));
        assert!(parse(&file(&["a", "b", "c"])).unwrap_err().to_string().contains("<unk>"));
        assert!(parse(&[0xff; 4]).is_err());
    }
}
