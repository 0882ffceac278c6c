//! Replies of chat models: reasoning, content and tool calls in the text that a model writes.
//!
//! Start from [`ReplyFormat::of`], which finds out how a model's chat template writes tool calls by rendering one.
//! [`ReplyFormat::prepare`] puts the tools into the prompt, [`ReplyFormat::grammar`] makes every call one of a known tool with arguments
//! that match its schema, and a [`ReplyReader`] takes the text apart while it is generated.
//!
//! The decision that shaped this module: the syntax of calls is read off the template and not looked up by the name of the model, so
//! that a new model works as soon as its template does. A template that does not render tools, or not with arguments in JSON, gets them
//! described in its system message, with the syntax of Hermes.
//!
//! * [`ReplyFormat`], [`ReplyOptions`], [`Tool`], [`ToolChoice`], [`Thinking`]
//! * [`ReplyReader`], [`ReplyPart`]

mod grammar;
mod messages;
mod reader;
mod syntax;

#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

pub use reader::{ReplyPart, ReplyReader};

use crate::{
    chat::{ChatTemplate, Message, RenderOptions},
    constraint::Grammar,
    tokenizer::Tokenizer,
};
use syntax::CallSyntax;

/// Tags of reasoning that templates of published models use.
const TAGS: &[(&str, &str)] =
    &[("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>")];

/// A tool that a model may call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Tool {
    /// The name in calls.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// The JSON schema of its arguments, an object.
    pub parameters: Value,
}

impl Tool {
    /// A tool. `null` and an empty schema mean any object.
    #[must_use]
    pub fn new(name: impl Into<String>, description: impl Into<Option<String>>, parameters: Value) -> Self {
        let mut schema = match parameters {
            Value::Object(schema) => schema,
            _ => Map::new(),
        };
        schema.entry("type").or_insert_with(|| json!("object"));
        Self { name: name.into(), description: description.into(), parameters: Value::Object(schema) }
    }

    /// The tool as chat templates expect it.
    fn for_template(&self) -> Value {
        let mut function = json!({ "name": self.name });
        if let Some(description) = &self.description {
            function["description"] = json!(description);
        }
        function["parameters"] = self.parameters.clone();
        json!({ "type": "function", "function": function })
    }
}

/// Which tools a reply may or must call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// None.
    None,
    /// As the model wants.
    #[default]
    Auto,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// Whether a reply begins with reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Thinking {
    /// It does not, or nobody can tell it from the content.
    #[default]
    None,
    /// The model may open it.
    Possible,
    /// The prompt has opened it.
    Open,
}

/// What a reply may consist of; each `with_` method changes one field of the default.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReplyOptions {
    /// The tools.
    pub tools: Vec<Tool>,
    /// Which of them the reply may or must call.
    pub choice: ToolChoice,
    /// Whether it may have several calls. On by default.
    pub parallel: bool,
    /// The grammar of the content: a JSON schema or a regular expression.
    pub format: Option<Grammar>,
    /// Whether it begins with reasoning.
    pub thinking: Thinking,
}

impl Default for ReplyOptions {
    fn default() -> Self {
        Self {
            tools: Vec::new(),
            choice: ToolChoice::default(),
            parallel: true,
            format: None,
            thinking: Thinking::None,
        }
    }
}

impl ReplyOptions {
    /// Sets [`tools`](Self::tools).
    #[must_use]
    pub fn with_tools(self, tools: impl Into<Vec<Tool>>) -> Self {
        Self { tools: tools.into(), ..self }
    }

    /// Sets [`choice`](Self::choice).
    #[must_use]
    pub fn with_choice(self, choice: ToolChoice) -> Self {
        Self { choice, ..self }
    }

    /// Sets [`parallel`](Self::parallel).
    #[must_use]
    pub fn with_parallel(self, parallel: bool) -> Self {
        Self { parallel, ..self }
    }

    /// Sets [`format`](Self::format).
    #[must_use]
    pub fn with_format(self, format: impl Into<Option<Grammar>>) -> Self {
        Self { format: format.into(), ..self }
    }

    /// Sets [`thinking`](Self::thinking).
    #[must_use]
    pub fn with_thinking(self, thinking: Thinking) -> Self {
        Self { thinking, ..self }
    }

    /// The tools that may be called.
    pub(crate) fn callable(&self) -> Vec<&Tool> {
        match &self.choice {
            ToolChoice::None => Vec::new(),
            ToolChoice::Named(name) => self.tools.iter().filter(|tool| tool.name == *name).collect(),
            ToolChoice::Auto | ToolChoice::Required => self.tools.iter().collect(),
        }
    }

    /// Whether the reply consists of calls only.
    pub(crate) fn must_call(&self) -> bool {
        matches!(self.choice, ToolChoice::Required | ToolChoice::Named(_))
    }
}

