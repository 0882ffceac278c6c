//! Reads a SentencePiece `.model`: a protobuf message, of which about a dozen fields are needed.

use super::{
    TokenizerError,
    limits::{check_token, check_tokens},
    spm::{PieceType, SpVocab},
};

/// The parts of a `.model` file that the encoder needs.
pub(super) struct SpModel {
    pub(super) vocab: SpVocab,
    pub(super) byte_fallback: bool,
}

/// `trainer_spec.model_type` of a BPE model.
const MODEL_TYPE_BPE: u64 = 2;

/// Parses a `ModelProto`; every setting that affects ids and is not implemented is an error.
pub(super) fn parse(bytes: &[u8]) -> Result<SpModel, TokenizerError> {
    let mut vocab = SpVocab {
        tokens: Vec::new(),
        scores: Vec::new(),
        types: Vec::new(),
        bos: None,
        eos: Vec::new(),
        unk: None,
        // The defaults of `normalizer_spec`, for files that omit a field.
        add_space_prefix: true,
        remove_extra_spaces: true,
    };
    let mut trainer = Trainer::default();
    let mut specs_seen = false;
    let mut message = Message::new(bytes, "ModelProto");
    while let Some((field, value)) = message.next()? {
        match field {
            1 => {
                check_tokens(vocab.tokens.len() as u64 + 1)?;
                let (token, score, kind) = parse_piece(value.bytes("pieces")?, vocab.tokens.len())?;
                vocab.tokens.push(token);
                vocab.scores.push(score);
                vocab.types.push(kind);
            }
            2 => {
                specs_seen = true;
                trainer.parse(value.bytes("trainer_spec")?)?;
            }
            3 => parse_normalizer(value.bytes("normalizer_spec")?, &mut vocab)?,
            _ => {}
        }
    }
    if vocab.tokens.is_empty() || !specs_seen {
        return Err(TokenizerError::malformed(
            "the SentencePiece model",
            "pieces and a trainer_spec",
            format!("{} pieces and an incomplete model", vocab.tokens.len()),
        ));
    }
    trainer.check_type()?;
    vocab.bos = trainer.id("bos_id", trainer.bos, vocab.tokens.len())?;
    vocab.eos = trainer.id("eos_id", trainer.eos, vocab.tokens.len())?.into_iter().collect();
    vocab.unk = trainer.id("unk_id", trainer.unk, vocab.tokens.len())?;
    Ok(SpModel { vocab, byte_fallback: trainer.byte_fallback })
}

fn parse_piece(bytes: &[u8], index: usize) -> Result<(String, f32, PieceType), TokenizerError> {
    let (mut token, mut score, mut kind) = (String::new(), 0.0, PieceType::Normal);
    let mut message = Message::new(bytes, "SentencePiece");
    while let Some((field, value)) = message.next()? {
        match field {
            1 => {
                let raw = value.bytes("piece")?;
                check_token(raw.len())?;
                token = std::str::from_utf8(raw)
                    .map_err(|e| TokenizerError::malformed(format!("token {index}"), "UTF-8", e.to_string()))?
                    .to_owned();
            }
            2 => score = value.float("score")?,
            3 => {
                let number = value.integer("type")?;
                kind = u32::try_from(number).ok().and_then(PieceType::from_number).ok_or_else(|| {
                    TokenizerError::malformed(format!("type of token {index}"), "1 to 6", number.to_string())
                })?;
            }
            _ => {}
        }
    }
    Ok((token, score, kind))
}

struct Trainer {
    model_type: u64,
    byte_fallback: bool,
    unk: u64,
    bos: u64,
    eos: u64,
}

impl Default for Trainer {
    /// The defaults of `trainer_spec`.
    fn default() -> Self {
        Self { model_type: 1, byte_fallback: false, unk: 0, bos: 1, eos: 2 }
    }
}

impl Trainer {
    fn parse(&mut self, bytes: &[u8]) -> Result<(), TokenizerError> {
        let mut message = Message::new(bytes, "TrainerSpec");
        while let Some((field, value)) = message.next()? {
            match field {
                3 => self.model_type = value.integer("model_type")?,
                24 if value.integer("treat_whitespace_as_suffix")? != 0 => {
                    return Err(TokenizerError::unsupported(
                        "SentencePiece treat_whitespace_as_suffix",
                        CONVERT,
                    ));
                }
                35 => self.byte_fallback = value.integer("byte_fallback")? != 0,
                40 => self.unk = value.integer("unk_id")?,
                41 => self.bos = value.integer("bos_id")?,
                42 => self.eos = value.integer("eos_id")?,
                _ => {}
            }
        }
        Ok(())
    }

