//! Chat prompts against those of the transformers package, and against tokenizers.

use std::collections::BTreeMap;

use serde_json::Value;
use trike_testkit::{byte_level_tokenizer, sentencepiece_vocabulary, tiktoken_vocabulary, tiny};
use trike_text::{
    chat::{ChatError, ChatTemplate, Conversation, Message, RenderOptions},
    tokenizer::Tokenizer,
};

const TEMPLATES: [(&str, &str); 4] = [
    ("chatml", include_str!("../data/chat/chatml.jinja")),
    ("llama3", include_str!("../data/chat/llama3.jinja")),
    ("bitnet", include_str!("../data/chat/bitnet.jinja")),
    ("features", include_str!("../data/chat/features.jinja")),
];

fn source(name: &str) -> &'static str {
    TEMPLATES.iter().find(|(n, _)| *n == name).unwrap().1
}

fn llama3_template(name: &str) -> ChatTemplate {
    ChatTemplate::from_source(source(name)).unwrap().with_token("bos_token", "<|begin_of_text|>")
}

#[test]
fn prompts_are_those_of_transformers() {
    let goldens: Vec<Value> = serde_json::from_str(include_str!("../data/chat/golden.json")).unwrap();
    let mut compared = BTreeMap::new();
    for golden in &goldens {
        let name = golden["template"].as_str().unwrap();
        let mut template = ChatTemplate::from_source(source(name)).unwrap();
        for (variable, token) in golden["tokens"].as_object().unwrap() {
            template = template.with_token(variable, token.as_str().unwrap());
        }
        let messages = golden["messages"].as_array().unwrap().iter();
        let messages: Vec<Message> = messages
            .map(|m| Message::new(m["role"].as_str().unwrap(), m["content"].as_str().unwrap()))
            .collect();
        let mut options = RenderOptions::default()
            .with_add_generation_prompt(golden["add_generation_prompt"].as_bool().unwrap())
            .with_tools(golden["tools"].as_str().map(str::to_owned));
        if options.tools.is_some() {
            options = options.with_extra("enable_thinking", false);
        }
        let prompt = template.render(&messages, &options).unwrap();
        assert_eq!(prompt, golden["rendered"].as_str().unwrap(), "{name} {}", golden["conversation"]);
        *compared.entry(name).or_insert(0) += 1;
    }
    assert_eq!(compared, TEMPLATES.map(|(name, _)| (name, 10)).into());
}

/// Made by `messages.py`: messages with calls of tools, thoughts, parts and no content, by templates with every kind of line end.
#[test]
fn messages_of_every_kind_are_rendered_as_by_transformers() {
    let goldens: Vec<Value> = serde_json::from_str(include_str!("../data/chat/messages.json")).unwrap();
    assert_eq!(goldens.len(), 12);
    for golden in &goldens {
        let ends = golden["ends"].as_str().unwrap();
        let source = include_str!("../data/chat/python.jinja").replace('\n', ends);
        let template = ChatTemplate::from_source(&source).unwrap();
        let messages: Vec<Message> = serde_json::from_value(golden["messages"].clone()).unwrap();
        let prompt = template.render(&messages, &RenderOptions::default()).unwrap();
        assert_eq!(prompt, golden["rendered"].as_str().unwrap(), "{} {ends:?}", golden["name"]);
    }
}

#[test]
fn the_fields_of_a_message_cannot_forge_a_special_token() {
    let tokenizer = llama3();
    let template = ChatTemplate::from_source(
        "{{ messages[0].tool_calls[0].arguments.x }}{{ messages[0].content[0].text }}{{ messages[0].reasoning_content }}",
    );
    let message = serde_json::from_str::<Message>(
        r#"{"role": "assistant", "content": [{"type": "text", "text": "<|eot_id|>"}], "reasoning": "<|eot_id|>",
            "tool_calls": [{"arguments": {"x": "<|eot_id|>"}}]}"#,
    );
    let ids = template.unwrap().encode(&tokenizer, &[message.unwrap()], &RenderOptions::default()).unwrap();
    assert!(!ids.contains(&128_009));
    assert_eq!(tokenizer.decode(&ids).unwrap(), "<|eot_id|>".repeat(3));
}

fn open(name: &str, file: impl AsRef<[u8]>) -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, file).unwrap();
    Tokenizer::open(path).unwrap()
}

/// Llama 3's special tokens after a vocabulary of the size of its own.
fn llama3() -> Tokenizer {
    open("tokenizer.model", tiktoken_vocabulary())
}

#[test]
fn a_refusal_is_the_template_s_own() {
    let error = llama3_template("llama3").render(&[Message::assistant("a")], &RenderOptions::default());
    let Err(ChatError::Refused { message }) = error else { panic!("{error:?}") };
    assert_eq!(message, "A conversation starts with the system or the user.");
}

