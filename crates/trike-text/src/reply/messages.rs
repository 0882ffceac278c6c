//! The messages of a prompt with tools.

use serde_json::{Value, json};

use super::syntax::ID_LENGTH;
use super::{ReplyFormat, ReplyOptions, ToolChoice};
use crate::chat::{Message, RenderOptions};

/// The messages and variables of a prompt with tools: those of the template, or a description in the system message.
pub(super) fn prepare(
    format: &ReplyFormat,
    messages: Vec<Message>,
    rendering: RenderOptions,
    options: &ReplyOptions,
) -> (Vec<Message>, RenderOptions) {
    let known = |message| if format.has_developer { message } else { without_developer(message) };
    let whole = |message| if format.has_parts { message } else { with_text(message) };
    let mut messages: Vec<Message> =
        messages.into_iter().map(with_objects).map(known).map(whole).map(with_content).collect();
    if !format.has_system {
        into_first_turn(&mut messages);
    }
    if format.has_short_ids {
        messages = messages.into_iter().map(with_short_ids).collect();
    }
    // A model that must not call is not told of tools.
    let tools = if options.choice == ToolChoice::None { &[][..] } else { &options.tools[..] };
    if format.is_native {
        if tools.is_empty() {
            return (messages, rendering);
        }
        let tools: Vec<Value> = tools.iter().map(super::Tool::for_template).collect();
        return (messages, rendering.with_tools(json!(tools).to_string()));
    }
    messages = messages.into_iter().map(|message| plain(format, message)).collect();
    if !tools.is_empty() {
        let list: Vec<String> = tools.iter().map(|tool| tool.for_template().to_string()).collect();
        let calls = &format.calls;
        let syntax = format!(
            "{}{}FUNCTION{}OBJECT{}{}",
            calls.start, calls.open, calls.middle, calls.close, calls.end
        );
        let text = format!(
            "You can call functions. They are, one on each line, with the JSON schemas of their arguments:\n{}\n\nTo call a function, \
             answer with nothing but:\n{syntax}\nSeveral calls follow each other. Their results come between <tool_response> and \
             </tool_response>.",
            list.join("\n")
        );
        describe(format, &mut messages, &text);
    }
    (messages, rendering)
}

/// Adds a text to the system message, or to the first one if the template has none.
fn describe(format: &ReplyFormat, messages: &mut Vec<Message>, text: &str) {
    match messages.first_mut() {
        Some(first) if first.role == "system" || !format.has_system => {
            let content = format!("{}\n\n{text}", first.content);
            *first = Message::new(first.role.clone(), content.trim_start().to_owned());
        }
        _ => messages.insert(0, Message::system(text)),
    }
}

/// A message of the system in place of one of a developer, which few templates know.
fn without_developer(mut message: Message) -> Message {
    if message.role == "developer" {
        "system".clone_into(&mut message.role);
    }
    message
}

/// A message with calls and an empty text instead of none: templates add to it.
fn with_content(message: Message) -> Message {
    let has_parts = matches!(message.field("content"), Some(Value::Array(_)));
    match message.field("tool_calls") {
        Some(_) if message.content.is_empty() && !has_parts => message.with_field("content", ""),
        _ => message,
    }
}

/// Puts a system message before the text of the first user's, for templates without one.
fn into_first_turn(messages: &mut Vec<Message>) {
    if messages.first().is_none_or(|first| first.role != "system") {
        return;
    }
    let system = messages.remove(0).content;
    match messages.iter_mut().find(|message| message.role == "user") {
        Some(first) => *first = Message::user(format!("{system}\n\n{}", first.content)),
        None => messages.insert(0, Message::user(system)),
    }
}

/// A message whose identifiers of calls have the form that Mistral's templates ask for.
fn with_short_ids(message: Message) -> Message {
    let mut message = message;
    if let Some(id) = message.field("tool_call_id").and_then(Value::as_str).map(short_id) {
        message = message.with_field("tool_call_id", id);
    }
    let Some(Value::Array(calls)) = message.field("tool_calls") else { return message };
    let mut calls = calls.clone();
    for id in calls.iter_mut().filter_map(|call| call.get_mut("id")) {
        if let Some(short) = id.as_str().map(short_id) {
            *id = json!(short);
        }
    }
    message.with_field("tool_calls", calls)
}

/// Letters and digits that stand for an identifier, the same in a call and its result.
fn short_id(id: &str) -> String {
    if id.len() == ID_LENGTH && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    // FNV-1a, 64 bits.
    let mut hash = id.bytes().fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    let letters = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let letter = |_| {
        let letter = letters[(hash % 36) as usize];
        hash /= 36;
        char::from(letter)
    };
    (0..ID_LENGTH).map(letter).collect()
}

/// A message whose parts are one text.
fn with_text(message: Message) -> Message {
    match message.field("content") {
        Some(Value::Array(_)) => {
            let text = message.content.clone();
            message.with_field("content", text)
        }
        _ => message,
    }
}

/// A message whose calls have their arguments as objects, as templates expect; clients send them as strings of JSON.
fn with_objects(message: Message) -> Message {
    let Some(Value::Array(calls)) = message.field("tool_calls") else { return message };
    let mut calls = calls.clone();
    for call in &mut calls {
        if let Some(arguments) = call.get_mut("function").and_then(|function| function.get_mut("arguments"))
            && let Some(object) = arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok())
            && object.is_object()
        {
            *arguments = object;
        }
    }
    message.with_field("tool_calls", calls)
}

/// A message without calls and results, which are written into its text.
fn plain(format: &ReplyFormat, message: Message) -> Message {
    if message.role == "tool" {
        return Message::user(format!("<tool_response>\n{}\n</tool_response>", message.content));
    }
    let Some(Value::Array(list)) = message.field("tool_calls") else { return message };
    let calls = &format.calls;
    let written: Vec<String> = list
        .iter()
        .filter_map(|call| {
            let function = call.get("function")?;
            let name = json!(function.get("name")?.as_str()?).to_string();
            let arguments = function.get("arguments").cloned().unwrap_or_else(|| json!({}));
            Some(format!(
                "{}{}{}{arguments}{}",
                calls.open,
                name.trim_matches('"'),
                calls.middle,
                calls.close
            ))
        })
        .collect();
    let separator = calls.separator.as_deref().unwrap_or("\n");
    let text = format!("{}\n{}{}{}", message.content, calls.start, written.join(separator), calls.end);
    Message::assistant(text.trim_start().to_owned())
}
