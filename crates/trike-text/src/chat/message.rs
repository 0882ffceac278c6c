//! Messages, with all that a chat template may read of them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Names under which templates read the thoughts of an answer; the first one is today's.
pub(super) const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A kind of text that a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Its content.
    Content,
    /// What it thought before.
    Thought,
    /// Names and arguments of its calls of tools.
    Call,
}

/// One message.
///
/// Besides its role and text a message may have `tool_calls`, `reasoning_content` and other fields, a content of `null` or one of
/// several parts; they come from JSON, and go into templates as the `transformers` package passes them: without those of `null`.
/// [`check`](Self::check) says which of them templates read.
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
    /// The text of the message; of a content of several parts, the texts of the parts.
    pub content: String,
    /// The whole object, if there is more than a role and a text. Its `role`, and its `content` when that is a string, give way
    /// to the two fields above.
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

    /// A message of the model.
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

    /// A field besides the role and the text; a content that is not a text, too.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Value> {
        self.object.get(name).filter(|value| name != "role" && (name != "content" || !value.is_string()))
    }

    /// The message as a template reads it: fields of `null` are left out, and thoughts have every name that templates know.
    pub(super) fn for_template(&self) -> Map<String, Value> {
        let mut object = Map::from(self);
        object.retain(|_, value| !value.is_null());
        let reasoning = REASONING.iter().find_map(|name| object.get(*name));
        if let Some(reasoning) = reasoning.cloned() {
            // It comes first, also where the message has it, whose value stays.
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

    /// Whether it is a role and a text, and nothing else.
    pub(super) fn is_plain(&self) -> bool {
        self.object.is_empty()
    }

    /// The message with the texts that it says changed by `change`; empty ones stay, and so does everything that templates decide by.
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

    /// The message with one more key in each part of its content.
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

/// Changes all texts but the names of keys.
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

/// Changes names and arguments of calls, of either form: with a `function`, or without.
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

/// Changes the names of tools, of either form: with a `function`, or without.
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

/// The text of a content; `None` for one that is no content.
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
        // A new key goes to the end; a known one keeps its place.
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
