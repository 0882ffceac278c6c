//! Token settings of the files that accompany a tokenizer: `tokenizer_config.json`, `special_tokens_map.json` and
//! `added_tokens.json`, read as in the `transformers` package (5).

use std::{collections::BTreeMap, path::Path};

use serde_json::{Map, Value};

use super::{
    TokenizerError,
    limits::{MAX_TOKENS, check_token, check_tokens, read_capped},
};

/// Named special tokens, in the order in which new ones get their ids.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// A token added by an accompanying file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Added {
    pub(super) content: String,
    pub(super) special: bool,
    pub(super) lstrip: bool,
    pub(super) rstrip: bool,
    pub(super) single_word: bool,
    pub(super) normalized: bool,
}

impl Added {
    fn special(content: &str) -> Self {
        Self {
            content: content.to_owned(),
            special: true,
            lstrip: false,
            rstrip: false,
            single_word: false,
            normalized: false,
        }
    }

    /// A token as a string, or as an object with its text in `content`.
    fn parse(value: &Value, special: bool) -> Option<Self> {
        if let Some(content) = value.as_str() {
            return Some(Self { special, normalized: !special, ..Self::special(content) });
        }
        let flag = |name: &str, default| value[name].as_bool().unwrap_or(default);
        let special = special || flag("special", false);
        Some(Self {
            content: value["content"].as_str()?.to_owned(),
            special,
            lstrip: flag("lstrip", false),
            rstrip: flag("rstrip", false),
            single_word: flag("single_word", false),
            normalized: flag("normalized", !special),
        })
    }
}

/// The texts of the files that may accompany a tokenizer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenizerFiles {
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<String>,
    /// `special_tokens_map.json`.
    pub special_tokens_map: Option<String>,
    /// `added_tokens.json`.
    pub added_tokens: Option<String>,
}

impl TokenizerFiles {
    /// The files of a directory.
    ///
    /// # Errors
    ///
    /// A file that is unreadable, not UTF-8 or too large.
    pub fn read(dir: &Path) -> Result<Self, TokenizerError> {
        Self::from_texts(|name| {
            let path = dir.join(name);
            if !path.is_file() {
                return Ok(None);
            }
            let text = read_capped(&path).and_then(|bytes| {
                String::from_utf8(bytes)
                    .map_err(|e| TokenizerError::malformed("the file", "UTF-8", e.utf8_error().to_string()))
            });
            text.map(Some).map_err(|error| TokenizerError::InFile { path, error: Box::new(error) })
        })
    }

    /// Collects the texts that `text` returns for the file names.
    ///
    /// # Errors
    ///
    /// The errors of `text`.
    pub fn from_texts<E>(mut text: impl FnMut(&'static str) -> Result<Option<String>, E>) -> Result<Self, E> {
        Ok(Self {
            tokenizer_config: text("tokenizer_config.json")?,
            special_tokens_map: text("special_tokens_map.json")?,
            added_tokens: text("added_tokens.json")?,
        })
    }
}

/// The parsed settings of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    /// Whether there is a `tokenizer_config.json`.
    pub(super) found: bool,
    pub(super) add_bos: bool,
    pub(super) add_eos: bool,
    pub(super) add_prefix_space: Option<bool>,
    /// Whether text after every special token gets a leading space, not only the first text.
    pub(super) legacy: Option<bool>,
    /// Special tokens by the names of their keys.
    pub(super) named: BTreeMap<String, String>,
    /// Tokens to add, in the order of their new ids.
    pub(super) added: Vec<Added>,
}

impl Settings {
    /// The settings in the files.
    pub(super) fn parse(files: &TokenizerFiles) -> Result<Self, TokenizerError> {
        let object =
            |name: &str, text: &Option<String>| -> Result<Option<Map<String, Value>>, TokenizerError> {
                let parsed = text.as_deref().map(serde_json::from_str).transpose();
                parsed.map_err(|e| TokenizerError::malformed(name, "a JSON object", e.to_string()))
            };
        let config = object("tokenizer_config.json", &files.tokenizer_config)?;
        let found = config.is_some();
        let mut config = config.unwrap_or_default();
        let mut added = BTreeMap::new();
        if let Some(decoder) = config.get("added_tokens_decoder").filter(|decoder| !decoder.is_null()) {
            // A file with this key is complete; the two older files are copies.
            for (id, token) in decoder.as_object().into_iter().flatten() {
                let token = Added::parse(token, false).zip(id.parse::<u32>().ok());
                let (token, id) = token.ok_or_else(|| malformed("added_tokens_decoder", id))?;
                added.insert(id, token);
            }
        } else {
            config.extend(object("special_tokens_map.json", &files.special_tokens_map)?.unwrap_or_default());
            let special = specials(&config);
            for (content, id) in object("added_tokens.json", &files.added_tokens)?.unwrap_or_default() {
                let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
                let id = id.ok_or_else(|| malformed("added_tokens.json", &content))?;
                let special = special.iter().any(|token| token.content == content);
                added.insert(id, Added { special, normalized: !special, ..Added::special(&content) });
            }
        }
        check_tokens(added.len() as u64)?;
        if let Some(id) = added.keys().find(|&&id| id as usize >= MAX_TOKENS) {
            return Err(malformed("an added token", &id.to_string()));
        }
        let mut settings = Self {
            found,
            add_bos: config.get("add_bos_token").and_then(Value::as_bool).unwrap_or(false),
            add_eos: config.get("add_eos_token").and_then(Value::as_bool).unwrap_or(false),
            add_prefix_space: config.get("add_prefix_space").and_then(Value::as_bool),
            legacy: config.get("legacy").and_then(Value::as_bool),
            named: BTreeMap::new(),
            added: added.into_values().collect(),
        };
        for name in NAMED {
            if let Some(token) = config.get(name).and_then(|value| Added::parse(value, true)) {
                settings.named.insert(name.to_owned(), token.content);
            }
        }
        for token in specials(&config) {
            if !settings.added.iter().any(|other| other.content == token.content) {
                settings.added.push(token);
            }
        }
        settings.added.retain(|token| !token.content.is_empty());
        settings.added.iter().try_for_each(|token| check_token(token.content.len()))?;
        super::keys::refuse(super::keys::TOKENIZER_CONFIG, &config)?;
        Ok(settings)
    }
}

fn malformed(place: &str, got: &str) -> TokenizerError {
    TokenizerError::malformed(place, "a token's text and an id below 4194304", got)
}

/// The special tokens that a configuration names.
fn specials(config: &Map<String, Value>) -> Vec<Added> {
    let named = NAMED.iter().filter_map(|name| config.get(*name));
    // Additional special tokens are in lists, or have custom names.
    let more =
        ["additional_special_tokens", "extra_special_tokens"].iter().filter_map(|name| config.get(*name));
    let more = more.flat_map(|value| match value {
        Value::Array(list) => list.iter().collect(),
        Value::Object(map) => map.values().collect(),
        _ => Vec::new(),
    });
    named.chain(more).filter_map(|value| Added::parse(value, true)).collect()
}
