//! Answers as server-sent events, clients that leave, and the end of a server.

use std::io::Read;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trike_engine::EngineOptions;
use trike_serve::ServeOptions;

use crate::Running;

/// The objects of a stream, which ends with `[DONE]`.
fn events(body: &str) -> Vec<Value> {
    let mut data: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(data.pop(), Some("[DONE]"), "{body}");
    data.into_iter().map(|data| serde_json::from_str(data).expect("an object")).collect()
}

#[test]
fn a_stream_is_the_answer_in_pieces() {
    let server = Running::new();
    let mut body = json!({
        "messages": [{ "role": "user", "content": "Once upon a time" }],
        "max_tokens": 20, "temperature": 0, "logprobs": true, "top_logprobs": 1, "n": 2,
    });
    let (_, whole) = server.post("/v1/chat/completions", &body);
    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
    let (status, head, text) = server.ask("POST", "/v1/chat/completions", &[], &body.to_string());
    assert!(status == 200 && head.contains("content-type: text/event-stream"), "{head}");
    let events = events(&text);
    for choice in 0..2 {
        let of =
            || events.iter().filter_map(|event| event["choices"].get(0)).filter(|c| c["index"] == choice);
        let joined: String = of().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!(joined, whole["choices"][choice]["message"]["content"].as_str().expect("a text"));
        let tokens: usize =
            of().filter_map(|choice| choice["logprobs"]["content"].as_array()).map(Vec::len).sum();
        assert_eq!(tokens, 20);
        let ends: Vec<&Value> =
            of().map(|choice| &choice["finish_reason"]).filter(|end| !end.is_null()).collect();
        assert_eq!(ends, ["length"]);
        assert_eq!(of().next().map(|choice| &choice["delta"]["role"]), Some(&json!("assistant")));
    }
    let last = events.last().expect("an event");
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(40)));
    assert!(events[..events.len() - 1].iter().all(|event| event["usage"].is_null()));
    let body = json!({ "prompt": "Once", "max_tokens": 8, "temperature": 0, "stream": true });
    let (_, _, text) = server.ask("POST", "/v1/completions", &[], &body.to_string());
    let joined: String =
        self::events(&text).iter().filter_map(|e| e["choices"][0]["text"].as_str()).collect();
    let body = json!({ "prompt": "Once", "max_tokens": 8, "temperature": 0 });
    assert_eq!(server.post("/v1/completions", &body).1["choices"][0]["text"], joined);
}

#[test]
fn a_client_that_leaves_frees_its_sequence() {
    let server = Running::with(ServeOptions::default(), EngineOptions::default().with_sequences(1));
    for stream in [true, false] {
        let body = json!({ "prompt": "Once", "max_tokens": 500, "stream": stream, "ignore": null });
        let body = json!({ "prompt": body["prompt"], "max_tokens": 500, "stream": stream });
        let mut client = server.send("POST", "/v1/completions", &[], &body.to_string());
        if stream {
            client.read_exact(&mut [0; 40]).expect("the start of the answer");
        }
        drop(client);
    }
    let start = Instant::now();
    let busy = |server: &Running| server.get("/slots").1[0]["is_processing"] == true;
    while busy(&server) && start.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let (status, answer) = server.post("/v1/completions", &json!({ "prompt": "Once", "max_tokens": 3 }));
    assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(3)), "{answer}");
}

#[test]
fn a_server_that_is_stopped_sends_the_answers_that_it_owes() {
    let server = Running::new();
    let body = json!({ "prompt": "Once", "max_tokens": 300, "temperature": 0, "stream": true });
    let mut client = server.send("POST", "/v1/completions", &[], &body.to_string());
    client.read_exact(&mut [0; 40]).expect("the start of the answer");
    drop(server);
    let mut rest = String::new();
    client.read_to_string(&mut rest).expect("the rest of the answer");
    assert!(rest.ends_with("data: [DONE]\n\n"), "{rest}");
}
