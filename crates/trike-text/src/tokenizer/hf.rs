//! Reads a `tokenizer.json`: encoding by the `tokenizers` crate, decoding by a table of bytes.
//!
//! The file is parsed as JSON and checked before it is passed to the crate, which panics on some malformed
//! values. The parts that Trike implements itself are removed: post-processor (the
//! caller decides whether a sequence starts with BOS), truncation and padding (they would change ids
//! silently) and decoder (it works on whole sequences; a table gives text token by token).

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::AddedToken;

use super::{
    TokenizerError,
    limits::{MAX_TOKENS, check_token, check_tokens},
    pieces::{Pieces, byte_token},
    settings::Added,
    specials::SpecialTokens,
};

/// A tokenizer of the crate with Trike's decode table.
pub(super) struct HfTokenizer {
    pub(super) encoder: tokenizers::Tokenizer,
    pub(super) pieces: Pieces,
    pub(super) specials: SpecialTokens,
    pub(super) strips_leading_space: bool,
    pub(super) affixes: Affixes,
}

/// The tokens that a file adds to every sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Affixes {
    /// Whether a sequence starts with BOS; `None` if the file does not specify it.
    pub(super) adds_bos: Option<bool>,
    /// Tokens before the sequence.
    pub(super) before: Vec<u32>,
    /// Tokens after the sequence.
    pub(super) after: Vec<u32>,
}

/// Parses a file; `more` are tokens that accompanying files add.
pub(super) fn parse(bytes: &[u8], more: &[Added]) -> Result<HfTokenizer, TokenizerError> {
    let mut json: Value = serde_json::from_slice(bytes).map_err(|e| TokenizerError::Json(e.into()))?;
    check_model(&json["model"])?;
    check_normalizer(&json["normalizer"])?;
    let added = added_tokens(&json["added_tokens"])?;
    let decoding = Decoding::parse(&json["decoder"])?;
    let processor = json["post_processor"].take();
    let Some(object) = json.as_object_mut() else {
        return Err(TokenizerError::malformed("tokenizer.json", "an object", "another value"));
    };
    for part in ["post_processor", "truncation", "padding", "decoder"] {
        object.insert(part.to_owned(), Value::Null);
    }
    let mut encoder: tokenizers::Tokenizer =
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
    add(&mut encoder, more)?;
    let pieces = decode_table(&encoder, &decoding)?;
    let affixes = affixes(&processor, &encoder)?;
    let added = encoder.get_added_tokens_decoder();
    let special = added.iter().filter(|(_, token)| token.special);
    let specials = SpecialTokens::new(special.map(|(&id, token)| (token.content.as_str(), id)));
    let strips_leading_space = decoding.strips_leading_space;
    Ok(HfTokenizer { encoder, pieces, specials, strips_leading_space, affixes })
}

/// Adds tokens; existing ones keep their ids, new ones get the next ids.
fn add(encoder: &mut tokenizers::Tokenizer, more: &[Added]) -> Result<(), TokenizerError> {
    for token in more {
        let added = AddedToken::from(token.content.clone(), token.special)
            .lstrip(token.lstrip)
            .rstrip(token.rstrip)
            .single_word(token.single_word)
            .normalized(token.normalized);
        let tokens = [added];
        let result =
            if token.special { encoder.add_special_tokens(tokens) } else { encoder.add_tokens(tokens) };
        result.map_err(TokenizerError::Json)?;
    }
    Ok(())
}

/// The tokens that the post-processor adds to one sequence. A file without a post-processor adds none.
fn affixes(processor: &Value, encoder: &tokenizers::Tokenizer) -> Result<Affixes, TokenizerError> {
    let mut affixes = Affixes { adds_bos: Some(false), ..Affixes::default() };
    let steps = match name(processor) {
        "Sequence" => processor["processors"].as_array().map(Vec::as_slice).unwrap_or_default(),
        _ => std::slice::from_ref(processor),
    };
    for step in steps {
        match name(step) {
            "TemplateProcessing" => template(step, encoder, &mut affixes)?,
            "BertProcessing" | "RobertaProcessing" => {
                affixes.before.extend(step["cls"][1].as_u64().and_then(|id| u32::try_from(id).ok()));
                affixes.after.extend(step["sep"][1].as_u64().and_then(|id| u32::try_from(id).ok()));
            }
            // Offsets only.
            "ByteLevel" => {}
            "of no type" if step.is_null() => {}
            other => {
                return Err(TokenizerError::unsupported(
                    format!("tokenizer.json with the post-processor {other}"),
                    "use a file whose post-processor is a template",
                ));
            }
        }
    }
    affixes.adds_bos = Some(!affixes.before.is_empty());
    Ok(affixes)
}

/// The tokens of a template before and after the text of one sequence.
fn template(
    template: &Value,
    encoder: &tokenizers::Tokenizer,
    affixes: &mut Affixes,
) -> Result<(), TokenizerError> {
    let mut before = true;
    for part in template["single"].as_array().into_iter().flatten() {
        if part["Sequence"].is_object() {
            before = false;
            continue;
        }
        let Some(token) = part["SpecialToken"]["id"].as_str() else { continue };
        let listed = template["special_tokens"][token]["ids"].as_array();
        let ids: Option<Vec<u32>> = match listed {
            Some(ids) => ids.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect(),
            None => encoder.token_to_id(token).map(|id| vec![id]),
        };
        let ids = ids.filter(|ids| ids.iter().all(|&id| encoder.id_to_token(id).is_some()));
        let ids = ids.ok_or_else(|| {
            TokenizerError::malformed(
                format!("post_processor: special token {token:?}"),
                "ids of the vocabulary",
                template["special_tokens"][token]["ids"].to_string(),
            )
        })?;
        if before { affixes.before.extend(ids) } else { affixes.after.extend(ids) }
    }
    Ok(())
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
                // Without a preceding `Fuse` it would strip every token.
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
