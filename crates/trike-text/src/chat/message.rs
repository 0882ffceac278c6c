//! Messages, with every field that a chat template may read.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Names of the reasoning field in templates; the first one is current.
pub(super) const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A kind of text in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// The content.
    Content,
    /// The reasoning.
    Thought,
    /// Names and arguments of its tool calls.
    Call,
}

/// One message.
///
/// Besides its role and text a message may have `tool_calls`, `reasoning_content` and other fields, and a content of `null` or of
/// several parts. These come from JSON and are passed to templates as by the `transformers` package: without `null` fields.
/// [`check`](Self::check) checks that templates read them.
///
/// ```
/// use trike_text::chat::{ChatTemplate, Message, RenderOptions};
///
/// let message: Message = serde_json::from_str(
///     r#"{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "add", "arguments": {"b": 1, "a": 2}}}]}"#,
/// )?;
/// assert_eq!((message.role.as_str(), message.content.as_str()), ("assistant", ""));
/// let template = ChatTemplate::from_source("{{ messages[0].content }}: {{ messages[0].tool_calls | tojson }}")?;
/// assert_eq!(
///     template.render(&[message], &RenderOptions::default())?,
///     r#": [{"function": {"name": "add", "arguments": {"b": 1, "a": 2}}}]"#
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(try_from = "Map<String, Value>", into = "Map<String, Value>")]
pub struct Message {
    /// `system`, `user`, `assistant` or another role of the template.
    pub role: String,
    /// The text of the message; for a content of several parts, the concatenated texts.
    pub content: String,
    /// The complete JSON object, if there is more than a role and a text. The two fields above override its `role` and, if that is
    /// a string, its `content`.
    object: Map<String, Value>,
}

impl Message {
    /// A message of any role.
    #[must_use]
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), object: Map::new() }
    }

    /// A system message: instructions that precede the conversation.
    #[must_use]
    pub fn system(content: impl Into<String>) -> Self {
        Self::new("system", content)
    }

    /// A message of the user.
    #[must_use]
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// A message of the assistant.
    #[must_use]
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new("assistant", content)
    }

    /// Adds a field, such as `tool_calls` or `reasoning_content`; `content` may become `null` or a list of parts.
    #[must_use]
    pub fn with_field(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        if self.object.is_empty() {
            self.object = Map::from(&self);
        }
        let (name, value) = (name.into(), value.into());
        match (name.as_str(), value.as_str()) {
            ("role", Some(role)) => self.role = role.to_owned(),
            ("content", _) => self.content = text_of(&value).unwrap_or_default(),
            _ => {}
        }
        self.object.insert(name, value);
        self
    }

    /// A field besides the role and the text; also a content that is not a string.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Value> {
        self.object.get(name).filter(|value| name != "role" && (name != "content" || !value.is_string()))
    }

    /// The message as passed to a template: `null` fields are omitted, and reasoning has every name that templates use.
    pub(super) fn for_template(&self) -> Map<String, Value> {
        let mut object = Map::from(self);
        object.retain(|_, value| !value.is_null());
        let reasoning = REASONING.iter().find_map(|name| object.get(*name));
        if let Some(reasoning) = reasoning.cloned() {
            // `thinking` comes first, even if the message already has it; then its own value is kept.
            let rest = std::mem::take(&mut object);
            object.insert("thinking".to_owned(), reasoning.clone());
            object.extend(rest);
            object.insert("reasoning_content".to_owned(), reasoning);
        }
        object
    }

    /// The message with every text in it changed by `change`.
    pub(super) fn map_texts(&self, change: &impl Fn(&str) -> String) -> Self {
        let object = self.object.iter().map(|(name, value)| (name.clone(), map_texts(value, change)));
        Self { role: change(&self.role), content: change(&self.content), object: object.collect() }
    }

    /// Whether it has only a role and a text.
    pub(super) fn is_plain(&self) -> bool {
        self.object.is_empty()
    }

    /// The message with its texts changed by `change`; empty ones are kept, as are all fields that control the template.
    pub(super) fn map_said(&self, change: &impl Fn(Said, &str) -> String) -> Self {
        let filled = |said: Said, text: &str| {
            if text.is_empty() { String::new() } else { change(said, text) }
        };
        let mut object = self.object.clone();
        for (name, value) in &mut object {
            match name.as_str() {
                "content" => map_parts(value, &filled),
                "tool_calls" => map_calls(value, &|text| filled(Said::Call, text)),
                name if REASONING.contains(&name) => map_values(value, &|text| filled(Said::Thought, text)),
                _ => {}
            }
        }
        let content = match object.get("content").filter(|content| !content.is_string()) {
            Some(content) => text_of(content).unwrap_or_default(),
            None => filled(Said::Content, &self.content),
        };
        Self { role: self.role.clone(), content, object }
    }

    /// The message with an additional key in each part of its content.
    pub(super) fn with_key_in_parts(mut self, key: &str) -> Self {
        let parts = self.object.get_mut("content").and_then(Value::as_array_mut);
        for part in parts.into_iter().flatten().filter_map(Value::as_object_mut) {
            part.insert(key.to_owned(), key.into());
        }
        self
    }

    /// Every text in it.
    pub(super) fn texts<'a>(&'a self, texts: &mut Vec<&'a str>) {
        texts.extend([self.role.as_str(), self.content.as_str()]);
        self.object.values().for_each(|value| collect_texts(value, texts));
    }
}

