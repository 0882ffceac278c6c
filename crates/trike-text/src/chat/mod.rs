//! Chat: converts messages to a prompt with a model's chat template.
//!
//! Start from [`ChatTemplate::from_dir`], or [`ChatTemplate::from_source`] for a custom template, and
//! [`ChatTemplate::encode`]. Templates are rendered by minijinja, configured to match the output of the `transformers`
//! package; the test files contain that output for comparison.
//!
//! The decision that shaped this module: a template is untrusted code. It has no access to files, other templates or the
//! environment; instructions, data, nesting and the length of a prompt are limited, and it runs on a separate thread. The price is
//! that a few parts of Jinja, used by no known template, are not supported and reported by name: blocks, includes and imports, and
//! filters that no prompt needs. The other half of the decision is that messages are data: [`ChatTemplate::encode`] prevents
//! special tokens in the text of a message from being encoded as special tokens.
//!
//! * [`ChatTemplate`], [`RenderOptions`], [`Message`]
//! * [`Conversation`], [`Prompt`]: a history trimmed to a number of tokens
//! * [`Transcript`]: a complete conversation, with the ranges that the model writes
//! * [`ChatError`]

mod arguments;
mod budget;
mod builtins;
mod conversation;
mod engine;
mod error;
mod fields;
mod filters;
mod format;
mod guard;
mod message;
mod pad;
mod python;
mod scalar;
mod source;
mod strings;
mod text;
mod time;
mod transcript;
mod values;

use std::{collections::BTreeMap, time::SystemTime};

use minijinja::value::{Serde, Value};

pub use conversation::{Conversation, Prompt};
pub use error::ChatError;
pub use message::Message;
pub use transcript::Transcript;

use crate::tokenizer::{Shield, Tokenizer};

/// The name of the default template.
const DEFAULT: &str = "default";
/// The name of the template for requests with tools.
const TOOL_USE: &str = "tool_use";

/// Options of rendering, besides the messages; each `with_` method changes one field of the default.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenderOptions {
    /// Whether the prompt ends with the start of the model's turn. On by default.
    pub add_generation_prompt: bool,
    /// Tools as a JSON list; the template prints their keys in this order.
    pub tools: Option<String>,
    /// Additional variables, such as `enable_thinking` and `documents`.
    pub extra: BTreeMap<String, serde_json::Value>,
    /// The name of the template, for a model with several; `None` = `default`, or `tool_use` with tools.
    pub template: Option<String>,
    /// The time for `strftime_now`, in UTC; `None` = the current time.
    pub now: Option<SystemTime>,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self { add_generation_prompt: true, tools: None, extra: BTreeMap::new(), template: None, now: None }
    }
}

impl RenderOptions {
    /// Sets [`add_generation_prompt`](Self::add_generation_prompt).
    #[must_use]
    pub fn with_add_generation_prompt(self, add_generation_prompt: bool) -> Self {
        Self { add_generation_prompt, ..self }
    }

    /// Sets [`tools`](Self::tools).
    #[must_use]
    pub fn with_tools(self, tools: impl Into<Option<String>>) -> Self {
        Self { tools: tools.into(), ..self }
    }

    /// Sets [`template`](Self::template).
    #[must_use]
    pub fn with_template(self, template: impl Into<Option<String>>) -> Self {
        Self { template: template.into(), ..self }
    }

    /// Sets [`now`](Self::now).
    #[must_use]
    pub fn with_now(self, now: impl Into<Option<SystemTime>>) -> Self {
        Self { now: now.into(), ..self }
    }

    /// Adds a variable to [`extra`](Self::extra).
    #[must_use]
    pub fn with_extra(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.extra.insert(name.into(), value.into());
        self
    }
}

