//! What a record of a data file says.

use serde_json::{Map, Value};
use trike_text::chat::Message;

/// A document to learn from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Text, all of which is learned.
    Text(String),
    /// Tokens, BOS included, all of which are learned.
    Tokens(Vec<u32>),
    /// A conversation, of which the answers are learned.
    Chat(Vec<Message>),
    /// An instruction and the answer to it, which is learned.
    Instruction {
        /// What is asked, with its input, if there is one, behind an empty line.
        prompt: String,
        /// The answer.
        answer: String,
    },
}

/// Names of roles in files of conversations, and those of chat templates.
const ROLES: &[(&str, &str)] = &[
    ("human", "user"),
    ("user", "user"),
    ("gpt", "assistant"),
    ("assistant", "assistant"),
    ("bot", "assistant"),
    ("system", "system"),
    ("tool", "tool"),
];

impl Record {
    /// The record of a line of JSON: `text`; `messages` with `role` and `content`; `conversations` with `from` and `value`
    /// (ShareGPT); or `instruction`, `input` and `output` (Alpaca).
    ///
    /// ```
    /// use trike_train::data::Record;
    ///
    /// let line = r#"{"instruction": "Add.", "input": "2 and 3", "output": "5"}"#;
    /// let Ok(Record::Instruction { prompt, answer }) = Record::from_json(line) else { panic!() };
    /// assert_eq!((prompt.as_str(), answer.as_str()), ("Add.\n\n2 and 3", "5"));
    /// assert!(Record::from_json(r#"{"txt": "a"}"#).is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// What is wrong with the line, as a sentence.
    pub fn from_json(line: &str) -> Result<Self, String> {
        let object: Map<String, Value> =
            serde_json::from_str(line).map_err(|e| format!("not a JSON object: {e}"))?;
        if let Some(text) = object.get("text") {
            return Ok(Self::Text(string(text, "text")?.to_owned()));
        }
        if let Some(messages) = object.get("messages") {
            return Ok(Self::Chat(chat(messages, "messages", ["role", "content"])?));
        }
        if let Some(messages) = object.get("conversations") {
            return Ok(Self::Chat(chat(messages, "conversations", ["from", "value"])?));
        }
        if let (Some(instruction), Some(output)) = (object.get("instruction"), object.get("output")) {
            let mut prompt = string(instruction, "instruction")?.to_owned();
            let input = object.get("input").map_or(Ok(""), |input| string(input, "input"))?;
            if !input.trim().is_empty() {
                prompt = format!("{prompt}\n\n{input}");
            }
            return Ok(Self::Instruction { prompt, answer: string(output, "output")?.to_owned() });
        }
        let keys: Vec<&str> = object.keys().map(String::as_str).take(8).collect();
        Err(format!(
            "expected the key `text`, `messages`, `conversations`, or `instruction` and `output`, got {}",
            if keys.is_empty() { "none".to_owned() } else { keys.join(", ") }
        ))
    }
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

fn chat(value: &Value, key: &str, [role, content]: [&str; 2]) -> Result<Vec<Message>, String> {
    let all = value.as_array().ok_or_else(|| format!("`{key}` is {}: expected a list", kind(value)))?;
    if all.is_empty() {
        return Err(format!("`{key}` is empty"));
    }
    let message = |(i, message): (usize, &Value)| {
        let field = |name: &str| {
            let value = message.get(name).ok_or_else(|| format!("message {} has no `{name}`", i + 1))?;
            string(value, name)
        };
        let named = field(role)?;
        let known = ROLES.iter().find(|(name, _)| *name == named);
        let (_, to) = known.ok_or_else(|| {
            format!("message {} has the role `{named}`: expected user, assistant, system or tool", i + 1)
        })?;
        Ok(Message::new(*to, field(content)?))
    };
    all.iter().enumerate().map(message).collect()
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
        assert_eq!(Record::from_json(share), Record::from_json(messages));
        assert_eq!(
            Record::from_json(messages),
            Ok(Record::Chat(vec![Message::user("Hi"), Message::assistant("Ho")]))
        );
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
            (r#"{"conversations": [{"from": "alien", "value": ""}]}"#, "the role `alien`"),
        ] {
            let error = Record::from_json(line).expect_err(line);
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
