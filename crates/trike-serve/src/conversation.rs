//! A conversation whose next reply is wanted: what the three APIs for chats share.

use std::sync::Arc;

use serde_json::Value;
use trike_llm::ReasoningLimit;
use trike_text::chat::{Message, RenderOptions};
use trike_text::constraint::Grammar;
use trike_text::reply::{ReplyOptions, ReplyPart, ReplyReader, Thinking};
use trike_text::tokenizer::Tokenizer;

use crate::app::App;
use crate::error::ApiError;
use crate::running::{Running, answer_id};
use crate::sampling::Wanted;

/// Tokens at the end of a prompt that show whether it opens reasoning.
const TAIL: usize = 16;

/// Messages with what is wanted of the reply.
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Message>,
    /// Whether the reply goes on with the last message, a text of the assistant.
    pub(crate) goes_on: bool,
    pub(crate) rendering: RenderOptions,
    pub(crate) reply: ReplyOptions,
    pub(crate) wanted: Wanted,
    /// Most tokens of reasoning.
    pub(crate) budget: Option<usize>,
    /// Whether reasoning is left in the content.
    pub(crate) is_raw: bool,
}

/// A running conversation.
pub(crate) struct Talk {
    pub(crate) running: Running,
    /// Tokens of the prompt.
    pub(crate) prompt: usize,
    pub(crate) tokenizer: Tokenizer,
    reader: ReplyReader,
}

impl Talk {
    /// A reader for the reply of each choice.
    pub(crate) fn reader(&self) -> ReplyReader {
        self.reader.clone()
    }
}

/// The tokens of a prompt, and whether it opens reasoning.
struct Prompt {
    ids: Vec<u32>,
    thinking: Thinking,
}

impl Conversation {
    /// The messages of the prompt and its variables; and the text that the reply goes on with.
    fn prepared(
        &self,
        app: &App,
        tokenizer: &Tokenizer,
    ) -> Result<(Vec<Message>, RenderOptions, String), ApiError> {
        let format = app.format(tokenizer)?;
        let mut messages = self.messages.clone();
        let text = match self.goes_on {
            true => messages.pop().map(|last| last.content).unwrap_or_default(),
            false => String::new(),
        };
        let (messages, rendering) = format.prepare(messages, self.rendering.clone(), &self.reply);
        // White space at the end would not be what a model writes.
        Ok((messages, rendering, text.trim_end().to_owned()))
    }

    fn prompt(&self, app: &App, tokenizer: &Tokenizer) -> Result<Prompt, ApiError> {
        let (messages, rendering, text) = self.prepared(app, tokenizer)?;
        let wrong = |error: &dyn std::fmt::Display| ApiError::invalid("messages", error.to_string());
        let mut ids =
            app.template()?.encode(tokenizer, &messages, &rendering).map_err(|error| wrong(&error))?;
        ids.extend(tokenizer.encode_literal(&text).map_err(|error| wrong(&error))?);
        let tail = tokenizer.decode(&ids[ids.len().saturating_sub(TAIL)..]).unwrap_or_default();
        let thinking = match self.is_raw || !text.is_empty() {
            true => Thinking::None,
            false => app.format(tokenizer)?.thinking_after(&tail),
        };
        Ok(Prompt { ids, thinking })
    }

    /// The prompt as text.
    pub(crate) fn render(&self, app: &App, tokenizer: &Tokenizer) -> Result<String, ApiError> {
        let (messages, rendering, text) = self.prepared(app, tokenizer)?;
        let prompt = app.template()?.render(&messages, &rendering);
        prompt.map(|prompt| prompt + &text).map_err(|error| ApiError::invalid("messages", error.to_string()))
    }

    /// The number of tokens of the prompt.
    pub(crate) async fn count(self, app: &Arc<App>) -> Result<usize, ApiError> {
        let (inner, tokenizer) = (Arc::clone(app), app.loaded()?.tokenizer.clone());
        let counted = tokio::task::spawn_blocking(move || {
            self.prompt(&inner, &tokenizer).map(|prompt| prompt.ids.len())
        });
        counted.await.map_err(|error| ApiError::internal(error.to_string()))?
    }

