//! Reads a `tokenizer.json`: encoding by the `tokenizers` crate, decoding by a table of bytes.
//!
//! The file is parsed as JSON and checked before it is passed to the crate, which panics on some malformed
//! values. The parts that Trike implements itself are removed: post-processor (the
//! caller decides whether a sequence starts with BOS), truncation and padding (they would change ids
//! silently) and decoder (it works on whole sequences; a table gives text token by token).

use std::collections::HashMap;

use serde_json::Value;

use super::{
    TokenizerError,
    limits::{MAX_TOKENS, check_token, check_tokens},
    pieces::{Pieces, byte_token},
    specials::SpecialTokens,
};

/// A tokenizer of the crate with Trike's decode table.
pub(super) struct HfTokenizer {
    pub(super) encoder: tokenizers::Tokenizer,
    pub(super) pieces: Pieces,
    pub(super) specials: SpecialTokens,
    pub(super) strips_leading_space: bool,
    /// Whether the file adds a token before every sequence, if specified.
    pub(super) adds_bos: Option<bool>,
}

pub(super) fn parse(bytes: &[u8]) -> Result<HfTokenizer, TokenizerError> {
    let mut json: Value = serde_json::from_slice(bytes).map_err(|e| TokenizerError::Json(e.into()))?;
    check_model(&json["model"])?;
    check_normalizer(&json["normalizer"])?;
    let added = added_tokens(&json["added_tokens"])?;
    let decoding = Decoding::parse(&json["decoder"])?;
    let adds_bos = adds_bos(&json["post_processor"]);
    let Some(object) = json.as_object_mut() else {
        return Err(TokenizerError::malformed("tokenizer.json", "an object", "another value"));
    };
    for part in ["post_processor", "truncation", "padding", "decoder"] {
        object.insert(part.to_owned(), Value::Null);
    }
    let encoder: tokenizers::Tokenizer =
        serde_json::from_value(json).map_err(|e| TokenizerError::Json(e.into()))?;
    for (content, id) in added {
        // The crate renumbers added tokens and only logs a difference from the file.
        let got = encoder.token_to_id(&content);
        if got != Some(id) {
            return Err(TokenizerError::malformed(
                format!("added token {content:?}"),
                "an id that continues the vocabulary without gaps",
                format!("{id} in the file, {got:?} by its position"),
            ));
        }
    }
    let pieces = decode_table(&encoder, &decoding)?;
    check_coverage(&encoder, decoding.is_byte_level())?;
    let added = encoder.get_added_tokens_decoder();
    let special = added.iter().filter(|(_, token)| token.special);
    let specials = SpecialTokens::new(special.map(|(&id, token)| (token.content.as_str(), id)));
    let strips_leading_space = decoding.strips_leading_space;
    Ok(HfTokenizer { encoder, pieces, specials, strips_leading_space, adds_bos })
}

/// Whether the post-processor adds a special token at the start; `None` without a post-processor.
fn adds_bos(processor: &Value) -> Option<bool> {
    match name(processor) {
        "TemplateProcessing" => Some(processor["single"][0]["SpecialToken"].is_object()),
        "BertProcessing" | "RobertaProcessing" => Some(true),
        "ByteLevel" => Some(false),
        "Sequence" => {
            let steps = processor["processors"].as_array().map(Vec::as_slice).unwrap_or_default();
            // Nested sequences are ignored: no known file has them, and the depth would be unlimited.
            let steps = steps.iter().filter(|step| name(step) != "Sequence").filter_map(adds_bos);
            steps.reduce(|any, step| any | step)
        }
        _ => None,
    }
}

fn name(value: &Value) -> &str {
    value["type"].as_str().unwrap_or("of no type")
}