/// Changes all strings except key names.
fn map_values(value: &mut Value, change: &impl Fn(&str) -> String) {
    match value {
        Value::String(text) => *text = change(text),
        Value::Array(list) => list.iter_mut().for_each(|value| map_values(value, change)),
        Value::Object(map) => map.values_mut().for_each(|value| map_values(value, change)),
        _ => {}
    }
}

/// Changes the texts of a content and of its parts.
fn map_parts(content: &mut Value, change: &impl Fn(Said, &str) -> String) {
    let text = |said: Said, value: Option<&mut Value>| {
        if let Some(Value::String(text)) = value {
            *text = change(said, text);
        }
    };
    match content {
        Value::Array(parts) => parts.iter_mut().for_each(|part| match part {
            Value::Object(part) => {
                text(Said::Content, part.get_mut("text"));
                text(Said::Thought, part.get_mut("thinking"));
            }
            part => text(Said::Content, Some(part)),
        }),
        content => text(Said::Content, Some(content)),
    }
}

/// Changes names and arguments of tool calls, with or without a `function` object.
fn map_calls(calls: &mut Value, change: &impl Fn(&str) -> String) {
    for call in calls.as_array_mut().into_iter().flatten() {
        let function = match call.get("function") {
            Some(Value::Object(_)) => call.get_mut("function"),
            _ => Some(call),
        };
        for (name, value) in function.and_then(Value::as_object_mut).into_iter().flatten() {
            if ["name", "arguments"].contains(&name.as_str()) {
                map_values(value, change);
            }
        }
    }
}

/// Changes the names of tools, with or without a `function` object.
pub(super) fn map_tools(tools: &mut Value, change: &impl Fn(&str) -> String) {
    for tool in tools.as_array_mut().into_iter().flatten() {
        let name = match tool.get("function") {
            Some(Value::Object(_)) => tool.get_mut("function").and_then(|function| function.get_mut("name")),
            _ => tool.get_mut("name"),
        };
        if let Some(name) = name {
            map_values(name, change);
        }
    }
}

