//! Replies in templates of several kinds, in pieces of any size, and what their grammars allow.

use serde_json::{Value, json};

use super::*;
use crate::chat::{Message, RenderOptions};
use crate::constraint::{Constraint, Grammar};

/// Templates that write calls in the ways of the models that people use.
const TAGGED: &str = "{% if tools %}tools:{% for t in tools %} {{ t | tojson }}{% endfor %}{% endif %}\
    {% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}\
    {{ '\n<tool_call>\n{\"name\": \"' }}{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}{{ '\n' }}</tool_call>\
    {% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
const LIST: &str = "{% if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}{% for m in messages %}{% if m.tool_calls %}\
    [CALLS][{% for c in m.tool_calls %}{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}, \
    \"id\": \"{{ c.id }}\"}{% if not loop.last %}, {% endif %}{% endfor %}]</s>{% elif m.role == 'tool' %}[RESULT]{{ m.content }}\
    {% else %}[{{ m.role }}]{{ m.content }}{% if m.role == 'assistant' %}</s>{% endif %}{% endif %}{% endfor %}";
const PLAIN_JSON: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>\n\
    {% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}\
    {\"name\": \"{{ m.tool_calls[0].function.name }}\", \"parameters\": {{ m.tool_calls[0].function.arguments | tojson }}}\
    {% else %}{{ m.content }}{% endif %}<eot>{% endfor %}{% if add_generation_prompt %}<assistant>\n{% endif %}";
const NO_TOOLS: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";

fn tokenizer() -> Tokenizer {
    Tokenizer::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny")).expect("the bundled tokenizer")
}

fn format(source: &str) -> ReplyFormat {
    ReplyFormat::of(&ChatTemplate::from_source(source).expect("a template"), &tokenizer())
}

fn tools() -> Vec<Tool> {
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"],
        "additionalProperties": false });
    vec![Tool::new("weather", "The weather".to_owned(), schema), Tool::new("now", None, Value::Null)]
}

/// Whether a grammar allows every token of a text, and its end there.
fn accepts(grammar: &Grammar, text: &str) -> bool {
    let tokenizer = tokenizer();
    let end = tokenizer.id_of("</s>").expect("an end token");
    let mut constraint =
        Constraint::new(grammar, &tokenizer, &[end]).unwrap_or_else(|error| panic!("{error}\n{grammar:?}"));
    let is_allowed = |constraint: &mut Constraint, id: u32| {
        let mut logits = vec![0.0; tokenizer.vocab_size()];
        constraint.mask(&mut logits).expect("a mask");
        logits[id as usize] == 0.0
    };
    // Letter by letter: the tokenizer would put a space in front of the first word.
    let id_of = |letter: char| {
        let bytes = letter.to_string().into_bytes();
        (0..tokenizer.vocab_size() as u32)
            .find(|id| tokenizer.token_bytes(*id).is_ok_and(|token| token == bytes))
    };
    for id in text.chars().map(|letter| id_of(letter).expect("a token")) {
        if !is_allowed(&mut constraint, id) || constraint.accept(id).is_err() {
            return false;
        }
    }
    is_allowed(&mut constraint, end)
}

/// The parts of a reply that comes in pieces of `size` letters.
fn read(format: &ReplyFormat, options: &ReplyOptions, text: &str, size: usize) -> Vec<ReplyPart> {
    let mut reader = format.reader(options);
    let letters: Vec<char> = text.chars().collect();
    let mut parts: Vec<ReplyPart> = Vec::new();
    for piece in letters.chunks(size) {
        parts.extend(reader.push(&piece.iter().collect::<String>()));
    }
    parts.extend(reader.finish());
    super::reader::join(parts)
}

fn call(index: usize, name: &str, arguments: &str) -> [ReplyPart; 2] {
    [
        ReplyPart::Call { index, name: name.to_owned() },
        ReplyPart::Arguments { index, text: arguments.to_owned() },
    ]
}

#[test]
fn the_syntax_of_calls_is_read_off_the_template() {
    let tagged = format(TAGGED);
    assert!(tagged.is_native);
    assert_eq!(tagged.calls.opening(), "\n<tool_call>\n{\"name\": \"");
    assert_eq!((&*tagged.calls.close, tagged.calls.separator.as_deref()), ("}\n</tool_call>", Some("")));
    let list = format(LIST);
    assert_eq!((&*list.calls.start, &*list.calls.open), ("[CALLS][", "{\"name\": \""));
    assert_eq!(list.calls.close, format!(", \"id\": \"{}\"}}", syntax::ID));
    assert_eq!((list.calls.separator.as_deref(), &*list.calls.end), (Some(", "), "]"));
    let single = format(PLAIN_JSON);
    assert_eq!((&*single.calls.middle, &*single.calls.close), ("\", \"parameters\": ", "}"));
    assert_eq!(single.calls.separator, None);
    assert!(single.calls.is_at_start());
    assert!(!format(NO_TOOLS).is_native);
}

