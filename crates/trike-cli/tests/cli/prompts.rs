//! Sources of prompts, and constraints on texts: `trike run` and `trike embed`.

use std::{
    io::Write,
    process::{Output, Stdio},
};

use trike_testkit::assert_all_near;

use crate::harness::{Trike, tiny, utf8};

const GREEDY: [&str; 4] = ["--temperature", "0", "-n", "6"];

fn piped(trike: &Trike, args: &[&str], input: &[u8]) -> Output {
    let mut child = trike
        .command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    child.stdin.take().expect("a pipe").write_all(input).expect("it reads");
    child.wait_with_output().expect("it ends")
}

#[test]
fn a_prompt_is_the_same_from_everywhere() {
    let trike = Trike::new();
    let model = tiny();
    let file = trike.write("prompt.txt", "Once upon a time\n");
    let want = trike.stdout(&[&["run", "-m", &model, "-p", "Once upon a time"], &GREEDY[..]].concat());
    assert!(want.starts_with("Once upon a time,"), "{want}");
    for args in [
        vec!["run", &model, "Once upon a time"],
        vec!["run", "-m", &model, "Once upon a time"],
        vec!["run", &model, "-f", &file],
        // A single argument that no model is named like.
        vec!["run", "Once upon a time"],
        // Without a model, the bundled one.
        vec!["run", "-p", "Once upon a time"],
        vec!["run", "tiny", "Once upon a time"],
    ] {
        assert_eq!(trike.stdout(&[&args[..], &GREEDY].concat()), want, "{args:?}");
    }
    for args in [vec!["run", &model], vec!["run", &model, "-p", "-"], vec!["run"]] {
        let output = piped(&trike, &[&args[..], &GREEDY].concat(), b"Once upon a time\n");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert_eq!(utf8(output.stdout), want, "{args:?}");
    }
    let set = trike
        .command(&[&["run", "-p", "Once upon a time"], &GREEDY[..]].concat())
        .env("TRIKE_MODEL", &model)
        .output();
    assert_eq!(utf8(set.expect("it starts").stdout), want);
    // No prompt, and two prompts.
    assert!(trike.fails(2, &["run", &model]).contains("no prompt"));
    assert!(trike.fails(2, &["run", &model, "a", "-p", "b"]).contains("cannot be used with"));
    assert!(trike.fails(2, &["run", &model, "-m", &model, "-p", "b"]).contains("cannot be used with"));
    let output = piped(&trike, &["run", &model], b"\xff\xfe");
    assert_eq!(output.status.code(), Some(1));
    assert!(utf8(output.stderr).contains("stdin: expected UTF-8"));
}

#[test]
fn the_prompt_is_not_printed_if_only_the_text_is_wanted() {
    let trike = Trike::new();
    let run = ["run", "Once upon", "-n", "3", "--temperature", "0"];
    let whole = trike.stdout(&run);
    let text = trike.stdout(&[&run[..], &["--no-echo"]].concat());
    assert_eq!(whole, format!("Once upon{text}"));
    let json = trike.json(&[&run[..], &["--no-echo", "--json"]].concat());
    assert_eq!(
        (&json["prompt"], &json["text"], &json["model"]),
        (&"Once upon".into(), &text.into(), &"tiny".into())
    );
    assert!(trike.fails(2, &[&run[..], &["--no-echo", "--echo"]].concat()).contains("cannot be used with"));
}

#[test]
fn a_word_that_is_no_model_is_not_continued() {
    let trike = Trike::new();
    let error = trike.fails(1, &["run", "llama3"]);
    let parts =
        ["no model named `llama3`\nhelp: `trike list`", "`trike list --known`", "trike run -p llama3\n"];
    parts.iter().for_each(|part| assert!(error.contains(part), "{part}: {error}"));
    // With a prompt, the word can only be a model.
    for (args, name) in [
        (&["run", "tiyn", "-p", "Once"][..], "`tiny`"),
        (&["run", "-m", "tiyn", "Once"], "`tiny`"),
        (&["chat", "bonsai-4b"], "Ternary-Bonsai-4B"),
        (&["inspect", "bitnet"], "microsoft/bitnet-b1.58-2B-4T"),
    ] {
        let error = trike.fails(1, args);
        assert!(error.contains("help: did you mean `") && error.contains(name), "{error}");
        assert!(!error.contains("run -p"), "{error}");
    }
    // A file with white space in its name is a model, and so is a path that does not exist.
    let path = trike.copy_model(&tiny(), "my model");
    assert!(path.exists());
    let prompt = ["-p", "Once", "-n", "2", "--temperature", "0"];
    assert_eq!(trike.stdout(&[&["run", "my model"], &prompt[..]].concat()), "Once upon a");
    assert!(trike.fails(2, &["run", "my model"]).contains("no prompt"));
    assert!(trike.fails(1, &["run", "my other model.gguf", "-p", "x"]).contains("no such file or directory"));
}

