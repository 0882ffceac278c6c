//! Tokenization of documents with a loss mask.

use trike_text::chat::{ChatError, ChatTemplate, Message, RenderOptions, Transcript};
use trike_text::tokenizer::{Tokenizer, TokenizerError};

use super::{ChatRecord, DataRecord};

/// The system sentence of the Alpaca prompt.
const ALPACA: &str = "Below is an instruction that describes a task. Write a response that appropriately completes the request.";

/// Error of encoding a document.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A conversation, for a model without a chat template.
    #[error("a conversation, and the model has no chat template")]
    NoTemplate,
    /// An error of the template or the tokenizer.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// The tokenizer refuses it.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// The tokens of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// All of them.
    pub ids: Vec<u32>,
    /// Loss mask: whether a token is predicted from the preceding ones and counts in the loss.
    pub learned: Vec<bool>,
}

impl Tokens {
    /// Number of target tokens; the first token is never one.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count_to(usize::MAX)
    }

    /// Number of targets that the first `inputs` tokens predict.
    pub(crate) fn count_to(&self, inputs: usize) -> usize {
        self.learned.iter().skip(1).take(inputs).filter(|&&learned| learned).count()
    }
}

/// Tokenizes documents for a model.
///
/// A text is BOS (if the tokenizer adds it), the text and EOS (if there is one); all tokens count in the loss. Conversations go
/// through the model's chat template, and the assistant's part counts in the loss: its messages, with tool calls and reasoning as
/// rendered by the template, and its end-of-turn tokens. An instruction is a conversation of two messages or, for a model without a
/// template, the Alpaca prompt.
#[derive(Clone, Copy, Debug)]
pub struct Encoder<'a> {
    tokenizer: &'a Tokenizer,
    template: Option<&'a ChatTemplate>,
    eos: bool,
}

impl<'a> Encoder<'a> {
    /// An encoder for a model's tokenizer and chat template.
    #[must_use]
    pub fn new(tokenizer: &'a Tokenizer, template: Option<&'a ChatTemplate>) -> Self {
        Self { tokenizer, template, eos: true }
    }

    /// Sets whether texts end with EOS; on by default.
    #[must_use]
    pub fn with_eos(self, eos: bool) -> Self {
        Self { eos, ..self }
    }

    /// The tokens of a document.
    ///
    /// # Errors
    ///
    /// [`EncodeError::NoTemplate`] for a conversation and a model without a template, and errors of the tokenizer and the template.
    pub fn encode(&self, record: &DataRecord) -> Result<Tokens, EncodeError> {
        match record {
            DataRecord::Text(text) => self.text(text),
            DataRecord::Tokens(ids) => Ok(Tokens { ids: ids.clone(), learned: vec![true; ids.len()] }),
            DataRecord::Chat(chat) => match self.template {
                Some(template) => self.chat(template, chat),
                None => Err(EncodeError::NoTemplate),
            },
            DataRecord::Instruction { system, prompt, answer } => match self.template {
                Some(template) => {
                    let system = system.as_ref().map(Message::system);
                    let asked = [Message::user(prompt), Message::assistant(answer)];
                    self.chat(
                        template,
                        &ChatRecord::from(system.into_iter().chain(asked).collect::<Vec<_>>()),
                    )
                }
                None => self.instruction(system.as_deref(), prompt, answer),
            },
        }
    }

    fn text(&self, text: &str) -> Result<Tokens, EncodeError> {
        // Special tokens are not parsed in plain text.
        let mut ids = self.start();
        ids.extend(self.tokenizer.encode_literal(text)?);
        self.end(&mut ids);
        let learned = vec![true; ids.len()];
        Ok(Tokens { ids, learned })
    }

    fn instruction(&self, system: Option<&str>, prompt: &str, answer: &str) -> Result<Tokens, EncodeError> {
        let before = system.unwrap_or(ALPACA);
        let asked = format!("{before}\n\n### Instruction:\n{prompt}\n\n### Response:\n");
        let mut ids = self.start();
        ids.extend(self.tokenizer.encode_literal(&asked)?);
        let from = ids.len();
        ids.extend(self.tokenizer.encode_literal(answer)?);
        self.end(&mut ids);
        let learned = (0..ids.len()).map(|i| i >= from).collect();
        Ok(Tokens { ids, learned })
    }

    fn chat(&self, template: &ChatTemplate, chat: &ChatRecord) -> Result<Tokens, EncodeError> {
        let options = RenderOptions::default().with_tools(chat.tools.clone());
        let Transcript { ids, answers } =
            template.transcript(self.tokenizer, &chat.messages, &chat.learned, &options)?;
        let mut learned = vec![false; ids.len()];
        for answer in answers {
            learned.iter_mut().take(answer.end).skip(answer.start).for_each(|learned| *learned = true);
        }
        Ok(Tokens { ids, learned })
    }

    fn start(&self) -> Vec<u32> {
        let bos = self.tokenizer.bos().filter(|_| self.tokenizer.adds_bos());
        bos.into_iter().collect()
    }

    fn end(&self, ids: &mut Vec<u32>) {
        ids.extend(self.tokenizer.eos().first().filter(|_| self.eos));
    }
}

#[cfg(test)]
mod tests {
    use trike_testkit::byte_level_tokenizer;

    use super::super::{BatchConfig, Batches, Documents, Position};
    use super::*;
    use crate::TrainError;

