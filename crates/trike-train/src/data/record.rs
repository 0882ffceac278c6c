//! Records of data files.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::keys::{self, string};
use super::messages::{ChatRecord, chat};

/// A document for training.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataRecord {
    /// Text, all of which is trained on.
    Text(String),
    /// Tokens, including BOS, all of which are trained on.
    Tokens(Vec<u32>),
    /// A conversation whose answers are trained on.
    Chat(ChatRecord),
    /// An instruction and its answer, which is trained on.
    Instruction {
        /// The system sentence; for a model without a template it replaces Alpaca's own.
        system: Option<String>,
        /// The instruction, followed by an empty line and its input, if any.
        prompt: String,
        /// The answer.
        answer: String,
    },
}

/// Which keys of a record are read, by axolotl's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordKind {
    /// The keys that are present, of one format.
    #[default]
    Any,
    /// `text`.
    Completion,
    /// `instruction`, `input` and `output`, even if a record also has them as `text`.
    Alpaca,
    /// `messages` or `conversations`.
    #[serde(alias = "sharegpt")]
    ChatTemplate,
}

/// Keys of all text formats.
const FORMS: [&str; 6] = ["text", "instruction", "input", "output", "messages", "conversations"];
/// Keys of conversations.
const CHATS: [&str; 2] = ["messages", "conversations"];

impl DataRecord {
    /// Parses a JSON line: `text`; `messages` or `conversations` (ShareGPT) with `role` and `content` or `from` and `value`; or
    /// `instruction`, `input` and `output` (Alpaca). The last two may have a `system` text. Messages may have tool calls,
    /// reasoning, content parts and no content, as in [`Message`](trike_text::chat::Message), and their record may have `tools`. A
    /// message with `weight`, `train`, `training` or `loss` of 0 or `false` is masked. Of the other keys, only those without a
    /// value and those known to have no effect are ignored, such as `id` and `source`.
    ///
    /// ```
    /// use trike_train::data::DataRecord;
    ///
    /// let line = r#"{"instruction": "Add.", "input": "2 and 3", "output": "5", "id": 7}"#;
    /// let Ok(DataRecord::Instruction { prompt, answer, .. }) = DataRecord::from_json(line) else { panic!() };
    /// assert_eq!((prompt.as_str(), answer.as_str()), ("Add.\n\n2 and 3", "5"));
    /// assert!(DataRecord::from_json(r#"{"txt": "a"}"#).is_err());
    /// let error = DataRecord::from_json(r#"{"text": "a", "loss_mask": [0]}"#).unwrap_err();
    /// assert!(error.contains("`loss_mask`"));
    /// ```
    ///
    /// # Errors
    ///
    /// A description of the error, as a sentence.
    pub fn from_json(line: &str) -> Result<Self, String> {
        Self::from_json_of(line, RecordKind::Any)
    }

    /// [`from_json`](Self::from_json) for a record of this kind.
    ///
    /// # Errors
    ///
    /// A description of the error, as a sentence.
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
        // A record of a known kind may have the same text in another format.
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
                keys::check(
                    &object,
                    &known(&[key_of(key), "system", "system_prompt", "prompt", "tools"]),
                    "it",
                )?;
                Ok(Self::Chat(chat(&object, key)?))
            }
            [one, two, ..] => Err(format!(
                "it has both `{one}` and `{two}`, which is ambiguous: expected one of them, or a data set \
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

fn instruction(object: &Map<String, Value>) -> Result<DataRecord, String> {
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
    Ok(DataRecord::Instruction { system, prompt, answer: text("output")?.to_owned() })
}

#[cfg(test)]
mod tests {
    use trike_text::chat::Message;

    use super::*;

    /// Every key that affects the loss is read or refused.
    #[test]
    fn keys_that_change_the_lesson_are_read() {
        let messages = |more: &str| {
            let line = format!(
                r#"{{"messages": [{{"role": "user", "content": "Hi"}}, {{"role": "assistant", "content": "Ho"{more}}}]}}"#
            );
            match DataRecord::from_json(&line) {
                Ok(DataRecord::Chat(chat)) => Ok(chat.learned),
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
        let Ok(DataRecord::Chat(chat)) = DataRecord::from_json(system) else { panic!("a chat") };
        assert_eq!(
            (chat.messages[0].clone(), &chat.learned[..]),
            (Message::system("Be brief."), &[false; 2][..])
        );
        let line = r#"{"instruction": "Add.", "input": null, "output": "5", "system": "You are a clerk.", "source": "x"}"#;
        let system = Some("You are a clerk.".to_owned());
        let (prompt, answer) = ("Add.".to_owned(), "5".to_owned());
        assert_eq!(DataRecord::from_json(line), Ok(DataRecord::Instruction { system, prompt, answer }));
        // The same text in both formats, as in Alpaca on the hub.
        let line = r#"{"instruction": "Add.", "output": "5", "text": "Below is ... 5"}"#;
        assert!(DataRecord::from_json(line).expect_err("two").contains("both `instruction` and `text`"));
        for kind in [RecordKind::Alpaca, RecordKind::Completion] {
            let found = DataRecord::from_json_of(line, kind);
            assert_eq!(matches!(found, Ok(DataRecord::Text(_))), kind == RecordKind::Completion, "{found:?}");
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
            (r#"{"text": "a", "weight": 0.5}"#, "the key `weight`"),
            (r#"{"text": "a", "labels": [1]}"#, "the key `labels`"),
            (r#"{"instruction": "a", "output": "b", "history": [["c", "d"]]}"#, "the key `history`"),
            (r#"{"instruction": "a", "output": "b", "tools": [{"name": "f"}]}"#, "the key `tools`"),
            (
                r#"{"messages": [{"role": "user", "content": "a"}], "text": "b"}"#,
                "both `messages` and `text`",
            ),
            (
                r#"{"system": "a", "messages": [{"role": "system", "content": "b"}, {"role": "user", "content": "a"}]}"#,
                "`system` differs",
            ),
            (r#"{"prompt": "b", "messages": [{"role": "user", "content": "a"}]}"#, "`prompt` is not"),
        ] {
            let error = DataRecord::from_json(line).expect_err(line);
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
