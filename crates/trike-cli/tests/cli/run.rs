//! `trike run`.

use std::{
    io::Read,
    process::{Child, Stdio},
};

use serde_json::Value;

use crate::harness::{Trike, repository, shared, tiny, utf8};

#[test]
fn greedy_text_is_that_of_llama2c_byte_for_byte() {
    let Some(model) = shared("data/models/stories260K.bin") else { return };
    let Some(golden) = shared("data/golden/stories260K_greedy_200.txt") else { return };
    let golden = std::fs::read_to_string(golden).unwrap();
    for tokenizer in ["tok512.bin", "tok512.model"] {
        let Some(tokenizer) = shared(&format!("data/tokenizers/{tokenizer}")) else { return };
        let trike = Trike::new();
        let args = ["run", "-m", &model, "--tokenizer", &tokenizer, "-p", ""];
        let args = [args.as_slice(), &["--temperature", "0", "--max-tokens", "200"]].concat();
        let (stdout, stderr) = trike.both(&args);
        assert_eq!(stdout, golden, "{tokenizer}");
        let line = stderr.strip_suffix('\n').expect("a line");
        assert!(line.starts_with("prompt 1 tokens, "), "{line}");
        assert!(
            line.contains("; decode 200 tokens, ") && line.contains(" tok/s; ended by max_tokens; load "),
            "{line}"
        );
    }
}

#[test]
fn the_story_of_tiny_is_its_golden_packed_or_not() {
    let golden = trike_testkit::golden();
    let ids: Vec<u64> = golden.ids.iter().copied().map(u64::from).collect();
    let trike = Trike::new();
    for model in [trike.dense(), tiny()] {
        let args =
            ["run", "-m", &model, "-p", "Once upon a time", "--temperature", "0", "--activations", "f32"];
        let prompt = trike.json(&[&args[..], &["--max-tokens", "0", "--json"]].concat());
        let prompt: Vec<u64> = numbers(&prompt["prompt_ids"]);
        assert_eq!(prompt, ids[..prompt.len()], "{model}");
        let rest = (ids.len() - prompt.len()).to_string();
        let stdout = trike.stdout(&[&args[..], &["--max-tokens", &rest]].concat());
        assert_eq!(stdout.trim_end(), golden.text, "{model}");
        let json = trike.json(&[&args[..], &["--max-tokens", &rest, "--json"]].concat());
        assert_eq!(numbers(&json["ids"]), ids[prompt.len()..], "{model}");
    }
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().expect("a list").iter().map(|n| n.as_u64().expect("a number")).collect()
}

#[test]
fn json_has_its_schema() {
    let json = Trike::new().json(&["run", "-m", &tiny(), "-p", "Once", "--seed", "7", "-n", "4", "--json"]);
    for key in ["model", "prompt", "text", "finish", "backend"] {
        assert!(json[key].is_string(), "{key}: {json}");
    }
    let rates = ["prompt_seconds", "prompt_tokens_per_second", "decode_seconds", "decode_tokens_per_second"];
    for key in rates {
        assert!(json[key].as_f64().is_some_and(|n| n > 0.0), "{key}: {json}");
    }
    assert_eq!((&json["prompt"], &json["seed"]), (&"Once".into(), &7.into()));
    assert_eq!((numbers(&json["ids"]).len(), &json["finish"]), (4, &"max_tokens".into()));
}

#[test]
fn the_shipped_model_runs_without_m_and_samples_as_its_generation_configuration_says() {
    let trike = Trike::new();
    let run = |more: &[&str]| {
        let args = [&["run", "-p", "Once upon a time", "-n", "40"], more].concat();
        let output = trike.command(&args).current_dir(repository()).output().unwrap();
        assert!(output.status.success());
        (utf8(output.stdout), utf8(output.stderr))
    };
    let (text, line) = run(&[]);
    assert!(text.starts_with("Once upon a time"), "{text}");
    let seed = line.trim_end().rsplit_once("; seed ").expect("a seed to run it again").1;
    assert_eq!(run(&["--seed", seed]).0, text);
    let same = ["--seed", seed, "--temperature", "0.7", "--top-p", "0.95"];
    assert_eq!(run(&same).0, text);
    let (greedy, line) = run(&["--temperature", "0"]);
    assert!(!line.contains("seed"), "{line}");
    assert!(greedy.starts_with("Once upon a time, there was a little girl named Lily."), "{greedy}");
}