pub(super) fn map_texts(value: &Value, change: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => change(text).into(),
        Value::Array(list) => list.iter().map(|value| map_texts(value, change)).collect(),
        Value::Object(map) => map
            .iter()
            .map(|(name, value)| (change(name), map_texts(value, change)))
            .collect::<Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

pub(super) fn collect_texts<'a>(value: &'a Value, texts: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(list) => list.iter().for_each(|value| collect_texts(value, texts)),
        Value::Object(map) => map.iter().for_each(|(name, value)| {
            texts.push(name);
            collect_texts(value, texts);
        }),
        _ => {}
    }
}

/// The text of a content; `None` for an invalid content.
fn text_of(content: &Value) -> Option<String> {
    match content {
        Value::Null => Some(String::new()),
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            let part = |part: &Value| match part {
                Value::String(text) => Some(text.clone()),
                Value::Object(part) => {
                    Some(part.get("text").and_then(Value::as_str).unwrap_or_default().to_owned())
                }
                _ => None,
            };
            parts.iter().map(part).collect()
        }
        _ => None,
    }
}

impl From<&Message> for Map<String, Value> {
    fn from(message: &Message) -> Self {
        let mut object = message.object.clone();
        // A new key is appended; an existing one keeps its position.
        if message.object.is_empty() || message.object.contains_key("role") {
            object.insert("role".to_owned(), message.role.as_str().into());
        }
        if message.object.is_empty() || message.object.get("content").is_some_and(Value::is_string) {
            object.insert("content".to_owned(), message.content.as_str().into());
        }
        object
    }
}

impl From<Message> for Map<String, Value> {
    fn from(message: Message) -> Self {
        Self::from(&message)
    }
}

impl TryFrom<Map<String, Value>> for Message {
    type Error = String;

    fn try_from(object: Map<String, Value>) -> Result<Self, String> {
        let role = object.get("role").and_then(Value::as_str);
        let role = role.ok_or("a message: expected a `role` that is a string")?.to_owned();
        let content = match object.get("content") {
            None => String::new(),
            Some(content) => text_of(content).ok_or_else(|| {
                format!("`content`: expected a string, null or a list of parts, got {content}")
            })?,
        };
        let plain =
            object.len() == 2 && object.keys().eq(["role", "content"]) && object["content"].is_string();
        Ok(Self { role, content, object: if plain { Map::new() } else { object } })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_comes_back_as_it_was() {
        for value in [
            json!({"role": "user", "content": "Hi"}),
            json!({"content": "Hi", "role": "user"}),
            json!({"role": "assistant", "content": null, "tool_calls": [{"id": 1}]}),
            json!({"role": "tool", "name": "add", "content": [{"type": "text", "text": "a"}, "b"]}),
            json!({"role": "assistant", "tool_calls": []}),
        ] {
            let message: Message = serde_json::from_value(value.clone()).unwrap();
            assert_eq!(serde_json::to_string(&message).unwrap(), value.to_string());
        }
        let message: Message =
            serde_json::from_value(json!({"role": "tool", "content": [{"type": "text", "text": "a"}, "b"]}))
                .unwrap();
        assert_eq!(message.content, "ab");
        assert_eq!(message.field("content").map(serde_json::Value::is_array), Some(true));
        assert_eq!(
            Message::user("Hi"),
            serde_json::from_value(json!({"role": "user", "content": "Hi"})).unwrap()
        );
        for wrong in [json!({"content": "Hi"}), json!({"role": "user", "content": 3}), json!([1])] {
            assert!(serde_json::from_value::<Message>(wrong).is_err());
        }
    }

    #[test]
    fn thoughts_have_every_name() {
        let message = Message::assistant("4").with_field("reasoning", "2 and 2");
        let read = message.for_template();
        let keys: Vec<&str> = read.keys().map(String::as_str).collect();
        assert_eq!(keys, ["thinking", "role", "content", "reasoning", "reasoning_content"]);
        assert_eq!((&read["thinking"], &read["reasoning_content"]), (&json!("2 and 2"), &json!("2 and 2")));
        assert_eq!(Message::assistant("4").for_template().len(), 2);
    }
}
