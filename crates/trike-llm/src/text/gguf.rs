//! The tokenizer of a GGUF file.

use trike_format::{Gguf, StringArray, TensorSource as _};

use crate::{
    LlmError,
    names::FILE_KEY,
    tokenizer::{BpeVocab, PieceType, PreTokenizer, SpVocab, Tokenizer},
};

/// The tokenizer of a GGUF file: a whole `tokenizer.json` under `tokenizer.huggingface.json`, a
/// SentencePiece vocabulary (`llama`), a byte-level one (`gpt2`), or a tiktoken file as `trike convert` stores it. `None` when
/// the file has no tokenizer.
///
/// # Errors
///
/// [`LlmError::GgufTokenizer`], which names a vocabulary or pre-tokenizer of another kind; missing or invalid
/// keys.
pub fn gguf_tokenizer(file: &Gguf) -> Result<Option<Tokenizer>, LlmError> {
    let tokenizer = if let Some(json) = file.str("tokenizer.huggingface.json")? {
        Tokenizer::from_hf_json_bytes(json.as_bytes())?
    } else {
        match file.str("tokenizer.ggml.model")? {
            None => match file.bytes(&format!("{FILE_KEY}tokenizer.model"))? {
                Some(bytes) => Tokenizer::from_bytes(bytes)?,
                None => return Ok(None),
            },
            Some("llama") => Tokenizer::from_sentencepiece_vocab(&sentencepiece(file)?)?,
            Some("gpt2") => Tokenizer::from_byte_level_vocab(&byte_level(file)?)?,
            Some(other) => {
                let name = format!("the GGUF tokenizer {other}");
                return Err(LlmError::GgufTokenizer { path: file.path().to_owned(), name });
            }
        }
    };
    Ok(Some(match file.bool("tokenizer.ggml.add_bos_token")? {
        Some(adds_bos) => tokenizer.with_adds_bos(adds_bos),
        None => tokenizer,
    }))
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
    let scores = file.f32s("tokenizer.ggml.scores")?;
    let types = token_types(file)?.ok_or_else(|| file.missing_key("tokenizer.ggml.token_type"))?;
    Ok(SpVocab {
        tokens: tokens(file)?,
        scores: scores.ok_or_else(|| file.missing_key("tokenizer.ggml.scores"))?.to_vec(),
        types,
        bos: file.u32("tokenizer.ggml.bos_token_id")?,
        eos: ends(file)?,
        unk: file.u32("tokenizer.ggml.unknown_token_id")?,
        add_space_prefix: file.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true),
        remove_extra_spaces: file.bool("tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(false),
    })
}

fn byte_level(file: &Gguf) -> Result<BpeVocab, LlmError> {
    let unsupported = |name: String| LlmError::GgufTokenizer { path: file.path().to_owned(), name };
    let pre = match file.str("tokenizer.ggml.pre")? {
        // A guessed pre-tokenizer would produce plausible but wrong ids.
        None => return Err(unsupported("a byte-level tokenizer without `tokenizer.ggml.pre`".to_owned())),
        Some(name) => PreTokenizer::from_name(name)
            .ok_or_else(|| unsupported(format!("the GGUF pre-tokenizer {name}")))?,
    };
    let tokens = tokens(file)?;
    let merges = file.strings("tokenizer.ggml.merges")?;
    let merges = merges.ok_or_else(|| file.missing_key("tokenizer.ggml.merges"))?;
    Ok(BpeVocab {
        types: token_types(file)?.unwrap_or_else(|| vec![PieceType::Normal; tokens.len()]),
        merges: merges.iter().map(str::to_owned).collect(),
        tokens,
        pre,
        bos: file.u32("tokenizer.ggml.bos_token_id")?,
        eos: ends(file)?,
        add_bos: None,
    })
}

fn tokens(file: &Gguf) -> Result<Vec<String>, LlmError> {
    let tokens = file.strings("tokenizer.ggml.tokens")?;
    let tokens = tokens.ok_or_else(|| file.missing_key("tokenizer.ggml.tokens"))?;
    Ok(tokens.iter().map(str::to_owned).collect())
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
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        let id = file.u32(&format!("tokenizer.ggml.{key}"))?;
        ends.extend(id.filter(|id| !ends.contains(id)));
    }
    Ok(ends)
}
