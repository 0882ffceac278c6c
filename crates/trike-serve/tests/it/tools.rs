//! Calls of tools and reasoning, in the three APIs for chats.

use serde_json::{Value, json};
use trike_engine::EngineOptions;
use trike_serve::ServeOptions;

use crate::{Running, TEMPLATE};

/// A template that opens reasoning.
const THINKING: &str =
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: <think>\n{# </think> #}";

/// A template that renders tools, in few tokens.
const TOOLS: &str = "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}\
    {% for c in m.tool_calls or [] %}<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n\
    </tool_call>{% endfor %}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

fn server() -> Running {
    Running::with_template(TOOLS, ServeOptions::default(), EngineOptions::default().with_sequences(4))
}

fn parameters() -> Value {
    json!({
        "type": "object",
        "properties": { "city": { "enum": ["Rome", "Oslo"] }, "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["city", "days"],
        "additionalProperties": false,
    })
}

fn check(arguments: &Value) {
    let city = arguments["city"].as_str().expect("a city");
    assert!(["Rome", "Oslo"].contains(&city), "{arguments}");
    assert!((1..=9).contains(&arguments["days"].as_i64().expect("days")), "{arguments}");
    assert_eq!(arguments.as_object().expect("an object").len(), 2, "{arguments}");
}

fn chat(more: Value) -> Value {
    let tool = json!({ "type": "function", "function": { "name": "weather", "description": "w", "parameters": parameters() } });
    let other = json!({ "type": "function", "function": { "name": "now" } });
    let mut body = json!({ "messages": [{ "role": "user", "content": "And in Rome?" }], "tools": [tool, other], "max_tokens": 250, "seed": 1 });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("fields").clone());
    body
}

/// The events of a stream: names and objects.
fn events(server: &Running, path: &str, body: &Value) -> Vec<(String, Value)> {
    let (status, _, text) = server.ask("POST", path, &[], &body.to_string());
    assert_eq!(status, 200, "{text}");
    let mut events = Vec::new();
    for block in text.split("\n\n") {
        let (mut name, mut data) = (String::new(), None);
        for line in block.lines() {
            if let Some(value) = line.strip_prefix("event: ") {
                value.clone_into(&mut name);
            } else if let Some(value) = line.strip_prefix("data: ") {
                data = serde_json::from_str(value).ok();
            }
        }
        events.extend(data.map(|data: Value| (name, data)));
    }
    events
}

#[test]
fn required_calls_have_arguments_that_match_their_schema() {
    let server = server();
    for seed in 0..6 {
        let named = json!({ "type": "function", "function": { "name": "weather" } });
        let options = json!({ "tool_choice": named, "seed": seed, "parallel_tool_calls": false });
        let (status, answer) = server.post("/v1/chat/completions", &chat(options.clone()));
        assert_eq!(status, 200, "{answer}");
        let choice = &answer["choices"][0];
        assert_eq!(
            (&choice["finish_reason"], &choice["message"]["content"]),
            (&json!("tool_calls"), &Value::Null)
        );
        let calls = choice["message"]["tool_calls"].as_array().expect("calls");
        assert_eq!((calls.len(), &calls[0]["function"]["name"]), (1, &json!("weather")), "{answer}");
        let arguments = calls[0]["function"]["arguments"].as_str().expect("a string");
        check(&serde_json::from_str(arguments).expect("JSON"));
        // The stream has the same call.
        let mut body = chat(options);
        body["stream"] = json!(true);
        let (mut name, mut streamed, mut finish) = (String::new(), String::new(), Value::Null);
        for (_, chunk) in events(&server, "/v1/chat/completions", &body) {
            let choice = &chunk["choices"][0];
            let call = &choice["delta"]["tool_calls"][0]["function"];
            name += call["name"].as_str().unwrap_or_default();
            streamed += call["arguments"].as_str().unwrap_or_default();
            if !choice["finish_reason"].is_null() {
                finish = choice["finish_reason"].clone();
            }
        }
        assert_eq!((name.as_str(), streamed.as_str(), finish), ("weather", arguments, json!("tool_calls")));
    }
}

#[test]
fn results_of_tools_reach_the_prompt() {
    let server = Running::new();
    let call = json!({ "id": "c1", "type": "function", "function": { "name": "weather", "arguments": "{\"city\": \"Rome\", \"days\": 1}" } });
    let mut body = chat(json!({}));
    body["messages"].as_array_mut().expect("messages").extend([
        json!({ "role": "assistant", "content": null, "tool_calls": [call] }),
        json!({ "role": "tool", "tool_call_id": "c1", "content": "sunny" }),
    ]);
    let (status, prompt) = server.post("/apply-template", &body);
    assert_eq!(status, 200, "{prompt}");
    let prompt = prompt["prompt"].as_str().expect("a text");
    for part in ["\"weather\"", "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\"", "sunny"] {
        assert!(prompt.contains(part), "{part}: {prompt}");
    }
}

#[test]
fn anthropics_messages_have_blocks() {
    let server = server();
    let tools = json!([{ "name": "weather", "input_schema": parameters() }]);
    let mut body = json!({
        "model": "tiny",
        "max_tokens": 250, "seed": 1,
        "system": [{ "type": "text", "text": "Be kind.", "cache_control": { "type": "ephemeral" } }],
        "messages": [
            { "role": "user", "content": "And in Rome?" },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "Hm", "signature": "" },
                { "type": "tool_use", "id": "t1", "name": "weather", "input": { "city": "Rome", "days": 1 } },
            ] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "sunny" }] },
                { "type": "text", "text": "And in Oslo?" },
            ] },
        ],
        "tools": tools,
        "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
        "metadata": { "user_id": "u" },
    });
    let (status, counted) = server.post("/v1/messages/count_tokens", &body);
    assert_eq!(status, 200, "{counted}");
    let (status, answer) = server.post("/v1/messages", &body);
    assert_eq!(status, 200, "{answer}");
    let usage = &answer["usage"];
    let read = |name: &str| usage[name].as_u64().expect("a number");
    assert_eq!(counted["input_tokens"], read("input_tokens") + read("cache_read_input_tokens"));
    assert_eq!(
        (&answer["type"], &answer["role"], &answer["stop_reason"]),
        (&json!("message"), &json!("assistant"), &json!("tool_use"))
    );
    let blocks = answer["content"].as_array().expect("blocks");
    assert_eq!(
        (blocks.len(), &blocks[0]["type"], &blocks[0]["name"]),
        (1, &json!("tool_use"), &json!("weather"))
    );
    check(&blocks[0]["input"]);
    body["stream"] = json!(true);
    let events = events(&server, "/v1/messages", &body);
    let names: Vec<&str> =
        events.iter().map(|(name, _)| name.as_str()).filter(|name| *name != "content_block_delta").collect();
    assert_eq!(
        names,
        ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    );
    assert!(events.iter().all(|(name, object)| object["type"] == **name));
    let json: String =
        events.iter().filter_map(|(_, object)| object["delta"]["partial_json"].as_str()).collect();
    check(&serde_json::from_str(&json).expect("JSON"));
    // A text, with the sequence that stops it.
    let plain = json!({ "max_tokens": 60, "temperature": 0, "stop_sequences": ["e"], "messages": [{ "role": "user", "content": "Hi" }] });
    let (status, answer) = server.post("/v1/messages", &plain);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(
        (&answer["stop_reason"], &answer["stop_sequence"]),
        (&json!("stop_sequence"), &json!("e")),
        "{answer}"
    );
    for (field, value) in [
        ("max_tokens", Value::Null),
        ("messages", json!([])),
        ("messages", json!([{ "role": "user", "content": [{ "type": "image" }] }])),
        ("tools", json!([{ "type": "bash_20250124", "name": "bash" }])),
        ("tool_choice", json!({ "type": "any" })),
        ("thinking", json!(true)),
        ("unknown", json!(1)),
    ] {
        let mut wrong = plain.clone();
        wrong[field] = value;
        let (status, answer) = server.post("/v1/messages", &wrong);
        assert_eq!(
            (status, &answer["type"], &answer["error"]["type"]),
            (400, &json!("error"), &json!("invalid_request_error")),
            "{answer}"
        );
        assert!(answer["error"]["message"].as_str().expect("a message").contains(field), "{answer}");
    }
}