#[test]
fn options_do_what_they_say() {
    let trike = Trike::new();
    let model = tiny();
    let run = |more: &[&str]| {
        trike.json(
            &[&["run", "-m", &model, "-p", "Once upon a time", "--temperature", "0", "--json"], more]
                .concat(),
        )
    };
    let plain = run(&["-n", "30"]);
    let text = plain["text"].as_str().unwrap();
    assert!(text.contains("Lily"), "{text}");
    let stopped = run(&["-n", "30", "--stop", "Lily", "--stop", "never said"]);
    assert_eq!(stopped["finish"], "stop");
    assert_eq!(stopped["text"], text.split("Lily").next().unwrap());
    assert_eq!(run(&["-n", "0"])["text"], "");
    let context = run(&["--activations", "f32"]);
    assert_eq!(context["finish"], "context");
    assert_eq!(numbers(&context["ids"]).len() + numbers(&context["prompt_ids"]).len(), 513);
    let beyond = run(&["-n", "600", "--window", "64", "--activations", "f32"]);
    assert_eq!(numbers(&beyond["ids"]).len(), 600);
    let penalized = run(&["-n", "60", "--repetition-penalty", "2"]);
    assert_ne!(penalized["text"], run(&["-n", "60"])["text"]);
    for isa in ["scalar", "avx2", "avx512-vnni"] {
        let args =
            ["run", "-m", &model, "-p", "Once upon a time", "--temperature", "0", "-n", "30", "--json"];
        let output = trike.output(&[&args[..], &["--isa", isa, "--threads", "1"]].concat());
        if output.status.success() {
            let json: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(json["text"], text, "{isa}");
            assert_eq!(json["backend"], format!("cpu ({isa}, 1 threads)"));
        } else {
            assert!(utf8(output.stderr).contains("instruction set"), "{isa}");
        }
    }
    for more in [
        ["--activations", "int16"],
        ["--activations", "int8-token"],
        ["--activations", "int8-group64"],
        ["--kv", "f32"],
        ["--head", "stored"],
    ] {
        let said = run(&[&["-n", "8"], &more[..]].concat());
        assert!(text.starts_with(said["text"].as_str().unwrap()), "{more:?}: {said}");
    }
}

#[test]
fn the_environment_names_options_and_the_command_line_wins() {
    let trike = Trike::new();
    let run = |args: &[&str]| {
        let mut command = trike.command(&[&["run", "-p", "Once", "--json"], args].concat());
        let command =
            command.env("TRIKE_MODEL", tiny()).env("TRIKE_TEMPERATURE", "0").env("TRIKE_MAX_TOKENS", "3");
        let output = command.env("TRIKE_QUIET", "1").output().unwrap();
        assert!(output.status.success(), "{}", utf8(output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let json = run(&[]);
    assert_eq!((numbers(&json["ids"]).len(), &json["seed"]), (3, &Value::Null));
    assert_eq!(numbers(&run(&["-n", "2"])["ids"]).len(), 2);
}

/// A run without an end.
fn endless(trike: &Trike) -> Child {
    let model = tiny();
    let args = ["run", "-m", &model, "-p", "Once upon a time", "--temperature", "0", "--window", "64"];
    trike.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_closed_pipe_ends_it_without_a_word() {
    let trike = Trike::new();
    let mut child = endless(&trike);
    let mut start = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut start).unwrap();
    assert_eq!(&start, b"Once upon ");
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), utf8(output.stderr)), (Some(0), String::new()));

    let mut child =
        trike.command(&["inspect", &tiny()]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), utf8(output.stderr)), (Some(0), String::new()));
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_text_and_still_shows_the_speed() {
    let trike = Trike::new();
    let mut child = endless(&trike);
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 200]).unwrap();
    let interrupt = format!("kill -INT {}", child.id());
    assert!(std::process::Command::new("sh").args(["-c", &interrupt]).status().unwrap().success());
    stdout.read_to_end(&mut Vec::new()).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = utf8(output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("ended by cancelled"), "{stderr}");
}

#[test]
fn quiet_says_nothing_but_the_text() {
    let args = ["run", "-q", "-m", &tiny(), "-p", "Once", "-n", "2", "--temperature", "0"];
    let (stdout, stderr) = Trike::new().both(&args);
    assert_eq!((stdout.as_str(), stderr.as_str()), ("Once upon a", ""));
}
