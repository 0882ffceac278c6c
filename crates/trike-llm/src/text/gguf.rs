//! The tokenizer of a GGUF file.

use trike_format::{Gguf, MetaValue, StringArray, TensorSource as _};

use crate::{
    LlmError,
    names::FILE_KEY,
    tokenizer::{
        BpeVocab, PieceType, PreTokenizer, SpVocab, Tokenizer, TokenizerFiles,
        keys::{GGUF, Treatment},
    },
};

/// Keys of the tokens that end a text.
const ENDS: [&str; 3] = ["eos_token_id", "eot_token_id", "eom_token_id"];

/// The tokenizer of a GGUF file: a whole `tokenizer.json` under `tokenizer.huggingface.json`, a
/// SentencePiece vocabulary (`llama`), a byte-level one (`gpt2`), or a tiktoken file as `trike convert` stores it. `None` when
/// the file has no tokenizer.
///
/// # Errors
///
/// [`LlmError::GgufTokenizer`], which names a vocabulary or pre-tokenizer of another kind; missing or invalid
/// keys, and those that change tokens and are not implemented.
pub fn gguf_tokenizer(file: &Gguf) -> Result<Option<Tokenizer>, LlmError> {
    refuse_keys(file)?;
    let files = TokenizerFiles::from_texts(|name| {
        file.str(&format!("{FILE_KEY}{name}")).map(|text| text.map(str::to_owned))
    })?;
    let tokenizer = if let Some(json) = file.str("tokenizer.huggingface.json")? {
        Tokenizer::from_bytes_with(json.as_bytes(), &files)?
    } else {
        match file.str("tokenizer.ggml.model")? {
            None => match file.bytes(&format!("{FILE_KEY}tokenizer.model"))? {
                Some(bytes) => Tokenizer::from_bytes_with(bytes, &files)?,
                None => return Ok(None),
            },
            Some("llama") => {
                Tokenizer::from_sentencepiece_vocab(&sentencepiece(file)?)?.with_files(&files)?
            }
            Some("gpt2") => Tokenizer::from_byte_level_vocab(&byte_level(file, None)?)?,
            // Byte-pair vocabularies of plain text.
            Some(name @ ("gemma4" | "whitespace")) => {
                Tokenizer::from_byte_level_vocab(&byte_level(file, Some(name))?)?
            }
            Some(other) => {
                let name = format!("the GGUF tokenizer {other}");
                return Err(LlmError::GgufTokenizer { path: file.path().to_owned(), name });
            }
        }
    };
    let tokenizer = tokenizer.with_token_bytes(raw_tokens(file)?)?;
    let tokenizer = match file.bool("tokenizer.ggml.add_bos_token")? {
        Some(adds_bos) => tokenizer.with_adds_bos(adds_bos),
        None => tokenizer,
    };
    Ok(Some(match file.bool("tokenizer.ggml.add_eos_token")? {
        Some(adds_eos) => tokenizer.with_adds_eos(adds_eos),
        None => tokenizer,
    }))
}

/// Refuses the keys that change tokens and are not implemented.
fn refuse_keys(file: &Gguf) -> Result<(), LlmError> {
    for key in GGUF.iter().filter(|key| key.treatment == Treatment::Refused) {
        let off = match file.metadata().get(key.name) {
            None | Some(MetaValue::Bool(false)) => true,
            Some(MetaValue::Array(list)) => list.is_empty(),
            Some(_) => false,
        };
        if !off {
            let name = format!("{} ({})", key.name, key.note);
            return Err(LlmError::GgufTokenizer { path: file.path().to_owned(), name });
        }
    }
    Ok(())
}

/// The chat templates of a GGUF file by name.
pub(crate) fn gguf_templates(file: &Gguf) -> Result<Vec<(&str, &str)>, LlmError> {
    let mut named = Vec::new();
    if let Some(text) = file.str("tokenizer.chat_template")? {
        named.push(("default", text));
    }
    let names = file.strings("tokenizer.chat_templates")?;
    for name in names.into_iter().flat_map(StringArray::iter) {
        if let Some(text) = file.str(&format!("tokenizer.chat_template.{name}"))? {
            named.push((name, text));
        }
    }
    Ok(named)
}