#[test]
fn calls_are_read_in_pieces_of_any_size() {
    let options = ReplyOptions::default().with_tools(tools());
    let city = r#"{"city": "a \"} b"}"#;
    for (source, text) in [
        (
            TAGGED,
            format!(
                "\n<tool_call>\n{{\"name\": \"weather\", \"arguments\": {city}}}\n</tool_call>\n<tool_call>\n{{\"name\": \"now\", \"arguments\": {{}}}}\n</tool_call>"
            ),
        ),
        (
            LIST,
            format!(
                "[CALLS][{{\"name\": \"weather\", \"arguments\": {city}, \"id\": \"a1b2c3d4e\"}}, {{\"name\": \"now\", \"arguments\": {{}}, \"id\": \"a1b2c3d4f\"}}]"
            ),
        ),
        (
            NO_TOOLS,
            format!(
                "<tool_call>\n{{\"name\": \"weather\", \"arguments\": {city}}}\n</tool_call>\n<tool_call>\n{{\"name\": \"now\", \"arguments\": {{}}}}\n</tool_call>"
            ),
        ),
    ] {
        let format = format(source);
        for size in [1, 2, 3, 7, 1000] {
            let want = [call(0, "weather", city), call(1, "now", "{}")].concat();
            assert_eq!(read(&format, &options, &text, size), want, "{source}\n{size}");
            if source == LIST {
                continue;
            }
            let mut said = vec![ReplyPart::Content("Let me look.".to_owned())];
            said.extend(want);
            assert_eq!(
                read(&format, &options, &format!("Let me look. {text}"), size),
                said,
                "{source}\n{size}"
            );
        }
        let grammar = format.grammar(&options).expect("a grammar");
        assert!(accepts(&grammar, &text), "{grammar:?}");
        assert!(accepts(&grammar, "It is <sunny> [today] {1}."), "{grammar:?}");
        assert!(!accepts(&grammar, &text.replace("weather", "weathr")), "an unknown tool");
        assert!(!accepts(&grammar, &text.replace("city", "town")), "a wrong argument");
        let one = options.clone().with_parallel(false);
        assert!(!accepts(&format.grammar(&one).expect("a grammar"), &text), "two calls");
        let must = format.grammar(&options.clone().with_choice(ToolChoice::Required)).expect("a grammar");
        assert!(accepts(&must, text.trim_start()) && !accepts(&must, "It is sunny."), "{must:?}");
        let named = options.clone().with_choice(ToolChoice::Named("now".to_owned()));
        assert!(!accepts(&format.grammar(&named).expect("a grammar"), text.trim_start()));
        let none = options.clone().with_choice(ToolChoice::None);
        assert_eq!(format.grammar(&none), None);
    }
    let single = format(PLAIN_JSON);
    let text = format!("{{\"name\": \"weather\", \"parameters\": {city}}}");
    let grammar = single.grammar(&options).expect("a grammar");
    for size in [1, 5, 100] {
        assert_eq!(read(&single, &options, &text, size), call(0, "weather", city));
        let json = "{\"names\": 1}";
        assert_eq!(read(&single, &options, json, size), [ReplyPart::Content(json.to_owned())]);
    }
    assert!(accepts(&grammar, &text) && accepts(&grammar, "{\"names\": 1}"), "{grammar:?}");
    assert!(!accepts(&grammar, "{\"name\": \"else\", \"parameters\": {}}"), "{grammar:?}");
}

#[test]
fn reasoning_comes_before_content_and_calls() {
    let format = format(&format!("{TAGGED}{{# <think></think> #}}"));
    assert_eq!(format.thinking_after("<|assistant|>\n<think>\n"), Thinking::Open);
    assert_eq!(format.thinking_after("<think>\n\n</think>\n\n"), Thinking::None);
    assert_eq!(format.thinking_after("<|assistant|>\n"), Thinking::Possible);
    let options = ReplyOptions::default().with_tools(tools());
    let thought = ReplyPart::Reasoning("Hm, a < b.".to_owned());
    let yes = ReplyPart::Content("Yes.".to_owned());
    let schema = Grammar::JsonSchema(json!({ "type": "integer" }).to_string());
    for size in [1, 4, 100] {
        let open = options.clone().with_thinking(Thinking::Open);
        assert_eq!(
            read(&format, &open, "Hm, a < b.\n</think>\n\nYes.", size),
            [thought.clone(), yes.clone()]
        );
        let may = options.clone().with_thinking(Thinking::Possible);
        assert_eq!(
            read(&format, &may, "<think>Hm, a < b.</think>\nYes.", size),
            [thought.clone(), yes.clone()]
        );
        assert_eq!(read(&format, &may, "Yes.", size), vec![yes.clone()]);
        let called =
            "<think>Hm, a < b.</think>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
        assert_eq!(
            read(&format, &may, called, size),
            [vec![thought.clone()], call(0, "now", "{}").to_vec()].concat()
        );
    }
    for (thinking, good, bad) in [
        (Thinking::Open, "Hm</think>\n12", "12"),
        (Thinking::Possible, "<think>Hm</think>12", "<think>12"),
        (Thinking::Possible, "12", "Hm</think>12"),
        (Thinking::None, "12", "Hm"),
    ] {
        let options = ReplyOptions::default().with_thinking(thinking).with_format(schema.clone());
        let grammar = format.grammar(&options).expect("a grammar");
        assert!(accepts(&grammar, good) && !accepts(&grammar, bad), "{thinking:?} {grammar:?}");
    }
    let options = options.with_thinking(Thinking::Open).with_format(schema);
    let grammar = format.grammar(&options).expect("a grammar");
    assert!(accepts(&grammar, "a</think>7"), "{grammar:?}");
    assert!(
        accepts(&grammar, "a</think>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"),
        "{grammar:?}"
    );
    assert!(!accepts(&grammar, "a</think>free"), "{grammar:?}");
}

