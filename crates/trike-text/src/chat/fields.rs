//! The fields of a message that chat templates read.

use serde_json::{Map, Value};

use super::{ChatError, Message, message::REASONING};

/// Further fields of a message, besides role, content and reasoning.
const OTHERS: [&str; 3] = ["tool_calls", "tool_call_id", "name"];
/// The fields of a tool call, with or without a `function` object around name and arguments.
const OF_CALL: [&str; 6] = ["id", "type", "index", "function", "name", "arguments"];
/// The role of the model's messages.
const ASSISTANT: &str = "assistant";

impl Message {
    /// Checks that the message has no field that a chat template would ignore or print as data. The content may be a string, a list
    /// of parts of type `text` or `thinking` or, with tool calls, `null` or absent. A message of the assistant may have
    /// `reasoning_content` (also named `thinking` or `reasoning`) and `tool_calls`, whose arguments are an object or a JSON string.
    ///
    /// ```
    /// use trike_text::chat::Message;
    ///
    /// assert!(Message::user("Hi").check().is_ok());
    /// let error = Message::assistant("Hi").with_field("refusal", "No.").check().unwrap_err();
    /// assert!(error.to_string().ends_with("got refusal"));
    /// ```
    ///
    /// # Errors
    ///
    /// [`ChatError::Malformed`], naming the field.
    pub fn check(&self) -> Result<(), ChatError> {
        let object = Map::from(self);
        let has = |name: &str| object.get(name).is_some_and(|value| !is_nothing(value));
        for (name, value) in &object {
            let place = || format!("`{name}`");
            match name.as_str() {
                "role" => {}
                "content" => content(value, has("tool_calls"))?,
                "tool_calls" => calls(value)?,
                name if REASONING.contains(&name) || OTHERS.contains(&name) => {
                    if !value.is_null() && !value.is_string() {
                        return Err(malformed(place(), "a text", value));
                    }
                }
                _ if is_nothing(value) => {}
                _ => {
                    return Err(ChatError::Malformed {
                        place: "a message".to_owned(),
                        expected: "role, content, tool_calls, reasoning_content, thinking, reasoning, tool_call_id or name",
                        got: name.clone(),
                    });
                }
            }
            if self.role != ASSISTANT && has(name) && (name == "tool_calls" || REASONING.contains(&&**name)) {
                return Err(ChatError::Malformed {
                    place: place(),
                    expected: "a message of the assistant",
                    got: format!("one of the role {}", self.role),
                });
            }
        }
        match object.contains_key("content") || has("tool_calls") {
            true => Ok(()),
            false => Err(nothing("`content`", "a text, or tool_calls in its place")),
        }
    }
}

/// Whether a value is empty.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

fn malformed(place: String, expected: &'static str, got: &Value) -> ChatError {
    let text = got.to_string();
    let got = if text.chars().count() > 80 { text.chars().take(80).collect::<String>() + ".." } else { text };
    ChatError::Malformed { place, expected, got }
}

fn nothing(place: impl Into<String>, expected: &'static str) -> ChatError {
    ChatError::Malformed { place: place.into(), expected, got: "none".to_owned() }
}

fn content(value: &Value, has_calls: bool) -> Result<(), ChatError> {
    let parts = match value {
        Value::String(_) => return Ok(()),
        Value::Null if has_calls => return Ok(()),
        Value::Array(parts) if !parts.is_empty() => parts,
        _ => {
            return Err(malformed(
                "`content`".to_owned(),
                "a text or parts, or tool_calls in its place",
                value,
            ));
        }
    };
    for (i, part) in parts.iter().enumerate() {
        let place = format!("part {} of `content`", i + 1);
        let key = match part["type"].as_str() {
            Some("text") => "text",
            Some("thinking") => "thinking",
            _ => return Err(malformed(place, "an object of type text or thinking", part)),
        };
        let others = part
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| !["type", key].contains(&name.as_str()));
        if !part[key].is_string() || others.into_iter().any(|(_, value)| !is_nothing(value)) {
            return Err(malformed(place, "its type and its text, and nothing else", part));
        }
    }
    Ok(())
}

