//! Bodies of random fields, values and bytes: an answer or an error of the client, never one of the server.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trike_engine::EngineOptions;
use trike_serve::ServeOptions;
use trike_testkit::Rng;

use crate::{Running, TEMPLATE};

/// Bodies that are answered, as a start.
fn samples() -> Vec<(&'static str, Value)> {
    let schema = json!({ "type": "object", "properties": { "a": { "enum": ["x", "y"] } }, "required": ["a"], "additionalProperties": false });
    let function = json!({ "name": "f", "description": "d", "parameters": schema });
    let call =
        json!({ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{\"a\": \"x\"}" } });
    let messages = json!([{ "role": "system", "content": "s" }, { "role": "user", "content": [{ "type": "text", "text": "Hi" }] }]);
    vec![
        (
            "/v1/chat/completions",
            json!({ "model": "tiny", "messages": messages, "max_tokens": 2, "temperature": 0.5, "top_k": 3, "seed": 1,
            "logprobs": true, "top_logprobs": 2, "n": 2, "stop": ["a"], "logit_bias": { "5": 1 }, "stream": true,
            "stream_options": { "include_usage": true } }),
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": [{ "role": "user", "content": "Hi" }, { "role": "assistant", "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "c", "content": "r" }], "tools": [{ "type": "function", "function": function }],
            "tool_choice": "auto", "max_tokens": 2, "chat_template_kwargs": { "a": 1 }, "thinking_budget_tokens": 3 }),
        ),
        (
            "/v1/chat/completions",
            json!({ "messages": messages, "max_tokens": 2,
            "response_format": { "type": "json_schema", "json_schema": { "name": "n", "schema": schema } } }),
        ),
        (
            "/v1/completions",
            json!({ "prompt": ["Once", [5, 6]], "max_tokens": 2, "logprobs": 1, "regex": "[a-z]+" }),
        ),
        (
            "/v1/responses",
            json!({ "input": [{ "role": "user", "content": [{ "type": "input_text", "text": "Hi" }] },
            { "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "c", "output": "o" }], "max_output_tokens": 2, "instructions": "i",
            "tools": [{ "type": "function", "name": "f", "parameters": schema }], "text": { "format": { "type": "text" } },
            "reasoning": { "effort": "low" } }),
        ),
        (
            "/v1/messages",
            json!({ "max_tokens": 2, "system": [{ "type": "text", "text": "s" }], "messages": [
            { "role": "user", "content": "Hi" },
            { "role": "assistant", "content": [{ "type": "thinking", "thinking": "t" }, { "type": "tool_use", "id": "t", "name": "f", "input": {} }] },
            { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t", "content": "r" }] }],
            "tools": [{ "name": "f", "input_schema": schema }], "tool_choice": { "type": "auto" }, "thinking": { "type": "enabled", "budget_tokens": 5 } }),
        ),
        ("/v1/messages/count_tokens", json!({ "messages": [{ "role": "user", "content": "Hi" }] })),
        ("/v1/embeddings", json!({ "input": ["a", [5]], "encoding_format": "base64" })),
        ("/tokenize", json!({ "content": "Hi", "with_pieces": true })),
        ("/detokenize", json!({ "tokens": [5, 6] })),
        ("/apply-template", json!({ "messages": messages })),
    ]
}

fn value(rng: &mut Rng, depth: usize) -> Value {
    match rng.below(if depth == 0 { 9 } else { 11 }) {
        0 => Value::Null,
        1 => json!(rng.below(2) == 0),
        2 => json!(-1),
        3 => json!(rng.next_u64()),
        4 => json!(f64::from(rng.normal()) * 1e3),
        5 => json!(1e308),
        6 => json!(""),
        7 => json!("\u{0}\u{FFFF}</s><tool_call>{\"\\"),
        8 => json!(["auto", "user", "tool", "text", "function", "object", "f", "none"][rng.below(8)]),
        9 => (0..rng.below(4)).map(|_| value(rng, depth - 1)).collect(),
        _ => {
            let names =
                ["type", "name", "content", "role", "$ref", "anyOf", "properties", "enum", "text", "id"];
            let pairs =
                (0..rng.below(4)).map(|_| (names[rng.below(names.len())].to_owned(), value(rng, depth - 1)));
            Value::Object(pairs.collect())
        }
    }
}

/// Changes one place of a value.
fn change(target: &mut Value, rng: &mut Rng) {
    if rng.below(4) == 0 {
        *target = value(rng, 3);
        return;
    }
    match target {
        Value::Array(list) if !list.is_empty() => {
            let at = rng.below(list.len());
            match rng.below(5) {
                0 => _ = list.remove(at),
                1 => list.push(list[at].clone()),
                _ => change(&mut list[at], rng),
            }
        }
        Value::Object(map) if !map.is_empty() => {
            let name = map.keys().nth(rng.below(map.len())).cloned().unwrap_or_default();
            match rng.below(6) {
                0 => _ = map.remove(&name),
                _ => change(&mut map[&name], rng),
            }
        }
        other => *other = value(rng, 3),
    }
}

/// `TRIKE_FUZZ_SECONDS` lets it run longer.
#[test]
fn random_bodies_are_answered_or_refused() {
    let seconds =
        std::env::var("TRIKE_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(3);
    let engine = EngineOptions::default().with_sequences(4);
    let server = Running::with_template(TEMPLATE, ServeOptions::default(), engine);
    for (path, body) in samples() {
        let (status, answer) = server.post(path, &body);
        assert_eq!(status, 200, "{path} {body}: {answer}");
    }
    let (start, mut rng) =
        (Instant::now(), Rng::new(if seconds > 3 { u64::from(std::process::id()) } else { 1 }));
    let (mut answered, mut refused) = (0, 0);
    while start.elapsed() < Duration::from_secs(seconds) {
        let samples = samples();
        let (path, mut body) = samples[rng.below(samples.len())].clone();
        for _ in 0..1 + rng.below(3) {
            change(&mut body, &mut rng);
        }
        // No text is long: many bodies are to be tried.
        for name in ["max_tokens", "max_output_tokens"] {
            if body.get(name).is_some_and(|max| max.as_i64().is_none_or(|max| !(1..5).contains(&max))) {
                body[name] = json!(2);
            }
        }
        let mut text = body.to_string().into_bytes();
        if rng.below(10) == 0 && !text.is_empty() {
            let at = rng.below(text.len());
            text[at] = rng.below(128) as u8;
        }
        let text = String::from_utf8(text).unwrap_or_default();
        let (status, _, answer) = server.ask("POST", path, &[], &text);
        assert!(status == 200 || (400..500).contains(&status), "{path} {text}: {status} {answer}");
        match status {
            200 => answered += 1,
            _ => refused += 1,
        }
    }
    println!("{answered} answered, {refused} refused");
    assert!(answered > 0 && refused > 0, "{answered} answered, {refused} refused");
    assert_eq!(server.get("/health").0, 200);
}
