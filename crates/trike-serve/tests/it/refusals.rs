//! Requests that are refused, each with the error object and a status of 4xx.

use serde_json::{Value, json};
use trike_engine::EngineOptions;
use trike_serve::ServeOptions;

use crate::Running;

fn chat(options: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 2 });
    body.as_object_mut().expect("an object").extend(options.as_object().expect("options").clone());
    body
}

#[test]
fn every_wrong_field_is_named() {
    let server = Running::new();
    let wrong = [
        (json!({ "temperature": "hot" }), "temperature", "expected a number, got \"hot\""),
        (json!({ "temperature": -1 }), "temperature", "expected"),
        (json!({ "temperature": 1e39 }), "temperature", "expected a number"),
        (json!({ "top_p": 2 }), "top_p", "expected"),
        (json!({ "top_p": 0 }), "top_p", "expected"),
        (json!({ "min_p": 1.5 }), "min_p", "expected"),
        (json!({ "top_k": "many" }), "top_k", "expected a whole number"),
        (json!({ "presence_penalty": 1000 }), "presence_penalty", "expected"),
        (json!({ "frequency_penalty": [] }), "frequency_penalty", "expected a number"),
        (json!({ "repeat_penalty": 0 }), "repetition_penalty", "expected"),
        (json!({ "seed": 1.5 }), "seed", "expected a whole number"),
        (json!({ "max_tokens": "all" }), "max_tokens", "expected a whole number"),
        (json!({ "n": 0 }), "n", "expected 1 to 16"),
        (json!({ "n": 1000 }), "n", "expected 1 to 16"),
        (json!({ "n": -1 }), "n", "expected a whole number of at least 0"),
        (json!({ "stop": 3 }), "stop", "a list of strings"),
        (json!({ "stop": [1] }), "stop", "a list of strings"),
        (json!({ "stream": "yes" }), "stream", "expected true or false"),
        (json!({ "stream_options": { "usage": true } }), "usage", "does not know"),
        (json!({ "stream_options": 1 }), "stream_options", "expected an object"),
        (json!({ "logprobs": 3 }), "logprobs", "expected true or false"),
        (json!({ "top_logprobs": 3 }), "top_logprobs", "with `logprobs` only"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs", "at most 20"),
        (json!({ "logit_bias": 1 }), "logit_bias", "expected an object"),
        (json!({ "logit_bias": { "a": 1 } }), "logit_bias", "expected an object"),
        (json!({ "logit_bias": { "1": "x" } }), "logit_bias", "expected an object"),
        (json!({ "logit_bias": [[1]] }), "logit_bias", "expected an object"),
        (json!({ "response_format": "json" }), "response_format", "expected an object"),
        (json!({ "response_format": { "type": "xml" } }), "response_format", "json_schema"),
        (json!({ "response_format": { "type": "json_schema" } }), "response_format", "json_schema.schema"),
        (
            json!({ "response_format": { "type": "json_object", "schema": { "type": 3 } } }),
            "response_format",
            "JSON schema",
        ),
        (json!({ "json_schema": { "type": "string" }, "regex": "a" }), "response_format", "one of"),
        (json!({ "regex": "(" }), "response_format", "regular expression"),
        (json!({ "grammar": "root ::= \"a\"" }), "grammar", "not supported"),
        (json!({ "messages": "Hi" }), "messages", "a list of messages"),
        (json!({ "messages": [] }), "messages", "at least one"),
        (json!({ "messages": [{ "content": "Hi" }] }), "messages", "`role`"),
        (json!({ "messages": [{ "role": "user", "content": 3 }] }), "messages", "`content`"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
            "messages",
            "image_url",
        ),
        (json!({ "messages": null }), "messages", "missing"),
        (json!({ "tools": [{ "type": "function" }] }), "tools", "an object with `function`"),
        (json!({ "tool_choice": "required" }), "tool_choice", "there are no tools"),
        (json!({ "chat_template_kwargs": 3 }), "chat_template_kwargs", "expected an object"),
        (json!({ "temprature": 1 }), "temprature", "did you mean `temperature`?"),
        (json!({ "frobnicate": 1 }), "frobnicate", "does not know"),
        (json!({ "model": 3 }), "model", "expected a string"),
    ];
    for (options, param, says) in wrong {
        let (status, answer) = server.post("/v1/chat/completions", &chat(options.clone()));
        let error = &answer["error"];
        assert_eq!(status, 400, "{options}: {answer}");
        assert_eq!(
            (&error["param"], &error["type"]),
            (&json!(param), &json!("invalid_request_error")),
            "{options}"
        );
        assert!(error["message"].as_str().expect("a message").contains(says), "{options}: {error}");
    }
    // Null is as good as missing, and fields without effect are taken.
    let free = json!({ "temperature": null, "user": "me", "tools": [], "tool_choice": "auto", "seed": -1 });
    assert_eq!(server.post("/v1/chat/completions", &chat(free)).0, 200);
}

#[test]
fn bodies_routes_and_models_that_are_not_there() {
    let server = Running::with(ServeOptions::default().with_body_limit(2000), EngineOptions::default());
    for body in ["", "{", "[1]", "3", "{\"messages\": [}", "\u{1F600}"] {
        let (status, _, answer) = server.ask("POST", "/v1/chat/completions", &[], body);
        let answer: Value = serde_json::from_str(&answer).expect("an error object");
        assert!(status == 400 && answer["error"]["message"].is_string(), "{body}: {answer}");
    }
    let (status, answer) = server.post("/v1/chat/completions", &chat(json!({ "user": "x".repeat(3000) })));
    assert!(status == 413 && answer["error"]["message"].is_string(), "{answer}");
    let (status, answer) = server.post("/v1/chat/completions", &chat(json!({ "model": "gpt-9" })));
    assert!(
        status == 404 && answer["error"]["message"] == "no model named \"gpt-9\"; this server has \"tiny\"",
        "{answer}"
    );
    assert_eq!(server.get("/v1/nothing").0, 404);
    let (status, answer) = server.get("/v1/chat/completions");
    assert!(status == 405 && answer["error"]["message"].is_string(), "{answer}");
    let long = json!({ "prompt": vec![5; 600], "max_tokens": 1 });
    let (status, answer) = server.post("/v1/completions", &long);
    assert_eq!((status, &answer["error"]["code"]), (400, &json!("context_length_exceeded")), "{answer}");
    for (path, body) in [
        ("/v1/completions", json!({})),
        ("/v1/completions", json!({ "prompt": 3 })),
        ("/v1/completions", json!({ "prompt": ["a", 3] })),
        ("/v1/completions", json!({ "prompt": [99_999] })),
        ("/v1/completions", json!({ "prompt": [-1] })),
        ("/v1/completions", json!({ "prompt": "a", "echo": true })),
        ("/v1/completions", json!({ "prompt": "a", "suffix": "b" })),
        ("/v1/completions", json!({ "prompt": "a", "best_of": 3 })),
        ("/v1/embeddings", json!({})),
        ("/v1/embeddings", json!({ "input": [] })),
        ("/v1/embeddings", json!({ "input": "a", "encoding_format": "hex" })),
        ("/v1/embeddings", json!({ "input": "a", "dimensions": 3 })),
        ("/tokenize", json!({ "content": 3 })),
        ("/tokenize", json!({})),
        ("/detokenize", json!({ "tokens": [99_999] })),
        ("/detokenize", json!({ "tokens": "a" })),
        ("/apply-template", json!({ "messages": [{ "role": 3 }] })),
    ] {
        let (status, answer) = server.post(path, &body);
        assert!(status == 400 && answer["error"]["message"].is_string(), "{path} {body}: {status} {answer}");
    }
}

#[test]
fn keys_and_origins_are_closed_unless_opened() {
    let keys = vec!["first".to_owned(), "second".to_owned()];
    let options = ServeOptions::default().with_keys(keys).with_origin("https://example.org".to_owned());
    let server = Running::with(options, EngineOptions::default());
    let status = |headers: &[(&str, &str)]| server.ask("GET", "/v1/models", headers, "").0;
    assert_eq!(status(&[]), 401);
    assert_eq!(status(&[("Authorization", "Bearer third")]), 401);
    assert_eq!(status(&[("Authorization", "Bearer ")]), 401);
    assert_eq!(status(&[("Authorization", "second")]), 401);
    assert_eq!(status(&[("Authorization", "Bearer second")]), 200);
    assert_eq!(status(&[("x-api-key", "first")]), 200);
    assert_eq!(server.ask("GET", "/health", &[], "").0, 200);
    let (status, head, _) = server.ask("OPTIONS", "/v1/models", &[("Origin", "https://example.org")], "");
    assert!(status == 204 && head.contains("access-control-allow-origin: https://example.org"), "{head}");
    let closed = Running::new();
    let (_, head, _) = closed.ask("GET", "/v1/models", &[("Origin", "https://example.org")], "");
    assert!(!head.contains("access-control"), "{head}");
}

#[test]
fn a_full_queue_asks_to_come_back() {
    let engine = EngineOptions::default().with_sequences(1).with_queue(1);
    let server = Running::with(ServeOptions::default(), engine);
    let body = json!({ "prompt": "Once", "max_tokens": 400, "stream": true }).to_string();
    let mut clients = Vec::new();
    let full = loop {
        // Those before may have ended, and these may not have arrived yet.
        clients.extend((0..2).map(|_| server.send("POST", "/v1/completions", &[], &body)));
        let (status, head, answer) = server.ask("POST", "/v1/completions", &[], &body);
        if status == 429 {
            break (head, answer);
        }
    };
    assert!(full.0.contains("retry-after: 1") && full.1.contains("rate_limit_error"), "{full:?}");
    drop(clients);
}
