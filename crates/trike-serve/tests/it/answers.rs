//! Whole answers.

use serde_json::{Value, json};
use trike_llm::{GenerateOptions, LanguageModel};

use crate::{MODEL, Running};

#[test]
fn a_text_is_continued_as_by_the_library() {
    let server = Running::new();
    let (status, answer) = server.post(
        "/v1/completions",
        &json!({ "model": "tiny", "prompt": "Once upon a time", "max_tokens": 20, "temperature": 0 }),
    );
    assert_eq!(status, 200, "{answer}");
    let model = LanguageModel::load(MODEL).expect("the bundled model");
    let text = model.generate("Once upon a time", &GenerateOptions::default().with_max_tokens(20));
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], text.expect("a text").text);
    assert_eq!((&choice["finish_reason"], &answer["object"]), (&json!("length"), &json!("text_completion")));
    assert_eq!(answer["usage"]["completion_tokens"], 20);
    assert!(answer["timings"]["predicted_per_second"].as_f64().expect("a rate") > 0.0);
    // Token ids are a prompt, too, and so is a list of one.
    let (_, tokens) =
        server.post("/tokenize", &json!({ "content": "Once upon a time", "add_special": true }));
    for prompt in [tokens["tokens"].clone(), json!([tokens["tokens"]]), json!(["Once upon a time"])] {
        let body = json!({ "prompt": prompt, "max_tokens": 20, "temperature": 0 });
        assert_eq!(server.post("/v1/completions", &body).1["choices"][0]["text"], choice["text"]);
    }
}

