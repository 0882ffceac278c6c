//! Conversations of records.

use serde_json::{Map, Value, json};
use trike_text::chat::Message;

use super::keys::{self, is_empty, kind, string};

/// A conversation for training.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatRecord {
    /// All messages, with every field that a chat template may read.
    pub messages: Vec<Message>,
    /// Whether each message is trained on: only messages of the assistant, and all of these unless the data says otherwise.
    pub learned: Vec<bool>,
    /// The tools of the assistant, as a JSON list.
    pub tools: Option<String>,
}

impl From<Vec<Message>> for ChatRecord {
    /// A conversation in which all messages of the assistant are trained on.
    fn from(messages: Vec<Message>) -> Self {
        let learned = messages.iter().map(|message| message.role == ASSISTANT).collect();
        Self { messages, learned, tools: None }
    }
}

/// The role whose messages are trained on.
const ASSISTANT: &str = "assistant";
/// The role of tool results.
const TOOL: &str = "tool";
/// The ShareGPT role of an assistant message whose text is a tool call in JSON.
const FUNCTION_CALL: &str = "function_call";

/// Role names in data files, and the corresponding names in chat templates.
const ROLES: &[(&str, &str)] = &[
    ("human", "user"),
    ("user", "user"),
    ("gpt", ASSISTANT),
    ("assistant", ASSISTANT),
    ("bot", ASSISTANT),
    ("model", ASSISTANT),
    (FUNCTION_CALL, ASSISTANT),
    ("system", "system"),
    ("tool", TOOL),
    ("function", TOOL),
    ("function_response", TOOL),
    ("observation", TOOL),
];

/// Message keys that set the loss mask.
const LEARNED: [&str; 4] = ["weight", "train", "training", "loss"];
/// Message keys of the assistant's reasoning, as templates name them.
const THOUGHTS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// Other message keys that are read.
const OF_MESSAGE: [&str; 7] = ["role", "from", "content", "value", "tool_calls", "tool_call_id", "name"];

/// The conversation under `key` of a record.
pub(super) fn chat(object: &Map<String, Value>, key: &str) -> Result<ChatRecord, String> {
    let value = &object[key];
    let all = value.as_array().ok_or_else(|| format!("`{key}` is {}: expected a list", kind(value)))?;
    if all.is_empty() {
        return Err(format!("`{key}` is empty"));
    }
    let mut chat = ChatRecord { tools: tools(object)?, ..ChatRecord::default() };
    for (i, value) in all.iter().enumerate() {
        let whose = format!("message {}", i + 1);
        let (message, is_learned) = message(value, &whose)?;
        chat.messages.push(message);
        chat.learned.push(is_learned);
    }
    for key in ["system", "system_prompt"] {
        let Some(value) = object.get(key).filter(|value| !is_empty(value)) else { continue };
        let text = string(value, key)?;
        match chat.messages.first().filter(|first| first.role == "system") {
            Some(first) if first.content == text => {}
            Some(_) => {
                return Err(format!("`{key}` differs from the first message, which is a system message"));
            }
            None => {
                chat.messages.insert(0, Message::system(text));
                chat.learned.insert(0, false);
            }
        }
    }
    // Some data sets repeat the first question.
    if let Some(value) = object.get("prompt").filter(|value| !is_empty(value)) {
        let text = string(value, "prompt")?;
        if !chat.messages.iter().any(|message| message.role == "user" && message.content == text) {
            return Err("`prompt` is not one of the messages: expected a message of the user, or no prompt"
                .to_owned());
        }
    }
    Ok(chat)
}

/// The tools of a record: a list of objects, or such a list as a JSON string.
fn tools(object: &Map<String, Value>) -> Result<Option<String>, String> {
    let parsed;
    let list = match object.get("tools") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => return Ok(None),
        Some(Value::String(text)) => {
            parsed = serde_json::from_str(text).map_err(|e| format!("`tools` is not a JSON list: {e}"))?;
            &parsed
        }
        Some(list) => list,
    };
    let all = list.as_array().ok_or_else(|| format!("`tools` is {}: expected a list", kind(list)))?;
    for (i, tool) in all.iter().enumerate() {
        let function = tool.get("function").filter(|function| function.is_object()).unwrap_or(tool);
        if function.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
            return Err(format!("tool {} has no `name`: expected a function with a name, got {tool}", i + 1));
        }
    }
    Ok((!all.is_empty()).then(|| list.to_string()))
}

