//! The events of a streamed response.

use std::sync::Arc;

use serde_json::{Value, json};
use trike_engine::Outcome;
use trike_llm::TokenLogprobs;
use trike_text::reply::{ReplyPart, ReplyReader};
use trike_text::tokenizer::Tokenizer;

use super::{Head, call_item, message_item, reasoning_item, text_part};
use crate::app::App;
use crate::error::ApiError;
use crate::running::{Chunks, Sent, answer_id};

/// An item that is being written.
struct Item {
    id: String,
    kind: Kind,
    text: String,
}

enum Kind {
    Reasoning,
    Message,
    Call { call: String, name: String },
}

/// Writes the events of a response.
pub(super) struct Events {
    app: Arc<App>,
    head: Head,
    reader: ReplyReader,
    tokenizer: Tokenizer,
    item: Option<Item>,
    /// Finished items.
    output: Vec<Value>,
    reasoning: String,
    /// Events so far.
    number: u64,
}

impl Events {
    pub(super) fn new(app: Arc<App>, head: Head, reader: ReplyReader, tokenizer: Tokenizer) -> Self {
        let (output, reasoning) = (Vec::new(), String::new());
        Self { app, head, reader, tokenizer, item: None, output, reasoning, number: 0 }
    }

    fn event(&mut self, name: &'static str, mut object: Value) -> Sent {
        object["type"] = json!(name);
        object["sequence_number"] = json!(self.number);
        self.number += 1;
        (Some(name), object)
    }

    /// An event of the open item, with where it is.
    fn event_of(&mut self, name: &'static str, id: &str, mut object: Value) -> Sent {
        object["item_id"] = json!(id);
        object["output_index"] = json!(self.output.len());
        if !name.contains("arguments") {
            object["content_index"] = json!(0);
        }
        self.event(name, object)
    }

    fn open(&mut self, kind: Kind, sent: &mut Vec<Sent>) {
        self.close(sent);
        let prefix = match kind {
            Kind::Reasoning => "rs_",
            Kind::Message => "msg_",
            Kind::Call { .. } => "fc_",
        };
        let id = answer_id(&self.app, prefix);
        let object = match &kind {
            Kind::Reasoning => reasoning_item(&id, None),
            Kind::Message => message_item(&id, None),
            Kind::Call { call, name } => call_item(&id, call, name, None),
        };
        let index = self.output.len();
        sent.push(self.event("response.output_item.added", json!({ "output_index": index, "item": object })));
        let part = match kind {
            Kind::Reasoning => Some(json!({ "type": "reasoning_text", "text": "" })),
            Kind::Message => Some(text_part("")),
            Kind::Call { .. } => None,
        };
        if let Some(part) = part {
            sent.push(self.event_of("response.content_part.added", &id, json!({ "part": part })));
        }
        self.item = Some(Item { id, kind, text: String::new() });
    }

    fn close(&mut self, sent: &mut Vec<Sent>) {
        let Some(Item { id, kind, text }) = self.item.take() else { return };
        let object = match &kind {
            Kind::Reasoning => {
                sent.push(self.event_of("response.reasoning_text.done", &id, json!({ "text": text })));
                let part = json!({ "type": "reasoning_text", "text": text });
                sent.push(self.event_of("response.content_part.done", &id, json!({ "part": part })));
                reasoning_item(&id, Some(&text))
            }
            Kind::Message => {
                let done = json!({ "text": text, "logprobs": [] });
                sent.push(self.event_of("response.output_text.done", &id, done));
                sent.push(self.event_of(
                    "response.content_part.done",
                    &id,
                    json!({ "part": text_part(&text) }),
                ));
                message_item(&id, Some(&text))
            }
            Kind::Call { call, name } => {
                let done = json!({ "arguments": text, "name": name });
                sent.push(self.event_of("response.function_call_arguments.done", &id, done));
                call_item(&id, call, name, Some(&text))
            }
        };
        let index = self.output.len();
        sent.push(
            self.event("response.output_item.done", json!({ "output_index": index, "item": object.clone() })),
        );
        self.output.push(object);
    }

    fn delta(&mut self, name: &'static str, text: &str, sent: &mut Vec<Sent>) {
        let Some(item) = &mut self.item else { return };
        item.text.push_str(text);
        let id = item.id.clone();
        let mut object = json!({ "delta": text });
        if name == "response.output_text.delta" {
            object["logprobs"] = json!([]);
        }
        sent.push(self.event_of(name, &id, object));
    }

    fn parts(&mut self, parts: Vec<ReplyPart>, sent: &mut Vec<Sent>) {
        for part in parts {
            match part {
                ReplyPart::Reasoning(text) => {
                    if !matches!(self.item, Some(Item { kind: Kind::Reasoning, .. })) {
                        self.open(Kind::Reasoning, sent);
                    }
                    self.reasoning.push_str(&text);
                    self.delta("response.reasoning_text.delta", &text, sent);
                }
                ReplyPart::Content(text) => {
                    if !matches!(self.item, Some(Item { kind: Kind::Message, .. })) {
                        self.open(Kind::Message, sent);
                    }
                    self.delta("response.output_text.delta", &text, sent);
                }
                ReplyPart::Call { name, .. } => {
                    let call = answer_id(&self.app, "call_");
                    self.open(Kind::Call { call, name }, sent);
                }
                ReplyPart::Arguments { text, .. } => {
                    self.delta("response.function_call_arguments.delta", &text, sent);
                }
            }
        }
    }
}

impl Chunks for Events {
    fn start(&mut self, _: usize, _: usize) -> Vec<Sent> {
        let object = self.head.object("in_progress");
        let created = self.event("response.created", json!({ "response": object.clone() }));
        vec![created, self.event("response.in_progress", json!({ "response": object }))]
    }

    fn text(&mut self, _: usize, text: String, _: &[TokenLogprobs]) -> Vec<Sent> {
        let (parts, mut sent) = (self.reader.push(&text), Vec::new());
        self.parts(parts, &mut sent);
        sent
    }

    fn end(&mut self, _: usize, outcome: &Outcome) -> Vec<Sent> {
        let (parts, mut sent) = (self.reader.finish(), Vec::new());
        self.parts(parts, &mut sent);
        if self.item.is_none() && self.output.is_empty() {
            self.open(Kind::Message, &mut sent);
        }
        self.close(&mut sent);
        let output = std::mem::take(&mut self.output);
        let response = self.head.finished(output, outcome, &self.reasoning, &self.tokenizer);
        let name = match response["status"] == "completed" {
            true => "response.completed",
            false => "response.incomplete",
        };
        sent.push(self.event(name, json!({ "response": response })));
        sent
    }

    fn last(&mut self, _: &[Outcome]) -> Vec<Sent> {
        Vec::new()
    }

    fn error(&mut self, error: &ApiError) -> Sent {
        let mut response = self.head.object("failed");
        let object = error.object();
        response["error"] = json!({ "code": "server_error", "message": object["error"]["message"] });
        self.event("response.failed", json!({ "response": response }))
    }

    fn has_end(&self) -> bool {
        false
    }
}
