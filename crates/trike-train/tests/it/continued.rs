//! Resuming runs: with unchanged files, exclusively, and after values that JSON cannot represent.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use serde_json::Value;
use trike_comm::{CommError, Threads};
use trike_cpu::Cpu;
use trike_format::HfDirWriter;
use trike_llm::ModelConfig;
use trike_train::run::{Ended, LogLine, Run, RunConfig, RunEvent};
use trike_train::{Parameters, TernaryPolicy, TrainError, write_packed};

use crate::run::{Place, lines, train, weights};

/// Runs until `steps` steps are taken.
fn stopped(config: RunConfig, steps: usize) {
    let cpu = Cpu::new(1).expect("a thread");
    let report = Run::open(config).expect("a run").train(&cpu, &mut |event| match event {
        RunEvent::Step { report, .. } if report.step + 1 == steps => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    let report = report.expect("it stops");
    assert_eq!((report.ended, report.steps), (Ended::Interrupted, steps));
}

/// Another file of the same length.
type Edit = fn(&[u8]) -> Vec<u8>;

/// Changes the content of a file but not its length, and returns the original.
fn change(path: &Path, edit: Edit) -> Vec<u8> {
    let before = fs::read(path).expect("a file");
    let after = edit(&before);
    assert!(before.len() == after.len() && before != after);
    fs::write(path, after).expect("it is written");
    before
}

/// Flips a bit in the middle of the last value.
fn last_weight(bytes: &[u8]) -> Vec<u8> {
    let mut other = bytes.to_vec();
    other[bytes.len() - 3] ^= 1;
    other
}

/// With another word.
fn word(bytes: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(bytes).replacen("happy", "hasty", 1).into_bytes()
}

/// Swaps the ids of two tokens, of equal length.
fn two_tokens(bytes: &[u8]) -> Vec<u8> {
    let mut json: Value = serde_json::from_slice(bytes).expect("JSON");
    let vocab = json["model"]["vocab"].as_object_mut().expect("a vocabulary");
    let of_three_digits =
        vocab.iter().filter(|(_, id)| id.as_u64().is_some_and(|id| (400..420).contains(&id)));
    let keys: Vec<String> = of_three_digits.map(|(token, _)| token.clone()).collect();
    let [one, two] = [&keys[0], &keys[1]].map(|key| vocab[key].clone());
    (vocab[&keys[0]], vocab[&keys[1]]) = (two, one);
    json.to_string().into_bytes()
}

/// A change of the stored run, and the expected refusal.
type StateEdit<'e> = (&'e dyn Fn(&mut Value), String);

#[test]
fn a_run_continues_with_the_files_it_was_started_with() {
    let place = Place::new();
    let tokenizer: Value =
        serde_json::from_slice(&fs::read(place.at("tokenizer.json")).expect("a file")).expect("JSON");
    fs::write(place.at("words.json"), tokenizer.to_string()).expect("it is written");
    fs::create_dir(place.at("teacher")).expect("a folder");
    for entry in fs::read_dir(place.at("dense")).expect("a folder") {
        let from = entry.expect("a file").path();
        fs::copy(&from, place.at("teacher").join(from.file_name().expect("a name"))).expect("a copy");
    }
    let more = "base_model = 'dense'\ntokenizer = 'words.json'\nteacher = 'teacher'\nmax_steps = 6\nsave_steps = 2\nteacher_documents = 0";
    train(place.config("whole", more), 1).expect("a run");
    stopped(place.config("stopped", more), 3);
    let files: [(&str, &str, Edit); 4] = [
        ("stories.txt", "data", word),
        ("words.json", "tokenizer", two_tokens),
        ("dense/model.safetensors", "base model", last_weight),
        ("teacher/model.safetensors", "teacher", last_weight),
    ];
    for (name, part, edit) in files {
        let before = change(&place.at(name), edit);
        let log = fs::read(place.at("stopped/log.jsonl")).expect("a log");
        let error = train(place.config("stopped", more), 1).expect_err(name);
        let TrainError::Changed { what, file, expected, got, .. } = &error else { panic!("{error}") };
        assert_eq!((*what, place.at(name).ends_with(file)), (part, true), "{error}");
        let length = format!("{} bytes with SHA-256 ", before.len());
        assert!(expected.starts_with(&length) && got.starts_with(&length) && expected != got, "{error}");
        let short = file.as_str();
        assert!(error.to_string().contains(&format!("the {part} has changed: {short} was ")), "{error}");
        assert_eq!(fs::read(place.at("stopped/log.jsonl")).expect("a log"), log, "{name}");
        fs::write(place.at(name), before).expect("it is written");
    }
    let other = "base_model = 'dense'\ntokenizer = 'words.json'\nteacher = 'none'\nmax_steps = 6\nsave_steps = 2\nteacher_documents = 0";
    let error = train(place.config("stopped", other), 1).expect_err("no teacher").to_string();
    assert!(error.contains("teacher was \"given\", and is \"none\" now"), "{error}");
    // A checkpoint of another version, and one of a version without facts.
    let checkpoints = place.at("stopped/checkpoints");
    let newest =
        fs::read_dir(&checkpoints).expect("a folder").map(|entry| entry.expect("a file").path()).max();
    let path = newest.expect("a checkpoint").join("state.json");
    let state = fs::read_to_string(&path).expect("a file");
    let version = env!("CARGO_PKG_VERSION");
    let older = |state: &mut Value| {
        let facts = state.pointer_mut("/config/settings/facts/0").expect("the first fact");
        assert_eq!(facts.to_string(), format!("[\"the version of Trike\",\"{version}\"]"));
        facts[1] = "0.0.1".into();
    };
    let without =
        |state: &mut Value| state["config"]["settings"] = serde_json::json!({"run": {}, "files": []});
    let edits: [StateEdit<'_>; 2] = [
        (&older, format!("the version of Trike was 0.0.1, and is {version} now")),
        (&without, "it does not name its input files: ".to_owned()),
    ];
    for (edit, words) in edits {
        let mut other: Value = serde_json::from_str(&state).expect("JSON");
        edit(&mut other);
        fs::write(&path, other.to_string()).expect("it is written");
        let error = train(place.config("stopped", more), 1).expect_err(&words).to_string();
        assert!(error.contains(&words), "{error}");
    }
    fs::write(&path, state).expect("it is written");
    let mut added = place.config("stopped", more);
    added.datasets.push(added.datasets[0].clone());
    let error = train(added, 1).expect_err("more data").to_string();
    assert!(error.contains("the data has changed: stories.txt was absent"), "{error}");
    // File names and paths do not matter.
    fs::rename(place.at("stories.txt"), place.at("tales.txt")).expect("another name");
    fs::rename(place.at("teacher"), place.at("professor")).expect("another name");
    let mut moved = place.config("stopped", &more.replace("'teacher'", "'professor'"));
    moved.datasets[0].path = place.at("tales.txt");
    train(moved, 1).expect("it continues");
    assert_eq!(weights(&place.at("stopped")), weights(&place.at("whole")));
}

#[test]
fn ranks_with_other_data_are_refused() {
    let place = Place::new();
    let text = fs::read_to_string(place.at("stories.txt")).expect("a text");
    fs::write(place.at("other.txt"), text.replacen("happy", "hasty", 1)).expect("it is written");
    let errors = Threads::run(2, |comm| {
        let rank = trike_comm::Communicator::rank(&comm);
        let more = "base_model = 'dense'\nmax_steps = 2\ngradient_accumulation_steps = 32\n";
        let mut config = place.config(&format!("rank-{rank}"), more);
        if rank == 1 {
            config.datasets[0].path = place.at("other.txt");
        }
        let cpu = Cpu::new(1).expect("a thread");
        let run = Run::open_ranks(config, &comm).expect("a run");
        run.train_ranks(&cpu, &comm, &mut |_| ControlFlow::Continue(())).expect_err("they differ")
    });
    for error in errors {
        let TrainError::Comm(CommError::Differs { what, rank: 1, .. }) = &error else { panic!("{error}") };
        assert_eq!(what, "the data, other.txt");
    }
}

/// A second run in a directory is refused while the first one holds it, and changes nothing.
#[test]
fn a_directory_has_one_run_at_a_time() {
    let place = Place::new();
    let more = "base_model = 'dense'\nmax_steps = 6";
    let cpu = Cpu::new(1).expect("a thread");
    let mut refused = Vec::new();
    let first = Run::open(place.config("shared", more)).expect("a run").train(&cpu, &mut |event| {
        if let RunEvent::Started(_) | RunEvent::Step { .. } = event {
            let error = train(place.config("shared", more), 1).expect_err("it is taken");
            refused.push(error.to_string());
        }
        ControlFlow::Continue(())
    });
    assert_eq!(first.expect("a run").ended, Ended::Complete);
    assert_eq!(refused.len(), 7);
    let who = format!("process {}", std::process::id());
    assert!(refused.iter().all(|error| error.contains(&who) && error.contains("shared")), "{refused:?}");
    train(place.config("alone", more), 1).expect("a run");
    let steps = |name: &str| -> Vec<usize> {
        let of = |line: &LogLine| match line {
            LogLine::Steps(line) => line.step,
            LogLine::Evaluation(line) => line.step,
        };
        lines(&place.at(name)).iter().map(of).collect()
    };
    assert_eq!(steps("shared"), steps("alone"));
    assert_eq!(weights(&place.at("shared")), weights(&place.at("alone")));
    // Two runs are opened before either has started: the second one finds a model.
    let [one, two] = [(); 2].map(|()| Run::open(place.config("late", more)).expect("a run"));
    one.train(&cpu, &mut |_| ControlFlow::Continue(())).expect("a run");
    let before = weights(&place.at("late"));
    let late = two.train(&cpu, &mut |_| ControlFlow::Continue(())).expect_err("it is there").to_string();
    assert!(late.contains("contains a model") && weights(&place.at("late")) == before, "{late}");
}

/// A model whose logits are not finite: its evaluation is `null` in checkpoints, which can be read again; and since it cannot learn
/// anything, the run fails.
#[test]
fn runs_without_numbers_continue_and_fail() {
    let place = Place::new();
    let json: Value =
        serde_json::from_slice(&fs::read(place.at("config.json")).expect("a file")).expect("JSON");
    let config = ModelConfig::from_hf(&place.at("config.json"), &json).expect("a configuration");
    let mut parameters = Parameters::random(&config.spec, 3).expect("parameters");
    let norm = parameters.all_mut().iter_mut().rfind(|p| p.name.is_vector()).expect("a norm");
    // Finite, with infinite products of both signs.
    norm.values.fill(3e38);
    let mut writer = HfDirWriter::create(place.at("broken"), json).expect("a writer");
    write_packed(&mut writer, &parameters, &TernaryPolicy::DENSE).expect("it is written");
    writer
        .write_file("tokenizer.json", &fs::read(place.at("tokenizer.json")).expect("a file"))
        .expect("it is written");
    writer.finish().expect("it is written");
    let more = "base_model = 'broken'\nteacher = 'none'\nplanes = 0\nfp16 = true\nmax_steps = 4";
    stopped(place.config("run", more), 2);
    let start = lines(&place.at("run")).first().copied();
    let Some(LogLine::Evaluation(start)) = start else { panic!("{start:?}") };
    assert!(start.bits_per_token.is_nan());
    let error = train(place.config("run", more), 1).expect_err("nothing is learned");
    assert!(matches!(error, TrainError::NothingLearned { steps: 4 }), "{error}");
    assert!(!place.at("run/config.json").exists());
}