fn check_model(model: &Value) -> Result<(), TokenizerError> {
    let Some(vocab) = model["vocab"].as_object().filter(|_| matches!(name(model), "BPE" | "of no type"))
    else {
        return Err(TokenizerError::unsupported(
            format!("tokenizer.json with model {}", name(model)),
            "use a model with a BPE tokenizer",
        ));
    };
    for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if model[key].as_str().is_some_and(|s| !s.is_empty()) {
            return Err(TokenizerError::unsupported(
                format!("tokenizer.json with {key}"),
                "use a model with byte-level or SentencePiece BPE",
            ));
        }
    }
    if model["dropout"].as_f64().is_some_and(|p| p != 0.0) {
        return Err(TokenizerError::unsupported(
            "tokenizer.json with BPE dropout",
            "set dropout to null: it is used in training only",
        ));
    }
    check_tokens(vocab.len() as u64)?;
    let mut owner: HashMap<u64, &str> = HashMap::with_capacity(vocab.len());
    for (token, id) in vocab {
        check_token(token.len())?;
        let id = id.as_u64().filter(|&id| id < MAX_TOKENS as u64).ok_or_else(|| {
            TokenizerError::malformed(
                format!("id of token {token:?}"),
                "an integer below 4194304",
                id.to_string(),
            )
        })?;
        if let Some(other) = owner.insert(id, token) {
            return Err(TokenizerError::malformed(
                format!("id {id}"),
                "one token",
                format!("{other:?} and {token:?}"),
            ));
        }
    }
    Ok(())
}

/// Refuses compiled character maps: the crate does not validate them, so a malformed one would panic while encoding.
fn check_normalizer(normalizer: &Value) -> Result<(), TokenizerError> {
    if name(normalizer) == "Precompiled" {
        return Err(TokenizerError::unsupported(
            "tokenizer.json with a Precompiled normalizer",
            "use a model whose tokenizer has no compiled character map",
        ));
    }
    normalizer["normalizers"].as_array().into_iter().flatten().try_for_each(check_normalizer)
}

fn added_tokens(added: &Value) -> Result<Vec<(String, u32)>, TokenizerError> {
    let list = added.as_array().map(Vec::as_slice).unwrap_or_default();
    check_tokens(list.len() as u64)?;
    list.iter()
        .map(|token| {
            let id = token["id"].as_u64().and_then(|id| u32::try_from(id).ok());
            match (token["content"].as_str(), id) {
                (Some(content), Some(id)) if !content.is_empty() && (id as usize) < MAX_TOKENS => {
                    check_token(content.len())?;
                    Ok((content.to_owned(), id))
                }
                _ => Err(TokenizerError::malformed(
                    "added_tokens",
                    "a nonempty text and an id below 4194304",
                    token.to_string(),
                )),
            }
        })
        .collect()
}

/// One step from a token's name to its bytes.
enum Step {
    Replace {
        pattern: String,
        content: String,
    },
    /// `<0xHH>` is a byte.
    ByteFallback,
    /// Every character represents a byte, as in GPT-2.
    ByteLevel(HashMap<char, u8>),
}

#[derive(Default)]
struct Decoding {
    steps: Vec<Step>,
    strips_leading_space: bool,
}

impl Decoding {
    fn parse(decoder: &Value) -> Result<Self, TokenizerError> {
        let mut decoding = Self::default();
        decoding.add(decoder, &mut false)?;
        Ok(decoding)
    }

