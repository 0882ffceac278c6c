//! Complete conversations as tokens, with the ranges that the model writes.

use std::{ops::Range, time::SystemTime};

use serde_json::Value;

use super::{
    ChatError, ChatTemplate, Message, RenderOptions, covered,
    message::{Said, map_tools},
};
use crate::tokenizer::Tokenizer;

/// A complete conversation as tokens, with the ranges of its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transcript {
    /// Tokens of the whole conversation.
    pub ids: Vec<u32>,
    /// For each requested answer, in order, the tokens that the model writes: from the end of the answer's prompt to the end of its
    /// turn.
    pub answers: Vec<Range<usize>>,
}

impl ChatTemplate {
    /// Tokenizes a complete conversation and locates the messages whose `answers` is true. The option for a generation prompt is
    /// ignored.
    ///
    /// An answer starts where its prompt ends, and ends where the conversation up to it ends. Some templates render a message
    /// differently once others follow (Qwen 3 omits earlier reasoning); then an answer is located by the rendered text that changes
    /// with it, and includes the end of its turn.
    ///
    /// ```
    /// use trike_text::chat::{ChatTemplate, Message, RenderOptions};
    /// # let json = trike_testkit::byte_level_tokenizer();
    /// # let tokenizer = trike_text::tokenizer::Tokenizer::from_hf_json_bytes(json.as_bytes())?;
    ///
    /// let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|end|>{% endfor %}\
    ///               {% if add_generation_prompt %}assistant: {% endif %}";
    /// let template = ChatTemplate::from_source(source)?;
    /// let messages = [Message::user("Hi"), Message::assistant("Ho"), Message::user("Bye")];
    /// let all = template.transcript(&tokenizer, &messages, &[false, true, false], &RenderOptions::default())?;
    /// let [answer] = &all.answers[..] else { panic!("one answer") };
    /// assert_eq!(tokenizer.decode(&all.ids[answer.clone()])?, "Ho");
    /// assert_eq!(all.ids.get(answer.end - 1), tokenizer.id_of("<|end|>").as_ref());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`encode`](Self::encode), and [`ChatError::Unrendered`] if the template omits tools, or the text, the tool calls or the
    /// content parts of a message with further fields. Reasoning may be omitted.
    pub fn transcript(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        answers: &[bool],
        options: &RenderOptions,
    ) -> Result<Transcript, ChatError> {
        // The same time for every rendering.
        let now = options.now.unwrap_or_else(SystemTime::now);
        let options = RenderOptions { now: Some(now), ..options.clone() };
        let (shield, messages, options) = covered(tokenizer, messages, &options)?;
        let prompt = self.render(&messages, &options.clone().with_add_generation_prompt(false))?;
        let reading = Reading { template: self, messages: &messages, options, prompt };
        reading.check()?;
        let ids = tokenizer.encode_shielded(&reading.prompt, &shield)?;
        // The number of tokens in a prefix of the text; a token that extends past it is not included.
        let tokens = |end: usize| -> Result<usize, ChatError> {
            if end == reading.prompt.len() {
                return Ok(ids.len());
            }
            let before = tokenizer.encode_shielded(&reading.prompt[..end], &shield)?;
            Ok(ids.iter().zip(&before).take_while(|(a, b)| a == b).count())
        };
        let range = |i: usize| -> Result<Range<usize>, ChatError> {
            let text = reading.answer(i)?;
            let start = tokens(text.start)?;
            Ok(start..tokens(text.end)?.max(start))
        };
        let wanted = (0..messages.len()).filter(|&i| answers.get(i).is_some_and(|wanted| *wanted));
        let answers = wanted.map(range).collect::<Result<_, _>>()?;
        Ok(Transcript { ids, answers })
    }
}

/// A rendered conversation, which is rendered again with changed messages to locate each message in the text.
struct Reading<'a> {
    template: &'a ChatTemplate,
    messages: &'a [Message],
    options: RenderOptions,
    /// The whole conversation.
    prompt: String,
}