#[test]
fn a_conversation_is_answered_and_its_beginning_reused() {
    let server = Running::new();
    let long = "The little dog ran to the big tree and saw a cat. ".repeat(8);
    let mut messages = vec![json!({ "role": "user", "content": long })];
    let ask = |messages: &[Value]| {
        let body = json!({ "messages": messages, "max_completion_tokens": 16, "seed": 3 });
        let (status, answer) = server.post("/v1/chat/completions", &body);
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let first = ask(&messages);
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let message = &first["choices"][0]["message"];
    assert_eq!(message["role"], "assistant");
    messages.extend([
        message.clone(),
        json!({ "role": "user", "content": [{ "type": "text", "text": "And then?" }] }),
    ]);
    let second = ask(&messages);
    let (read, reused) =
        (&second["usage"]["prompt_tokens"], &second["usage"]["prompt_tokens_details"]["cached_tokens"]);
    assert!(
        reused.as_u64() > first["usage"]["prompt_tokens"].as_u64().map(|n| n * 9 / 10),
        "{reused} of {read}"
    );
    // The same seed, the same answer.
    assert_eq!(ask(&messages[..1])["choices"], first["choices"]);
    let (_, prompt) = server.post("/apply-template", &json!({ "messages": messages[..1] }));
    assert_eq!(prompt["prompt"], format!("user: {long}\nassistant:"));
}

#[test]
fn options_change_the_text() {
    let server = Running::new();
    let text = |options: Value| {
        let mut body = json!({ "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0 });
        body.as_object_mut().expect("an object").extend(options.as_object().expect("options").clone());
        let (status, answer) = server.post("/v1/completions", &body);
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let plain = text(json!({}))["choices"][0]["text"].as_str().expect("a text").to_owned();
    assert!(plain.contains("little"), "{plain}");
    let stopped = text(json!({ "stop": "little" }));
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    assert!(plain.starts_with(stopped["choices"][0]["text"].as_str().expect("a text")));
    // The first token, excluded.
    let ids = |text: &str| server.post("/tokenize", &json!({ "content": text })).1["tokens"].clone();
    let prompt = ids("Once upon a time").as_array().map_or(0, Vec::len);
    let first = ids(&format!("Once upon a time{plain}"))[prompt].clone();
    for bias in [json!({ first.to_string(): -100 }), json!([[first, false]])] {
        assert_ne!(text(json!({ "logit_bias": bias }))["choices"][0]["text"], plain);
    }
    for penalty in ["presence_penalty", "frequency_penalty", "repeat_penalty"] {
        let penalized = text(json!({ penalty: 2.0, "max_tokens": 60 }));
        assert_ne!(
            penalized["choices"][0]["text"],
            text(json!({ "max_tokens": 60 }))["choices"][0]["text"],
            "{penalty}"
        );
    }
    let several = text(json!({ "n": 3, "temperature": 1.5, "seed": 1 }));
    let texts: Vec<&Value> =
        several["choices"].as_array().expect("a list").iter().map(|c| &c["text"]).collect();
    assert!(texts.len() == 3 && texts[0] != texts[1] && texts[1] != texts[2], "{texts:?}");
    assert_eq!(several["usage"]["completion_tokens"], 36);
    let scored = text(json!({ "logprobs": 2 }));
    let logprobs = &scored["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().map(Vec::len), Some(12));
    assert_eq!(logprobs["top_logprobs"][0].as_object().map(serde_json::Map::len), Some(2));
    let joined: String =
        logprobs["tokens"].as_array().expect("tokens").iter().filter_map(Value::as_str).collect();
    assert_eq!(joined, plain);
}

#[test]
fn a_schema_is_followed() {
    let server = Running::new();
    let schema = json!({
        "type": "object",
        "properties": { "name": { "enum": ["Lily", "Tim"] }, "age": { "type": "integer", "minimum": 1, "maximum": 9 } },
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    let formats = [
        json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "child", "schema": schema } } }),
        json!({ "json_schema": schema }),
    ];
    for format in formats {
        let mut body =
            json!({ "messages": [{ "role": "user", "content": "A child" }], "max_tokens": 300, "seed": 1 });
        body.as_object_mut().expect("an object").extend(format.as_object().expect("a format").clone());
        let (status, answer) = server.post("/v1/chat/completions", &body);
        assert_eq!(status, 200, "{answer}");
        let text = answer["choices"][0]["message"]["content"].as_str().expect("a text");
        let child: Value = serde_json::from_str(text).expect("JSON");
        assert!(["Lily", "Tim"].contains(&child["name"].as_str().expect("a name")), "{child}");
        assert!((1..=9).contains(&child["age"].as_u64().expect("an age")));
    }
}

#[test]
fn the_server_says_what_it_is_and_does() {
    let server = Running::new();
    assert_eq!(server.get("/health"), (200, json!({ "status": "ok" })));
    let (_, models) = server.get("/v1/models");
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["meta"]["n_vocab"]),
        (&json!("tiny"), &json!(512))
    );
    assert_eq!(server.get("/v1/models/tiny").1, models["data"][0]);
    assert_eq!(server.get("/v1/models/other").0, 404);
    assert_eq!(server.get("/props").1["total_slots"], 4);
    assert_eq!(server.get("/slots").1.as_array().map(Vec::len), Some(4));
    server.post("/v1/completions", &json!({ "prompt": "Once", "max_tokens": 5 }));
    let (status, metrics) = server.get("/metrics");
    let metrics = metrics.as_str().expect("text");
    assert!(status == 200 && metrics.contains("\ntrike_generated_tokens_total 5\n"), "{metrics}");
    assert!(metrics.contains("trike_first_token_seconds_bucket{le=\"+Inf\"} 1\n"), "{metrics}");
}

#[test]
fn texts_become_tokens_and_vectors() {
    let server = Running::new();
    let (_, pieces) = server.post("/tokenize", &json!({ "content": "Lily", "with_pieces": true }));
    assert!(pieces["tokens"][0]["piece"].is_string(), "{pieces}");
    let (_, ids) = server.post("/tokenize", &json!({ "content": "Lily ran" }));
    assert_eq!(server.post("/detokenize", &json!({ "tokens": ids["tokens"] })).1["content"], "Lily ran");
    let (status, answer) =
        server.post("/v1/embeddings", &json!({ "model": "tiny", "input": ["Lily", "Tim"] }));
    assert_eq!(status, 200, "{answer}");
    let vector = |index: usize| -> Vec<f64> {
        answer["data"][index]["embedding"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(Value::as_f64)
            .collect()
    };
    assert_eq!((vector(0).len(), vector(1).len()), (256, 256));
    assert_ne!(vector(0), vector(1));
    let body = json!({ "input": "Lily", "encoding_format": "base64" });
    let base64 = server.post("/v1/embeddings", &body).1["data"][0]["embedding"].as_str().map(str::len);
    assert_eq!(base64, Some((256 * 4_usize).div_ceil(3) * 4));
}

#[test]
fn the_description_has_every_route_with_the_fields_that_it_reads() {
    let server = Running::new();
    let (status, description) = server.get("/openapi.json");
    assert_eq!(status, 200, "{description}");
    let paths = description["paths"].as_object().expect("paths");
    assert!(paths.len() > 14, "{}", paths.len());
    for (path, methods) in paths {
        let Some(operation) = methods.get("post") else { continue };
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        let properties = schema["properties"].as_object().expect("fields");
        // The example is answered, and a field that is not described is refused.
        let (status, answer) = server.post(path, &schema["example"]);
        assert_eq!(status, 200, "{path}: {answer}");
        let mut wrong = schema["example"].clone();
        wrong["unheard_of"] = json!(1);
        assert_eq!(server.post(path, &wrong).0, 400, "{path}");
        for (name, property) in properties {
            if property["type"].as_array().is_some_and(|types| !types.contains(&json!("object"))) {
                let mut wrong = schema["example"].clone();
                wrong[name] = json!({});
                let (status, answer) = server.post(path, &wrong);
                assert_eq!(status, 400, "{path} {name}: {answer}");
            }
        }
    }
}

#[test]
fn several_prompts_have_several_texts() {
    let server = Running::new();
    let body = json!({ "prompt": ["Once", "The dog"], "max_tokens": 6, "temperature": 0, "n": 2 });
    let (status, answer) = server.post("/v1/completions", &body);
    assert_eq!(status, 200, "{answer}");
    let alone = |prompt: &str| {
        let body = json!({ "prompt": prompt, "max_tokens": 6, "temperature": 0 });
        server.post("/v1/completions", &body).1
    };
    let (first, second) = (alone("Once"), alone("The dog"));
    let texts: Vec<&Value> =
        answer["choices"].as_array().expect("choices").iter().map(|choice| &choice["text"]).collect();
    let text = |answer: &Value| answer["choices"][0]["text"].clone();
    assert_eq!(texts, [&text(&first), &text(&first), &text(&second), &text(&second)]);
    let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().expect("a number");
    assert_eq!(tokens(&answer), tokens(&first) + tokens(&second));
    assert_eq!(answer["usage"]["completion_tokens"], 24);
    for (path, field) in [("/v1/completions", "prompt"), ("/v1/embeddings", "input")] {
        let (status, answer) = server.post(path, &json!({ field: [] }));
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(field)), "{answer}");
        assert!(answer["error"]["message"].as_str().expect("a message").contains("at least one"), "{answer}");
    }
}