/// The chat templates of a model, with the special tokens that they print.
///
/// ```
/// use trike_text::chat::{ChatTemplate, Message, RenderOptions};
///
/// let source = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}\n{% endfor %}\
///               {% if add_generation_prompt %}[assistant]{% endif %}";
/// let template = ChatTemplate::from_source(source)?.with_token("bos_token", "<s>");
/// let prompt = template.render(&[Message::user(" Hello ")], &RenderOptions::default())?;
/// assert_eq!(prompt, "<s>[user] Hello\n[assistant]");
/// # Ok::<(), trike_text::chat::ChatError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    /// By name.
    templates: BTreeMap<String, String>,
    /// `bos_token` and other variables of the template for special tokens.
    tokens: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// A template from its text.
    ///
    /// # Errors
    ///
    /// [`ChatError::Syntax`] and [`ChatError::Unsupported`] with the line, and [`ChatError::LimitExceeded`].
    pub fn from_source(source: &str) -> Result<Self, ChatError> {
        let mut template = Self { templates: BTreeMap::new(), tokens: BTreeMap::new() };
        template.add(DEFAULT, source)?;
        Ok(template)
    }

    fn add(&mut self, name: &str, text: &str) -> Result<(), ChatError> {
        let text = source::for_the_engine(&source::with_line_feeds(text))?;
        engine::check(&text)?;
        self.templates.insert(name.to_owned(), text);
        Ok(())
    }

    /// Sets a special token for the template, by the name of its variable (`bos_token`).
    #[must_use]
    pub fn with_token(mut self, variable: impl Into<String>, token: impl Into<String>) -> Self {
        self.tokens.insert(variable.into(), token.into());
        self
    }

    /// The names of the templates, which nearly always include `default`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.templates.keys().map(String::as_str)
    }

    /// The special tokens for the template, by the names of their variables.
    #[must_use]
    pub fn tokens(&self) -> &BTreeMap<String, String> {
        &self.tokens
    }

    /// Whether one of the templates contains a text.
    pub(crate) fn mentions(&self, text: &str) -> bool {
        self.templates.values().any(|template| template.contains(text))
    }

    fn template(&self, options: &RenderOptions) -> Result<&str, ChatError> {
        let fallback = match options.tools {
            Some(_) if self.templates.contains_key(TOOL_USE) => TOOL_USE,
            _ => DEFAULT,
        };
        let wanted = options.template.as_deref().unwrap_or(fallback);
        self.templates.get(wanted).map(String::as_str).ok_or_else(|| ChatError::NoSuchTemplate {
            wanted: wanted.to_owned(),
            available: self.names().map(str::to_owned).collect(),
        })
    }

    /// The prompt as text, including its special tokens.
    ///
    /// # Errors
    ///
    /// [`ChatError::Refused`] when the template rejects these messages, [`ChatError::Render`] with the line of a
    /// failure, [`ChatError::LimitExceeded`], [`ChatError::NoSuchTemplate`], and
    /// [`ChatError::Malformed`] for tools that are not JSON.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<String, ChatError> {
        let source = self.template(options)?;
        let tokens = self.tokens.iter().map(|(name, token)| (name.clone(), Value::from(token.as_str())));
        let extra = options.extra.iter().map(|(name, value)| (name.clone(), Value::from(Serde(value))));
        // Of variables with the same name, the last one wins.
        let mut variables = vec![("documents".to_owned(), Value::from(()))];
        variables.extend(tokens.chain(extra));
        let tools = match options.tools.as_deref() {
            None => Value::from(()),
            Some(json) => serde_json::from_str::<Value>(json).map_err(|e| ChatError::Malformed {
                place: "tools".to_owned(),
                expected: "JSON",
                got: e.to_string(),
            })?,
        };
        let messages: Vec<Value> =
            messages.iter().map(|message| Value::from(Serde(message.for_template()))).collect();
        variables.extend([
            ("messages".to_owned(), Value::from(messages)),
            ("tools".to_owned(), tools),
            ("add_generation_prompt".to_owned(), Value::from(options.add_generation_prompt)),
        ]);
        let now = options.now.unwrap_or_else(SystemTime::now);
        engine::render(source, Value::from_pairs(variables), now)
    }

    /// The prompt as token ids: special tokens printed by the template are recognized, those in messages and tools are
    /// encoded as text.
    ///
    /// BOS is not added: a template prints it if its model needs one.
    ///
    /// While the template runs, each special token in the text of a message is replaced by a private-use
    /// character; its text is restored, as plain text, when the prompt is encoded. So no message
    /// can forge the end of a turn or the start of another. Limitations: a template sees one character in place of the
    /// special token, so it cannot search messages for special tokens; a
    /// template that deletes characters from a message could form a special token from the rest; and tokens
    /// that a vocabulary marks as added but not special (`<think>` in some) are recognized everywhere.
    ///
    /// # Errors
    ///
    /// As [`render`](Self::render), [`ChatError::Tokenizer`], and [`ChatError::NoPlaceholder`].
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<Vec<u32>, ChatError> {
        let (shield, messages, options) = covered(tokenizer, messages, options)?;
        let prompt = self.render(&messages, &options)?;
        Ok(tokenizer.encode_shielded(&prompt, &shield)?)
    }
}

/// Messages and tools with placeholders for the special tokens that they contain.
fn covered(
    tokenizer: &Tokenizer,
    messages: &[Message],
    options: &RenderOptions,
) -> Result<(Shield, Vec<Message>, RenderOptions), ChatError> {
    // Invalid JSON is refused when it is rendered.
    let tools: Option<serde_json::Value> =
        options.tools.as_deref().and_then(|json| serde_json::from_str(json).ok());
    let mut texts = Vec::new();
    messages.iter().for_each(|message| message.texts(&mut texts));
    tools.iter().for_each(|tools| message::collect_texts(tools, &mut texts));
    let shield = Shield::new(tokenizer, &texts).ok_or(ChatError::NoPlaceholder)?;
    let cover = |text: &str| shield.cover(tokenizer, text);
    let messages = messages.iter().map(|message| message.map_texts(&cover)).collect();
    let mut options = options.clone();
    if let Some(tools) = tools.filter(|_| !shield.is_empty()) {
        options.tools = Some(message::map_texts(&tools, &cover).to_string());
    }
    Ok((shield, messages, options))
}

#[cfg(test)]
mod tests;