    /// Submits the conversation.
    pub(crate) async fn start(mut self, app: &Arc<App>) -> Result<(Talk, Wanted), ApiError> {
        let (inner, tokenizer) = (Arc::clone(app), app.loaded()?.tokenizer.clone());
        // Templates are programs of the model's author, with a limit to their run time; and grammars are compiled.
        let started = tokio::task::spawn_blocking(move || {
            let prompt = self.prompt(&inner, &tokenizer)?;
            let format = inner.format(&tokenizer)?;
            let reply =
                self.reply.with_thinking(prompt.thinking).with_format(self.wanted.options.grammar.take());
            self.wanted.options.grammar = format.grammar(&reply);
            if let Some((tokens, close)) = self.budget.zip(format.end_of_reasoning()) {
                let open = match prompt.thinking {
                    Thinking::Open => None,
                    _ => format.start_of_reasoning().map(str::to_owned),
                };
                let limit = ReasoningLimit::new(tokens, open, close);
                self.wanted.options.reasoning = Some(limit).filter(|_| prompt.thinking != Thinking::None);
            }
            let tokens = prompt.ids.len();
            let running = Running::start(&inner, &[prompt.ids], &tokenizer.turn_ends(), &self.wanted);
            // The error of the whole grammar does not say whose schema is at fault.
            let running = running.map_err(|error| schema_error(&inner, &reply).unwrap_or(error))?;
            let reader = format.reader(&reply);
            let talk = Talk { running, prompt: tokens, tokenizer, reader };
            Ok((talk, self.wanted))
        });
        started.await.map_err(|error| ApiError::internal(error.to_string()))?
    }
}

/// The error of the schema that cannot be enforced.
fn schema_error(app: &App, reply: &ReplyOptions) -> Option<ApiError> {
    let model = app.loaded().ok()?;
    let reason = |grammar: &Grammar| {
        let error = model.compile(grammar, &[]).err()?.to_string();
        let line = error.lines().next().unwrap_or_default();
        Some(line.to_owned())
    };
    let tools = reply.tools.iter().find_map(|tool| {
        let reason = reason(&Grammar::JsonSchema(tool.parameters.to_string()))?;
        let name = &tool.name;
        Some(ApiError::invalid(
            "tools",
            format!("`tools`: the schema of {name} cannot be enforced: {reason}"),
        ))
    });
    let format = || {
        let reason = reason(reply.format.as_ref()?)?;
        Some(ApiError::invalid("response_format", format!("`response_format` cannot be enforced: {reason}")))
    };
    tools.or_else(format)
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    /// In JSON.
    pub(crate) arguments: String,
}

impl Call {
    /// The arguments as a value; an object without keys for those of a text that was cut short.
    pub(crate) fn input(&self) -> Value {
        serde_json::from_str(&self.arguments).unwrap_or_else(|_| serde_json::json!({}))
    }
}

/// A whole reply.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reply {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<Call>,
}

impl Reply {
    /// The parts of a text.
    pub(crate) fn read(app: &App, mut reader: ReplyReader, text: &str) -> Self {
        let mut reply = Self::default();
        let mut parts = reader.push(text);
        parts.extend(reader.finish());
        for part in parts {
            match part {
                ReplyPart::Reasoning(text) => reply.reasoning.push_str(&text),
                ReplyPart::Content(text) => reply.content.push_str(&text),
                ReplyPart::Call { name, .. } => {
                    reply.calls.push(Call { id: answer_id(app, "call_"), name, arguments: String::new() });
                }
                ReplyPart::Arguments { text, .. } => {
                    if let Some(call) = reply.calls.last_mut() {
                        call.arguments.push_str(&text);
                    }
                }
            }
        }
        reply
    }
}