    fn add(&mut self, decoder: &Value, fused: &mut bool) -> Result<(), TokenizerError> {
        let refuse = |what: &str| {
            Err(TokenizerError::unsupported(
                format!("tokenizer.json with decoder {what}"),
                "use a model with byte-level or SentencePiece BPE",
            ))
        };
        match name(decoder) {
            "Sequence" => {
                for step in decoder["decoders"].as_array().into_iter().flatten() {
                    if name(step) == "Sequence" {
                        return refuse("Sequence in a Sequence");
                    }
                    self.add(step, fused)?;
                }
            }
            "ByteLevel" => self.steps.push(Step::ByteLevel(byte_level_alphabet())),
            "ByteFallback" => self.steps.push(Step::ByteFallback),
            "Fuse" => *fused = true,
            "Replace" => match (decoder["pattern"]["String"].as_str(), decoder["content"].as_str()) {
                (Some(pattern), Some(content)) if !pattern.is_empty() => self
                    .steps
                    .push(Step::Replace { pattern: pattern.to_owned(), content: content.to_owned() }),
                _ => return refuse("Replace by a pattern"),
            },
            "Metaspace" => {
                let Some(pattern) = decoder["replacement"].as_str().filter(|r| !r.is_empty()) else {
                    return refuse("Metaspace without a replacement");
                };
                self.steps.push(Step::Replace { pattern: pattern.to_owned(), content: " ".to_owned() });
                let never = decoder["prepend_scheme"] == "never" || decoder["add_prefix_space"] == false;
                self.strips_leading_space |= !never;
            }
            "Strip" => {
                let (start, stop) = (decoder["start"].as_u64(), decoder["stop"].as_u64());
                // Before `Fuse` it would strip every token.
                if !*fused || decoder["content"] != " " || start.is_none_or(|n| n > 1) || stop != Some(0) {
                    return refuse("Strip of anything but one leading space of the fused text");
                }
                self.strips_leading_space |= start == Some(1);
            }
            other => return refuse(other),
        }
        Ok(())
    }

    fn bytes(&self, token: &str) -> Vec<u8> {
        let mut text = token.to_owned();
        for step in &self.steps {
            match step {
                Step::Replace { pattern, content } => text = text.replace(pattern, content),
                Step::ByteFallback => {
                    if let Some(byte) = byte_token(&text) {
                        return vec![byte];
                    }
                }
                Step::ByteLevel(alphabet) => {
                    // A token with any other character is text: added tokens may contain spaces.
                    if let Some(bytes) = text.chars().map(|c| alphabet.get(&c).copied()).collect() {
                        return bytes;
                    }
                }
            }
        }
        text.into_bytes()
    }

    fn is_byte_level(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::ByteLevel(_)))
    }
}

/// GPT-2's printable characters for bytes: printable Latin-1 for itself, the other bytes from U+0100 on.
pub(super) fn byte_level_alphabet() -> HashMap<char, u8> {
    let mut next = 0x100;
    (0..=255u8)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => (char::from(byte), byte),
            _ => {
                next += 1;
                (char::from_u32(next - 1).unwrap_or(char::REPLACEMENT_CHARACTER), byte)
            }
        })
        .collect()
}

fn decode_table(encoder: &tokenizers::Tokenizer, decoding: &Decoding) -> Result<Pieces, TokenizerError> {
    let added = encoder.get_added_vocabulary();
    let vocab = encoder.get_vocab(true);
    let size = vocab.values().max().map_or(0, |&id| id as usize + 1);
    check_tokens(size as u64)?;
    let mut pieces = Pieces::default();
    for id in 0..size as u32 {
        match encoder.id_to_token(id) {
            Some(token) if added.is_special_token(&token) => pieces.push(Some(b""))?,
            Some(token) => pieces.push(Some(&decoding.bytes(&token)))?,
            None => pieces.push(None)?,
        }
    }
    Ok(pieces)
}

/// Checks that every byte has a token: without an unknown token, the crate silently drops text without tokens.
pub(super) fn check_coverage(
    encoder: &tokenizers::Tokenizer,
    byte_level: bool,
) -> Result<(), TokenizerError> {
    let tokenizers::ModelWrapper::BPE(bpe) = encoder.get_model() else {
        return Err(TokenizerError::unsupported(
            "tokenizer.json without a BPE model",
            "use a model with a BPE tokenizer",
        ));
    };
    if bpe.get_unk_token().as_ref().is_some_and(|unk| encoder.token_to_id(unk).is_some()) {
        return Ok(());
    }
    let missing = if byte_level {
        let alphabet = byte_level_alphabet();
        alphabet.iter().filter(|(c, _)| encoder.token_to_id(&c.to_string()).is_none()).map(|(_, &b)| b).min()
    } else {
        (0..=255u8).find(|b| !bpe.byte_fallback || encoder.token_to_id(&format!("<{b:#04X}>")).is_none())
    };
    missing.map_or(Ok(()), |byte| Err(TokenizerError::MissingByte { byte }))
}