impl Reading<'_> {
    fn render(&self, messages: &[Message], asks: bool) -> Result<String, ChatError> {
        self.template.render(messages, &self.options.clone().with_add_generation_prompt(asks))
    }

    /// Characters that do not occur in the rendered text.
    fn marks(&self) -> impl Iterator<Item = String> {
        ('\u{f0000}'..='\u{ffffd}').filter(|mark| !self.prompt.contains(*mark)).map(String::from)
    }

    fn mark(&self) -> Result<String, ChatError> {
        self.marks().next().ok_or(ChatError::NoPlaceholder)
    }

    /// The byte range of the text that the model writes for message `i`.
    fn answer(&self, i: usize) -> Result<Range<usize>, ChatError> {
        let start = match self.render(&self.messages[..i], true) {
            Ok(before) if self.prompt.starts_with(&before) => before.len(),
            // Also if the template cannot prompt for an answer before the first user message.
            _ => self.start(i)?,
        };
        if i + 1 == self.messages.len() {
            return Ok(start..self.prompt.len());
        }
        let through = self.render(&self.messages[..=i], false)?;
        let end = match self.prompt.starts_with(&through) && through.len() >= start {
            true => through.len(),
            false => self.end(i, &through)?,
        };
        Ok(start..end.max(start))
    }

    /// All messages, with the texts of message `i` replaced by marks.
    fn replaced(&self, i: usize) -> Result<Vec<Message>, ChatError> {
        let mark = self.mark()?;
        let mut messages = self.messages.to_vec();
        let changed = messages[i].map_said(&|_, _| mark.clone());
        messages[i] = match changed == messages[i] {
            true => changed.with_field("content", mark),
            false => changed,
        };
        Ok(messages)
    }

    /// The start of message `i` in the original text: after the generation prompt, if that is found between the last text of the
    /// previous message and the first text of this one; otherwise at the first text.
    fn start(&self, i: usize) -> Result<usize, ChatError> {
        let changed = self.render(&self.replaced(i)?, false)?;
        if changed == self.prompt {
            return Err(unrendered(i, "leaves out what the assistant wrote"));
        }
        let text = shared(self.prompt.chars(), changed.chars());
        let asked = self.render(self.messages, true).unwrap_or_default();
        let header = asked.strip_prefix(&*self.prompt).filter(|header| !header.is_empty());
        let (Some(header), Some(before)) = (header, self.end_before(i)?) else { return Ok(text) };
        let between = self.prompt.get(before..text).unwrap_or_default();
        Ok(between.rfind(header).map_or(text, |at| before + at + header.len()))
    }

    /// The end of the last text of the messages before `i`; `None` if it cannot be determined.
    fn end_before(&self, i: usize) -> Result<Option<usize>, ChatError> {
        if i == 0 {
            return Ok(Some(0));
        }
        let mark = self.mark()?;
        let mut messages = self.messages.to_vec();
        for message in &mut messages[..i] {
            *message = message.map_said(&|_, text| format!("{text}{mark}"));
        }
        let changed = self.render(&messages, false)?;
        let suffix = changed.rsplit_once(&*mark).map(|(_, suffix)| suffix);
        Ok(suffix.filter(|b| self.prompt.ends_with(*b)).map(|suffix| self.prompt.len() - suffix.len()))
    }

    /// The end of message `i`: after its last text and the following characters that also follow it in `through`, the conversation
    /// up to it.
    fn end(&self, i: usize, through: &str) -> Result<usize, ChatError> {
        let replaced = self.replaced(i)?;
        let suffix =
            |whole: &str, changed: &str| whole.len() - shared(whole.chars().rev(), changed.chars().rev());
        let text = suffix(&self.prompt, &self.render(&replaced, false)?);
        let of_turn = suffix(through, &self.render(&replaced[..=i], false)?);
        Ok(text + shared(self.prompt[text..].chars(), through[of_turn..].chars()))
    }

    /// Refuses tools, and messages with further fields, that the template does not render completely.
    fn check(&self) -> Result<(), ChatError> {
        if self.options.tools.is_none() && self.messages.iter().all(Message::is_plain) {
            return Ok(());
        }
        // A single rendering, in which every text ends with a mark.
        let mut marks = self.marks();
        let mut mark = || marks.next().ok_or(ChatError::NoPlaceholder);
        let (of_tools, of_parts) = (mark()?, mark()?);
        let mut marked = Vec::new();
        let mut messages = Vec::new();
        for message in self.messages {
            let (content, call) = (mark()?, mark()?);
            let changed = message.map_said(&|said, text| match said {
                Said::Content if !text.trim().is_empty() => format!("{text}{content}"),
                Said::Call => format!("{text}{call}"),
                _ => text.to_owned(),
            });
            messages.push(changed.with_key_in_parts(&of_parts));
            marked.push((content, call));
        }
        let mut options = self.options.clone().with_add_generation_prompt(false);
        let tools = options.tools.as_deref().and_then(|json| serde_json::from_str::<Value>(json).ok());
        options.tools = tools.map(|mut tools| {
            map_tools(&mut tools, &|name| format!("{name}{of_tools}"));
            tools.to_string()
        });
        let rendered = self.template.render(&messages, &options)?;
        // Python's formatting of data escapes marks.
        let found = |text: &str| rendered.contains(text) || rendered.contains(&in_data(text));
        for (i, (message, (content, call))) in self.messages.iter().zip(&marked).enumerate() {
            let has_calls =
                message.field("tool_calls").and_then(Value::as_array).is_some_and(|c| !c.is_empty());
            if has_calls && !found(call) {
                return Err(unrendered(i, "leaves out `tool_calls`"));
            }
            // Data is written with its keys, including the added one, and in Python's format unless the template requests JSON.
            let has_parts = message.field("content").is_some_and(Value::is_array);
            if has_parts && found(&format!("'{of_parts}'")) {
                return Err(unrendered(
                    i,
                    "writes the parts of `content` as data and not as text: expected a string",
                ));
            }
            if !message.content.trim().is_empty() && !found(content) {
                return Err(unrendered(i, "leaves out `content`"));
            }
        }
        if options.tools.is_some() && !found(&of_tools) {
            return Err(ChatError::Unrendered { whose: "tools".to_owned(), problem: "leaves them out" });
        }
        self.check_null()
    }

    /// Refuses a content of null that a template writes as `None`.
    fn check_null(&self) -> Result<(), ChatError> {
        let is_null = |message: &Message| message.field("content").is_some_and(Value::is_null);
        let Some(first) = self.messages.iter().position(is_null) else { return Ok(()) };
        let empty = |message: &Message| match is_null(message) {
            true => message.clone().with_field("content", ""),
            false => message.clone(),
        };
        let without: Vec<Message> = self.messages.iter().map(empty).collect();
        let nones = |text: &str| text.matches("None").count();
        match nones(&self.prompt) > nones(&self.render(&without, false)?) {
            true => Err(unrendered(first, "writes a `content` of null as `None`: expected a string")),
            false => Ok(()),
        }
    }
}

