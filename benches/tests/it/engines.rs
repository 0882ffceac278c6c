//! Trike and programs that answer like `llama-bench`, in turns with the same file.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use trike_bench::{Engine, NotRun};
use trike_benches::{BASES, ENGINE_ISA, Plan, TRIKE, engine_setup, engines};
use trike_llm::{ConvertOptions, ModelFile, Target, convert};

/// Entries for a prompt of 8 and 4 tokens with one and two threads.
const ANSWER: &str = r#"
[ -f "$2" ] || exit 9
entry() {
    printf '{"build_commit": "abc123", "build_number": 77, "model_filename": "%s", "n_prompt": %s, "n_gen": %s,
        "n_threads": %s, "avg_ts": %s, "samples_ts": [%s]}' "$1" $2 $3 $4 $5 $5
}
echo "[$(entry "$2" 8 0 1 500), $(entry "$2" 0 4 1 50), $(entry "$2" 8 0 2 800), $(entry "$2" 0 4 2 80)]"
"#;

/// Fails from the second time on.
const BREAKS: &str = r#"
if [ -e "$0.ran" ]; then echo "out of memory" >&2; exit 1; fi
touch "$0.ran"
"#;

fn program(folder: &Path, name: &str, script: &str) {
    let folder = folder.join(name);
    fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("llama-bench");
    fs::write(&file, format!("#!/bin/sh\n{script}")).expect("a script");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("a program");
}

/// The bundled model as TQ2_0.
fn model(folder: &Path) -> PathBuf {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tiny");
    let file = folder.join("tiny-tq2.gguf");
    let options = ConvertOptions::new(Target::Tq2_0);
    convert(&ModelFile::open(tiny).expect("the model"), &file, &options, &mut |_, _| {}).expect("a file");
    file
}

#[test]
fn engines_take_turns_and_one_that_fails_is_left_out() {
    let dir = tempfile::tempdir().expect("a folder");
    let (file, rivals) = (model(dir.path()), dir.path().join("rivals"));
    program(&rivals, "llama.cpp", ANSWER);
    program(&rivals, "broken", &format!("{BREAKS}{ANSWER}"));
    program(&rivals, "other", "echo 'usage: llama-bench'");
    let setup = engine_setup(Some(&rivals), Some(&file)).expect("a setup").expect("asked for");
    assert_eq!((setup.prompt, setup.generate), (512, 32), "a prompt of at most the context");
    let mut setup = setup;
    (setup.prompt, setup.generate, setup.rounds) = (8, 4, 3);
    let mut said = String::new();
    let mut ceilings = Vec::new();
    let run = engines(&Plan::default(), &setup, &mut ceilings, &mut |line| said += &format!("{line}\n"))
        .expect("figures");

    let want = Engine { name: "llama.cpp".into(), commit: "abc123".into(), build: 77 };
    assert_eq!(run.engines, [want]);
    let not_run =
        |kernel: &str, reason: &str| NotRun { problem: None, kernel: kernel.into(), reason: reason.into() };
    assert_eq!(run.not_run[1], not_run("broken", "ended with exit status: 1"));
    assert_eq!(run.not_run[0].kernel, "other");
    assert!(run.not_run[0].reason.starts_with("its output is not the JSON of llama-bench"));
    assert!(said.contains("out of memory") && said.contains("broken/llama-bench"), "{said}");
    assert!(said.contains("tiny-tq2.gguf: round 3 of 3"), "{said}");

    let decode = run.measured.iter().take_while(|row| row.problem == "tiny-tq2 decode").count();
    let (decode, prefill) = run.measured.split_at(decode);
    assert!(prefill.iter().all(|row| row.problem == "tiny-tq2 prefill 8"));
    for (rows, speeds) in [(decode, [50.0, 80.0]), (prefill, [500.0, 800.0])] {
        let (ours, theirs): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.kernel == TRIKE);
        assert!(!ours.is_empty() && ours.len() == theirs.len());
        for ((ours, theirs), speed) in ours.iter().zip(&theirs).zip(speeds) {
            assert_eq!((theirs.kernel.as_str(), theirs.isa.as_str()), ("llama.cpp", ENGINE_ISA));
            assert_eq!((ours.rival, theirs.rival, ours.threads), (false, true, theirs.threads));
            assert_eq!(theirs.samples, [1.0 / speed; 3]);
            assert!(ours.samples.len() == 3 && ours.samples.iter().all(|&s| s > 0.0));
            assert_eq!(ours.cost, theirs.cost);
        }
    }
    let figures = trike_bench::figures(&run.measured, &ceilings, BASES);
    assert!(figures.iter().all(|row| row.share().is_some() != row.rival), "other engines have no shares");

    let unrelated = Plan { quick: false, filters: vec!["square m=1".into()] };
    let run = engines(&unrelated, &setup, &mut Vec::new(), &mut |_| {}).expect("nothing");
    assert!(run.measured.is_empty() && run.engines.is_empty());
}

#[test]
fn options_that_cannot_work_are_refused_before_measuring() {
    let dir = tempfile::tempdir().expect("a folder");
    assert!(engine_setup(None, None).expect("nothing asked for").is_none());
    assert!(engine_setup(None, Some(Path::new("m.gguf"))).expect("no engines").is_none());
    let refused = |model: Option<&Path>| engine_setup(Some(dir.path()), model).expect_err("no").to_string();
    assert!(refused(None).contains("TRIKE_RIVALS_MODEL"));
    assert!(refused(Some(Path::new("m.gguf"))).contains("no llama-bench"));
    program(dir.path(), "llama.cpp", ANSWER);
    assert!(refused(Some(Path::new("none.gguf"))).contains("none.gguf"));
    program(dir.path(), TRIKE, ANSWER);
    assert!(refused(Some(Path::new("none.gguf"))).contains("is named trike"));
}
