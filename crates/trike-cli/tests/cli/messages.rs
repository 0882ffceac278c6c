//! Messages for wrong input: the exit status, and the words that name the error and the remedy.

use crate::harness::{Trike, text, tiny};

/// A command line, its exit status, and parts of its message.
type Case<'a> = (Vec<&'a str>, i32, &'a [&'a str]);

#[test]
fn wrong_inputs_are_explained() {
    let trike = Trike::new();
    let tiny = tiny();
    let file = |name: &str, content: &str| trike.write(name, content);
    let (empty, story) = (file("empty.txt", ""), file("story.txt", "Once upon a time there was a sea."));
    let (no_json, form) = (file("no.jsonl", "hello"), file("form.jsonl", r#"{"foo": 1}"#));
    let answer = file("answer.jsonl", r#"{"question": "a", "choices": ["b", "c"], "answer": 5}"#);
    let single = file("single.jsonl", r#"{"context": "a", "choices": ["b"], "answer": 0}"#);
    let tool = file("tool.bin", "");
    let zip = file("model.pt", "PK\u{3}\u{4}");
    let lfs = file("lfs.gguf", "version https://git-lfs.github.com/spec/v1\n");
    let bad_config = trike.copy_model(&tiny, "config");
    std::fs::write(bad_config.join("generation_config.json"), r#"{"temperature": "hot"}"#).unwrap();
    let (bad_config, folder) = (text(bad_config), trike.path(""));
    let half = trike.copy_model(&tiny, "half");
    let weights = std::fs::read(half.join("model.safetensors")).unwrap();
    std::fs::write(half.join("model.safetensors"), &weights[..weights.len() / 2]).unwrap();
    let half = text(half);
    let (missing, out, gguf) = (trike.path("missing"), trike.path("out"), trike.path("out.gguf"));
    let run = |more: &[&'static str]| [&["run", "-m", "TINY", "-p", "x"], more].concat();
    let whole: &[&str] = &["expected a whole number, 0 or more"];
    let cases: Vec<Case<'_>> = vec![
        // Models.
        (vec!["run", "-m", &missing, "-p", "x"], 1, &["missing", "no such file or directory"]),
        (vec!["quantize", "-m", &missing, "-o", &out], 1, &["no such file or directory"]),
        (
            vec!["run", "-m", &folder, "-p", "x"],
            1,
            &["a directory without config.json", "give the directory"],
        ),
        (vec!["run", "-m", &empty, "-p", "x"], 1, &["an empty file"]),
        (vec!["run", "-m", &zip, "-p", "x"], 1, &["PyTorch", "safetensors"]),
        (vec!["run", "-m", &lfs, "-p", "x"], 1, &["git lfs pull"]),
        (vec!["run", "-m", &half, "-p", "x"], 1, &["model.safetensors"]),
        (vec!["run", "-m", "org/name", "-p", "x"], 1, &["org/name", "download"]),
        (vec!["run", "-m", &bad_config, "-p", "x"], 1, &["generation_config.json", "correct or remove it"]),
        (vec!["chat", "-m", &bad_config], 1, &["generation_config.json"]),
        (vec!["inspect", "nothing"], 1, &["no model named `nothing`", "trike list --known"]),
        (vec!["pull", "https://example.org/m.gguf"], 2, &["only links to huggingface.co"]),
        (vec!["show", "https://example.org/m.gguf"], 2, &["only links to huggingface.co"]),
        (vec!["show", "hf.co/org/name"], 1, &["org/name is not in"]),
        // Numbers.
        (run(&["-n", "abc"]), 2, whole),
        (run(&["-n", "1.5"]), 2, whole),
        (run(&["--top-k", "1.5"]), 2, whole),
        (run(&["-n", "99999999999999999999999"]), 2, &["expected a smaller number"]),
        (run(&["--temperature", "hot"]), 2, &["'hot'", "--temperature", "expected a number"]),
        (run(&["--top-p", "2"]), 2, &["more than 0 and at most 1", "--top-p"]),
        (run(&["--threads", "x"]), 2, whole),
        (vec!["bench", "-m", "TINY", "-p", "x"], 2, whole),
        (vec!["logits", "-m", "TINY", "--ids", "1,a", "-o", &out], 2, whole),
        (vec!["logits", "-m", "TINY", "--ids", "99999", "-o", &out], 1, &["99999", "vocabulary of 512"]),
        (vec!["quantize", "-m", "TINY", "--sequences", "0", "-o", &out], 2, &["--sequences", "1 or more"]),
        (vec!["quantize", "-m", "TINY", "--planes", "9", "-o", &out], 2, &["1..=6"]),
        // Names.
        (run(&["--kv", "foo"]), 2, &["`foo`: expected f32, f16, int8, int8-int4 or int4, or auto"]),
        (run(&["--kv", "int4,int8:x"]), 2, &["`x`: expected a layer or a range of layers"]),
        (run(&["--kv", "int4,int8:99"]), 1, &["layers of the decoder only, got layer 99"]),
        (run(&["--kv-kl", "0.01"]), 2, &["--kv-kl: needs --kv auto"]),
        (run(&["--kv", "auto", "--kv-kl", "nan"]), 2, &["expected a number, 0 or more"]),
        (run(&["--device", "foo"]), 2, &["expected auto, cpu, or one of"]),
        (run(&["--stop", ""]), 2, &["stop", "non-empty"]),
        (vec!["runn", "-m", "TINY"], 2, &["unrecognized subcommand", "'run'"]),
        (vec!["run", "-m", "TINY", "--promt", "x"], 2, &["--promt", "--prompt"]),
        // Texts and tasks.
        (vec!["eval", "-m", "TINY"], 2, &["--tasks", "--text", "--needle"]),
        (vec!["perplexity", "-m", "TINY", "-f", &missing], 1, &["missing"]),
        (vec!["perplexity", "-m", "TINY", "-f", &empty], 1, &["nothing to score"]),
        (
            vec!["eval", "-m", "TINY", "--tasks", &empty],
            1,
            &["empty.txt", "no questions", "JSON object per line"],
        ),
        (vec!["eval", "-m", "TINY", "--tasks", &no_json], 1, &["line 1", "not JSON"]),
        (vec!["eval", "-m", "TINY", "--tasks", &form], 1, &["line 1", "{context, choices, answer}", "foo"]),
        (vec!["eval", "-m", "TINY", "--tasks", &answer], 1, &["line 1", "an answer from 0 to 1, got 5"]),
        (vec!["eval", "-m", "TINY", "--tasks", &single], 1, &["two choices or more, got 1"]),
        (
            vec!["quantize", "-m", "TINY", "-c", &story, "-o", &out],
            1,
            &["every layer is ternary", "choose a dense model"],
        ),
        // Templates and tokenizers.
        (vec!["chat", "-m", "TINY", "--chat-template", "{% for"], 1, &["template"]),
        (
            vec!["chat", "-m", "TINY", "--chat-template", &missing],
            1,
            &["cannot read the template", "missing"],
        ),
        (vec!["chat", "-m", "TINY"], 1, &["no chat template", "--chat-template", "trike run"]),
        (vec!["run", "-m", "TINY", "-p", "x", "--tokenizer", &tool], 1, &["tool.bin"]),
        // Outputs and edits.
        (vec!["convert", "TINY", &out, "--to", "tq1_0"], 2, &[".gguf"]),
        (vec!["convert", "TINY", &gguf, "--to", "trike"], 2, &["directory"]),
        (
            vec!["convert", "TINY", &gguf, "--to", "tq1_0", "--packed"],
            2,
            &["--packed applies only to `--to trike`"],
        ),
        (
            vec!["convert", "TINY", &empty, "--to", "f16"],
            1,
            &["exists", "remove it or choose another output"],
        ),
        (vec!["edit", &tool, "--tensor", "a", "--zero-row", "1"], 2, &["a file", "trike convert"]),
        (vec!["edit", &missing, "--tensor", "a", "--zero-row", "1"], 1, &["no such file or directory"]),
        (vec!["edit", "TINY", "--undo"], 2, &["undo"]),
    ];
    assert!(cases.len() >= 40, "{} cases", cases.len());
    for (args, code, parts) in cases {
        let args: Vec<&str> =
            args.into_iter().map(|arg| if arg == "TINY" { tiny.as_str() } else { arg }).collect();
        let error = trike.fails(code, &args);
        for part in parts {
            assert!(error.contains(part), "trike {args:?}: expected `{part}` in: {error}");
        }
        for puzzle in ["invalid digit", "entity not found", "invalid float", "os error", "Some("] {
            let system = error.contains("missing");
            assert!(system || !error.contains(puzzle), "trike {args:?} says `{puzzle}`: {error}");
        }
    }
    assert!(!std::path::Path::new(&out).exists() && !std::path::Path::new(&gguf).exists());
}