#[test]
fn responses_have_items_and_events_in_order() {
    let server = server();
    let tools =
        json!([{ "type": "function", "name": "weather", "parameters": parameters(), "strict": true }]);
    let call = json!({ "type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{\"city\": \"Rome\", \"days\": 1}" });
    let mut body = json!({
        "model": "tiny",
        "instructions": "Be kind.",
        "input": [
            { "role": "user", "content": [{ "type": "input_text", "text": "And in Rome?" }] },
            { "type": "reasoning", "summary": [], "content": [{ "type": "reasoning_text", "text": "Hm" }] },
            call,
            { "type": "function_call_output", "call_id": "c1", "output": "sunny" },
        ],
        "tools": tools,
        "tool_choice": "required",
        "parallel_tool_calls": false,
        "max_output_tokens": 250,
        "seed": 1,
        "store": false,
    });
    let (status, answer) = server.post("/v1/responses", &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!((&answer["object"], &answer["status"]), (&json!("response"), &json!("completed")));
    assert_eq!((&answer["tools"], &answer["max_output_tokens"]), (&body["tools"], &json!(250)));
    let output = answer["output"].as_array().expect("items");
    assert_eq!(
        (output.len(), &output[0]["type"], &output[0]["name"]),
        (1, &json!("function_call"), &json!("weather"))
    );
    check(&serde_json::from_str(output[0]["arguments"].as_str().expect("a string")).expect("JSON"));
    body["stream"] = json!(true);
    let events = self::events(&server, "/v1/responses", &body);
    let numbers: Vec<u64> =
        events.iter().filter_map(|(_, event)| event["sequence_number"].as_u64()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    assert!(events.iter().all(|(name, object)| object["type"] == **name));
    let mut names: Vec<&str> = events.iter().map(|(name, _)| name.trim_start_matches("response.")).collect();
    names.dedup();
    let want = [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ];
    assert_eq!(names, want);
    let text =
        json!({ "input": "Once upon a time", "max_output_tokens": 8, "stream": true, "temperature": 0 });
    let events = self::events(&server, "/v1/responses", &text);
    let mut names: Vec<&str> = events.iter().map(|(name, _)| name.trim_start_matches("response.")).collect();
    names.dedup();
    let want = [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ];
    assert_eq!(names, want);
    let last = &events.last().expect("events").1["response"];
    assert_eq!(last["incomplete_details"]["reason"], "max_output_tokens");
    let whole: String = events
        .iter()
        .filter(|(name, _)| name == "response.output_text.delta")
        .filter_map(|(_, event)| event["delta"].as_str())
        .collect();
    assert_eq!(last["output"][0]["content"][0]["text"], whole);
    let schema = json!({ "type": "object", "properties": { "a": { "type": "boolean" } }, "required": ["a"], "additionalProperties": false });
    let format =
        json!({ "format": { "type": "json_schema", "name": "x", "schema": schema, "strict": true } });
    let (status, answer) = server.post(
        "/v1/responses",
        &json!({ "input": "Hi", "text": format, "max_output_tokens": 250, "seed": 1 }),
    );
    assert_eq!(status, 200, "{answer}");
    let text = answer["output"][0]["content"][0]["text"].as_str().expect("a text");
    assert!(serde_json::from_str::<Value>(text).expect("JSON")["a"].is_boolean(), "{text}");
    for (field, value) in [
        ("previous_response_id", json!("resp_1")),
        ("input", json!([{ "type": "item_reference", "id": "x" }])),
        ("tools", json!([{ "type": "web_search" }])),
        ("truncation", json!("auto")),
        ("include", json!(["message.output_text.logprobs"])),
        ("max_output_tokens", json!("many")),
    ] {
        let mut wrong = json!({ "input": "Hi", "max_output_tokens": 4 });
        wrong[field] = value;
        let (status, answer) = server.post("/v1/responses", &wrong);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(field)), "{answer}");
    }
}

