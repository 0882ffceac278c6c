//! Constrained texts whose tokens are chosen by an adversary.

use super::*;

fn tokenizer() -> Tokenizer {
    Tokenizer::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny")).unwrap()
}

/// A text of random allowed tokens; `None` if it does not end within 400 tokens.
fn text(grammar: &Grammar, seed: u64) -> Option<String> {
    let tokenizer = tokenizer();
    let mut constraint = Constraint::new(grammar, &tokenizer, tokenizer.eos()).unwrap();
    let mut state = seed;
    let mut ids = Vec::new();
    for _ in 0..400 {
        let mut logits = vec![0.0; tokenizer.vocab_size()];
        constraint.mask(&mut logits).unwrap();
        let allowed: Vec<u32> = (0..).zip(&logits).filter(|(_, l)| l.is_finite()).map(|(id, _)| id).collect();
        assert!(!allowed.is_empty(), "after {:?}", tokenizer.decode(&ids));
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let id = allowed[(state >> 33) as usize % allowed.len()];
        if tokenizer.eos().contains(&id) {
            return Some(tokenizer.decode(&ids).unwrap());
        }
        ids.push(id);
        if constraint.accept(id).unwrap() {
            return Some(tokenizer.decode(&ids).unwrap());
        }
    }
    None
}

#[test]
fn random_texts_are_what_the_grammar_says() {
    let schema = Grammar::JsonSchema(
        r#"{"type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 7},
            "kind": {"enum": ["cat", "dog"]}, "tall": {"type": "boolean"}},
            "required": ["n", "kind", "tall"], "additionalProperties": false}"#
            .to_owned(),
    );
    let mut ended = 0;
    for seed in 0..40 {
        let Some(text) = text(&schema, seed) else { continue };
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let object = value.as_object().unwrap();
        assert_eq!(object.len(), 3, "{text}");
        assert!((3..=7).contains(&object["n"].as_i64().unwrap()), "{text}");
        assert!(["cat", "dog"].contains(&object["kind"].as_str().unwrap()), "{text}");
        assert!(object["tall"].is_boolean(), "{text}");
        ended += 1;
    }
    assert!(ended >= 30, "{ended} of 40 texts ended");
    for seed in 0..20 {
        let lark = text(&Grammar::Lark("start: \"a\" (\"b\" | \"c\")+ \"!\"".to_owned()), seed).unwrap();
        let middle = lark
            .strip_prefix('a')
            .and_then(|rest| rest.strip_suffix('!'))
            .unwrap_or_else(|| panic!("{lark}"));
        assert!(!middle.is_empty() && middle.chars().all(|c| "bc".contains(c)), "{lark}");
        let date = text(&Grammar::Regex(r"[0-9]{4}-[0-9]{2}".to_owned()), seed).unwrap();
        assert!(date.len() == 7 && date.as_bytes()[4] == b'-', "{date}");
    }
}

#[test]
fn a_wrong_grammar_is_refused_by_its_reason() {
    let tokenizer = tokenizer();
    for (grammar, words) in [
        (Grammar::JsonSchema("{".to_owned()), ["invalid JSON schema", "line 1"]),
        (Grammar::JsonSchema("3".to_owned()), ["invalid JSON schema", ""]),
        (Grammar::JsonSchema(r#"{"type": "colour"}"#.to_owned()), ["invalid JSON schema", "colour"]),
        (Grammar::Lark("begin: \"a\"".to_owned()), ["invalid grammar", "start"]),
        (Grammar::Lark(String::new()), ["invalid grammar", ""]),
        (Grammar::Regex("(".to_owned()), ["invalid regular expression", ""]),
    ] {
        let error = Constraint::new(&grammar, &tokenizer, tokenizer.eos()).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        assert!(!error.contains("<state>") && !error.contains("backtrace"), "{error}");
    }
}

#[test]
fn a_token_that_is_not_allowed_is_an_error() {
    let tokenizer = tokenizer();
    let mut constraint = Constraint::new(&Grammar::Regex("a+".to_owned()), &tokenizer, &[]).unwrap();
    // The first token of a text may begin with a space added by this tokenizer.
    let id = |letter: &str| *tokenizer.encode(&letter.repeat(2), false).unwrap().last().unwrap();
    assert_eq!(tokenizer.decode(&[id("a"), id("b")]).unwrap(), "ab");
    assert!(
        !constraint.accept(id("a")).unwrap(),
        "more may follow, and without an end token nothing else ends it"
    );
    let error = constraint.accept(id("b")).unwrap_err();
    assert!(matches!(error, ConstraintError::Parser { .. }), "{error}");
}