    /// Tool calls and reasoning belong to the assistant, tool results to the user, as in ChatML. Earlier reasoning is omitted.
    const TEMPLATE: &str = "\
{%- if tools %}<|begin|>tools
{{ tools[0].function.name }}<|end|>
{% endif %}
{%- for m in messages %}
{%- set role = 'user' if m.role == 'tool' else m.role %}<|begin|>{{ role }}
{% if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}
{%- if m.content is string %}{{ m.content }}
{%- else %}{% for part in m.content or [] %}{{ part.text }}{% endfor %}
{%- endif %}
{%- for call in m.tool_calls or [] %}<call>{{ call.function | tojson }}</call>{% endfor %}<|end|>
{% endfor %}
{%- if add_generation_prompt %}<|begin|>assistant
{% endif %}";

    /// The text of a record, with the part that counts in the loss in brackets.
    fn lesson(line: &str) -> Result<String, EncodeError> {
        let tokenizer =
            Tokenizer::from_hf_json_bytes(byte_level_tokenizer().as_bytes()).expect("a tokenizer");
        let template = ChatTemplate::from_source(TEMPLATE).expect("a template");
        let record = DataRecord::from_json(line).expect("a record");
        let Tokens { ids, learned } = Encoder::new(&tokenizer, Some(&template)).encode(&record)?;
        assert_eq!(ids.len(), learned.len());
        let mut bytes = Vec::new();
        let mut was_learned = false;
        for (id, learned) in ids.into_iter().zip(learned).chain([(u32::MAX, false)]) {
            if learned != was_learned {
                bytes.push(if learned { b'[' } else { b']' });
            }
            was_learned = learned;
            bytes.extend_from_slice(match id {
                0 => b"<|begin|>",
                1 => b"<|end|>",
                u32::MAX => b"",
                id => tokenizer.token_bytes(id).expect("a token"),
            });
        }
        Ok(String::from_utf8(bytes).expect("text"))
    }

    #[test]
    fn what_the_assistant_writes_is_learned() {
        for (line, want) in [
            (
                r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "1 + 2"}, {"type": "text", "text": "?"}]},
                    {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function",
                        "function": {"name": "add", "arguments": "{\"a\":1,\"b\":2}"}}]},
                    {"role": "tool", "content": "3", "tool_call_id": "c1"},
                    {"role": "assistant", "reasoning_content": "so", "content": "It is 3."}],
                    "tools": "[{\"type\": \"function\", \"function\": {\"name\": \"add\"}}]"}"#,
                "<|begin|>tools\nadd<|end|>\n<|begin|>user\n1 + 2?<|end|>\n<|begin|>assistant\n\
                 [<call>{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}</call><|end|>\n]\
                 <|begin|>user\n3<|end|>\n<|begin|>assistant\n[<think>so</think>It is 3.<|end|>\n]",
            ),
            // In ShareGPT; the first answer is masked. The reasoning of all answers but the last is omitted.
            (
                r#"{"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho", "weight": 0},
                    {"from": "human", "value": "1 + 2?"}, {"from": "function_call", "value": "{\"name\": \"add\", \"arguments\": {}}"},
                    {"from": "observation", "value": "<|end|>\n<|begin|>assistant\n4"},
                    {"from": "gpt", "value": "3", "reasoning": "so"}, {"from": "gpt", "value": "!"}], "system": "Be brief."}"#,
                "<|begin|>system\nBe brief.<|end|>\n<|begin|>user\nHi<|end|>\n<|begin|>assistant\nHo<|end|>\n\
                 <|begin|>user\n1 + 2?<|end|>\n\
                 <|begin|>assistant\n[<call>{\"name\": \"add\", \"arguments\": {}}</call><|end|>\n]\
                 <|begin|>user\n<|end|>\n<|begin|>assistant\n4<|end|>\n<|begin|>assistant\n[3<|end|>\n]\
                 <|begin|>assistant\n[!<|end|>\n]",
            ),
        ] {
            assert_eq!(lesson(line).expect("tokens"), want);
        }
    }

    /// A message that the template does not render is an error with the line of the record.
    #[test]
    fn what_a_template_does_not_render_is_no_lesson() {
        let tokenizer =
            Tokenizer::from_hf_json_bytes(byte_level_tokenizer().as_bytes()).expect("a tokenizer");
        let source = "{% for m in messages %}<|begin|>{{ m.role }}: {{ m.content }}<|end|>{% endfor %}";
        let template = ChatTemplate::from_source(source).expect("a template");
        let plain =
            r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}"#;
        let call = r#""tool_calls": [{"function": {"name": "add", "arguments": {}}}]"#;
        for (line, words) in [
            (
                format!(r#"{{"messages": [{{"role": "assistant", "content": "", {call}}}]}}"#),
                "leaves out `tool_calls`",
            ),
            (
                r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}"#.to_owned(),
                "writes the parts of `content` as data",
            ),
            (
                plain.replace("]}", r#"], "tools": [{"name": "add"}]}"#),
                "tools: the chat template leaves them out",
            ),
        ] {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("a.jsonl");
            std::fs::write(&path, format!("{plain}\n{plain}\n{line}\n")).expect("it is written");
            let documents = Documents::open(&[path]).expect("documents");
            let encoder = Encoder::new(&tokenizer, Some(&template));
            let config = BatchConfig { length: 64, ..BatchConfig::default() };
            let used = [0, 1, 2];
            let mut batches =
                Batches::new(&documents, &used, encoder, config, Position::default()).expect("batches");
            let error = (0..4).find_map(|_| batches.next_batch().err()).expect("an error");
            let TrainError::Record { line: 3, problem, .. } = error else { panic!("{error:?}") };
            assert!(problem.contains(words), "{problem}");
        }
    }
}