#[test]
fn options_of_other_tools_have_ours_or_an_explanation() {
    let trike = Trike::new();
    let json = |more: &[&str]| {
        trike.json(
            &[
                &["run", "Once upon a time", "--seed", "7", "--temp", "1", "--n-predict", "20", "--json"],
                more,
            ]
            .concat(),
        )["text"]
            .clone()
    };
    // The vocabulary has 512 tokens.
    assert_eq!(json(&["--top-k", "0"]), json(&["--top-k", "512"]));
    assert_ne!(json(&["--top-k", "0"]), json(&["--top-k", "1"]));
    for (args, part) in [
        (&["run", "Once upon", "-ngl", "99"][..], "'-ngl': use --device"),
        (&["run", "Once upon", "--n-gpu-layers", "99"], "use --device"),
        (&["quantize", "--bits", "2"], "use --planes"),
        (&["run", "Once upon", "--frobnicate"], "unexpected argument '--frobnicate'"),
    ] {
        let error = trike.fails(2, args);
        assert!(error.contains(part) && !error.contains("as a value"), "{error}");
    }
}

#[test]
fn minus_one_is_no_limit_and_a_random_seed() {
    let trike = Trike::new();
    let all = trike.json(&["run", "tiny", "Once", "--temperature", "0", "-n", "-1", "--json"]);
    assert_eq!(all["finish"], trike.json(&["run", "tiny", "Once", "--temperature", "0", "--json"])["finish"]);
    let seed = |args: &[&str]| {
        let json =
            trike.json(&[&["run", "tiny", "Once", "-n", "2", "--temperature", "1", "--json"], args].concat());
        json["seed"].as_u64().expect("a seed")
    };
    assert_eq!(seed(&["--seed", "7"]), 7);
    assert_ne!(seed(&["--seed", "-1"]), seed(&[]));
    let short = trike.json(&["run", "tiny", "Once", "--temperature", "0", "-c", "10", "--json"]);
    assert_eq!(short["finish"], "context");
    let tokens = |key: &str| short[key].as_array().expect("a list").len();
    // The last token is not run, so it needs no position.
    assert_eq!(tokens("prompt_ids") + tokens("ids"), 11);
    assert!(trike.fails(2, &["run", "tiny", "Once", "-c", "9999"]).contains("--context"));
}

#[test]
fn a_text_has_the_form_that_is_asked_for() {
    let trike = Trike::new();
    let schema = r#"{"type": "object", "properties": {"age": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["age"], "additionalProperties": false}"#;
    let (file, lark) =
        (trike.write("schema.json", schema), trike.write("g.lark", "start: (\"ab\" | \"c\") \"!\""));
    for seed in ["1", "2", "3"] {
        for schema in [schema, &file] {
            let json =
                trike.json(&["run", "tiny", "Tom is", "--json", "--seed", seed, "--json-schema", schema]);
            let text = json["text"].as_str().expect("text");
            let value: serde_json::Value = serde_json::from_str(text).expect("JSON");
            assert!((1..=9).contains(&value["age"].as_i64().expect("a number")), "{text}");
            assert_eq!(json["finish"], "stop");
        }
        let text = trike.stdout(&["run", "tiny", "Tom is", "--seed", seed, "--grammar", &lark]);
        assert!(["ab!", "c!"].contains(&text.as_str()), "{text}");
        let regex = ["run", "tiny", "Tom is", "--seed", seed, "--regex", " (sad|happy)"];
        let text = trike.stdout(&regex);
        assert!([" sad", " happy"].contains(&text.as_str()), "{text}");
        assert_eq!(trike.stdout(&[&regex[..], &["--echo"]].concat()), format!("Tom is{text}"));
        let text = trike.stdout(&["run", "tiny", "Tom is", "--seed", seed, "--json-schema", schema]);
        assert!(
            serde_json::from_str::<serde_json::Value>(&text).expect("JSON alone")["age"].is_u64(),
            "{text}"
        );
    }
    assert!(trike.fails(2, &["run", "tiny", "x", "--json-schema", "{"]).contains("invalid JSON schema"));
    assert!(trike.fails(2, &["run", "tiny", "x", "--grammar", "start: nothing"]).contains("nothing"));
    assert!(
        trike.fails(2, &["run", "tiny", "x", "--regex", "a", "--grammar", "b"]).contains("cannot be used")
    );
    assert!(trike.fails(1, &["run", "tiny", "x", "--json-schema", "missing.json"]).contains("missing.json"));
}

#[test]
fn log_probabilities_are_printed_with_their_tokens() {
    let trike = Trike::new();
    let args = ["run", "tiny", "Once upon", "--temperature", "0", "-n", "3", "--json"];
    let json = trike.json(&[&args[..], &["--logprobs", "2"]].concat());
    let all = json["logprobs"].as_array().expect("a list");
    assert_eq!(all.len(), 3);
    for (token, id) in all.iter().zip(json["ids"].as_array().expect("a list")) {
        assert_eq!((&token["id"], token["top"].as_array().expect("a list").len()), (id, 2));
        assert_eq!(token["top"][0]["id"], *id, "greedy");
        assert!(token["logprob"].as_f64().expect("a number") <= 0.0);
    }
    assert_eq!(all[0]["token"], " a");
    assert!(trike.json(&args).get("logprobs").is_none());
    assert!(trike.fails(2, &["run", "tiny", "x", "--logprobs", "2"]).contains("--json"));
}

