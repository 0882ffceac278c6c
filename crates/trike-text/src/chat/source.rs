//! Sources of templates: `tokenizer_config.json`, `chat_template.jinja`, a list of named texts.

use std::{borrow::Cow, collections::BTreeMap, fs::File, io::Read, path::Path};

use serde_json::Value;

use super::{ChatError, ChatTemplate, DEFAULT, engine::MAX_TEMPLATE_BYTES};
use crate::tokenizer::Tokenizer;

/// Maximum size of a configuration file, in bytes. With 256 added tokens it has 50,000.
const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// Maximum number of named templates per model. Models in use have up to three.
const MAX_TEMPLATES: usize = 32;
/// The special-token variables that `transformers` sets if the configuration has them.
const TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl ChatTemplate {
    /// Reads the templates and special tokens from the text of a `tokenizer_config.json` and from a
    /// `chat_template.jinja`, whose template takes precedence. `None` when neither has a template.
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
        template.tokens.extend(special_tokens(&config));
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
        let template = Self::from_tokenizer_config(config.as_deref().unwrap_or("{}"), jinja.as_deref())?;
        let map = read(&dir.join("special_tokens_map.json"), MAX_CONFIG_BYTES)?;
        Ok(template.map(|template| template.with_special_tokens_map(config.as_deref(), map.as_deref())))
    }

    /// Takes special tokens from a `special_tokens_map.json`, which wins over a `tokenizer_config.json` unless that has
    /// `added_tokens_decoder`, as in the `transformers` package. A file that is not JSON has none.
    #[must_use]
    pub fn with_special_tokens_map(mut self, config: Option<&str>, map: Option<&str>) -> Self {
        let parse =
            |json: Option<&str>| json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or(Value::Null);
        if parse(config)["added_tokens_decoder"].is_null() {
            self.tokens.extend(special_tokens(&parse(map)));
        }
        self
    }

    /// Named templates, as in GGUF metadata; the one named `default` is used unless another is requested.
    /// `None` when there are none.
    ///
    /// # Errors
    ///
    /// A template that does not compile, and [`ChatError::LimitExceeded`] for more than 32.
    ///
    /// ```
    /// use trike_text::chat::{ChatTemplate, Message, RenderOptions};
    ///
    /// let template = ChatTemplate::from_named([("default", "{{ messages[0].content }}{{ eos_token }}")])?;
    /// let template = template.ok_or("a template")?.with_token("eos_token", "</s>");
    /// assert_eq!(template.render(&[Message::user("Hi")], &RenderOptions::default())?, "Hi</s>");
    /// assert!(ChatTemplate::from_named([("", ""); 0])?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_named<'a>(
        templates: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Option<Self>, ChatError> {
        let mut template = Self { templates: BTreeMap::new(), tokens: BTreeMap::new() };
        for (count, (name, text)) in templates.into_iter().enumerate() {
            if count == MAX_TEMPLATES {
                let limit = MAX_TEMPLATES as u64;
                return Err(ChatError::LimitExceeded { what: "templates of a model", limit });
            }
            template.add(name, text)?;
        }
        Ok(Some(template).filter(|t| !t.templates.is_empty()))
    }

    /// Sets `bos_token` and `eos_token` to the tokenizer's, unless the template's files define them.
    #[must_use]
    pub fn with_tokens_of(mut self, tokenizer: &Tokenizer) -> Self {
        for (name, id) in [("bos_token", tokenizer.bos()), ("eos_token", tokenizer.eos().first().copied())] {
            if let Some(token) = id.and_then(|id| tokenizer.name_of(id)) {
                self.tokens.entry(name.to_owned()).or_insert(token);
            }
        }
        self
    }
}

/// The special tokens that a configuration names. A token is a string, or an object with the string in `content`.
fn special_tokens(config: &Value) -> impl Iterator<Item = (String, String)> {
    TOKENS.iter().filter_map(|&name| {
        let token = config[name].as_str().or_else(|| config[name]["content"].as_str());
        token.map(|token| (name.to_owned(), token.to_owned()))
    })
}

/// Reads a text file; `None` if it does not exist.
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

/// `text` with every kind of line end as a line feed, as Jinja reads it.
pub(super) fn with_line_feeds(text: &str) -> Cow<'_, str> {
    match text.contains('\r') {
        true => text.replace("\r\n", "\n").replace('\r', "\n").into(),
        false => text.into(),
    }
}

/// `text` with the tags `{% generation %}` and `{% endgeneration %}` replaced by a plain scope.
///
/// They mark the model's output for training and are not part of Jinja.
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
