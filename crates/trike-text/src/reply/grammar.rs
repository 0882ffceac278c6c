//! The grammar of a reply.

use serde_json::{Value, json};

use super::syntax::{ID, ID_LENGTH};
use super::{ReplyFormat, ReplyOptions, Thinking, visible};
use crate::constraint::{Grammar, for_parser};

/// White space between reasoning and what follows it.
const GAP: &str = r"/[ \n]{0,4}/";

/// The grammar of a reply; `None` if any text is one, or the format's own if there is nothing else.
pub(super) fn of(format: &ReplyFormat, options: &ReplyOptions) -> Option<Grammar> {
    let tools = options.callable();
    let reasoning = format.reasoning.as_ref().filter(|_| options.thinking != Thinking::None);
    if tools.is_empty() && (options.format.is_none() || reasoning.is_none()) {
        return options.format.clone();
    }
    let mut rules = Vec::new();
    let mut body = Vec::new();
    if !tools.is_empty() {
        let calls = &format.calls;
        let opening = calls.opening();
        // Of a free text the visible part of the opening is what tells it from calls. With a special token in front, a text cannot
        // contain it.
        let marker = visible(&format.specials, &opening);
        let is_free = !options.must_call();
        let is_special = marker != opening;
        let marker = regex(marker.trim_start());
        let content = match &options.format {
            None => {
                let excluded = if calls.is_at_start() {
                    format!("{marker}(.|\\n)*")
                } else {
                    format!("(.|\\n)*{marker}(.|\\n)*")
                };
                match is_special {
                    true => "FREE: /(.|\\n)*/".to_owned(),
                    false => format!("FREE: /(.|\\n)*/ & ~/{excluded}/"),
                }
            }
            Some(grammar) => format!("FREE: {}", inline(grammar)),
        };
        if is_free {
            // Rules that are not terminals have names in lower case.
            let (name, rule) = match &options.format {
                None => ("FREE", content),
                Some(_) => ("free", content.replacen("FREE", "free", 1)),
            };
            rules.push(rule);
            body.push(name.to_owned());
        }
        let rest = match calls.separator.as_ref().filter(|_| options.parallel) {
            Some(separator) => {
                let next = literal(format, &format!("{separator}{}", calls.open));
                format!("call ({next} call)* {}", literal(format, &calls.end))
            }
            None => format!("call {}", literal(format, &calls.end)),
        };
        let may_follow_text = is_free && options.format.is_none() && !calls.is_at_start();
        if may_follow_text && !is_special {
            rules.push(format!("lead[lazy]: /(.|\\n)*{marker}/"));
            body.push(format!("lead {rest}"));
        } else if may_follow_text {
            body.push(format!("FREE {} {rest}", literal(format, &opening)));
        } else {
            body.push(format!("{} {rest}", literal(format, opening.trim_start())));
        }
        let names: Vec<String> = (0..tools.len()).map(|at| format!("tool_{at}")).collect();
        rules.push(format!("call: {}", names.join(" | ")));
        for (tool, name) in tools.iter().zip(&names) {
            let before = literal(format, &format!("{}{}", escaped(&tool.name), calls.middle));
            let arguments = json_rule(&tool.parameters);
            rules.push(format!(
                "{name}: {before} {name}_arguments {}\n{name}_arguments: {arguments}",
                literal(format, &calls.close)
            ));
        }
    } else if let Some(grammar) = &options.format {
        rules.push(format!("free: {}", inline(grammar)));
        body.push("free".to_owned());
    }
    rules.push(format!("body: {}", body.join(" | ")));
    let start = match (reasoning, options.thinking) {
        (Some((open, close)), thinking) => {
            rules.push(format!("thought[lazy]: /(.|\\n)*{}/", regex(close)));
            match thinking {
                Thinking::Open => format!("start: thought {GAP} body"),
                _ => format!("start: ({} thought {GAP})? body", string(open)),
            }
        }
        (None, _) => "start: body".to_owned(),
    };
    rules.insert(0, start);
    Some(Grammar::Lark(rules.join("\n") + "\n"))
}

/// The name of a tool inside of a JSON string.
fn escaped(name: &str) -> String {
    let quoted = json!(name).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

fn json_rule(schema: &Value) -> String {
    format!("%json {}", for_parser(schema.clone()))
}

/// A format as the right side of a rule. One that is no JSON is refused when the grammar is compiled.
fn inline(grammar: &Grammar) -> String {
    match grammar {
        Grammar::JsonSchema(schema) => match serde_json::from_str(schema) {
            Ok(schema) => json_rule(&schema),
            Err(_) => format!("%json {schema}"),
        },
        Grammar::Regex(expression) => format!("/{}/", expression.replace('/', "\\/")),
        Grammar::Lark(grammar) => format!("%lark {{\n{grammar}\n}}"),
    }
}

/// A string in the syntax of the grammar.
fn string(text: &str) -> String {
    json!(text).to_string()
}

/// A text as a sequence of strings, special tokens and identifiers; empty for an empty text.
fn literal(format: &ReplyFormat, text: &str) -> String {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let special = format
            .specials
            .iter()
            .filter_map(|(name, id)| Some((rest.find(name.as_str())?, name.len(), Some(*id))));
        let id = rest.find(ID).map(|at| (at, ID.len(), None));
        // Of those at the same place the longest.
        let next = special.chain(id).min_by_key(|&(at, len, _)| (at, usize::MAX - len));
        let Some((at, len, token)) = next else {
            parts.push(string(rest));
            break;
        };
        if at > 0 {
            parts.push(string(&rest[..at]));
        }
        parts.push(match token {
            Some(id) => format!("<[{id}]>"),
            None => format!("/[a-zA-Z0-9]{{{ID_LENGTH}}}/"),
        });
        rest = &rest[at + len..];
    }
    parts.join(" ")
}

/// A text as a regular expression.
fn regex(text: &str) -> String {
    let mut expression = String::new();
    for letter in text.chars() {
        match letter {
            '\n' => expression.push_str("\\n"),
            letter => {
                // Others must not be escaped: `\<` is the start of a word.
                if r".+*?()|[]{}^$\/".contains(letter) {
                    expression.push('\\');
                }
                expression.push(letter);
            }
        }
    }
    expression
}