/// A message, and whether it is trained on.
fn message(value: &Value, whose: &str) -> Result<(Message, bool), String> {
    let object =
        value.as_object().ok_or_else(|| format!("{whose} is {}: expected an object", kind(value)))?;
    keys::check(object, &[&OF_MESSAGE[..], &THOUGHTS, &LEARNED].concat(), whose)?;
    let of_message = |problem: String| format!("{whose}: {problem}");
    let one_of = |names: [&'static str; 2]| match names.map(|name| object.get(name)) {
        [Some(_), Some(_)] => {
            Err(format!("{whose} has both `{}` and `{}`: expected one", names[0], names[1]))
        }
        [Some(value), None] => Ok(Some((names[0], value))),
        [None, value] => Ok(value.map(|value| (names[1], value))),
    };
    let (name, value) = one_of(["role", "from"])?.ok_or_else(|| format!("{whose} has no `role`"))?;
    let named = string(value, name).map_err(of_message)?;
    let (_, role) = ROLES
        .iter()
        .find(|(name, _)| *name == named)
        .ok_or_else(|| format!("{whose} has the role `{named}`: expected user, assistant, system or tool"))?;
    let mut message = Map::from_iter([("role".to_owned(), Value::from(*role))]);
    let mut tool_calls = object.get("tool_calls").filter(|calls| !is_empty(calls)).cloned();
    match one_of(["content", "value"])? {
        Some((name, value)) if named == FUNCTION_CALL => {
            if tool_calls.is_some() {
                return Err(format!(
                    "{whose} is a {FUNCTION_CALL} and has `tool_calls`: expected one of them"
                ));
            }
            let text = string(value, name).map_err(of_message)?;
            let given = serde_json::from_str(text)
                .map_err(|e| format!("{whose}: `{name}` of a {FUNCTION_CALL} is not a call in JSON: {e}"))?;
            let list = if let Value::Array(list) = given { list } else { vec![given] };
            if list.is_empty() {
                return Err(format!("{whose}: `{name}` of a {FUNCTION_CALL} is empty: expected a call"));
            }
            tool_calls =
                Some(list.into_iter().map(|call| json!({"type": "function", "function": call})).collect());
            message.insert("content".to_owned(), "".into());
        }
        Some((_, value)) => {
            message.insert("content".to_owned(), value.clone());
        }
        None => {}
    }
    let thoughts: Vec<&str> =
        THOUGHTS.into_iter().filter(|name| object.get(*name).is_some_and(|value| !value.is_null())).collect();
    if let [first, second, ..] = thoughts[..]
        && object[first] != object[second]
    {
        return Err(format!("{whose} has both `{first}` and `{second}`, which differ: expected one"));
    }
    for name in thoughts.first().into_iter().chain(&["tool_call_id", "name"]) {
        if let Some(value) = object.get(*name).filter(|value| !value.is_null()) {
            message.insert((*name).to_owned(), value.clone());
        }
    }
    if let Some(mut calls) = tool_calls {
        parse_arguments(&mut calls);
        message.insert("tool_calls".to_owned(), calls);
    }
    let message = Message::try_from(message).map_err(of_message)?;
    message.check().map_err(|e| of_message(e.to_string()))?;
    Ok((message, is_learned(object, role, whose)?))
}

/// Parses call arguments given as JSON strings, as in many data sets, to the objects that templates expect.
fn parse_arguments(calls: &mut Value) {
    for call in calls.as_array_mut().into_iter().flatten() {
        let function = if call["function"].is_object() { &mut call["function"] } else { call };
        let Some(arguments) = function.get_mut("arguments") else { continue };
        // Invalid JSON is kept and refused later.
        if let Some(parsed) = arguments.as_str().and_then(|text| serde_json::from_str(text).ok()) {
            *arguments = parsed;
        }
    }
}

/// Whether a message is trained on: by default, if it is the assistant's.
fn is_learned(object: &Map<String, Value>, role: &str, whose: &str) -> Result<bool, String> {
    let mut said: Option<(&str, bool)> = None;
    for name in LEARNED {
        let Some(value) = object.get(name).filter(|value| !value.is_null()) else { continue };
        let is_learned = match (value.as_bool(), value.as_f64()) {
            (Some(is_learned), _) => is_learned,
            (_, Some(weight)) if weight == 0.0 || weight == 1.0 => weight == 1.0,
            _ => return Err(format!("{whose} has `{name}` {value}: expected 0, 1, true or false")),
        };
        if let Some((other, _)) = said.filter(|(_, other)| *other != is_learned) {
            return Err(format!("{whose} has `{other}` and `{name}`, which differ"));
        }
        if is_learned && role != ASSISTANT {
            return Err(format!(
                "{whose} is one of the {role} and has `{name}` {value}: only messages of the assistant are learned"
            ));
        }
        said = Some((name, is_learned));
    }
    Ok(said.map_or(role == ASSISTANT, |(_, is_learned)| is_learned))
}

#[cfg(test)]
mod tests {
    use super::super::DataRecord;
    use super::*;

    fn of(record: &Value) -> Result<ChatRecord, String> {
        match DataRecord::from_json(&record.to_string())? {
            DataRecord::Chat(chat) => Ok(chat),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn chats_of_both_kinds_are_the_same() {
        let share =
            json!({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]});
        let messages =
            json!({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]});
        let mixed =
            json!({"conversations": [{"role": "user", "content": "Hi"}, {"from": "model", "value": "Ho"}]});
        assert_eq!(of(&share), of(&messages));
        assert_eq!(of(&share), of(&mixed));
        let chat = ChatRecord::from(vec![Message::user("Hi"), Message::assistant("Ho")]);
        assert_eq!(chat.learned, [false, true]);
        assert_eq!(of(&messages), Ok(chat));
    }