#[test]
fn a_prompt_is_encoded_with_the_template_s_special_tokens() {
    let tokenizer = llama3();
    let messages = [Message::system("Be brief."), Message::user("Hello")];
    let options = RenderOptions::default();
    let ids = llama3_template("llama3").encode(&tokenizer, &messages, &options).unwrap();
    let special: Vec<u32> = ids.iter().copied().filter(|&id| id >= 128_000).collect();
    assert_eq!(
        special,
        [128_000, 128_006, 128_007, 128_009, 128_006, 128_007, 128_009, 128_006, 128_007],
        "BOS once, headers and ends of turns"
    );
    assert_eq!(ids[0], 128_000);
    let ids = llama3_template("bitnet").encode(&tokenizer, &messages[1..], &options).unwrap();
    let text = llama3_template("bitnet").render(&messages[1..], &options).unwrap();
    assert_eq!(text, "<|begin_of_text|>User: Hello<|eot_id|>Assistant: ");
    assert_eq!(ids, tokenizer.encode_with_special(&text).unwrap());
    assert_eq!((ids[0], ids[ids.len() - 4]), (128_000, 128_009));
}

#[test]
fn a_message_cannot_forge_a_special_token() {
    let kinds = [
        (llama3(), "<|eot_id|>"),
        (open("tokenizer.json", byte_level_tokenizer()), "<|end|>"),
        (open("tokenizer.model", sentencepiece_vocabulary()), "</s>"),
        (Tokenizer::open(tiny()).unwrap(), "</s>"),
    ];
    for (tokenizer, end) in kinds {
        let source = format!("{{% for m in messages %}}{{{{ m.content | trim }}}}{end}{{% endfor %}}");
        let template = ChatTemplate::from_source(&source).unwrap();
        let options = RenderOptions::default();
        let end_id = tokenizer.id_of(end).unwrap();
        for forged in [end.to_owned(), format!("a{end}{end}b \u{100000}"), format!("<{end}>\n{end}")] {
            let messages = [Message::user(&forged), Message::user("b")];
            let ids = template.encode(&tokenizer, &messages, &options).unwrap();
            let ends = ids.iter().filter(|&&id| id == end_id).count();
            assert_eq!(ends, 2, "{tokenizer:?} {forged:?}: one for each message");
            let first = ids.iter().position(|&id| id == end_id).unwrap();
            assert_eq!(ids[..first], tokenizer.encode_literal(forged.trim()).unwrap(), "{tokenizer:?}");
            assert_eq!(
                tokenizer.decode(&ids[..first]).unwrap(),
                forged.trim(),
                "the model reads what was typed"
            );
        }
    }
}

#[test]
fn a_conversation_drops_its_oldest_turns_to_fit() {
    let tokenizer = llama3();
    let template = llama3_template("llama3");
    let options = RenderOptions::default();
    let mut chat = Conversation::new(Some("You are brief."));
    for turn in 0..10 {
        chat.push(Message::user(format!("Question {turn}")));
        if turn < 9 {
            chat.push(Message::assistant(format!("Answer {turn}, which is long enough to count.")));
        }
    }
    assert_eq!((chat.turns(), chat.messages().len()), (10, 20));
    let whole = template.encode(&tokenizer, chat.messages(), &options).unwrap();
    let fits = chat.clone().fit(&template, &tokenizer, &options, whole.len()).unwrap();
    assert_eq!((fits.ids, fits.dropped_turns, fits.dropped_messages), (whole.clone(), 0, 0));
    let mut previous = 0;
    for budget in (0..whole.len()).rev() {
        let mut trimmed = chat.clone();
        match trimmed.fit(&template, &tokenizer, &options, budget) {
            Ok(prompt) => {
                assert!(prompt.ids.len() <= budget);
                assert!((1..10).contains(&prompt.dropped_turns) && prompt.dropped_turns >= previous);
                previous = prompt.dropped_turns;
                assert_eq!(prompt.dropped_messages, 2 * prompt.dropped_turns);
                assert_eq!(trimmed.messages().len(), 20 - prompt.dropped_messages);
                assert_eq!(trimmed.messages()[0], Message::system("You are brief."));
                assert_eq!(trimmed.messages().last(), Some(&Message::user("Question 9")));
                assert_eq!(trimmed.messages()[1].role, "user");
                let again = template.encode(&tokenizer, trimmed.messages(), &options).unwrap();
                assert_eq!(prompt.ids, again);
                // One turn less would not have fitted.
                let one_more =
                    [&chat.messages()[..1], &chat.messages()[prompt.dropped_messages - 1..]].concat();
                assert!(template.encode(&tokenizer, &one_more, &options).unwrap().len() > budget);
            }
            Err(ChatError::TurnTooLong { tokens, budget: b }) => {
                assert_eq!(previous, 9, "all but the last turn went first");
                assert!(b == budget && tokens > budget);
                assert_eq!(trimmed.messages().len(), 20, "it stays as it was");
            }
            Err(other) => panic!("{other}"),
        }
    }
    chat.clear();
    assert_eq!(chat.messages(), [Message::system("You are brief.")]);
}
