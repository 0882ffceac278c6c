//! The JSON of every command has the fields that the reference names, and no others.

use std::{collections::BTreeSet, io::Write, process::Stdio};

use serde_json::Value;

use crate::{
    harness::{Trike, tiny, utf8},
    reference::fields,
};

/// The paths of a value: names, and `[]` for each element of a list. Null and empty values are paths too.
fn paths(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let dot = if path.is_empty() { "" } else { "." };
            fields.iter().for_each(|(name, value)| paths(value, &format!("{path}{dot}{name}"), found));
        }
        Value::Array(elements) if !elements.is_empty() => {
            elements.iter().for_each(|value| paths(value, &format!("{path}[]"), found));
        }
        // Without an element, any definition below the path may apply.
        Value::Null | Value::Object(_) | Value::Array(_) => _ = found.insert(format!("{path}?")),
        _ => _ = found.insert(path.to_owned()),
    }
}

/// Whether a definition describes a path; `a.*` describes every path that begins with `a.`.
fn describes(defined: &str, path: &str) -> bool {
    let path = match path.strip_suffix('?') {
        Some(nothing) if defined.starts_with(nothing) => return true,
        Some(nothing) => nothing,
        None => path,
    };
    match defined.strip_suffix('*') {
        Some(start) => path.starts_with(start),
        None => defined == path,
    }
}

/// Checks the outputs of a command against its definitions: every field is defined, and every mandatory field is in each output.
fn check(command: &str, outputs: &[Value]) {
    let fields = fields(command);
    assert!(!fields.is_empty(), "{command}");
    for output in outputs {
        let mut found = BTreeSet::new();
        paths(output, "", &mut found);
        assert_eq!(output["schema_version"], 1, "{command}");
        assert_eq!(
            output.as_object().and_then(|all| all.keys().next()).map(String::as_str),
            Some("schema_version")
        );
        for path in found.iter().filter(|path| *path != "schema_version") {
            assert!(
                fields.iter().any(|(defined, ..)| describes(defined, path)),
                "{command}: {path} is not in json.txt"
            );
        }
        for (defined, always, _) in &fields {
            let there = found.iter().any(|path| describes(defined, path));
            assert!(there || !always, "{command}: {defined} is not in {output}");
        }
    }
}