    #[test]
    fn whole_messages_are_read() {
        let function = json!({"name": "add", "arguments": {"b": 2, "a": 1}});
        let call = |function: &Value| json!([{"type": "function", "function": function}]);
        let text = json!({"name": "add", "arguments": "{\"b\": 2, \"a\": 1}"});
        let schema = json!([{"type": "function", "function": {"name": "add", "parameters": {}}}]);
        let messages = |calls: &Value, tools: &Value| {
            json!({"tools": tools, "messages": [
                {"role": "user", "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "2?"}]},
                {"role": "assistant", "content": null, "reasoning_content": "a sum", "tool_calls": calls, "id": 7},
                {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"},
                {"role": "assistant", "content": "3", "thinking": "so", "reasoning": "so", "name": null},
            ]})
        };
        let chat = of(&messages(&call(&function), &schema)).expect("a chat");
        assert_eq!(chat.learned, [false, true, false, true]);
        assert_eq!(chat.tools.as_deref(), Some(schema.to_string().as_str()));
        let want = json!([
            {"role": "user", "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "2?"}]},
            {"role": "assistant", "content": null, "reasoning_content": "a sum", "tool_calls": call(&function)},
            {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"},
            {"role": "assistant", "content": "3", "thinking": "so"},
        ]);
        assert_eq!(serde_json::to_value(&chat.messages).expect("messages").to_string(), want.to_string());
        // Arguments and tools as JSON strings, as in many data sets.
        assert_eq!(of(&messages(&call(&text), &schema.to_string().into())), Ok(chat));
        // The same calls in ShareGPT.
        let share = |value: String| {
            json!({"tools": "[]", "conversations": [
                {"from": "human", "value": "1 + 2?"},
                {"from": "function_call", "value": value},
                {"from": "observation", "value": "3"},
                {"from": "gpt", "value": "3", "weight": 0},
            ]})
        };
        let want = [
            Message::user("1 + 2?"),
            Message::assistant("").with_field("tool_calls", call(&function)),
            Message::new("tool", "3"),
            Message::assistant("3"),
        ];
        for value in [function.to_string(), json!([function]).to_string(), text.to_string()] {
            let chat = of(&share(value)).expect("a chat");
            assert_eq!((&chat.messages[..], chat.tools), (&want[..], None));
            assert_eq!(chat.learned, [false, true, false, false]);
        }
    }

    #[test]
    fn what_no_message_has_is_said() {
        for (message, words) in [
            (
                json!({"role": "user"}),
                "message 1: `content`: expected a text, or tool_calls in its place, got none",
            ),
            (json!(7), "message 1 is a number"),
            (json!({"from": "alien", "value": ""}), "the role `alien`"),
            (json!({"content": "a"}), "message 1 has no `role`"),
            (json!({"role": "user", "value": null}), "message 1: `content`: expected a text or parts"),
            (json!({"role": "user", "content": 3}), "expected a string, null or a list of parts, got 3"),
            (
                json!({"role": "user", "content": "a", "reasoning": "b"}),
                "`reasoning`: expected a message of the assistant",
            ),
            (
                json!({"role": "assistant", "content": "a", "reasoning": "b", "thinking": "c"}),
                "both `thinking` and `reasoning`, which differ",
            ),
            (json!({"role": "assistant", "content": "a", "refusal": "no"}), "the key `refusal`"),
            (
                json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "x"}}]}),
                "`arguments` of call 1: expected an object",
            ),
            (
                json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}),
                "got [1]",
            ),
            (json!({"from": "function_call", "value": "add 1 2"}), "is not a call in JSON"),
            (json!({"from": "function_call", "value": "[]"}), "is empty: expected a call"),
            (json!({"from": "function_call", "value": "7"}), "call 1: expected"),
            (json!({"role": "assistant", "content": "a", "weight": 0.5}), "`weight` 0.5"),
            (json!({"role": "assistant", "content": "a", "weight": 0, "train": true}), "differ"),
            (json!({"role": "user", "content": "a", "train": true}), "one of the user"),
            (json!({"role": "user", "from": "user", "content": "a"}), "both `role` and `from`"),
        ] {
            let error = of(&json!({"messages": [message]})).expect_err(words);
            assert!(error.contains(words), "{message}: {error}");
        }
        for (tools, words) in [
            (json!([{}]), "tool 1 has no `name`"),
            (json!([{"type": "function", "function": {}}]), "tool 1 has no `name`"),
            (json!({"name": "f"}), "`tools` is an object"),
            (json!("f"), "`tools` is not a JSON list"),
        ] {
            let record = json!({"messages": [{"role": "user", "content": "a"}], "tools": tools});
            let error = of(&record).expect_err(words);
            assert!(error.contains(words), "{tools}: {error}");
        }
    }
}