#[test]
fn an_answer_can_be_begun_by_the_client() {
    let server = Running::new();
    let messages =
        json!([{ "role": "user", "content": "Hi" }, { "role": "assistant", "content": "Once upon a " }]);
    let prompt = |more: Value| {
        let mut body = json!({ "messages": messages, "max_tokens": 4 });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("fields").clone());
        let (status, answer) = server.post("/apply-template", &body);
        assert_eq!(status, 200, "{answer}");
        let (_, counted) = server.post("/v1/chat/completions/input_tokens", &body);
        let (status, said) = server.post("/v1/chat/completions", &body);
        assert_eq!((status, &said["usage"]["prompt_tokens"]), (200, &counted["input_tokens"]));
        answer["prompt"].as_str().expect("a text").to_owned()
    };
    assert_eq!(prompt(json!({})), "user: Hi\nassistant:Once upon a");
    assert_eq!(prompt(json!({ "continue_final_message": true })), "user: Hi\nassistant:Once upon a");
    let as_vllm = json!({ "continue_final_message": true, "add_generation_prompt": false });
    assert_eq!(prompt(as_vllm), "user: Hi\nassistant:Once upon a");
    let closed = "user: Hi\nassistant: Once upon a \nassistant:";
    assert_eq!(prompt(json!({ "continue_final_message": false })), closed);
    let wrong = json!({ "messages": [messages[0]], "continue_final_message": true });
    assert_eq!(server.post("/v1/chat/completions", &wrong).1["error"]["param"], "continue_final_message");
    // Values that change nothing are taken.
    let neutral = json!({ "prompt": "Once", "max_tokens": 2, "ignore_eos": false, "typical_p": 1.0, "mirostat": 0, "anything": null });
    assert_eq!(server.post("/v1/completions", &neutral).0, 200);
    let other = json!({ "prompt": "Once", "max_tokens": 2, "mirostat": 2 });
    assert_eq!(server.post("/v1/completions", &other).1["error"]["param"], "mirostat");
}
