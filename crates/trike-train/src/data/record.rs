//! What a record of a data file says.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use trike_text::chat::Message;

use super::keys::{self, is_empty};

/// A document to learn from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Text, all of which is learned.
    Text(String),
    /// Tokens, BOS included, all of which are learned.
    Tokens(Vec<u32>),
    /// A conversation, of which answers are learned.
    Chat(Chat),
    /// An instruction and the answer to it, which is learned.
    Instruction {
        /// What precedes all instructions; for a model without a template, in place of Alpaca's own sentence.
        system: Option<String>,
        /// What is asked, with its input, if there is one, behind an empty line.
        prompt: String,
        /// The answer.
        answer: String,
    },
}

/// A conversation to learn from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chat {
    /// All messages.
    pub messages: Vec<Message>,
    /// Whether each of them is learned: messages of the assistant only, and of these all, unless the data says which.
    pub learned: Vec<bool>,
}

impl From<Vec<Message>> for Chat {
    /// A conversation of which all messages of the assistant are learned.
    fn from(messages: Vec<Message>) -> Self {
        let learned = messages.iter().map(|message| message.role == ASSISTANT).collect();
        Self { messages, learned }
    }
}

/// Which keys of a record are read, with the names of axolotl.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordKind {
    /// Those that are there, of one kind.
    #[default]
    Any,
    /// `text`.
    Completion,
    /// `instruction`, `input` and `output`, even where a record has them as `text`, too.
    Alpaca,
    /// `messages` or `conversations`.
    #[serde(alias = "sharegpt")]
    ChatTemplate,
}

/// The role whose messages are learned.
const ASSISTANT: &str = "assistant";

/// Names of roles in files of conversations, and those of chat templates.
const ROLES: &[(&str, &str)] = &[
    ("human", "user"),
    ("user", "user"),
    ("gpt", ASSISTANT),
    ("assistant", ASSISTANT),
    ("bot", ASSISTANT),
    ("model", ASSISTANT),
    ("system", "system"),
    ("tool", "tool"),
];

/// Keys of a message that say whether it is learned.
const LEARNED: [&str; 4] = ["weight", "train", "training", "loss"];
/// Keys of a message that are read.
const OF_MESSAGE: [&str; 8] = ["role", "from", "content", "value", "weight", "train", "training", "loss"];
/// Keys of the forms that a text may have.
const FORMS: [&str; 6] = ["text", "instruction", "input", "output", "messages", "conversations"];
/// Keys of conversations.
const CHATS: [&str; 2] = ["messages", "conversations"];

impl Record {
    /// The record of a line of JSON: `text`; `messages` or `conversations` (ShareGPT) with `role` and `content` or `from` and
    /// `value`; or `instruction`, `input` and `output` (Alpaca). A `system` text precedes the last two. A message with `weight`,
    /// `train`, `training` or `loss` of 0 or `false` is not learned. Of other keys only those are passed over that are known to
    /// change nothing, such as `id` and `source`, and those without a value.
    ///
    /// ```
    /// use trike_train::data::Record;
    ///
    /// let line = r#"{"instruction": "Add.", "input": "2 and 3", "output": "5", "id": 7}"#;
    /// let Ok(Record::Instruction { prompt, answer, .. }) = Record::from_json(line) else { panic!() };
    /// assert_eq!((prompt.as_str(), answer.as_str()), ("Add.\n\n2 and 3", "5"));
    /// assert!(Record::from_json(r#"{"txt": "a"}"#).is_err());
    /// let error = Record::from_json(r#"{"text": "a", "loss_mask": [0]}"#).unwrap_err();
    /// assert!(error.contains("`loss_mask`"));
    /// ```
    ///
    /// # Errors
    ///
    /// What is wrong with the line, as a sentence.
    pub fn from_json(line: &str) -> Result<Self, String> {
        Self::from_json_of(line, RecordKind::Any)
    }