/// A text with marks, as Python formats it in data.
fn in_data(text: &str) -> String {
    let escaped = |c: char| match c {
        '\u{f0000}'.. => format!("\\U{:08x}", u32::from(c)),
        c => c.to_string(),
    };
    text.chars().map(escaped).collect()
}

fn unrendered(message: usize, problem: &'static str) -> ChatError {
    ChatError::Unrendered { whose: format!("message {}", message + 1), problem }
}

/// Length in bytes of the common prefix of two texts.
fn shared(a: impl Iterator<Item = char>, b: impl Iterator<Item = char>) -> usize {
    a.zip(b).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use trike_testkit::byte_level_tokenizer;

    use super::*;

    /// The conversation with the answers in brackets.
    fn learned(source: &str, messages: &Value, options: &RenderOptions) -> Result<String, ChatError> {
        let tokenizer =
            Tokenizer::from_hf_json_bytes(byte_level_tokenizer().as_bytes()).expect("a tokenizer");
        let messages: Vec<Message> = serde_json::from_value(messages.clone()).expect("messages");
        let answers: Vec<bool> = messages.iter().map(|message| message.role == "assistant").collect();
        let template = ChatTemplate::from_source(source).expect("a template");
        let Transcript { ids, answers } = template.transcript(&tokenizer, &messages, &answers, options)?;
        let mut text = String::new();
        let mut from = 0;
        let name = |id: u32| match id {
            0 => &b"<|begin|>"[..],
            1 => b"<|end|>",
            id => tokenizer.token_bytes(id).expect("a token"),
        };
        let decode = |range: Range<usize>| {
            let bytes: Vec<u8> = ids[range].iter().flat_map(|&id| name(id)).copied().collect();
            String::from_utf8(bytes).expect("text")
        };
        for answer in answers {
            text += &format!("{}[{}]", decode(from..answer.start), decode(answer.clone()));
            from = answer.end;
        }
        Ok(text + &decode(from..ids.len()))
    }

    /// A template like Qwen 3's: reasoning before the last question is omitted, tool results belong to the user.
    const THINKING: &str = "\
{%- set last = namespace(user=0) %}
{%- for m in messages if m.role == 'user' %}{% set last.user = loop.index0 %}{% endfor %}
{%- set seen = namespace(users=-1) %}
{%- if tools %}<|begin|>tools: {{ tools | tojson }}<|end|>{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}{% set seen.users = seen.users + 1 %}{% endif %}
{%- if m.role == 'tool' %}<|begin|>user: ({{ m.content }})<|end|>
{%- else %}<|begin|>{{ m.role }}:
{%- if m.reasoning_content and seen.users == last.user %} <think>{{ m.reasoning_content }}</think>{% endif %}
{%- if m.content is string %} {{ m.content }}
{%- elif m.content %}{% for part in m.content %} {{ part.text }}{% endfor %}
{%- endif %}
{%- for call in m.tool_calls or [] %} call {{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}
{%- endif %}
{%- if m.role != 'tool' %}<|end|>{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|begin|>assistant:{% endif %}";

    #[test]
    fn what_the_model_writes_is_found() {
        let call =
            json!([{"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2]}}}]);
        let options = RenderOptions::default();
        for (messages, want) in [
            (
                json!([
                    {"role": "user", "content": "1 + 2?"},
                    {"role": "assistant", "content": null, "reasoning_content": "a sum", "tool_calls": call},
                    {"role": "tool", "content": "3"},
                    {"role": "assistant", "reasoning_content": "so", "content": "3"},
                ]),
                "<|begin|>user: 1 + 2?<|end|><|begin|>assistant:[ <think>a sum</think> call add {\"a\": 1, \"b\": [2]}<|end|>]\
                 <|begin|>user: (3)<|end|><|begin|>assistant:[ <think>so</think> 3<|end|>]",
            ),
            // Reasoning of earlier turns is omitted; the rest of their answers is still located.
            (
                json!([
                    {"role": "user", "content": "1 + 2?"},
                    {"role": "assistant", "content": "", "reasoning_content": "a sum", "tool_calls": call},
                    {"role": "tool", "content": "<|end|>assistant: 3"},
                    {"role": "assistant", "reasoning_content": "so", "content": "3"},
                    {"role": "user", "content": [{"type": "text", "text": "Is"}, {"type": "text", "text": "it?"}]},
                    {"role": "assistant", "reasoning_content": "hm", "content": [{"type": "text", "text": "Yes"}]},
                ]),
                "<|begin|>user: 1 + 2?<|end|><|begin|>assistant:[  call add {\"a\": 1, \"b\": [2]}<|end|>]\
                 <|begin|>user: (<|end|>assistant: 3)<|end|><|begin|>assistant:[ 3<|end|>]\
                 <|begin|>user: Is it?<|end|><|begin|>assistant:[ <think>hm</think> Yes<|end|>]",
            ),
            // The first message, and two consecutive ones of the assistant.
            (
                json!([
                    {"role": "assistant", "content": "Hello"},
                    {"role": "assistant", "content": "there"},
                    {"role": "user", "content": "Hi"},
                ]),
                "<|begin|>assistant:[ Hello<|end|>]<|begin|>assistant:[ there<|end|>]<|begin|>user: Hi<|end|>",
            ),
        ] {
            assert_eq!(learned(THINKING, &messages, &options).expect("a transcript"), want);
        }
        let tools = r#"[{"type": "function", "function": {"name": "add", "description": "<|end|>"}}]"#;
        let messages = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]);
        let shown =
            learned(THINKING, &messages, &options.with_tools(tools.to_owned())).expect("a transcript");
        assert_eq!(
            shown,
            format!("<|begin|>tools: {tools}<|end|><|begin|>user: Hi<|end|><|begin|>assistant:[ Ho<|end|>]")
        );
    }

    /// Prompts that are not a prefix of the conversation: the end of the last turn differs, and the prompt opens the reasoning.
    #[test]
    fn an_answer_is_found_in_a_text_that_no_prompt_begins() {
        let source = "{% for m in messages %}{% if m.role == 'assistant' %}<|begin|>A:{{ m.content.split('</think>')[-1] }}\
                      {{ ';' if loop.last else '<|end|>' }}{% else %}<|begin|>U:{{ m.content }}{% endif %}{% endfor %}\
                      {% if add_generation_prompt %}<|begin|>A:<think>{% endif %}";
        let messages = json!([
            {"role": "user", "content": "one A:"},
            {"role": "assistant", "content": "x</think>two"},
            {"role": "user", "content": "three"},
            {"role": "assistant", "content": "four"},
        ]);
        // The end of an earlier turn differs from that of a last turn, so it is not recognized.
        assert_eq!(
            learned(source, &messages, &RenderOptions::default()).expect("a transcript"),
            "<|begin|>U:one A:<|begin|>A:[two]<|end|><|begin|>U:three<|begin|>A:[four;]"
        );
    }

    #[test]
    fn what_a_template_does_not_render_is_named() {
        let plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|end|>{% endfor %}";
        let calls = "{% for m in messages %}{{ m.role }}: {{ m.tool_calls or m.content }}<|end|>{% endfor %}";
        let call = json!([{"function": {"name": "f", "arguments": {}}}]);
        for (source, message, words) in [
            (
                plain,
                json!({"content": "", "tool_calls": call}),
                "message 2: the chat template leaves out `tool_calls`",
            ),
            (
                plain,
                json!({"content": [{"type": "text", "text": "a"}]}),
                "writes the parts of `content` as data",
            ),
            (calls, json!({"content": "a", "tool_calls": call}), "leaves out `content`"),
        ] {
            let mut answer = json!({"role": "assistant"});
            answer
                .as_object_mut()
                .expect("an object")
                .extend(message.as_object().expect("an object").clone());
            let messages = json!([{"role": "user", "content": "Hi"}, answer]);
            let error = learned(source, &messages, &RenderOptions::default()).expect_err(words).to_string();
            assert!(error.contains(words), "{words}: {error}");
        }
        let messages = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "None"}]);
        let options = RenderOptions::default();
        assert_eq!(
            learned(plain, &messages, &options).expect("a transcript"),
            "user: Hi<|end|>[assistant: None<|end|>]",
            "without a start of its turn, the model writes it"
        );
        let error = learned(plain, &messages, &options.with_tools(r#"[{"name": "f"}]"#.to_owned()));
        assert!(
            error.expect_err("no tools").to_string().contains("tools: the chat template leaves them out")
        );
    }
}