#[test]
fn a_prompt_cache_saves_reading() {
    let trike = Trike::new();
    let cache = trike.path("prompt.kv");
    let run = |prompt: &str| {
        let args = ["run", "tiny", prompt, "--prompt-cache", &cache, "--json"];
        trike.json(&[&args[..], &GREEDY].concat())
    };
    let alone = trike.json(&[&["run", "tiny", "Once upon a time there was", "--json"], &GREEDY[..]].concat());
    let first = run("Once upon a time there was");
    let second = run("Once upon a time there was");
    assert_eq!((&first["text"], &second["text"]), (&alone["text"], &alone["text"]));
    assert_eq!(first["reused_tokens"], 0);
    let tokens = alone["prompt_ids"].as_array().expect("a list").len();
    assert_eq!(second["reused_tokens"], tokens - 1);
    // The differing setting is reported, and the cache is replaced; another file is not.
    let changed = |more: &[&str], fact: &str| {
        let args = [&["run", "tiny", "Once upon a time there was", "--prompt-cache", &cache], &GREEDY[..]];
        let args = [&args.concat()[..], more].concat();
        let said = trike.both(&args).1;
        assert!(said.contains(&format!("not used and replaced, because {fact} was ")), "{said}");
        assert!(!trike.both(&args).1.contains("not used"));
        trike.stdout(&args[..args.len() - more.len()]);
    };
    changed(&["--prompt-keys", "0.001"], "the selection of keys for prompts");
    changed(&["--head", "stored"], "the precision of the head");
    changed(&["--activations", "f32"], "the precision of activations");
    let copy = trike.copy_model(&tiny(), "copy");
    let config = copy.join("config.json");
    let text = std::fs::read_to_string(&config).expect("text");
    std::fs::write(&config, text.replacen("10000", "20000", 1)).expect("written");
    let copy = copy.to_str().expect("UTF-8");
    let args = [&["run", copy, "Once upon", "--prompt-cache", &cache], &GREEDY[..]].concat();
    assert!(trike.both(&args).1.contains("because the model was "));
    assert!(!trike.both(&args).1.contains("not used"));
    // Damaged keys and values are refused by name.
    let mut bytes = std::fs::read(&cache).expect("the cache");
    let last = bytes.len() - 5;
    bytes[last] ^= 1;
    std::fs::write(&cache, bytes).expect("written");
    assert!(trike.fails(1, &args).contains("digest"));
    std::fs::remove_file(&cache).expect("removed");
    let mine = trike.write("mine.txt", "mine");
    assert!(trike.fails(1, &["run", "tiny", "x", "--prompt-cache", &mine]).contains("mine.txt"));
    assert_eq!(std::fs::read(&mine).unwrap(), b"mine");
    assert!(
        trike.fails(2, &["run", "tiny", "x", "--prompt-cache", &cache, "--window", "8"]).contains("--window")
    );
}

#[test]
fn texts_become_embeddings() {
    let trike = Trike::new();
    let lines = trike.write("texts.txt", "The dog ran.\n\nThe dog ran home.\n");
    let json = trike.json(&["embed", "tiny", "-f", &lines, "--json"]);
    let width = json["width"].as_u64().expect("a number") as usize;
    let rows = json["embeddings"].as_array().expect("rows");
    assert_eq!((rows.len(), json["tokens"].as_array().expect("a list").len()), (2, 2));
    let text = trike.stdout(&["embed", "tiny", "The dog ran.", "The dog ran home."]);
    let first = text.lines().next().expect("a line");
    let first: Vec<f64> = first.split(' ').map(|value| value.parse().expect("a number")).collect();
    assert_eq!((text.lines().count(), first.len()), (2, width));
    let of = |row: &serde_json::Value| -> Vec<f64> {
        row.as_array().expect("a row").iter().map(|value| value.as_f64().expect("a number")).collect()
    };
    assert_all_near!(&first, &of(&rows[0]), abs = 1e-6);
    let lines_of_numbers = trike.stdout(&["embed", "tiny", "-f", &lines, "--json"]);
    let long = lines_of_numbers.lines().filter(|line| line.split(", ").count() == width);
    assert_eq!(long.count(), 2, "one line per embedding: {lines_of_numbers}");
    let out = trike.path("new/embeddings.npy");
    assert!(trike.stdout(&["embed", "tiny", "-f", &lines, "-o", &out]).contains("2 x 256"));
    assert_eq!(std::fs::read(&out).expect("the file").len(), 128 + 4 * 2 * width);
    assert_ne!(
        trike.stdout(&["embed", "tiny", "The dog ran.", "--pooling", "last"]),
        text.lines().next().unwrap().to_owned() + "\n"
    );
    assert!(trike.fails(2, &["embed", "tiny"]).contains("TEXT"));
    let empty = trike.write("empty.txt", "\n\n");
    assert!(trike.fails(1, &["embed", "tiny", "-f", &empty]).contains("no line with text"));
}