/// How the replies of a model are written.
///
/// ```
/// use serde_json::json;
/// use trike_text::{chat::ChatTemplate, reply::{ReplyFormat, ReplyOptions, ReplyPart, Tool}, tokenizer::Tokenizer};
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
/// let tokenizer = Tokenizer::open(path)?;
/// let template = ChatTemplate::from_source("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")?;
/// let format = ReplyFormat::of(&template, &tokenizer);
/// let options = ReplyOptions::default().with_tools([Tool::new("now", None, json!({}))]);
/// let mut reader = format.reader(&options);
/// let parts = reader.push("<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>");
/// assert_eq!(parts[0], ReplyPart::Call { index: 0, name: "now".to_owned() });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ReplyFormat {
    calls: CallSyntax,
    /// Whether the template renders tools, calls and results.
    is_native: bool,
    /// Whether the template renders a system message.
    has_system: bool,
    /// Whether the template knows the role `developer`.
    has_developer: bool,
    /// Whether the template reads contents of several parts.
    has_parts: bool,
    /// Whether the template refuses identifiers of calls that are not of [`syntax::ID_LENGTH`] letters and digits.
    has_short_ids: bool,
    reasoning: Option<(String, String)>,
    /// Special tokens, which are not part of the text of a reply.
    specials: Vec<(String, u32)>,
}

impl ReplyFormat {
    /// The format of a model with this template and tokenizer.
    #[must_use]
    pub fn of(template: &ChatTemplate, tokenizer: &Tokenizer) -> Self {
        let mut specials: Vec<(String, u32)> =
            tokenizer.special_tokens().map(|(name, id)| (name.to_owned(), id)).collect();
        // The longest first, so that none is found inside another.
        specials.sort_by(|a, b| b.0.len().cmp(&a.0.len()).then_with(|| a.cmp(b)));
        let native = CallSyntax::of(template).filter(|syntax| {
            // A reader has to find it in a text.
            let opening = visible(&specials, &syntax.opening());
            !opening.trim().is_empty() && !opening.contains(syntax::ID)
        });
        let is_native = native.is_some();
        let reasoning = TAGS.iter().find(|(_, close)| {
            // Tags that are special tokens are not in the text.
            template.mentions(close) && !specials.iter().any(|(name, _)| name == close)
        });
        let system = [Message::system("trike"), Message::user("a")];
        let has_system =
            template.render(&system, &RenderOptions::default()).is_ok_and(|prompt| prompt.contains("trike"));
        Self {
            calls: native.unwrap_or_else(CallSyntax::hermes),
            is_native,
            has_system,
            has_developer: template.mentions("developer"),
            has_parts: has_parts(template),
            has_short_ids: syntax::has_short_ids(template),
            reasoning: reasoning.map(|(open, close)| ((*open).to_owned(), (*close).to_owned())),
            specials,
        }
    }

    /// Whether the chat template renders tools; otherwise [`prepare`](Self::prepare) describes them.
    #[must_use]
    pub fn has_native_tools(&self) -> bool {
        self.is_native
    }

    /// The tag that ends reasoning.
    #[must_use]
    pub fn end_of_reasoning(&self) -> Option<&str> {
        self.reasoning.as_ref().map(|(_, close)| close.as_str())
    }

    /// The tag that begins reasoning.
    #[must_use]
    pub fn start_of_reasoning(&self) -> Option<&str> {
        self.reasoning.as_ref().map(|(open, _)| open.as_str())
    }

    /// Whether a reply after a prompt that ends with this text begins with reasoning.
    #[must_use]
    pub fn thinking_after(&self, prompt: &str) -> Thinking {
        let Some((open, close)) = &self.reasoning else { return Thinking::None };
        let prompt = prompt.trim_end();
        if prompt.ends_with(open.as_str()) {
            Thinking::Open
        } else if prompt.ends_with(close.as_str()) {
            Thinking::None
        } else {
            Thinking::Possible
        }
    }

    /// A reader of a reply.
    #[must_use]
    pub fn reader(&self, options: &ReplyOptions) -> ReplyReader {
        let names = options.callable().iter().map(|tool| tool.name.clone()).collect();
        let reasoning = self.reasoning.clone().filter(|_| options.thinking != Thinking::None);
        let is_open = options.thinking == Thinking::Open;
        let calls = self.calls.map(|text| visible(&self.specials, text));
        ReplyReader::new(calls, names, reasoning, is_open)
    }

    /// The grammar of a reply; `None` if any text is one.
    #[must_use]
    pub fn grammar(&self, options: &ReplyOptions) -> Option<Grammar> {
        grammar::of(self, options)
    }

    /// The messages and variables of a prompt with tools: those of the template, or a description in the system message.
    #[must_use]
    pub fn prepare(
        &self,
        messages: Vec<Message>,
        rendering: RenderOptions,
        options: &ReplyOptions,
    ) -> (Vec<Message>, RenderOptions) {
        messages::prepare(self, messages, rendering, options)
    }
}

/// Whether a template reads contents of several parts, and does not print them as data.
fn has_parts(template: &ChatTemplate) -> bool {
    let parts = json!([{ "type": "text", "text": "trike a" }, { "type": "text", "text": "trike b" }]);
    let user = Message::user("").with_field("content", parts);
    let prompt = template.render(&[user], &RenderOptions::default());
    prompt.is_ok_and(|prompt| {
        prompt.contains("trike a") && prompt.contains("trike b") && !prompt.contains("type")
    })
}

/// A text without its special tokens.
fn visible(specials: &[(String, u32)], text: &str) -> String {
    let mut text = text.to_owned();
    for (name, _) in specials.iter().filter(|(name, _)| !name.is_empty()) {
        text = text.replace(name.as_str(), "");
    }
    text
}