    fn check_type(&self) -> Result<(), TokenizerError> {
        let name = match self.model_type {
            MODEL_TYPE_BPE => return Ok(()),
            1 => "SentencePiece model_type UNIGRAM".to_owned(),
            3 => "SentencePiece model_type WORD".to_owned(),
            4 => "SentencePiece model_type CHAR".to_owned(),
            other => format!("SentencePiece model_type {other}"),
        };
        Err(TokenizerError::unsupported(name, "use a model with a BPE tokenizer"))
    }

    /// An `int32` id; negative if the token does not exist.
    fn id(&self, name: &'static str, raw: u64, count: usize) -> Result<Option<u32>, TokenizerError> {
        // Negative values are encoded as 64-bit two's complement.
        if raw.cast_signed() < 0 {
            return Ok(None);
        }
        match u32::try_from(raw) {
            Ok(id) if raw < count as u64 => Ok(Some(id)),
            _ => Err(TokenizerError::malformed(
                name,
                "an id below the number of pieces",
                format!("{raw} with {count} pieces"),
            )),
        }
    }
}

const CONVERT: &str = "convert it to a tokenizer.json with the model's own tools and pass that";

fn parse_normalizer(bytes: &[u8], vocab: &mut SpVocab) -> Result<(), TokenizerError> {
    let (mut name, mut has_charsmap) = (String::new(), false);
    let mut message = Message::new(bytes, "NormalizerSpec");
    while let Some((field, value)) = message.next()? {
        match field {
            1 => name = String::from_utf8_lossy(value.bytes("name")?).into_owned(),
            2 => has_charsmap = !value.bytes("precompiled_charsmap")?.is_empty(),
            3 => vocab.add_space_prefix = value.integer("add_dummy_prefix")? != 0,
            4 => vocab.remove_extra_spaces = value.integer("remove_extra_whitespaces")? != 0,
            5 if value.integer("escape_whitespaces")? == 0 => {
                return Err(TokenizerError::unsupported("SentencePiece escape_whitespaces = false", CONVERT));
            }
            _ => {}
        }
    }
    if has_charsmap {
        return Err(TokenizerError::unsupported(format!("SentencePiece normalizer {name:?}"), CONVERT));
    }
    Ok(())
}

/// The value of one field.
#[derive(Clone, Copy)]
enum Value<'a> {
    Integer(u64),
    Fixed32([u8; 4]),
    Fixed64,
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    fn wrong(self, field: &'static str, expected: &'static str) -> TokenizerError {
        let got = match self {
            Self::Integer(_) => "a varint",
            Self::Fixed32(_) => "32 bits",
            Self::Fixed64 => "64 bits",
            Self::Bytes(_) => "a length-delimited value",
        };
        TokenizerError::malformed(field, expected, got)
    }

    fn bytes(self, field: &'static str) -> Result<&'a [u8], TokenizerError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            other => Err(other.wrong(field, "a length-delimited value")),
        }
    }

    fn integer(self, field: &'static str) -> Result<u64, TokenizerError> {
        match self {
            Self::Integer(value) => Ok(value),
            other => Err(other.wrong(field, "a varint")),
        }
    }

    fn float(self, field: &'static str) -> Result<f32, TokenizerError> {
        match self {
            Self::Fixed32(bytes) => Ok(f32::from_le_bytes(bytes)),
            other => Err(other.wrong(field, "32 bits")),
        }
    }
}

/// Iterates over the fields of one message without copies or allocations.
struct Message<'a> {
    rest: &'a [u8],
    length: usize,
    what: &'static str,
}