    /// [`from_json`](Self::from_json) of a record of this kind.
    ///
    /// # Errors
    ///
    /// What is wrong with the line, as a sentence.
    pub fn from_json_of(line: &str, kind: RecordKind) -> Result<Self, String> {
        let object: Map<String, Value> =
            serde_json::from_str(line).map_err(|e| format!("not a JSON object: {e}"))?;
        let has = |key: &str| object.get(key).is_some_and(|value| !value.is_null());
        let is_alpaca = has("instruction") && has("output");
        let chats: Vec<&str> = CHATS.into_iter().filter(|key| has(key)).collect();
        let mut found = chats.clone();
        found.extend(is_alpaca.then_some("instruction"));
        found.extend(has("text").then_some("text"));
        match kind {
            RecordKind::Any => {}
            RecordKind::Completion => found.retain(|key| *key == "text"),
            RecordKind::Alpaca => found.retain(|key| *key == "instruction"),
            RecordKind::ChatTemplate => found.retain(|key| CHATS.contains(key)),
        }
        // A record of a known kind may have the same text in another form.
        let known = |own: &[&'static str]| -> Vec<&'static str> {
            let is_copy = |key: &&&str| kind != RecordKind::Any && !own.contains(*key);
            own.iter().chain(FORMS.iter().filter(is_copy)).copied().collect()
        };
        match found[..] {
            ["text"] => {
                keys::check(&object, &known(&["text"]), "it")?;
                Ok(Self::Text(string(&object["text"], "text")?.to_owned()))
            }
            ["instruction"] => {
                keys::check(&object, &known(&["instruction", "input", "output", "system"]), "it")?;
                instruction(&object)
            }
            [key] => {
                keys::check(&object, &known(&[key_of(key), "system", "system_prompt", "prompt"]), "it")?;
                Ok(Self::Chat(chat(&object, key)?))
            }
            [one, two, ..] => Err(format!(
                "it has both `{one}` and `{two}`, and which of them is to be learned is not clear: expected one of them, or a data set \
                 with a type"
            )),
            [] => {
                let keys: Vec<&str> = object.keys().map(String::as_str).take(8).collect();
                Err(format!(
                    "expected the key `text`, `messages`, `conversations`, or `instruction` and `output`, got {}",
                    if keys.is_empty() { "none".to_owned() } else { keys.join(", ") }
                ))
            }
        }
    }
}

fn key_of(key: &str) -> &'static str {
    CHATS.into_iter().find(|known| *known == key).unwrap_or("messages")
}

fn instruction(object: &Map<String, Value>) -> Result<Record, String> {
    let text = |key: &str| match object.get(key) {
        None | Some(Value::Null) => Ok(""),
        Some(value) => string(value, key),
    };
    let mut prompt = text("instruction")?.to_owned();
    let input = text("input")?;
    if !input.trim().is_empty() {
        prompt = format!("{prompt}\n\n{input}");
    }
    let system = Some(text("system")?).filter(|text| !text.trim().is_empty()).map(str::to_owned);
    Ok(Record::Instruction { system, prompt, answer: text("output")?.to_owned() })
}

fn string<'a>(value: &'a Value, key: &str) -> Result<&'a str, String> {
    value.as_str().ok_or_else(|| format!("`{key}` is {}: expected a string", kind(value)))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn chat(object: &Map<String, Value>, key: &str) -> Result<Chat, String> {
    let value = &object[key];
    let all = value.as_array().ok_or_else(|| format!("`{key}` is {}: expected a list", kind(value)))?;
    if all.is_empty() {
        return Err(format!("`{key}` is empty"));
    }
    let mut chat = Chat::default();
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
                return Err(format!(
                    "`{key}` is another text than the first message, which is one of the system"
                ));
            }
            None => {
                chat.messages.insert(0, Message::system(text));
                chat.learned.insert(0, false);
            }
        }
    }
    // The first question once more, in some data sets.
    if let Some(value) = object.get("prompt").filter(|value| !is_empty(value)) {
        let text = string(value, "prompt")?;
        if !chat.messages.iter().any(|message| message.role == "user" && message.content == text) {
            return Err("`prompt` is none of the messages: expected one of the user, or none".to_owned());
        }
    }
    Ok(chat)
}

