//! The decode table: the bytes of each id.

use super::{
    TokenizerError,
    limits::{check_token, check_tokens},
};

/// The decode table: one entry per id, bytes concatenated.
#[derive(Clone, Default)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// End offset of each id's bytes.
    ends: Vec<usize>,
    /// Whether the id has a token; vocabularies may have gaps.
    known: Vec<bool>,
}

impl Pieces {
    /// Appends the next id. `None` is a gap; control tokens are known and have no bytes.
    pub(super) fn push(&mut self, bytes: Option<&[u8]>) -> Result<(), TokenizerError> {
        check_tokens(self.ends.len() as u64 + 1)?;
        check_token(bytes.map_or(0, <[u8]>::len))?;
        self.bytes.extend_from_slice(bytes.unwrap_or_default());
        self.ends.push(self.bytes.len());
        self.known.push(bytes.is_some());
        Ok(())
    }

    /// Number of ids, gaps included.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn get(&self, id: u32) -> Result<&[u8], TokenizerError> {
        let unknown = TokenizerError::UnknownId { id, vocab_size: self.len() };
        let Ok(index) = usize::try_from(id) else { return Err(unknown) };
        match (self.known.get(index), self.ends.get(index)) {
            (Some(true), Some(&end)) => {
                let start = if index == 0 { 0 } else { self.ends[index - 1] };
                Ok(&self.bytes[start..end])
            }
            _ => Err(unknown),
        }
    }
}

/// The value of a SentencePiece byte token, written `<0xHH>`.
pub(super) fn byte_token(piece: &str) -> Option<u8> {
    let hex = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    // `from_str_radix` alone would also accept a sign.
    let digits = hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    if digits { u8::from_str_radix(hex, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_and_ids_past_the_end_are_errors_and_control_tokens_are_empty() {
        let mut pieces = Pieces::default();
        for piece in [Some(&b"a"[..]), None, Some(b""), Some(b"bc")] {
            pieces.push(piece).unwrap();
        }
        assert_eq!(pieces.get(0).unwrap(), b"a");
        assert_eq!(pieces.get(2).unwrap(), b"");
        assert_eq!(pieces.get(3).unwrap(), b"bc");
        for id in [1, 4, u32::MAX] {
            assert!(
                matches!(pieces.get(id), Err(TokenizerError::UnknownId { id: i, vocab_size: 4 }) if i == id)
            );
        }
    }

    #[test]
    fn only_two_hex_digits_make_a_byte_token() {
        assert_eq!(byte_token("<0x0A>"), Some(10));
        assert_eq!(byte_token("<0xff>"), Some(255));
        for piece in ["<0x+A>", "<0xA>", "<0x00A>", "0x0A", "<0x0A", "<0xé>"] {
            assert_eq!(byte_token(piece), None, "{piece}");
        }
    }
}
