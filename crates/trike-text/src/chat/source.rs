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

    /// Takes special tokens from a `special_tokens_map.json`, which overrides a `tokenizer_config.json` without
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

/// Rewrites `text` for the engine: tags that it handles differently from Jinja, and Python's escapes in strings.
///
/// `{% generation %}` and `{% endgeneration %}` mark the model's output for training; they become a plain scope. Data, comments and
/// raw blocks are unchanged.
pub(super) fn for_the_engine(text: &str) -> Result<String, ChatError> {
    if text.len() > MAX_TEMPLATE_BYTES {
        let limit = MAX_TEMPLATE_BYTES as u64;
        return Err(ChatError::LimitExceeded { what: "bytes of template", limit });
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let (mut line, mut counted) = (1, text);
    while let Some(start) = tag_start(rest) {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        line += counted[..counted.len() - tag.len()].matches('\n').count();
        counted = tag;
        rest = match &tag[..2] {
            "{#" => copied_to(tag, "#}", &mut out),
            "{{" => expression(tag, "}}", line, &mut out)?,
            _ => statement(tag, line, &mut out)?,
        };
    }
    out.push_str(rest);
    Ok(out)
}

/// The start of the next tag.
fn tag_start(text: &str) -> Option<usize> {
    let mut tags = text.match_indices('{').map(|(at, _)| at);
    tags.find(|&at| matches!(text.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')))
}

/// Copies `text` through the next `end`, and returns the rest.
fn copied_to<'a>(text: &'a str, end: &str, out: &mut String) -> &'a str {
    let at = text[2..].find(end).map_or(text.len(), |at| 2 + at + end.len());
    out.push_str(&text[..at]);
    &text[at..]
}

/// Copies a statement.
fn statement<'a>(tag: &'a str, line: usize, out: &mut String) -> Result<&'a str, ChatError> {
    let inside = tag[2..].trim_start_matches(['-', '+']).trim_start();
    let word = inside.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
    let after = inside[word.len()..].trim_start();
    let plain = match word {
        "raw" if after.trim_start_matches(['-', '+']).starts_with("%}") => {
            out.push_str(&tag[..tag.len() - after.len()]);
            return Ok(raw(after, out));
        }
        "do" => return Err(ChatError::Syntax { line, message: "unknown tag `do`".to_owned() }),
        "macro" | "with" => {
            assert_independent(word, after, line)?;
            return expression(tag, "%}", line, out);
        }
        // In Jinja, variables set inside these blocks go out of scope at their end.
        "filter" => return opened_scope(tag, line, out),
        "set" if !assigns(after) => return opened_scope(tag, line, out),
        "endfilter" | "endset" => {
            out.extend([&tag[..tag.len() - inside.len()], "endwith %}{% ", word]);
            return expression_end(&inside[word.len()..], out);
        }
        "generation" => "with",
        "endgeneration" => "endwith",
        _ => return expression(tag, "%}", line, out),
    };
    out.push_str(&tag[..tag.len() - inside.len()]);
    out.push_str(plain);
    expression_end(&inside[word.len()..], out)
}

/// Copies the rest of a tag without an expression.
fn expression_end<'a>(tail: &'a str, out: &mut String) -> Result<&'a str, ChatError> {
    let (end, rest) = tail.split_at(tail.find("%}").map_or(tail.len(), |at| at + 2));
    out.push_str(end);
    Ok(rest)
}

/// Copies a tag, followed by a plain scope.
fn opened_scope<'a>(tag: &'a str, line: usize, out: &mut String) -> Result<&'a str, ChatError> {
    let start = out.len();
    let rest = expression(tag, "%}", line, out)?;
    let copied = &out[start..];
    if let Some(body) = copied.strip_suffix("%}") {
        // White space control after the tag moves to the end.
        let plain = body.trim_end_matches(['-', '+']);
        let mark = body[plain.len()..].to_owned();
        out.truncate(start + plain.len());
        out.extend([" %}{% with ", &mark, "%}"]);
    }
    Ok(rest)
}

/// Whether a `set` assigns a value instead of a block.
fn assigns(after: &str) -> bool {
    let (mut depth, mut quote) = (0_usize, None);
    for (at, c) in after.char_indices() {
        match (quote, c) {
            (Some(open), _) => quote = quote.filter(|_| c != open),
            (None, '\'' | '"') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            (None, '=') if depth == 0 => return true,
            (None, '%') if after[at..].starts_with("%}") => return false,
            _ => {}
        }
    }
    false
}

