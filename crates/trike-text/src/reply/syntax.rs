//! How tool calls are written.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::chat::{ChatTemplate, Message, RenderOptions};

/// Stands for the identifier of a call, in the form that Mistral's templates ask for.
pub(super) const ID: &str = "trikeId01";
/// Letters and digits of an identifier.
pub(super) const ID_LENGTH: usize = ID.len();

/// The parts of calls: `start open NAME middle ARGUMENTS close (separator open NAME middle ARGUMENTS close)* end`, with arguments in
/// JSON. [`ID`] stands for an identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CallSyntax {
    pub(super) start: String,
    pub(super) open: String,
    pub(super) middle: String,
    pub(super) close: String,
    /// `None` if there is one call at most.
    pub(super) separator: Option<String>,
    pub(super) end: String,
}

impl CallSyntax {
    /// The syntax of Hermes, with one tag around each call.
    pub(super) fn hermes() -> Self {
        Self {
            start: String::new(),
            open: "<tool_call>\n{\"name\": \"".to_owned(),
            middle: "\", \"arguments\": ".to_owned(),
            close: "}\n</tool_call>".to_owned(),
            separator: Some("\n".to_owned()),
            end: String::new(),
        }
    }

    /// What the first call begins with.
    pub(super) fn opening(&self) -> String {
        format!("{}{}", self.start, self.open)
    }

    /// Whether only a reply that begins with a call has one: its opening may occur in a text, too.
    pub(super) fn is_at_start(&self) -> bool {
        self.opening().trim_start().starts_with(['{', '['])
    }

    /// The syntax with every part changed.
    pub(super) fn map(&self, change: impl Fn(&str) -> String) -> Self {
        Self {
            start: change(&self.start),
            open: change(&self.open),
            middle: change(&self.middle),
            close: change(&self.close),
            separator: self.separator.as_deref().map(&change),
            end: change(&self.end),
        }
    }

    /// The syntax of a template, read off its output for one call and for two; `None` if it does not render tools, calls and results,
    /// or does not render arguments in JSON.
    pub(super) fn of(template: &ChatTemplate) -> Option<Self> {
        let one = turn(template, Some(&[0]), ID)?;
        let first = Parts::of(&one, 0)?;
        // The end of a turn follows the calls.
        let text = turn(template, None, ID)?;
        let turn_end = &text[text.find(CONTENT)? + CONTENT.len()..];
        let after = first.after.strip_suffix(turn_end).unwrap_or(first.after);
        let Some((before, between)) = turn(template, Some(&[0, 1]), ID).and_then(|two| {
            let (first, second) = (Parts::of(&two, 0)?, Parts::of(&two, 1)?);
            let start = two.len() - first.after.len();
            let end = second.before.len();
            Some((first.before.to_owned(), two.get(start..end)?.to_owned()))
        }) else {
            // The template refuses several calls.
            return Some(Self {
                start: String::new(),
                open: first.before.to_owned(),
                middle: first.middle.to_owned(),
                close: after.to_owned(),
                separator: None,
                end: String::new(),
            });
        };
        if before != first.before {
            return None;
        }
        // Between two calls stand the close of the first, the separator, and the opening of the second.
        let close = common_prefix(after, &between);
        let rest = &between[close.len()..];
        let open = common_suffix(&before, rest);
        Some(Self {
            start: before[..before.len() - open.len()].to_owned(),
            open: open.to_owned(),
            middle: first.middle.to_owned(),
            close: close.to_owned(),
            separator: Some(rest[..rest.len() - open.len()].to_owned()),
            end: after[close.len()..].to_owned(),
        })
    }
}

/// Whether a template refuses calls for their identifiers unless these are as in Mistral's.
pub(super) fn has_short_ids(template: &ChatTemplate) -> bool {
    turn(template, Some(&[0]), ID).is_some() && turn(template, Some(&[0]), "call_trike").is_none()
}

/// Names and arguments that no template contains.
const NAMES: [&str; 2] = ["trike_fn_a", "trike_fn_b"];
const KEYS: [&str; 2] = ["trike_key_a", "trike_key_b"];
const CONTENT: &str = "trike content";
const RESULT: &str = "trike result";

/// The turn of the assistant in a template's output: with a text, or with calls by their numbers. `None` if the template does not render
/// it, the tools, or the result of a call.
fn turn(template: &ChatTemplate, calls: Option<&[usize]>, id: &str) -> Option<String> {
    let options =
        RenderOptions::default().with_now(SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
    let tools: Vec<Value> = NAMES
        .iter()
        .zip(KEYS)
        .map(|(name, key)| {
            let parameters = json!({ "type": "object", "properties": { key: { "type": "string" } }, "required": [key] });
            json!({ "type": "function", "function": { "name": name, "description": "trike", "parameters": parameters } })
        })
        .collect();
    let options = options.with_tools(json!(tools).to_string());
    let user = Message::user("trike question");
    let prompt = template.render(std::slice::from_ref(&user), &options).ok()?;
    if !prompt.contains(NAMES[0]) {
        return None;
    }
    let answer = match calls {
        None => Message::assistant(CONTENT),
        Some(calls) => {
            let call = |&at: &usize| {
                let function = json!({ "name": NAMES[at], "arguments": { KEYS[at]: "trike_value" } });
                json!({ "id": id, "type": "function", "function": function })
            };
            Message::assistant("").with_field("tool_calls", Value::Array(calls.iter().map(call).collect()))
        }
    };
    let closed = options.with_add_generation_prompt(false);
    let result = Message::new("tool", RESULT).with_field("tool_call_id", id).with_field("name", NAMES[0]);
    let with_result = [user.clone(), answer.clone(), result];
    if calls.is_some_and(|calls| calls.len() == 1)
        && !template.render(&with_result, &closed).is_ok_and(|text| text.contains(RESULT))
    {
        return None;
    }
    let text = template.render(&[user, answer], &closed).ok()?;
    // Templates that open reasoning in the prompt do not show it in the history.
    let shown = common_prefix(&prompt, &text);
    Some(text[shown.len()..].to_owned())
}

/// The parts of a text around the call with a number.
struct Parts<'t> {
    before: &'t str,
    middle: &'t str,
    after: &'t str,
}

impl<'t> Parts<'t> {
    fn of(text: &'t str, call: usize) -> Option<Self> {
        let name = text.find(NAMES[call])?;
        let rest = &text[name + NAMES[call].len()..];
        let wanted = json!({ KEYS[call]: "trike_value" });
        let key = rest.find(KEYS[call])?;
        // The arguments are the value with the key in it.
        let from = rest[..key].rfind('{')?;
        let mut values = serde_json::Deserializer::from_str(&rest[from..]).into_iter::<Value>();
        if values.next()?.ok()? != wanted {
            return None;
        }
        let end = from + values.byte_offset();
        Some(Self { before: &text[..name], middle: &rest[..from], after: &rest[end..] })
    }
}

fn common_prefix<'t>(a: &'t str, b: &str) -> &'t str {
    let len: usize = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    &a[..len]
}

fn common_suffix<'t>(a: &'t str, b: &str) -> &'t str {
    let pairs = a.chars().rev().zip(b.chars().rev());
    let len: usize = pairs.take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    &a[a.len() - len..]
}
