//! Two hundred schemas of tools in the forms that agents send: a call either has arguments that match its schema, or the schema is
//! refused by name.

use std::time::{Duration, Instant};

use serde_json::Value;
use trike_testkit::Rng;
use trike_text::{
    chat::ChatTemplate,
    constraint::{ConstraintError, GrammarCompiler},
    reply::{ReplyFormat, ReplyOptions, ReplyPart, Tool, ToolChoice},
    tokenizer::Tokenizer,
};

const TOOLS: &str = include_str!("../data/tools.json");
/// Tokens of the longest call.
const MOST_TOKENS: usize = 1500;
/// Those whose schemas have keywords that llguidance does not enforce, with the keyword.
const REFUSED: &[(&str, &str)] = &[
    ("update_memory", "if"),
    ("book_restaurant", "uniqueItems"),
    ("docker_network_connect", "uniqueItems"),
    ("create_user", "not"),
    ("create_feature_flag", "uniqueItems"),
    ("http_request", "if"),
    ("rename_symbol", "not"),
];

fn tools() -> Vec<Tool> {
    let list: Vec<Value> = serde_json::from_str(TOOLS).expect("JSON");
    let text = |tool: &Value, name: &str| tool[name].as_str().expect("a string").to_owned();
    list.iter()
        .map(|tool| Tool::new(text(tool, "name"), text(tool, "description"), tool["parameters"].clone()))
        .collect()
}

/// A random text that the grammar allows. Tokens that end something are preferred, so that it ends.
fn text(
    compiler: &GrammarCompiler,
    tokenizer: &Tokenizer,
    (format, options): (&ReplyFormat, &ReplyOptions),
    noise: &mut Rng,
    times: &mut Vec<Duration>,
) -> Result<String, ConstraintError> {
    let end = tokenizer.eos().first().copied().or_else(|| tokenizer.id_of("</s>")).expect("an end token");
    let grammar = format.grammar(options).expect("a grammar");
    let mut constraint = compiler.compile(&grammar, &[end])?;
    let mut ids = Vec::new();
    for _ in 0..MOST_TOKENS {
        let mut logits = vec![0.0; tokenizer.vocab_size()];
        let start = Instant::now();
        constraint.mask(&mut logits)?;
        times.push(start.elapsed());
        let allowed: Vec<u32> = (0..).zip(&logits).filter(|(_, l)| **l == 0.0).map(|(id, _)| id).collect();
        // Quotes end strings, and the sign in an address ends its name, which must not be long.
        let having = |bytes: &[u8]| -> Vec<u32> {
            let has = |id: &&u32| {
                tokenizer.token_bytes(**id).is_ok_and(|token| token.iter().any(|b| bytes.contains(b)))
            };
            allowed.iter().filter(has).copied().collect()
        };
        let closing = [having(b"\"@"), having(b"}]")].into_iter().find(|closing| !closing.is_empty());
        let choice = closing.filter(|_| noise.below(3) > 0).unwrap_or_else(|| allowed.clone());
        if allowed.contains(&end) {
            break;
        }
        let id = choice[noise.below(choice.len())];
        ids.push(id);
        if constraint.accept(id)? {
            break;
        }
    }
    Ok(tokenizer.decode(&ids).expect("a text"))
}

/// With `TRIKE_TOKENIZER`, a tokenizer's file, it shows what masks cost with another vocabulary.
#[test]
fn calls_of_two_hundred_tools_match_their_schemas() {
    let bundled = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny").to_owned();
    let tokenizer =
        Tokenizer::open(std::env::var("TRIKE_TOKENIZER").unwrap_or(bundled)).expect("a tokenizer");
    let mut times = Vec::new();
    let compiler = GrammarCompiler::new(&tokenizer).expect("a compiler");
    let template =
        ChatTemplate::from_source("{% for m in messages %}{{ m.content }}{% endfor %}").expect("a template");
    let format = ReplyFormat::of(&template, &tokenizer);
    let tools = tools();
    assert_eq!(tools.len(), 200);
    let mut noise = Rng::new(7);
    let mut refused = Vec::new();
    for tool in &tools {
        let options = ReplyOptions::default()
            .with_tools([tool.clone()])
            .with_choice(ToolChoice::Required)
            .with_parallel(false);
        // Formats are notes of a schema, as by default. Calls follow their syntax, but days of a calendar may be wrong in it.
        let validator =
            jsonschema::options().should_validate_formats(false).build(&tool.parameters).expect("a schema");
        for _ in 0..2 {
            let text = match text(&compiler, &tokenizer, (&format, &options), &mut noise, &mut times) {
                Ok(text) => text,
                Err(error) => {
                    refused.push((tool.name.clone(), error.to_string()));
                    break;
                }
            };
            let mut reader = format.reader(&options);
            let mut arguments = String::new();
            for part in [reader.push(&text), reader.finish()].concat() {
                match part {
                    ReplyPart::Call { index, name } => assert_eq!((index, &name), (0, &tool.name), "{text}"),
                    ReplyPart::Arguments { text, .. } => arguments += &text,
                    other => panic!("{other:?} in {text}"),
                }
            }
            let value: Value = match serde_json::from_str(&arguments) {
                Ok(value) => value,
                // JSON has numbers that this reader has not.
                Err(error) if error.to_string().contains("number out of range") => continue,
                Err(error) => panic!("{error}: {text}"),
            };
            if let Err(error) = validator.validate(&value) {
                panic!("{}: {error}\n{arguments}\n{}", tool.name, tool.parameters);
            }
        }
    }
    let names: Vec<(&str, &str)> =
        refused.iter().map(|(name, reason)| (name.as_str(), reason.as_str())).collect();
    times.sort();
    let mean = times.iter().sum::<Duration>() / times.len() as u32;
    println!("{} masks: mean {mean:?}, median {:?}", times.len(), times[times.len() / 2]);
    println!("{} of {} are refused", names.len(), tools.len());
    for (name, reason) in &names {
        println!("  {name}: {}", reason.lines().next().unwrap_or_default());
    }
    assert_eq!(names.len(), REFUSED.len());
    for ((name, reason), (known, keyword)) in names.iter().zip(REFUSED) {
        assert!(name == known && reason.contains(keyword), "{name}: {reason}");
    }
}
