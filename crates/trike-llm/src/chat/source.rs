//! Where templates come from: `tokenizer_config.json`, `chat_template.jinja`, GGUF metadata.

use std::{collections::BTreeMap, fs::File, io::Read, path::Path};

use serde_json::Value;
use trike_format::{Gguf, StringArray, TensorSource as _};

use super::{ChatError, ChatTemplate, DEFAULT, engine::MAX_TEMPLATE_BYTES};
use crate::{ModelFile, Tensors, tokenizer::Tokenizer};

/// Bytes of a configuration file. With 256 added tokens it has 50,000.
const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// Named templates of one model. Models in use have three.
const MAX_TEMPLATES: usize = 32;
/// The variables that `transformers` sets, where the configuration has them.
const TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl ChatTemplate {
    /// Reads the templates and special tokens of a `tokenizer_config.json`, given as text, and of the
    /// `chat_template.jinja` beside it, which goes before. `None` when neither has a template.
    ///
    /// # Errors
    ///
    /// [`ChatError::Malformed`], and a template that does not compile.
    pub fn from_tokenizer_config(json: &str, jinja: Option<&str>) -> Result<Option<Self>, ChatError> {
        let malformed = |place: &str, expected, got: String| ChatError::Malformed {
            place: place.to_owned(),
            expected,
            got,
        };
        let config: Value = serde_json::from_str(json)
            .map_err(|e| malformed("tokenizer_config.json", "JSON", e.to_string()))?;
        let mut template = Self { templates: BTreeMap::new(), tokens: BTreeMap::new() };
        for name in TOKENS {
            // A token is its spelling, or an object that holds it.
            let token = config[name].as_str().or_else(|| config[name]["content"].as_str());
            template.tokens.extend(token.map(|token| (name.to_owned(), token.to_owned())));
        }
        match &config["chat_template"] {
            Value::Null => {}
            Value::String(text) => template.add(DEFAULT, text)?,
            Value::Array(list) if list.len() <= MAX_TEMPLATES => {
                for entry in list {
                    match (entry["name"].as_str(), entry["template"].as_str()) {
                        (Some(name), Some(text)) => template.add(name, text)?,
                        _ => {
                            let got = entry.to_string().chars().take(80).collect();
                            return Err(malformed("chat_template", "a name and a template", got));
                        }
                    }
                }
            }
            Value::Array(list) => {
                return Err(malformed("chat_template", "at most 32 templates", list.len().to_string()));
            }
            other => {
                let got = other.to_string().chars().take(80).collect();
                return Err(malformed("chat_template", "a text or a list of named ones", got));
            }
        }
        if let Some(text) = jinja {
            template.add(DEFAULT, text)?;
        }
        Ok(Some(template).filter(|t| !t.templates.is_empty()))
    }

    /// Reads the templates of a model directory: `chat_template.jinja`, else the one in `tokenizer_config.json`.
    /// `None` when there is none.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, and as [`from_tokenizer_config`](Self::from_tokenizer_config).
    pub fn from_dir(dir: impl AsRef<Path>) -> Result<Option<Self>, ChatError> {
        let dir = dir.as_ref();
        let config = read(&dir.join("tokenizer_config.json"), MAX_CONFIG_BYTES)?;
        let jinja = read(&dir.join("chat_template.jinja"), MAX_TEMPLATE_BYTES as u64)?;
        Self::from_tokenizer_config(config.as_deref().unwrap_or("{}"), jinja.as_deref())
    }

    /// Reads the templates in a GGUF file. `None` when it has none. The special tokens are the tokenizer's.
    ///
    /// # Errors
    ///
    /// Keys of another type, and a template that does not compile.
    pub fn from_gguf(file: &Gguf, tokenizer: &Tokenizer) -> Result<Option<Self>, ChatError> {
        let mut template = Self { templates: BTreeMap::new(), tokens: BTreeMap::new() };
        if let Some(text) = file.str("tokenizer.chat_template")? {
            template.add(DEFAULT, text)?;
        }
        let names = file.strings("tokenizer.chat_templates")?;
        for name in names.into_iter().flat_map(StringArray::iter).take(MAX_TEMPLATES) {
            if let Some(text) = file.str(&format!("tokenizer.chat_template.{name}"))? {
                template.add(name, text)?;
            }
        }
        if template.templates.is_empty() {
            return Ok(None);
        }
        for (name, key) in [
            ("bos_token", "bos_token_id"),
            ("eos_token", "eos_token_id"),
            ("unk_token", "unknown_token_id"),
            ("pad_token", "padding_token_id"),
        ] {
            let id = file.u32(&format!("tokenizer.ggml.{key}"))?;
            let token = id.and_then(|id| tokenizer.name_of(id));
            template.tokens.extend(token.map(|token| (name.to_owned(), token)));
        }
        Ok(Some(template))
    }

    /// The templates that come with a model, whichever file it is. `None` when there are none; llama2.c
    /// checkpoints have none.
    ///
    /// Where the files do not name BOS and EOS, they are the tokenizer's.
    ///
    /// # Errors
    ///
    /// As [`from_dir`](Self::from_dir) and [`from_gguf`](Self::from_gguf).
    pub fn for_model(model: &ModelFile, tokenizer: &Tokenizer) -> Result<Option<Self>, ChatError> {
        let template = match model.tensors() {
            Tensors::Hf(dir) => Self::from_dir(dir.path())?,
            Tensors::Gguf(file) => Self::from_gguf(file, tokenizer)?,
            Tensors::Llama2c(_) => None,
        };
        Ok(template.map(|mut template| {
            for (name, id) in
                [("bos_token", tokenizer.bos()), ("eos_token", tokenizer.eos().first().copied())]
            {
                if let Some(token) = id.and_then(|id| tokenizer.name_of(id)) {
                    template.tokens.entry(name.to_owned()).or_insert(token);
                }
            }
            template
        }))
    }
}

/// A text file, `None` when it is not there.
fn read(path: &Path, limit: u64) -> Result<Option<String>, ChatError> {
    let failed = |source| ChatError::Io { path: path.to_owned(), source };
    if !path.exists() {
        return Ok(None);
    }
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    let read = file.take(limit + 1).read_to_string(&mut text).map_err(failed)?;
    if read as u64 > limit {
        return Err(ChatError::LimitExceeded { what: "bytes of a template or configuration file", limit });
    }
    Ok(Some(text))
}

/// `text` with the tags `{% generation %}` and `{% endgeneration %}` as a scope that does nothing else.
///
/// They mark what the model said, for training, and are no part of Jinja.
pub(super) fn without_generation_tags(text: &str) -> Result<String, ChatError> {
    if text.len() > MAX_TEMPLATE_BYTES {
        let limit = MAX_TEMPLATE_BYTES as u64;
        return Err(ChatError::LimitExceeded { what: "bytes of template", limit });
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start + 2);
        out.push_str(before);
        rest = tag;
        let Some(end) = tag.find("%}") else { break };
        let inside = &tag[..end];
        let word = inside.trim_matches(|c: char| c.is_ascii_whitespace() || c == '-' || c == '+');
        let plain = match word {
            "generation" => "with",
            "endgeneration" => "endwith",
            _ => continue,
        };
        out.push_str(&inside.replacen(word, plain, 1));
        rest = &tag[end..];
    }
    out.push_str(rest);
    Ok(out)
}
