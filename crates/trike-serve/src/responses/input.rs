//! The items of an input as messages.

use serde_json::{Value, json};
use trike_text::chat::Message;

use super::wrong;
use crate::error::ApiError;

/// Appends the messages of an input: a text, or items.
pub(super) fn messages(input: Value, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    match input {
        Value::String(text) => messages.push(Message::user(text)),
        Value::Array(items) => {
            for item in &items {
                append(item, messages)?;
            }
        }
        _ => return Err(wrong("input", "expected a string or a list of items")),
    }
    match messages.is_empty() {
        true => Err(wrong("input", "expected at least one message")),
        false => Ok(()),
    }
}

fn member(item: &Value, name: &str) -> Result<String, ApiError> {
    let value = item.get(name).and_then(Value::as_str);
    value.map(str::to_owned).ok_or_else(|| wrong("input", format!("an item has no `{name}`")))
}

/// The text of a content: a string, or parts.
fn text(content: &Value) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => parts
            .iter()
            .map(|part| match part.get("type").and_then(Value::as_str) {
                Some("input_text" | "output_text" | "text" | "reasoning_text" | "summary_text") => {
                    member(part, "text")
                }
                Some("refusal") => member(part, "refusal"),
                kind => Err(wrong("input", format!("parts of type {kind:?} are not supported, only text"))),
            })
            .collect(),
        _ => Err(wrong("input", "expected a content of a string or a list of parts")),
    }
}

/// The last message, if an item belongs to the same turn of the assistant.
fn turn(messages: &mut Vec<Message>) -> Message {
    match messages.pop_if(|message| message.role == "assistant" && message.content.is_empty()) {
        Some(message) => message,
        None => Message::assistant(""),
    }
}

fn append(item: &Value, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    match item.get("type").and_then(Value::as_str) {
        None | Some("message") => {
            let role = member(item, "role")?;
            let content = text(item.get("content").unwrap_or(&Value::Null))?;
            if !["user", "assistant", "system", "developer"].contains(&role.as_str()) {
                return Err(wrong("input", format!("no message has the role {role:?}")));
            }
            let thought = match role == "assistant" {
                true => messages
                    .pop_if(|last| last.field("reasoning_content").is_some() && last.content.is_empty()),
                false => None,
            };
            messages.push(match thought {
                Some(thought) => thought.with_field("content", content),
                None => Message::new(role, content),
            });
        }
        Some("reasoning") => {
            let content = item.get("content").filter(|content| !content.is_null());
            let thought = text(content.or_else(|| item.get("summary")).unwrap_or(&json!([])))?;
            if !thought.is_empty() {
                messages.push(Message::assistant("").with_field("reasoning_content", thought));
            }
        }
        Some("function_call") => {
            let function = json!({ "name": member(item, "name")?, "arguments": member(item, "arguments")? });
            let call = json!({ "id": member(item, "call_id")?, "type": "function", "function": function });
            let turn = turn(messages);
            let mut calls = turn.field("tool_calls").and_then(Value::as_array).cloned().unwrap_or_default();
            calls.push(call);
            messages.push(turn.with_field("tool_calls", calls));
        }
        Some("function_call_output") => {
            let output = text(item.get("output").unwrap_or(&Value::Null))?;
            messages.push(Message::new("tool", output).with_field("tool_call_id", member(item, "call_id")?));
        }
        Some(kind) => return Err(wrong("input", format!("items of type `{kind}` are not supported"))),
    }
    Ok(())
}