#[test]
fn json_has_the_fields_of_the_reference() {
    let trike = Trike::new();
    let model = tiny();
    let story = trike.write("story.txt", "Once upon a time there was a little dog. ".repeat(40));
    let task = trike.write(
        "task.jsonl",
        "{\"context\": \"Once upon a\", \"choices\": [\" time\", \" x\"], \"answer\": 0}\n",
    );
    let days = trike.write("days.txt", crate::needle::days(60));
    let (packed, dense, npy) = (trike.path("packed"), trike.path("dense"), trike.path("l.npy"));
    let json = |args: &[&str]| trike.json(&[args, &["--json"]].concat());
    check(
        "run",
        &[
            json(&["run", &model, "Once", "-n", "2"]),
            json(&["run", &model, "Once", "-n", "2", "--logprobs", "1", "--temperature", "0"]),
            json(&["run", &model, "Once", "-n", "2", "--kv-limit", "64"]),
        ],
    );
    // Without `mpirun`, one rank.
    #[cfg(feature = "mpi")]
    check("run", &[json(&["run", &model, "Once", "-n", "2", "--parallel", "tensor"])]);
    check("list", &[json(&["list"]), json(&["list", "--known"])]);
    check("show", &[json(&["show", &model])]);
    check(
        "inspect",
        &[
            json(&["inspect", &model]),
            json(&["inspect", &model, "--memory"]),
            json(&["inspect", &model, "--memory", "--keys", "signs"]),
        ],
    );
    check(
        "convert",
        &[
            json(&["convert", &model, &packed]),
            json(&["convert", &model, &dense, "--to", "f16", "--embeddings", "f16"]),
        ],
    );
    check("edit", &[json(&["edit", &packed, "-t", "model.layers.0.mlp.up_proj.weight", "--zero-row", "5"])]);
    check(
        "perplexity",
        &[
            json(&["perplexity", &model, "-f", &story, "--limit", "1"]),
            json(&["perplexity", &model, "-f", &story, "--limit", "1", "--base", &dense]),
            json(&["perplexity", &model, "-f", &story, "--limit", "1", "--kv-limit", "64"]),
            json(&["perplexity", &model, "-f", &story, "--limit", "1", "--kv", "auto", "-q"]),
        ],
    );
    check(
        "eval",
        &[
            json(&["eval", &model, "--tasks", &task]),
            json(&[
                "eval", &model, "--tasks", &task, &task, "--text", &story, "--limit", "1", "--base", &dense,
            ]),
            json(&["eval", &model, "--needle", &days, "--context", "256", "--limit", "2"]),
            json(&[
                "eval",
                &model,
                "--needle",
                &days,
                "--context",
                "256",
                "--limit",
                "1",
                "--kv",
                "int8",
                "--keys",
                "signs",
                "--keys-top-k",
                "8",
                "--prompt-keys",
                "0.5",
                "--kv-limit",
                "128",
            ]),
        ],
    );
    check("logits", &[json(&["logits", &model, "--ids", "1", "-o", &npy])]);
    check("embed", &[json(&["embed", &model, "Once"]), json(&["embed", &model, "Once", "-o", &npy])]);
    check(
        "bench",
        &[
            json(&["bench", &model, "-p", "4", "-n", "1", "-r", "1"]),
            json(&["bench", "--synthetic", "125m", "-p", "0", "-n", "1", "-r", "1"]),
        ],
    );
    check("doctor", &[json(&["doctor"])]);
    let mut child = trike
        .command(&["chat", &model, "--json", "-n", "2", "--chat-template", "{{ messages[0].content }}"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    child.stdin.take().expect("a pipe").write_all(b"Once\n").expect("it reads");
    let line = utf8(child.wait_with_output().expect("it ends").stdout);
    check("chat", &[serde_json::from_str(&line).expect("JSON")]);
    let folder = trike.path("hf/hub/models--org--name/snapshots/abc");
    std::fs::create_dir_all(&folder).unwrap();
    let removed = json(&["rm", "org/name", "--yes"]);
    check("rm", &[removed]);
}

#[test]
fn the_json_of_quantize_has_the_fields_of_the_reference() {
    let trike = Trike::new();
    let [model, tokenizer] = trike.storyteller();
    let story = trike.write("story.txt", trike_testkit::stories(1, 7, 250));
    let quantize = |name: &str, more: &[&str]| {
        let out = trike.path(name);
        let args =
            ["quantize", &model, "--tokenizer", &tokenizer, "-c", &story, "-o", &out, "--no-tune", "--json"];
        trike.json(&[&args, more].concat())
    };
    let outputs = [
        quantize("a", &["--planes", "2", "--salience"]),
        quantize("b", &["--planes", "2", "--curve", "-e", &story]),
        quantize("c", &["--target", "3bpw"]),
        quantize("plan.json", &["--target", "3bpw", "--plan-only"]),
    ];
    check("quantize", &outputs);
}

#[test]
fn json_of_training_has_the_fields_of_the_reference() {
    let trike = Trike::new();
    let story = "Once upon a time there was a little dog.\n<|endoftext|>\n".repeat(20);
    let (model, data, out) = (tiny(), trike.write("stories.txt", story), trike.path("out"));
    let args =
        ["train", "--from", &model, "-d", &data, "-o", &out, "--steps", "2", "--length", "16", "--json"];
    let outputs = [trike.json(&[&args[..], &["--check"]].concat()), trike.json(&args)];
    check("train", &outputs);
}
