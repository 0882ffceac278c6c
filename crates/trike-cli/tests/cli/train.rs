//! `trike train`.

use std::{path::Path, process::Stdio, thread::sleep, time::Duration};

use crate::harness::{Trike, tiny};

/// Training stories.
fn stories(trike: &Trike) -> String {
    let story = |i: usize| {
        let animal = ["cat", "dog", "bird", "fish", "frog"][i % 5];
        format!("Once upon a time, there was a {animal}. It had {i} friends. They were happy.")
    };
    trike.write("stories.txt", (0..30).map(story).collect::<Vec<_>>().join("\n<|endoftext|>\n"))
}

/// A run of a few steps on the bundled model.
fn args<'a>(model: &'a str, data: &'a str, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let fixed = ["train", "--from", model, "-d", data, "-o", out, "--batch", "1", "--length", "32"];
    [&fixed[..], more].concat()
}

#[test]
fn a_model_is_trained_and_runs() {
    let trike = Trike::new();
    let (model, data, out) = (tiny(), stories(&trike), trike.path("out"));
    let run = args(&model, &data, &out, &["--steps", "6", "--group", "32"]);
    let plan = trike.json(&[&run[..], &["--check", "--json"]].concat());
    assert_eq!((plan["steps"].as_u64(), plan["tokens_per_step"].as_u64()), (Some(6), Some(64)));
    assert!(
        plan["seconds_per_step"].as_f64().is_some_and(|seconds| seconds > 0.0) && !Path::new(&out).exists()
    );
    let (text, said) = trike.both(&run);
    assert!(text.contains("6 of 6") && text.contains("ratio to the teacher"), "{text}");
    assert_eq!(said, "");
    let story = trike.stdout(&["run", "-m", &out, "-p", "Once upon a time", "-n", "8", "--temperature", "0"]);
    assert!(story.starts_with("Once upon a time"), "{story}");
    let again = trike.fails(2, &run);
    assert!(again.contains("contains a model"), "{again}");
    // The written configuration can be read again.
    let config = format!("{out}/run.toml");
    let other = trike.path("other");
    let report = trike.json(&["train", &config, "-o", &other, "--json"]);
    assert_eq!(report["ended"], "complete");
    let weights = |dir: &str| std::fs::read(format!("{dir}/model.safetensors")).expect("weights");
    assert_eq!(weights(&out), weights(&other));
}

#[test]
fn what_is_missing_or_wrong_is_said_with_the_option() {
    let trike = Trike::new();
    let (model, data, out) = (tiny(), stories(&trike), trike.path("out"));
    let fails = |more: &[&str], code: i32| trike.fails(code, &args(&model, &data, &out, more));
    assert!(fails(&[], 2).contains("--minutes, --steps or --epochs"));
    assert!(fails(&["--steps", "1", "--minutes", "1"], 2).contains("cannot be used with"));
    let rate = fails(&["--steps", "1", "--learning-rate", "99"], 2);
    assert!(rate.contains("learning_rate") && rate.contains("--learning-rate"), "{rate}");
    let length = trike
        .fails(2, &["train", "--from", &model, "-d", &data, "-o", &out, "--steps", "1", "--length", "99999"]);
    assert!(length.contains("set it with --length"), "{length}");
    assert!(!Path::new(&out).exists());
    let broken = trike.write("broken.jsonl", "{\"text\": \"a story about a dog\"}\n{\"text\": 1}\n");
    let error = trike.fails(1, &args(&model, &broken, &out, &["--steps", "9"]));
    assert!(error.contains("broken.jsonl, line 2"), "{error}");
    let empty = trike.write("empty.txt", " \n");
    let error = trike.fails(1, &args(&model, &empty, &out, &["--steps", "1"]));
    assert!(error.contains("--data"), "{error}");
    let toml = trike.write("run.toml", "base_model = 'x'\nlearnig_rate = 1\n");
    let error = trike.fails(2, &["train", &toml]);
    assert!(error.contains("learnig_rate") && error.contains("line 2"), "{error}");
    let other = trike.write("other.csv", "a");
    assert!(trike.fails(2, &args(&model, &other, &out, &["--steps", "1"])).contains(".jsonl"));
    assert!(trike.fails(2, &["train"]).contains("--from"));
}

/// A run killed at arbitrary moments ends with the same weights.
#[test]
fn a_run_that_is_killed_again_and_again_ends_with_the_same_weights() {
    let trike = Trike::new();
    let (model, data) = (tiny(), stories(&trike));
    // A checkpoint after every step, so that many kills are within one.
    let config = trike.write("run.toml", "save_steps = 1\neval_steps = 20\n");
    let run = |out: &str| -> Vec<String> {
        let more = ["--steps", "30", "--quiet"];
        let mut all: Vec<String> = args(&model, &data, out, &more).iter().map(ToString::to_string).collect();
        all.insert(1, config.clone());
        all
    };
    let (whole, killed) = (trike.path("whole"), trike.path("killed"));
    trike.stdout(&run(&whole).iter().map(String::as_str).collect::<Vec<_>>());
    let mut seed = 12345u32;
    for _ in 0..20 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let mut child = trike
            .command(&run(&killed).iter().map(String::as_str).collect::<Vec<_>>())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        sleep(Duration::from_millis(u64::from(seed >> 23)));
        child.kill().expect("it is killed");
        child.wait().expect("it ends");
    }
    if !Path::new(&killed).join("config.json").exists() {
        trike.stdout(&run(&killed).iter().map(String::as_str).collect::<Vec<_>>());
    }
    let weights = |dir: &str| std::fs::read(format!("{dir}/model.safetensors")).expect("weights");
    assert!(weights(&whole) == weights(&killed));
}