/// A message, and whether it is learned.
fn message(value: &Value, whose: &str) -> Result<(Message, bool), String> {
    let object =
        value.as_object().ok_or_else(|| format!("{whose} is {}: expected an object", kind(value)))?;
    keys::check(object, &OF_MESSAGE, whose)?;
    let field = |names: [&str; 2]| match names.map(|name| object.get(name)) {
        [Some(_), Some(_)] => {
            Err(format!("{whose} has both `{}` and `{}`: expected one", names[0], names[1]))
        }
        [None, None] => Err(format!("{whose} has no `{}`", names[0])),
        [one, two] => {
            let name = if one.is_some() { names[0] } else { names[1] };
            string(one.or(two).unwrap_or(&Value::Null), name).map_err(|problem| format!("{whose}: {problem}"))
        }
    };
    let named = field(["role", "from"])?;
    let (_, role) = ROLES
        .iter()
        .find(|(name, _)| *name == named)
        .ok_or_else(|| format!("{whose} has the role `{named}`: expected user, assistant, system or tool"))?;
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
        if is_learned && *role != ASSISTANT {
            return Err(format!(
                "{whose} is one of the {role} and has `{name}` {value}: only messages of the assistant are learned"
            ));
        }
        said = Some((name, is_learned));
    }
    let is_learned = said.map_or(*role == ASSISTANT, |(_, is_learned)| is_learned);
    Ok((Message::new(*role, field(["content", "value"])?), is_learned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chats_of_both_kinds_are_the_same() {
        let share =
            r#"{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]}"#;
        let messages =
            r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}"#;
        let mixed =
            r#"{"conversations": [{"role": "user", "content": "Hi"}, {"from": "model", "value": "Ho"}]}"#;
        assert_eq!(Record::from_json(share), Record::from_json(messages));
        assert_eq!(Record::from_json(share), Record::from_json(mixed));
        let chat = Chat::from(vec![Message::user("Hi"), Message::assistant("Ho")]);
        assert_eq!(chat.learned, [false, true]);
        assert_eq!(Record::from_json(messages), Ok(Record::Chat(chat)));
    }

    /// Everything that changes a lesson is learned or named.
    #[test]
    fn keys_that_change_the_lesson_are_read() {
        let messages = |more: &str| {
            let line = format!(
                r#"{{"messages": [{{"role": "user", "content": "Hi"}}, {{"role": "assistant", "content": "Ho"{more}}}]}}"#
            );
            match Record::from_json(&line) {
                Ok(Record::Chat(chat)) => Ok(chat.learned),
                other => Err(other),
            }
        };
        for (more, is_learned) in [
            ("", true),
            (r#", "weight": 0"#, false),
            (r#", "weight": 0.0"#, false),
            (r#", "weight": 1"#, true),
            (r#", "train": false"#, false),
            (r#", "training": false"#, false),
            (r#", "loss": false"#, false),
            (r#", "train": true, "weight": 1"#, true),
            (r#", "weight": null, "name": null, "tool_calls": []"#, true),
            (r#", "id": 5, "timestamp": "now""#, true),
        ] {
            assert_eq!(messages(more), Ok(vec![false, is_learned]), "{more}");
        }
        let system = r#"{"system": "Be brief.", "conversations": [{"from": "human", "value": "Hi"}]}"#;
        let Ok(Record::Chat(chat)) = Record::from_json(system) else { panic!("a chat") };
        assert_eq!(
            (chat.messages[0].clone(), &chat.learned[..]),
            (Message::system("Be brief."), &[false; 2][..])
        );
        let line = r#"{"instruction": "Add.", "input": null, "output": "5", "system": "You are a clerk.", "source": "x"}"#;
        let system = Some("You are a clerk.".to_owned());
        let (prompt, answer) = ("Add.".to_owned(), "5".to_owned());
        assert_eq!(Record::from_json(line), Ok(Record::Instruction { system, prompt, answer }));
        // The same text in both forms, as the hub has Alpaca.
        let line = r#"{"instruction": "Add.", "output": "5", "text": "Below is ... 5"}"#;
        assert!(Record::from_json(line).expect_err("two").contains("both `instruction` and `text`"));
        for kind in [RecordKind::Alpaca, RecordKind::Completion] {
            let found = Record::from_json_of(line, kind);
            assert_eq!(matches!(found, Ok(Record::Text(_))), kind == RecordKind::Completion, "{found:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (line, words) in [
            ("", "not a JSON object"),
            ("[1]", "not a JSON object"),
            (r#"{"text": 5}"#, "`text` is a number"),
            ("{}", "got none"),
            (r#"{"instruction": "a"}"#, "got instruction"),
            (r#"{"messages": []}"#, "empty"),
            (r#"{"messages": [{"role": "user"}]}"#, "message 1 has no `content`"),
            (r#"{"messages": [7]}"#, "message 1 is a number"),
            (r#"{"conversations": [{"from": "alien", "value": ""}]}"#, "the role `alien`"),
            (r#"{"text": "a", "weight": 0.5}"#, "the key `weight`"),
            (r#"{"text": "a", "labels": [1]}"#, "the key `labels`"),
            (r#"{"instruction": "a", "output": "b", "history": [["c", "d"]]}"#, "the key `history`"),
            (r#"{"messages": [{"role": "user", "content": "a"}], "tools": [{}]}"#, "the key `tools`"),
            (
                r#"{"messages": [{"role": "user", "content": "a"}], "text": "b"}"#,
                "both `messages` and `text`",
            ),
            (r#"{"messages": [{"role": "user", "content": null}]}"#, "message 1: `content` is null"),
            (r#"{"messages": [{"role": "user", "content": [{"type": "text"}]}]}"#, "`content` is a list"),
            (
                r#"{"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}"#,
                "message 1 has the key `tool_calls`",
            ),
            (
                r#"{"messages": [{"role": "assistant", "content": "a", "reasoning_content": "b"}]}"#,
                "the key `reasoning_content`",
            ),
            (r#"{"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]}"#, "`weight` 0.5"),
            (
                r#"{"messages": [{"role": "assistant", "content": "a", "weight": 0, "train": true}]}"#,
                "differ",
            ),
            (r#"{"messages": [{"role": "user", "content": "a", "train": true}]}"#, "one of the user"),
            (r#"{"messages": [{"role": "user", "from": "user", "content": "a"}]}"#, "both `role` and `from`"),
            (
                r#"{"system": "a", "messages": [{"role": "system", "content": "b"}, {"role": "user", "content": "a"}]}"#,
                "`system` is another text",
            ),
            (r#"{"prompt": "b", "messages": [{"role": "user", "content": "a"}]}"#, "`prompt` is none"),
        ] {
            let error = Record::from_json(line).expect_err(line);
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