/// Copies a raw block, from after its first word to the end of its end tag.
fn raw<'a>(after: &'a str, out: &mut String) -> &'a str {
    let (open, inside) = after.split_at(after.find("%}").map_or(after.len(), |at| at + 2));
    // Jinja keeps the line end after the tag, and a block of spaces only.
    out.push_str(if open.starts_with('%') { " +" } else { "" });
    out.push_str(open);
    let is_end =
        |at: &usize| inside[at + 2..].trim_start_matches(['-', '+']).trim_start().starts_with("endraw");
    let Some(end) = inside.match_indices("{%").map(|(at, _)| at).find(is_end) else {
        out.push_str(inside);
        return "";
    };
    let (content, close) = inside.split_at(end);
    let (close, rest) = close.split_at(close.find("%}").map_or(close.len(), |at| at + 2));
    out.push_str(content);
    match close[2..].starts_with(['-', '+']) || content.contains('\n') {
        true => out.push_str(close),
        false => out.extend(["{%+", &close[2..]]),
    }
    rest
}

/// Refuses default values of macro arguments, or values of a `with`, that refer to another one: the engine evaluates them in a
/// different order.
fn assert_independent(word: &str, after: &str, line: usize) -> Result<(), ChatError> {
    let mut names: Vec<&str> = Vec::new();
    // Alternates between an argument's name and its value.
    let (mut depth, mut is_value, mut quote) = (0_usize, false, None);
    let base = usize::from(word == "macro");
    let mut rest = after;
    while let Some(c) = rest.chars().next() {
        let width = c.len_utf8();
        if let Some(open) = quote {
            let escaped = if c == '\\' { rest[width..].chars().next().map_or(0, char::len_utf8) } else { 0 };
            quote = quote.filter(|_| c != open);
            rest = &rest[width + escaped..];
            continue;
        }
        match c {
            _ if depth <= base && rest.starts_with("%}") => break,
            '\'' | '"' => quote = Some(c),
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            ',' if depth == base => is_value = false,
            '=' if depth == base => is_value = true,
            c if c.is_alphabetic() || c == '_' => {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                let name = &rest[..end];
                if !is_value && depth == base {
                    names.push(name);
                } else if names[..names.len().saturating_sub(1)].contains(&name) {
                    let feature = "a value that refers to another argument (in a macro or a `with`)";
                    return Err(ChatError::Unsupported { line, feature });
                }
                rest = &rest[end..];
                continue;
            }
            _ => {}
        }
        rest = &rest[width..];
    }
    Ok(())
}

/// Copies the tag through `end`, with its strings rewritten, and returns the rest.
fn expression<'a>(tag: &'a str, end: &str, line: usize, out: &mut String) -> Result<&'a str, ChatError> {
    out.push_str(&tag[..2]);
    let mut rest = &tag[2..];
    let mut depth = 0_usize;
    while let Some(c) = rest.chars().next() {
        // In Jinja, a brace that closes a map does not end the tag.
        if depth == 0 && rest.starts_with(end) {
            break;
        }
        match c {
            '\'' | '"' => {
                rest = string(c, &rest[1..], line, out)?;
                continue;
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        out.push(c);
        rest = &rest[c.len_utf8()..];
    }
    Ok(copied_end(rest, end, out))
}

fn copied_end<'a>(rest: &'a str, end: &str, out: &mut String) -> &'a str {
    match rest.strip_prefix(end) {
        Some(after) => {
            out.push_str(end);
            after
        }
        None => rest,
    }
}

/// Copies a string through its closing quote, converting Python-only escapes to the engine's.
fn string<'a>(quote: char, text: &'a str, line: usize, out: &mut String) -> Result<&'a str, ChatError> {
    out.push(quote);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            if c == quote {
                break;
            }
            continue;
        }
        match chars.next() {
            Some('a') => out.push_str("\\x07"),
            Some('v') => out.push_str("\\x0b"),
            Some('/') => out.push_str("\\\\/"),
            Some('\n') => {}
            Some('N') if chars.as_str().starts_with('{') => {
                return Err(ChatError::Unsupported { line, feature: "a character by its name (`\\N{..}`)" });
            }
            Some('U') => {
                let digits = chars.as_str().get(..8);
                let wanted = digits.and_then(|digits| char::from_u32(u32::from_str_radix(digits, 16).ok()?));
                let Some(wanted) = wanted else {
                    let message = r"`\U` takes the eight digits of a character".to_owned();
                    return Err(ChatError::Syntax { line, message });
                };
                chars = chars.as_str()[8..].chars();
                match wanted {
                    '\\' | '\'' | '"' => out.extend(['\\', wanted]),
                    other => out.push(other),
                }
            }
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    Ok(chars.as_str())
}