fn calls(value: &Value) -> Result<(), ChatError> {
    if is_nothing(value) {
        return Ok(());
    }
    let all = value.as_array().ok_or_else(|| malformed("`tool_calls`".to_owned(), "a list", value))?;
    for (i, call) in all.iter().enumerate() {
        let place = |of: &str| format!("{of} of call {}", i + 1);
        let function = call.get("function").filter(|function| function.is_object()).unwrap_or(call);
        for object in [call, function] {
            let fields = object.as_object();
            let fields = fields.ok_or_else(|| malformed(format!("call {}", i + 1), "an object", object))?;
            let unknown =
                |(name, value): &(&String, &Value)| !OF_CALL.contains(&name.as_str()) && !is_nothing(value);
            if let Some((name, _)) = fields.iter().find(unknown) {
                return Err(ChatError::Malformed {
                    place: format!("call {}", i + 1),
                    expected: "id, type, and a function with name and arguments",
                    got: name.clone(),
                });
            }
        }
        let kind = &call["type"];
        if !kind.is_null() && kind != "function" {
            return Err(malformed(place("`type`"), "\"function\"", kind));
        }
        if function["name"].as_str().is_none_or(str::is_empty) {
            return Err(malformed(place("`name`"), "a text", &function["name"]));
        }
        match &function["arguments"] {
            Value::Object(_) => {}
            Value::String(text) if serde_json::from_str::<Map<String, Value>>(text).is_ok() => {}
            other => {
                return Err(malformed(place("`arguments`"), "an object, or one in a text of JSON", other));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_message_cannot_have_is_named() {
        let call = |call: Value| json!({"role": "assistant", "content": "", "tool_calls": [call]});
        let of_call = |arguments: Value| call(json!({"function": {"name": "f", "arguments": arguments}}));
        for good in [
            json!({"role": "user", "content": "Hi", "name": "Tom"}),
            json!({"role": "user", "content": [{"type": "text", "text": "Hi", "image": null}]}),
            json!({"role": "assistant", "content": null, "tool_calls": [{"name": "f", "arguments": "{}"}]}),
            json!({"role": "assistant", "tool_calls": [{"id": 1, "type": "function", "function": {"name": "f", "arguments": {}}}]}),
            json!({"role": "assistant", "content": "a", "thinking": "b", "refusal": null, "tool_calls": []}),
            json!({"role": "tool", "content": "", "tool_call_id": "c1", "tool_calls": null}),
        ] {
            let message: Message = serde_json::from_value(good.clone()).expect("a message");
            assert!(message.check().is_ok(), "{good}: {:?}", message.check());
        }
        for (wrong, words) in [
            (
                json!({"role": "user", "content": null}),
                "`content`: expected a text or parts, or tool_calls in its place, got null",
            ),
            (
                json!({"role": "assistant", "reasoning": "a"}),
                "`content`: expected a text, or tool_calls in its place, got none",
            ),
            (json!({"role": "user", "content": []}), "`content`: expected a text or parts"),
            (
                json!({"role": "user", "content": ["a"]}),
                "part 1 of `content`: expected an object of type text or thinking, got \"a\"",
            ),
            (json!({"role": "user", "content": [{"type": "image_url", "image_url": "a"}]}), "image_url"),
            (
                json!({"role": "user", "content": [{"type": "text"}]}),
                "its type and its text, and nothing else",
            ),
            (
                json!({"role": "user", "content": [{"type": "text", "text": "a", "cache": 1}]}),
                "and nothing else",
            ),
            (
                json!({"role": "user", "content": "a", "thinking": "b"}),
                "`thinking`: expected a message of the assistant, got one of the role user",
            ),
            (
                json!({"role": "tool", "content": "a", "tool_calls": [{"name": "f", "arguments": {}}]}),
                "got one of the role tool",
            ),
            (
                json!({"role": "tool", "content": "a", "tool_call_id": 5}),
                "`tool_call_id`: expected a text, got 5",
            ),
            (
                json!({"role": "assistant", "content": "a", "reasoning": ["b"]}),
                "`reasoning`: expected a text",
            ),
            (json!({"role": "assistant", "content": "a", "refusal": "no"}), "got refusal"),
            (
                json!({"role": "assistant", "content": "a", "tool_calls": {"a": 1}}),
                "`tool_calls`: expected a list",
            ),
            (call(json!(1)), "call 1: expected an object, got 1"),
            (call(json!({"id": "c1"})), "`name` of call 1: expected a text, got null"),
            (
                call(json!({"type": "code", "function": {"name": "f", "arguments": {}}})),
                "`type` of call 1: expected \"function\"",
            ),
            (
                call(json!({"function": {"name": "f", "arguments": {}, "strict": true}})),
                "call 1: expected id, type",
            ),
            (
                call(json!({"function": {"name": "f"}})),
                "`arguments` of call 1: expected an object, or one in a text of JSON, got null",
            ),
            (of_call(json!("x")), "`arguments` of call 1"),
            (of_call(json!([1])), "`arguments` of call 1"),
        ] {
            let message: Message = serde_json::from_value(wrong.clone()).expect("a message");
            let error = message.check().expect_err(words).to_string();
            assert!(error.contains(words), "{wrong}: {error}");
        }
    }
}
