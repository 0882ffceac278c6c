//! Published chat templates, which are third-party and not in the repository, compared with the output of transformers.
//!
//! `templates.py`, next to the goldens, creates the directory named by `TRIKE_TEMPLATES`. Also the template language, line by line.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use serde_json::Value;
use trike_text::chat::{ChatError, ChatTemplate, Message, RenderOptions};

/// The time of `Clock` in `templates.py`.
const NOW: u64 = 1_767_622_029;

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Comparison of a rendering with that of transformers.
#[derive(Clone, Copy, PartialEq)]
enum Outcome {
    Equal,
    BothRefuse,
    Different,
    TrikeRefuses,
    TransformersRefuses,
}

fn compare(rendered: &Result<String, ChatError>, expected: &Value) -> Outcome {
    match (rendered, expected["text"].as_str(), expected["refused"].as_str()) {
        (Ok(text), Some(expected), _) if text == expected => Outcome::Equal,
        (Ok(_), Some(_), _) => Outcome::Different,
        (Ok(_), None, _) => Outcome::TransformersRefuses,
        (Err(_), Some(_), _) => Outcome::TrikeRefuses,
        // The template's own message is returned.
        (Err(ChatError::Refused { message }), None, Some(expected)) if message != expected => {
            Outcome::Different
        }
        (Err(ChatError::Refused { .. }), None, None) => Outcome::Different,
        (Err(_), None, _) => Outcome::BothRefuse,
    }
}

/// Both texts from the first differing character, for a message.
fn difference(text: &str, expected: &str) -> String {
    let same = text.chars().zip(expected.chars()).take_while(|(a, b)| a == b).count();
    let shown = |text: &str| text.chars().skip(same.saturating_sub(30)).take(90).collect::<String>();
    format!("from character {same}: {:?}, transformers {:?}", shown(text), shown(expected))
}

#[test]
fn published_templates_are_rendered_as_by_transformers() {
    let Some(folder) = std::env::var_os("TRIKE_TEMPLATES").map(PathBuf::from) else {
        return trike_testkit::skip("no published templates");
    };
    let expected: Value = serde_json::from_slice(&fs::read(folder.join("expected.json")).unwrap()).unwrap();
    let conversations = expected["conversations"].as_array().unwrap();
    let templates = expected["templates"].as_object().unwrap();
    let mut counts = [0; 5];
    for (name, row) in templates {
        let source = fs::read_to_string(folder.join("templates").join(name)).unwrap();
        let template = ChatTemplate::from_source(&source).map(|mut template| {
            for (variable, token) in expected["tokens"].as_object().unwrap() {
                template = template.with_token(variable, token.as_str().unwrap());
            }
            template
        });
        for (conversation, expected_one) in conversations.iter().zip(row.as_array().unwrap()) {
            let messages: Vec<Message> = serde_json::from_value(conversation["messages"].clone()).unwrap();
            let tools = conversation.get("tools").map(Value::to_string);
            let mut options = RenderOptions::default()
                .with_add_generation_prompt(conversation["add_generation_prompt"].as_bool().unwrap_or(true))
                .with_tools(tools)
                .with_now(at(expected["now"].as_u64().unwrap()));
            for (name, value) in conversation["extra"].as_object().into_iter().flatten() {
                options = options.with_extra(name, value.clone());
            }
            let rendered = match &template {
                Ok(template) => template.render(&messages, &options),
                Err(error) => Err(ChatError::Syntax { line: 0, message: error.to_string() }),
            };
            let outcome = compare(&rendered, expected_one);
            counts[outcome as usize] += 1;
            if !matches!(outcome, Outcome::Equal | Outcome::BothRefuse) {
                let place = format!("{name}, {}", conversation["name"]);
                match (&rendered, expected_one["text"].as_str()) {
                    (Ok(text), Some(expected)) => println!("{place}: {}", difference(text, expected)),
                    (Err(error), _) => println!("{place}: Trike: {error}; transformers: {expected_one:.200}"),
                    (Ok(text), None) => {
                        println!("{place}: Trike {text:.80?}; transformers: {expected_one:.200}");
                    }
                }
            }
        }
    }
    let [equal, both, different, trike, transformers] = counts;
    println!(
        "{} templates by {} conversations ({}): {equal} equal, {both} refused by both, {different} different, \
         {trike} refused by Trike alone, {transformers} refused by transformers alone",
        templates.len(),
        conversations.len(),
        expected["made_with"].as_str().unwrap(),
    );
    assert_eq!((different, trike, transformers), (0, 0, 0));
}

/// `language.txt`, with the results of `language.py`.
#[test]
fn the_language_is_that_of_transformers() {
    let expected: Vec<Option<String>> =
        serde_json::from_str(include_str!("../data/chat/language.json")).unwrap();
    let lines = include_str!("../data/chat/language.txt").lines().filter(|line| !line.starts_with("## "));
    let messages = [Message::user("Hello"), Message::assistant("Hi")];
    let options = RenderOptions::default().with_add_generation_prompt(false).with_now(at(NOW));
    let mut wrong = Vec::new();
    let mut compared = 0;
    for (line, expected) in lines.zip(&expected) {
        let source = line.replace('\u{23ce}', "\n");
        let template = ChatTemplate::from_source(&source);
        let rendered = template.and_then(|t| t.with_token("bos_token", "<s>").render(&messages, &options));
        match (rendered, expected) {
            (Ok(text), Some(expected)) if text == *expected => {}
            (Ok(text), Some(expected)) => wrong.push(format!("{line}\n    {}", difference(&text, expected))),
            (Ok(text), None) => wrong.push(format!("{line}\n    {text:?}, transformers refuses")),
            (Err(error), Some(_)) => wrong.push(format!("{line}\n    {error}")),
            (Err(_), None) => {}
        }
        compared += 1;
    }
    assert_eq!(compared, expected.len(), "language.py has to run again");
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong.join("\n"));
}