#[test]
fn reasoning_is_apart_and_has_a_budget() {
    let engine = EngineOptions::default().with_sequences(2);
    let server = Running::with_template(THINKING, ServeOptions::default(), engine);
    let messages = json!([{ "role": "user", "content": "Once upon a time" }]);
    let ask = |more: Value| {
        let mut body = json!({ "messages": messages, "max_tokens": 60, "temperature": 0 });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("fields").clone());
        let (status, answer) = server.post("/v1/chat/completions", &body);
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["message"].clone()
    };
    // The model never ends it by itself.
    let endless = ask(json!({}));
    assert_eq!(endless["content"], "");
    let thought = endless["reasoning_content"].as_str().expect("reasoning");
    assert!(thought.len() > 40, "{thought}");
    let short = ask(json!({ "thinking_budget_tokens": 8 }));
    let (start, content) = (
        short["reasoning_content"].as_str().expect("reasoning"),
        short["content"].as_str().expect("content"),
    );
    assert!(start.len() < 40 && thought.starts_with(start) && content.len() > 20, "{short}");
    assert_eq!(
        ask(json!({ "reasoning_format": "none" }))["content"].as_str().expect("content").trim_start(),
        thought.trim_start()
    );
    // A schema is for what follows the reasoning.
    let schema =
        json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": { "enum": [1, 2] } } });
    let answer = ask(json!({ "thinking_budget_tokens": 8, "response_format": schema }));
    assert!(["1", "2"].contains(&answer["content"].as_str().expect("content")), "{answer}");
    let body = json!({ "messages": messages, "max_tokens": 60, "seed": 1, "thinking": { "type": "enabled", "budget_tokens": 8 } });
    let (status, answer) = server.post("/v1/messages", &body);
    assert_eq!(status, 200, "{answer}");
    let kinds: Vec<&Value> =
        answer["content"].as_array().expect("blocks").iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["thinking", "text"]);
}

#[test]
fn wrong_tools_are_refused_by_name() {
    let server = Running::with_template(TEMPLATE, ServeOptions::default(), EngineOptions::default());
    let function = |parameters: Value| json!([{ "type": "function", "function": { "name": "f", "parameters": parameters } }]);
    for (field, value) in [
        ("tools", json!({})),
        ("tools", json!([{ "type": "function" }])),
        ("tools", json!([{ "type": "web_search" }])),
        ("tools", json!([{ "type": "function", "function": { "name": "" } }])),
        ("tools", json!([{ "type": "function", "function": { "name": "a b" } }])),
        ("tools", function(json!([1]))),
        ("tools", function(json!({ "type": "string" }))),
        ("tools", function(json!({ "type": "object", "properties": { "a": { "type": "nothing" } } }))),
        ("tool_choice", json!("sometimes")),
        ("tool_choice", json!({ "type": "function", "function": { "name": "unknown" } })),
        ("functions", json!([{ "name": "f" }])),
        ("thinking_budget_tokens", json!("x")),
        ("reasoning_format", json!("x")),
    ] {
        let mut body = chat(json!({}));
        body[field] = value;
        let (status, answer) = server.post("/v1/chat/completions", &body);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(field)), "{answer}");
    }
}