impl<'a> Message<'a> {
    fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { rest: bytes, length: bytes.len(), what }
    }

    fn take(&mut self, needed: u64) -> Result<&'a [u8], TokenizerError> {
        let split = usize::try_from(needed).ok().and_then(|n| self.rest.split_at_checked(n));
        let Some((taken, rest)) = split else {
            return Err(TokenizerError::Truncated {
                what: self.what,
                offset: self.length - self.rest.len(),
                needed,
                available: self.rest.len() as u64,
            });
        };
        self.rest = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, TokenizerError> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            let part = u64::from(byte & 0x7f);
            // The tenth byte has one significant bit.
            if shift == 63 && part > 1 {
                break;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(TokenizerError::malformed(self.what, "a varint of at most 64 bits", "a longer one"))
    }

    fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, TokenizerError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Integer(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Fixed64
            }
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => {
                let mut fixed = [0; 4];
                fixed.copy_from_slice(self.take(4)?);
                Value::Fixed32(fixed)
            }
            wire => {
                return Err(TokenizerError::malformed(
                    self.what,
                    "a field of wire type 0, 1, 2 or 5",
                    format!("type {wire}"),
                ));
            }
        };
        Ok(Some((tag >> 3, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn varint(mut value: u64) -> Vec<u8> {
        let mut out = Vec::new();
        while value > 0x7f {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
        out
    }

    fn field(number: u64, payload: &[u8]) -> Vec<u8> {
        [varint(number << 3 | 2), varint(payload.len() as u64), payload.to_vec()].concat()
    }

    fn int(number: u64, value: u64) -> Vec<u8> {
        [varint(number << 3), varint(value)].concat()
    }

    fn piece(text: &str, score: f32, kind: u64) -> Vec<u8> {
        let score = [vec![2 << 3 | 5], score.to_le_bytes().to_vec()].concat();
        field(1, &[field(1, text.as_bytes()), score, int(3, kind)].concat())
    }

    fn model(trainer: &[u8], normalizer: &[u8]) -> Vec<u8> {
        [
            piece("<unk>", 0.0, 2),
            piece("<s>", 0.0, 3),
            piece("a", -1.0, 1),
            field(2, trainer),
            field(3, normalizer),
        ]
        .concat()
    }

    #[test]
    fn a_small_model_is_read() {
        let none = int(42, -1i64 as u64);
        let bytes = model(&[int(3, 2), none].concat(), &int(4, 0));
        let model = parse(&bytes).unwrap();
        assert_eq!(model.vocab.tokens, ["<unk>", "<s>", "a"]);
        assert_eq!(model.vocab.scores, [0.0, 0.0, -1.0]);
        assert_eq!(model.vocab.types, [PieceType::Unknown, PieceType::Control, PieceType::Normal]);
        assert_eq!((model.vocab.unk, model.vocab.bos), (Some(0), Some(1)));
        assert!(model.vocab.eos.is_empty());
        assert!(model.vocab.add_space_prefix && !model.vocab.remove_extra_spaces && !model.byte_fallback);
    }

    #[test]
    fn what_is_not_implemented_is_refused_by_name() {
        let no_eos = int(42, -1i64 as u64);
        let bpe = [int(3, 2), no_eos].concat();
        let table = [
            (model(&[], &[]), "UNIGRAM"),
            (model(&int(3, 4), &[]), "CHAR"),
            (model(&[bpe.clone(), int(24, 1)].concat(), &[]), "treat_whitespace_as_suffix"),
            (model(&bpe, &[field(1, b"nmt_nfkc"), field(2, b"x")].concat()), "nmt_nfkc"),
            (model(&bpe, &int(5, 0)), "escape_whitespaces"),
        ];
        for (bytes, name) in table {
            let error = parse(&bytes).err().unwrap();
            assert!(matches!(error, TokenizerError::Unsupported { .. }), "{error}");
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn broken_messages_are_errors() {
        let whole = model(&[int(3, 2), int(42, 1)].concat(), &[]);
        assert!(parse(&whole).is_ok());
        for end in 0..whole.len() {
            // A cut between fields leaves a well-formed shorter message; the missing trainer_spec reveals it.
            if end < whole.len() - 2 {
                assert!(parse(&whole[..end]).is_err(), "cut at {end}");
            }
        }
        let table: [(&[u8], &str); 5] = [
            (&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], "needed"),
            (&[0xff; 11], "varint"),
            (&[0x0b], "wire type"),
            (&[0x08, 0x01], "length-delimited"),
            (b"", "trainer_spec"),
        ];
        for (bytes, part) in table {
            let error = parse(bytes).err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
        }
        let error = parse(&model(&[int(3, 2), int(42, 3)].concat(), &[])).err().unwrap();
        assert!(error.to_string().contains("eos_id"), "{error}");
    }
}