#[test]
fn tools_reach_the_prompt_of_every_template() {
    let arguments = json!({ "city": "Rome" });
    let call = json!([{ "id": "c1", "type": "function", "function": { "name": "weather", "arguments": arguments.to_string() } }]);
    let messages = vec![
        Message::user("And in Rome?"),
        Message::assistant("").with_field("tool_calls", call),
        Message::new("tool", "sunny").with_field("tool_call_id", "c1"),
    ];
    for source in [
        TAGGED,
        LIST,
        PLAIN_JSON,
        NO_TOOLS,
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m.content }}\n{% endfor %}",
    ] {
        let format = format(source);
        let template = ChatTemplate::from_source(source).expect("a template");
        let options = ReplyOptions::default().with_tools(tools());
        let (prepared, rendering) = format.prepare(messages.clone(), RenderOptions::default(), &options);
        let prompt = template.render(&prepared, &rendering).expect("a prompt");
        for part in ["The weather", "\"city\"", "sunny", "And in Rome?", "{\"city\""] {
            assert!(prompt.contains(part), "{part}: {prompt}");
        }
        assert!(!prompt.contains("\\\"city\\\""), "arguments are an object: {prompt}");
        let (prepared, rendering) = format.prepare(
            messages[..1].to_vec(),
            RenderOptions::default(),
            &options.with_choice(ToolChoice::None),
        );
        assert!(!template.render(&prepared, &rendering).expect("a prompt").contains("weather"));
    }
}

#[test]
fn parts_are_one_text_unless_the_template_reads_them() {
    let parts = json!([{ "type": "text", "text": "Wh" }, { "type": "text", "text": "ill" }]);
    let message = Message::user("").with_field("content", parts);
    let lists = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}<{{ p.text }}>{% endfor %}\
                 {% endif %}{% endfor %}";
    for (source, want) in [(NO_TOOLS, "user: Whill\n"), (lists, "<Wh><ill>")] {
        let (messages, rendering) =
            format(source).prepare(vec![message.clone()], RenderOptions::default(), &ReplyOptions::default());
        let template = ChatTemplate::from_source(source).expect("a template");
        assert_eq!(template.render(&messages, &rendering).expect("a prompt"), want);
    }
}

/// What templates of published models ask for: a text beside calls, short identifiers, no system message.
#[test]
fn messages_are_as_templates_want_them() {
    let picky = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{% for c in m.tool_calls or [] %}\
                 {% if c.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}{{ '<c>{\"name\": \"' }}{{ c.function.name }}\", \"arguments\": \
                 {{ c.function.arguments | tojson }}}<{{ c.id }}>{% endfor %}{% if m.role == 'tool' %}[{{ m.tool_call_id }}]{% endif %}\
                 {{ m.content + ';' }}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}";
    let call = |id: &str| json!([{ "id": id, "type": "function", "function": { "name": "now", "arguments": "{}" } }]);
    let messages = |id: &str| {
        vec![
            Message::system("Be brief."),
            Message::user("Hi"),
            serde_json::from_value(json!({ "role": "assistant", "content": null, "tool_calls": call(id) }))
                .expect("a message"),
            Message::new("tool", "noon").with_field("tool_call_id", id),
        ]
    };
    let format = format(picky);
    assert!(format.is_native && format.has_short_ids && !format.has_system);
    let template = ChatTemplate::from_source(picky).expect("a template");
    let options = ReplyOptions::default();
    let prompt = |id: &str| {
        let (messages, rendering) = format.prepare(messages(id), RenderOptions::default(), &options);
        template.render(&messages, &rendering).expect("a prompt")
    };
    assert_eq!(
        prompt("abcdefgh9"),
        "Be brief.\n\nHi;<c>{\"name\": \"now\", \"arguments\": {}}<abcdefgh9>;[abcdefgh9]noon;"
    );
    // Another form of identifier is replaced in a call and in its result.
    let long = prompt("call_0123456789");
    let (id, rest) = long.split_once("}<").expect("a call").1.split_once('>').expect("an identifier");
    assert_eq!((id.len(), rest), (9, format!(";[{id}]noon;").as_str()));
    assert_ne!(prompt("call_0123456780"), long);
}