fn sentencepiece(file: &Gguf) -> Result<SpVocab, LlmError> {
    let tokens = tokens(file)?;
    let scores = file.f32s("tokenizer.ggml.scores")?;
    let mut types = match token_types(file)? {
        Some(types) => types,
        // Without token types, bytes are still recognized by their spelling.
        None => tokens
            .iter()
            .map(|token| if is_byte(token) { PieceType::Byte } else { PieceType::Normal })
            .collect(),
    };
    PieceType::correct(&tokens, &mut types);
    set_raw_unused(file, &mut types)?;
    // llama.cpp's defaults for missing ids.
    let id = |key: &str, default: u32| -> Result<Option<u32>, LlmError> {
        let named = file.u32(&format!("tokenizer.ggml.{key}"))?;
        Ok(named.or(Some(default)).filter(|&id| (id as usize) < tokens.len()))
    };
    let mut eos = ends(file)?;
    if file.u32("tokenizer.ggml.eos_token_id")?.is_none() {
        let default = id("eos_token_id", 2)?.filter(|id| !eos.contains(id));
        eos.splice(..0, default);
    }
    Ok(SpVocab {
        scores: scores.map_or_else(|| vec![0.0; tokens.len()], <[f32]>::to_vec),
        types,
        bos: id("bos_token_id", 1)?,
        eos,
        unk: id("unknown_token_id", 0)?,
        add_space_prefix: file.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
        remove_extra_spaces: file.bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false),
        tokens,
    })
}

fn is_byte(token: &str) -> bool {
    let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    hex.is_some_and(|hex| hex.len() == 2 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// A byte-pair vocabulary; `kind` is the pre-tokenizer of a tokenizer model that has one of its own.
fn byte_level(file: &Gguf, kind: Option<&str>) -> Result<BpeVocab, LlmError> {
    // The default of llama.cpp for a file without the key.
    let name = kind.or(file.str("tokenizer.ggml.pre")?).unwrap_or("default");
    let pre = PreTokenizer::from_name(name).ok_or_else(|| {
        let nearest = PreTokenizer::nearest_name(name);
        let name = format!("the GGUF pre-tokenizer {name} (the nearest known name is {nearest})");
        LlmError::GgufTokenizer { path: file.path().to_owned(), name }
    })?;
    let tokens = tokens(file)?;
    let merges = file.strings("tokenizer.ggml.merges")?;
    let merges = merges.ok_or_else(|| file.missing_key("tokenizer.ggml.merges"))?;
    let mut types = token_types(file)?.unwrap_or_else(|| vec![PieceType::Normal; tokens.len()]);
    PieceType::correct(&tokens, &mut types);
    set_raw_unused(file, &mut types)?;
    Ok(BpeVocab {
        types,
        merges: merges.iter().map(str::to_owned).collect(),
        tokens,
        pre,
        bos: file.u32("tokenizer.ggml.bos_token_id")?,
        eos: ends(file)?,
        add_bos: None,
    })
}

/// The tokens by name. A token that is not UTF-8 gets a generated name, and its bytes from [`raw_tokens`].
fn tokens(file: &Gguf) -> Result<Vec<String>, LlmError> {
    let tokens = file.strings("tokenizer.ggml.tokens")?;
    let tokens = tokens.ok_or_else(|| file.missing_key("tokenizer.ggml.tokens"))?;
    let name = |id: usize| tokens.get(id).map_or_else(|| format!("[BYTES{id}]"), str::to_owned);
    Ok((0..tokens.len()).map(name).collect())
}

/// The tokens that are not UTF-8, such as parts of characters.
fn raw_tokens(file: &Gguf) -> Result<Vec<(u32, &[u8])>, LlmError> {
    let Some(tokens) = file.strings("tokenizer.ggml.tokens")? else { return Ok(Vec::new()) };
    let raw = (0_u32..).zip(0..tokens.len()).filter(|&(_, i)| tokens.get(i).is_none());
    Ok(raw.filter_map(|(id, i)| Some((id, tokens.get_bytes(i)?))).collect())
}

/// Marks tokens that are not UTF-8 as unused, so that no text is encoded to them.
fn set_raw_unused(file: &Gguf, types: &mut [PieceType]) -> Result<(), LlmError> {
    for (id, _) in raw_tokens(file)? {
        if let Some(kind) = types.get_mut(id as usize) {
            *kind = PieceType::Unused;
        }
    }
    Ok(())
}

fn token_types(file: &Gguf) -> Result<Option<Vec<PieceType>>, LlmError> {
    let Some(types) = file.i64s("tokenizer.ggml.token_type")? else { return Ok(None) };
    let types = types.iter().map(|&n| {
        u32::try_from(n).ok().and_then(PieceType::from_number).ok_or_else(|| LlmError::Config {
            path: file.path().to_owned(),
            key: "tokenizer.ggml.token_type".to_owned(),
            expected: "types 1 to 6".to_owned(),
            got: n.to_string(),
        })
    });
    types.collect::<Result<_, _>>().map(Some)
}

/// End-of-text, end-of-turn and end-of-message tokens.
fn ends(file: &Gguf) -> Result<Vec<u32>, LlmError> {
    let mut ends = Vec::new();
    for key in ENDS {
        let id = file.u32(&format!("tokenizer.ggml.{key}"))?;
        ends.extend(id.filter(|id| !ends.contains(id)));
    }
    Ok(ends)
}
