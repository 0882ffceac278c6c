//! `trike quantize`.

use std::sync::LazyLock;

use serde_json::Value;
use trike_testkit::{assert_near, stories};

use crate::{
    device::software,
    harness::{Trike, shared, text, tiny},
};

/// A dense model, its tokenizer, and a short calibration and evaluation text that share no story.
pub(crate) struct Bench {
    pub(crate) trike: Trike,
    model: String,
    tokenizer: String,
    calibration: String,
    eval: String,
}

/// Tuning takes most of the time, and is skipped where it is not tested.
fn untuned(more: &[&str]) -> &'static [&'static str] {
    if more.iter().any(|arg| arg.starts_with("--tune")) { &[] } else { &["--no-tune"] }
}

impl Bench {
    pub(crate) fn new() -> Self {
        let trike = Trike::new();
        let [model, tokenizer] = trike.storyteller();
        let calibration = trike.write("calibration.txt", stories(1, 16, 300));
        let eval = trike.write("eval.txt", stories(2, 4, 300));
        Self { trike, model, tokenizer, calibration, eval }
    }

    /// The same with a trained model, which loses and regains more than a random one.
    fn trained() -> Option<Self> {
        let trike = Trike::new();
        let stories = |rel: &str, n: usize| -> Option<String> {
            let all = std::fs::read_to_string(shared(rel)?).unwrap();
            Some(all.split("<|endoftext|>").take(n).collect::<Vec<_>>().join("<|endoftext|>"))
        };
        Some(Self {
            model: shared("data/models/stories260K.bin")?,
            tokenizer: shared("data/tokenizers/tok512.bin")?,
            calibration: trike
                .write("calibration.txt", stories("data/corpora/tinystories_calibration.txt", 16)?),
            eval: trike.write("eval.txt", stories("data/corpora/tinystories_eval.txt", 4)?),
            trike,
        })
    }

    pub(crate) fn args<'a>(&'a self, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let mut args =
            vec!["quantize", "-m", &self.model, "--tokenizer", &self.tokenizer, "-o", out, "--json"];
        args.extend(["--calibration", &self.calibration, "--eval", &self.eval, "--group", "32"]);
        args.extend(more);
        args.extend(untuned(more));
        args
    }

    /// The arguments without a group and an evaluation text.
    pub(crate) fn bare(&self, out: &str, more: &[&str]) -> Vec<String> {
        let args = ["quantize", "-m", &self.model, "--tokenizer", &self.tokenizer, "-o", out, "--json"];
        let text = ["--calibration", &self.calibration];
        args.iter().chain(&text).chain(more).chain(untuned(more)).map(|&arg| arg.to_owned()).collect()
    }

    /// A run without an evaluation text: its page and its report.
    fn unasked(&self, name: &str, more: &[&str]) -> (String, Value) {
        let out = self.trike.path(name);
        let args = self.bare(&out, more);
        let report = self.trike.json(&args.iter().map(String::as_str).collect::<Vec<_>>());
        (std::fs::read_to_string(format!("{out}/report.html")).unwrap(), report)
    }

    /// A run without a group, evaluated on `stories` stories.
    pub(crate) fn run_with(&self, name: &str, more: &[&str], stories: usize) -> Value {
        let text = std::fs::read_to_string(&self.eval).unwrap();
        let few: Vec<&str> = text.split("<|endoftext|>").take(stories).collect();
        let eval = self.trike.write("few.txt", few.join("<|endoftext|>"));
        let out = self.trike.path(name);
        let args = self.bare(&out, &[more, &["--eval", &eval]].concat());
        self.trike.json(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn run(&self, name: &str, more: &[&str]) -> Value {
        let out = self.trike.path(name);
        self.trike.json(&self.args(&out, more))
    }

    /// The tensors of a result.
    fn weights(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.trike.path(&format!("{name}/model.safetensors"))).unwrap()
    }
}

/// Options of a short run, and its tensors: identical in every test, even after an interruption.
const SHORT: [&str; 4] = ["--planes", "1", "--sequences", "6"];
static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let bench = Bench::new();
    bench.run("whole", &SHORT);
    bench.weights("whole")
});

fn ratio(report: &Value) -> f64 {
    report["evaluation"]["ratio"].as_f64().unwrap()
}

/// At every number of planes compensation loses less than rounding, and more planes lose less: in nats, because the ratio of
/// perplexities on four stories has a standard error of 0.007. The result runs and matches the report.
#[test]
fn compensation_loses_less_than_rounding_and_planes_lose_less() {
    let Some(bench) = Bench::trained() else { return };
    let mut before = f64::INFINITY;
    for planes in ["1", "2", "3"] {
        let nats = |report: &Value| report["evaluation"]["kl"].as_f64().unwrap();
        let rounded =
            nats(&bench.run(&format!("rounded{planes}"), &["--planes", planes, "--method", "nearest"]));
        let name = format!("compensated{planes}");
        let report = bench.run(&name, &["--planes", planes]);
        let compensated = nats(&report);
        assert!(compensated < 0.7 * rounded, "{planes}: {compensated} of {rounded}");
        assert!(compensated < before, "{planes}: {compensated} of {before}");
        before = compensated;

        let out = bench.trike.path(&name);
        let saved: Value =
            serde_json::from_slice(&std::fs::read(format!("{out}/report.json")).unwrap()).unwrap();
        // The printed object equals the saved one, except for the schema version.
        let mut printed = report.clone();
        printed.as_object_mut().expect("an object").remove("schema_version");
        assert_eq!(saved, printed);
        assert!(!std::path::Path::new(&format!("{out}.partial")).exists());
        let score = bench.trike.json(&[
            "perplexity",
            "-m",
            &out,
            "-f",
            &bench.eval,
            "--head",
            "stored",
            "--kv",
            "f32",
            "--activations",
            "f32",
            "--json",
        ]);
        let (got, want) = (&score["perplexity"], &report["evaluation"]["perplexity_after"]);
        assert_near!(got.as_f64().unwrap(), want.as_f64().unwrap(), rel = 1e-6, "{got} {want}");
        let inspection = bench.trike.json(&["inspect", &out, "--json"]);
        assert_eq!(inspection["totals"]["bytes"], report["output_bytes"]);
        assert_eq!(inspection["totals"]["ternary_parameters"], report["ternary"]["parameters"]);
    }
    assert!(before < 1.1, "three planes are near the dense model: {before}");
}

#[test]
fn every_option_changes_the_model() {
    let bench = Bench::new();
    let weights = |name: &str| bench.weights(name);
    let (base, first) = (SHORT, &*WHOLE);
    // A repetition, on one thread, is byte-identical.
    bench.run("again", &[&base[..], &["--threads", "1"]].concat());
    assert!(weights("again") == *first, "not the same bytes twice");
    for (i, more) in [
        &["--mean"][..],
        &["--salience"],
        &["--rotate"],
        &["--rotate=2"],
        &["--hadamard"],
        &["--hadamard=4"],
        &["--coupling", "free", "--planes", "2"],
        &["--planes", "2"],
        &["--damping", "0.2"],
        &["--plain"],
        &["--method", "nearest"],
        &["--method", "absmean"],
        &["--method", "twn"],
        &["--method", "absmax"],
        &["--encoding", "2bit"],
        &["--head", "int8"],
        &["--skip", "layers.0.*down"],
        &["--min-size", "5000"],
        &["--split", "window"],
        &["--group", "row"],
        &["--sequences", "3"],
        &["--tune-block-epochs", "12", "--tune-model-epochs", "0"],
        &["--tune-block-epochs", "0", "--tune-model-epochs", "1"],
    ]
    .iter()
    .enumerate()
    {
        let name = format!("other{i}");
        // Most options must not be repeated: leave out those given again.
        let kept = base.chunks(2).filter(|pair| !more.contains(&pair[0])).flatten().copied();
        let mut args: Vec<&str> = kept.chain(more.iter().copied()).collect();
        let out = bench.trike.path(&name);
        let mut all =
            vec!["quantize", "-m", &bench.model, "--tokenizer", &bench.tokenizer, "-o", &out, "--json"];
        all.extend(["--calibration", &bench.calibration]);
        if !more.contains(&"--group") {
            args.extend(["--group", "32"]);
        }
        all.extend(args);
        // The base run has the same, so that only the option makes the difference.
        all.extend(untuned(more));
        let (stdout, stderr) = bench.trike.both(&all);
        // In so few steps tuning may gain nothing in some blocks: only that may be reported.
        let some = more[0] == "--tune-block-epochs" && stderr.lines().count() == 1;
        let said = some && stderr.starts_with("tuning gained nothing in ");
        assert!(stderr.is_empty() || said, "{more:?}: {stderr}");
        let report: Value = serde_json::from_str(&stdout).expect("JSON");
        assert!(weights(&name) != *first, "{more:?}");
        let kept = report["layers"].as_array().unwrap().iter().filter(|l| !l["kept"].is_null()).count();
        let expected = match more[0] {
            "--skip" => 1,
            "--min-size" => 20,
            _ => 0,
        };
        assert_eq!(kept, expected, "{more:?}");
    }
}

#[test]
fn an_interrupted_run_goes_on_and_gives_the_same_model() {
    let bench = Bench::new();
    let args = SHORT;
    let out = bench.trike.path("broken");
    let finished = bench.trike.path("broken.partial/block-0/config.json");
    let mut child =
        bench.trike.command(&bench.args(&out, &args)).stdout(std::process::Stdio::null()).spawn().unwrap();
    while !std::path::Path::new(&finished).exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be stopped");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!std::path::Path::new(&out).exists(), "half a model");
    let kept = std::fs::metadata(&finished).unwrap().modified().unwrap();
    // Other options start over, and the same ones resume.
    let report = bench.run("broken", &args);
    assert!(bench.weights("broken") == *WHOLE);
    assert_eq!(report["layers"].as_array().unwrap().len(), 35);
    assert!(kept < std::fs::metadata(&out).unwrap().modified().unwrap());
    // A directory not created by Trike is not removed.
    let mine = bench.trike.path("mine.partial");
    std::fs::create_dir(&mine).unwrap();
    let error = bench.trike.fails(2, &bench.args(&bench.trike.path("mine"), &args));
    assert!(error.contains("mine.partial"), "{error}");
    assert!(std::path::Path::new(&mine).exists());
}

#[test]
fn quality_is_measured_without_being_asked_on_text_that_was_held_out() {
    let bench = Bench::new();
    let (page, report) = bench.unasked("one", &["--planes", "2", "--group", "32"]);
    let e = &report["evaluation"];
    assert_eq!(
        (&e["source"], &e["searched"], &e["sequences"]),
        (&"held_out".into(), &false.into(), &4.into())
    );
    assert_eq!(report["calibration_sequences"], 12, "of sixteen stories four are held out");
    for key in ["ratio", "ratio_error", "kl", "kl_error"] {
        assert!(e[key].as_f64().unwrap() > 0.0, "{key}: {e}");
    }
    let verdict = report["verdict"]["sentence"].as_str().unwrap();
    assert!(verdict.contains("held out from the calibration text"), "{verdict}");
    let figures = format!("ratio {:.4} ± {:.4}", ratio(&report), e["ratio_error"].as_f64().unwrap());
    assert!(verdict.contains(&figures), "{verdict}");
    // The most important information comes first.
    let at = |part: &str| page.find(part).unwrap_or_else(|| panic!("{part}"));
    assert!(at(verdict) < at("id=\"samples\"") && at("id=\"samples\"") < at("id=\"alternatives\""));
    assert!(at("id=\"alternatives\"") < at("id=\"layers\""));
    // The command, with the paths as given, the version and the date.
    let command = report["command"].as_str().unwrap();
    assert!(command.starts_with("trike quantize -m ") && command.contains("--planes 2"), "{command}");
    let date = report["date"].as_str().unwrap();
    assert!(date.starts_with("20") && date.ends_with(" UTC"), "{date}");
    for part in [command, date, report["version"].as_str().unwrap(), report["model"].as_str().unwrap()] {
        assert!(page.contains(part), "{part}");
    }
    let samples = report["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 3);
    for sample in samples {
        let of = |key: &str| sample[key].as_str().unwrap();
        assert!(
            !of("prompt").trim().is_empty() && of("dense").len() > 20 && of("ternary").len() > 20,
            "{sample}"
        );
    }
    // Sizes are listed without measurement, quality is not.
    let alternatives = report["alternatives"].as_array().unwrap();
    let current: Vec<_> = alternatives.iter().filter(|a| a["current"] == true).collect();
    assert_eq!((current.len(), &current[0]["bytes"]), (1, &report["output_bytes"]));
    let three = alternatives.iter().find(|a| a["planes"] == 3).unwrap();
    assert!(three["kl"].is_null() && three["predicted_kl"].is_null(), "{three}");
    let (_, larger) = bench.unasked("two", &["--planes", "3", "--group", "32"]);
    assert_eq!(three["bytes"], larger["output_bytes"]);
    // With an evaluation text, nothing is held out.
    let given = bench.run("three", &["--planes", "2"]);
    assert_eq!(
        (&given["evaluation"]["source"], &given["calibration_sequences"]),
        (&"given".into(), &16.into())
    );
}

#[test]
fn text_that_a_search_used_is_said_to_be_so() {
    let bench = Bench::new();
    let more = ["--target", "0.002nats", "--sequences", "8", "--planes", "3", "--group", "64"];
    let (page, report) = bench.unasked("searched", &more);
    assert_eq!(report["evaluation"]["searched"], true);
    assert!(page.contains("on which the precision of the layers was also chosen"));
    // By default it is a search for 2 %, with a few trials.
    let (_, wished) = bench.unasked("nothing", &["--sequences", "8", "--group", "64"]);
    assert_eq!(wished["planning"]["budget"], "a perplexity of at most 1.02 times the dense model's");
    let trials = wished["planning"]["trials"].as_array().unwrap();
    assert!((1..=3).contains(&trials.len()), "{trials:?}");
    // The figures are those of the trial that became the result.
    let of_trials = trials.iter().map(|trial| trial["ratio"].as_f64().unwrap());
    let least = of_trials.map(|of_trial| (of_trial - ratio(&wished)).abs()).fold(f64::INFINITY, f64::min);
    assert!(least < 1e-6, "{least}: {trials:?}");
    let met = trials.iter().any(|trial| trial["met"] == true);
    let said =
        wished["notes"].as_array().unwrap().iter().any(|note| note.to_string().contains("not reached"));
    assert_eq!(met, !said);
    // A plan for bits leaves unused text for evaluation, if there is enough.
    let calibration = bench.trike.write("long.txt", stories(3, 300, 300));
    let out = bench.trike.path("fresh");
    let mut args =
        bench.bare(&out, &["--target", "3.2bpw", "--sequences", "40", "--planes", "2", "--group", "64"]);
    let at = args.iter().position(|arg| *arg == bench.calibration).unwrap();
    args[at] = calibration;
    let fresh = bench.trike.json(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(fresh["evaluation"]["searched"], false);
    assert!(fresh["evaluation"]["tokens"].as_u64().unwrap() >= 1000);
    // Every uniform setting with sensitivities of all layers has its estimate.
    let alternatives = report["alternatives"].as_array().unwrap();
    let known = |a: &Value| a["predicted_kl"].as_f64().is_some_and(|kl| kl > 0.0);
    assert!(alternatives.iter().any(known), "{alternatives:?}");
}

#[test]
fn text_in_a_language_that_the_model_does_not_know_is_said_to_be_so() {
    let mut bench = Bench::new();
    let said = |bench: &Bench, name: &str| {
        let report = bench.run(name, &["--planes", "2"]);
        let notes = report["notes"].as_array().unwrap().clone();
        notes.iter().any(|note| note.as_str().unwrap().contains("predicts the calibration text badly"))
    };
    assert!(!said(&bench, "stories"));
    let german = "Es war einmal ein kleines M\u{e4}dchen, das lebte mit seiner Mutter am Rande des Waldes. Eines Tages \
                  sollte es der kranken Gro\u{df}mutter Kuchen und Wein bringen, und dabei nicht vom Weg abgehen.\n<|endoftext|>\n";
    bench.calibration = bench.trike.write("german.txt", german.repeat(8));
    assert!(said(&bench, "german"));
}

/// A file size limit simulates a full disk: blocks fit, but the assembled model does not.
#[cfg(unix)]
#[test]
fn a_disk_that_is_full_leaves_finished_blocks() {
    let bench = Bench::new();
    let options = SHORT;
    let length = |path: &str| std::fs::metadata(bench.trike.path(path)).unwrap().len();
    // Half of the model, in units of 512 bytes.
    let most = WHOLE.len() / 1024;
    let out = bench.trike.path("full");
    let words = bench.args(&out, &options).join("' '");
    let line = format!("trap '' XFSZ; ulimit -f {most}; exec trike '{words}'");
    let output = bench.trike.shell(&line).output().unwrap();
    let stderr = crate::harness::utf8(output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let advice = "help: make room there and run the same command again: finished blocks are kept";
    let last: Vec<&str> = stderr.lines().rev().take(2).collect();
    assert_eq!(last, ["more: trike explain output", advice], "{stderr}");
    assert!(!std::path::Path::new(&out).exists(), "half a model");
    for block in 0..5 {
        assert!(length(&format!("full.partial/block-{block}/model.safetensors")) > 0);
    }
    bench.run("full", &options);
    assert!(bench.weights("full") == *WHOLE);
}

#[cfg(unix)]
#[test]
fn ctrl_c_says_that_the_same_command_continues_if_it_does() {
    let bench = Bench::new();
    let out = bench.trike.path("broken");
    let args = bench.args(&out, &["--planes", "1"]);
    let finished = bench.trike.path("broken.partial/block-0/config.json");
    let mut child = bench
        .trike
        .command(&args)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    while !std::path::Path::new(&finished).exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be stopped");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let interrupt = format!("kill -INT {}", child.id());
    assert!(std::process::Command::new("sh").args(["-c", &interrupt]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let stderr = crate::harness::utf8(output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert_eq!(stderr, "interrupted: run the same command again to continue\n");
    bench.trike.json(&args);
}

#[cfg(unix)]
#[test]
fn text_that_the_model_wrote_outlives_an_interruption() {
    let trike = Trike::new();
    let [model, tokenizer] = trike.storyteller();
    let out = trike.path("out");
    let text = trike.path("out.text/sequences.jsonl");
    let written = || std::fs::read_to_string(&text).unwrap_or_default();
    let command = ["quantize", "-m", &model, "--tokenizer", &tokenizer, "-o", &out, "--planes", "1"];
    let mut child = trike
        .command(&[&command[..], &["--sequences", "500"]].concat())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    while written().is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be stopped");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let interrupt = format!("kill -INT {}", child.id());
    assert!(std::process::Command::new("sh").args(["-c", &interrupt]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let stderr = crate::harness::utf8(output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert_eq!(stderr, "interrupted: run the same command again to continue\n");
    let first = written().lines().next().unwrap().to_owned();
    // A second, shorter run starts with that text and removes it at its end.
    let mut child =
        trike.command(&[&command[..], &["--sequences", "1", "--plain", "-q"]].concat()).spawn().unwrap();
    let mut kept = written();
    while child.try_wait().unwrap().is_none() {
        kept = Some(written()).filter(|text| !text.is_empty()).unwrap_or(kept);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(child.wait().unwrap().success() && kept.starts_with(&first), "{kept}");
    assert!(std::path::Path::new(&out).is_dir() && !std::path::Path::new(&trike.path("out.text")).exists());
}

#[test]
fn what_cannot_be_done_is_refused_and_leaves_nothing() {
    let trike = Trike::new();
    let out = trike.path("out");
    let (short, empty) = (trike.write("short.txt", "Hi"), trike.write("empty.txt", ""));
    let model = trike.path("dense");
    trike.stdout(&["convert", &tiny(), &model, "--to", "f16", "--embeddings", "f16"]);
    let error = trike.fails(1, &["quantize", "-m", &model, "-o", &model, "-c", &short]);
    assert!(error.contains("exists"), "{error}");
    let error = trike.fails(1, &["quantize", "-m", &model, "-o", &out, "-c", &short]);
    assert!(error.contains("at least 16"), "{error}");
    for (more, part) in [
        (&["--group", "tensor"][..], "one scale per row or group"),
        (&["--damping", "0"], "damping"),
        (&["--method", "absmean", "--planes", "2"], "rule cannot be combined with coupling tied"),
        (&["--skip", "*"], "every layer"),
        (&["--prune-by", "wanda"], "require --prune"),
        (&["--guided", "--method", "nearest"], "requires --method compensate"),
        (&["--prune", "0.5", "--prune-pattern", "2:4"], "combined with an N:M pattern"),
        (&["--eval", &short, "--curve", "--method", "absmean", "--planes", "1"], "one to four planes"),
        (&["--eval", &empty], "empty.txt"),
    ] {
        let other =
            ["--prune", "--prune-by", "--guided", "--eval"].contains(&more[0]) && !more.contains(&"--curve");
        let error = trike.fails(
            if other { 1 } else { 2 },
            &[&["quantize", "-m", &model, "-o", &out, "-c", &short], more].concat(),
        );
        assert!(error.contains(part), "{error}");
    }
    trike.fails(2, &["quantize", "-m", &model, "-o", &out, "--planes", "7"]);
    assert!(!std::path::Path::new(&out).exists());
    assert!(!std::path::Path::new(&text(format!("{out}.partial").into())).exists());
}

#[test]
fn a_ternary_model_is_refused_before_anything_is_measured() {
    let trike = Trike::new();
    let out = trike.path("out");
    let plan = trike.path("plan.json");
    for more in [
        &["-o", &out][..],
        &["-o", &out, "--target", "1.1x"],
        &["-o", &plan, "--target", "2bpw", "--plan-only"],
    ] {
        let error = trike.fails(1, &[&["quantize", "-m", &tiny(), "--sequences", "1"], more].concat());
        assert!(error.contains("every layer is ternary already") && error.contains("-m"), "{error}");
    }
    let left: Vec<_> = std::fs::read_dir(trike.path("")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn without_a_text_the_model_writes_its_own_and_the_seed_says_which() {
    let bench = Bench::new();
    let weights = |name: &str, seed: &str| {
        let out = bench.trike.path(name);
        let model = ["quantize", "-m", &bench.model, "--tokenizer", &bench.tokenizer, "-o", &out, "--json"];
        let more = ["--planes", "1", "--sequences", "1", "--seed", seed, "--group", "32", "--no-tune"];
        let report = bench.trike.json(&[&model[..], &more].concat());
        assert_eq!(report["calibration_sequences"], 1);
        assert_eq!(report["evaluation"]["source"], "generated");
        let sentence = report["verdict"]["sentence"].as_str().unwrap();
        assert!(sentence.contains("generated by the dense model (other text may lose more)"), "{sentence}");
        assert_eq!(report["evaluation"]["text"], "text generated by the dense model");
        std::fs::read(format!("{out}/model.safetensors")).unwrap()
    };
    let first = weights("a", "1");
    assert!(first == weights("b", "1") && first != weights("c", "2"));
}

#[test]
fn tuning_that_gains_nothing_changes_nothing_and_says_so() {
    let bench = Bench::new();
    let (_, plain) = bench.unasked("plain", &["--planes", "1"]);
    let out = bench.trike.path("overdone");
    // A level of every code in each step.
    let overdone =
        ["--planes", "1", "--tune-rate", "1", "--tune-block-epochs", "3", "--tune-model-epochs", "3"];
    let mut args = bench.bare(&out, &overdone);
    args.retain(|arg| arg != "--no-tune");
    let (stdout, stderr) = bench.trike.both(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let says = [
        "tuning gained nothing in 5 of 5 blocks, which stay as they were: 0, 1, 2, 3, 4",
        "tuning of the whole model gained nothing on held-out text: the weights stay as they were",
    ];
    let report: Value = serde_json::from_str(&stdout).expect("JSON");
    for sentence in says {
        assert!(stderr.contains(sentence), "{stderr}");
        assert!(report["notes"].as_array().expect("notes").iter().any(|note| note == sentence), "{report}");
    }
    let model = &report["tuned_model"];
    assert_eq!((&model["before"], &model["kept"]), (&model["after"], &false.into()));
    assert_eq!(report["evaluation"]["kl"], plain["evaluation"]["kl"], "the weights are those of --no-tune");
}

#[test]
fn a_device_that_tunes_nothing_is_refused() {
    let bench = Bench::new();
    let out = bench.trike.path("refused");
    let none = ["--tune-block-epochs", "0", "--tune-model-epochs", "0"];
    for (device, more, says) in [
        ("vulkan", &["--no-tune"][..], "--no-tune"),
        ("vulkan", &["--plain"], "--plain"),
        ("vulkan", &["--plan-only"], "--plan-only"),
        ("vulkan", &["--method", "nearest"], "device vulkan:0: it only tunes, and nothing is tuned"),
        ("vulkan", &["--coupling", "free", "--planes", "2"], "nothing is tuned"),
        ("auto", &none, "device auto"),
        ("cuda:0,cuda:1", &[], "a single device, got 2"),
        ("gpu", &[], "unknown device"),
        ("wgpu:4242", &[], "wgpu:4242"),
    ] {
        let mut args = bench.bare(&out, &[&["--device", device], more].concat());
        args.retain(|arg| arg != "--no-tune");
        args.extend(more.iter().filter(|arg| **arg == "--no-tune").map(|&arg| arg.to_owned()));
        let error = bench.trike.fails(2, &args.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(error.contains(says), "{error}");
        assert!(
            !std::path::Path::new(&out).exists() && !std::path::Path::new(&format!("{out}.text")).exists()
        );
    }
}

#[test]
fn a_device_tunes_and_is_in_the_report() {
    let Some(device) = software() else { return };
    let trike = Trike::new();
    let [model, tokenizer] = trike.storyteller();
    let story = trike.write("story.txt", stories(1, 3, 12));
    let report = |more: &[&str]| {
        let out = trike.path(&format!("out{}", more.len()));
        let args = ["quantize", &model, "--tokenizer", &tokenizer, "-c", &story, "-p", "1", "-g", "32"];
        let tuned = ["--tune-block-epochs", "1", "--tune-model-epochs", "0", "-o", &out, "--json", "-q"];
        // Only the first block: the driver takes long.
        let skipped = ["layers.1", "layers.2", "layers.3", "layers.4"].map(|name| ["--skip", name]);
        trike.json(&[&args[..], &tuned, skipped.as_flattened(), more].concat())
    };
    let (host, on_device) = (report(&[]), report(&["--device", device]));
    let is_named = |report: &Value| {
        let notes = report["notes"].as_array().expect("notes");
        notes.iter().any(|note| note.as_str().unwrap().starts_with(&format!("tuned on {device}")))
    };
    assert!(is_named(&on_device) && !is_named(&host), "{on_device}");
    // The loss of the same weights.
    let before = |report: &Value| report["tuned_blocks"][0][1]["before"].as_f64().expect("a loss");
    assert_near!(before(&on_device), before(&host), rel = 1e-4);
}

#[test]
fn a_recovery_goes_on_where_tuning_ends() {
    let Some(bench) = Bench::trained() else { return };
    let tuned = ["--planes", "2", "--tune-block-epochs", "0", "--tune-model-epochs", "2"];
    let (_, before) = bench.unasked("tuned", &tuned);
    assert!(before["recovered"].is_null());
    let (page, report) = bench.unasked("recovered", &[&tuned[..], &["--recover", "0.3"]].concat());
    assert_eq!(report["tuned_model"]["after"], before["tuned_model"]["after"], "the same until then");
    let of = |field: &str| report["recovered"][field].as_f64().expect("a number");
    // It starts with the tuned weights, and is never worse.
    let tuned = report["tuned_model"]["after"].as_f64().expect("a number");
    assert_near!(of("before"), tuned, rel = 1e-3);
    assert!(of("steps") > 0.0 && of("after") <= of("before") && of("seconds") >= 17.0, "{report}");
    assert_eq!(report["recovered"]["kept"], of("after") < of("before"));
    assert!(page.contains(">recovery<"));
    let out = bench.trike.path("refused");
    for (code, more, says) in [
        (2, &["--method", "nearest"][..], "rounding is not tuned"),
        (2, &["--no-tune"], "--recover"),
        (1, &["--target", "0.1nats"], "--recover"),
        (1, &["--target", "1.1x"], "--recover"),
    ] {
        let mut args = bench.bare(&out, &["--recover", "1"]);
        args.retain(|arg| arg != "--no-tune");
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        let error = bench.trike.fails(code, &args.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn prices_of_an_interrupted_plan_are_those_of_its_target() {
    let bench = Bench::new();
    let goals = ["1.05x", "2.5bpw"];
    let weights = |name: &str| bench.weights(name);
    for goal in goals {
        bench.unasked(&format!("whole{goal}"), &["--target", goal]);
    }
    for (goal, next) in [(0, 1), (1, 0), (0, 0), (1, 1)].map(|(a, b)| (goals[a], goals[b])) {
        let name = format!("broken{goal}{next}");
        let out = bench.trike.path(&name);
        let prices = format!("{out}.plan/sensitivities.json");
        let args = bench.bare(&out, &["--target", goal]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut child = bench.trike.command(&args).stdout(std::process::Stdio::null()).spawn().unwrap();
        while !std::path::Path::new(&prices).exists() {
            assert!(child.try_wait().unwrap().is_none(), "it ended before it could be stopped");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        bench.unasked(&name, &["--target", next]);
        assert!(weights(&name) == weights(&format!("whole{next}")), "{goal}, then {next}");
        assert!(!std::path::Path::new(&prices).exists());
    }
}

#[test]
fn a_quality_can_be_planned_without_a_trial() {
    use trike::calibrate::{Budget, Calibration, ModelQuantizationConfig, PlanOptions, quantize_to};
    let bench = Bench::new();
    let input = trike::llm::ModelFile::open(&bench.model).unwrap();
    let out = bench.trike.path("planned");
    let text = std::fs::read_to_string(&bench.calibration).unwrap();
    let calibration = Calibration::Text { text: &text, split: trike::Split::Stories, limit: None };
    let config = ModelQuantizationConfig::default()
        .with_tokenizer(Some(bench.tokenizer.clone().into()))
        .with_tuning(None)
        .with_hold_out(true);
    let options = PlanOptions::new(Budget::Divergence(0.05)).with_trials(0);
    let report =
        quantize_to(&input, out.as_ref(), &calibration, &config, &options, &mut |_, _, _| ()).unwrap();
    assert!(report.notes.iter().any(|note| note.contains("no trial was measured")), "{:?}", report.notes);
    let planning = report.planning.unwrap();
    assert!(planning.trials.is_empty());
    let stored: std::collections::BTreeSet<_> = report.layers.iter().map(|layer| &layer.stored).collect();
    assert!(stored.len() > 1, "one precision for all: {stored:?}");
}

#[test]
fn the_output_has_a_name_and_the_verdict_comes_first() {
    let trike = Trike::new();
    let [model, tokenizer] = trike.storyteller();
    let story = trike.write("story.txt", trike_testkit::stories(1, 7, 250));
    let quantize =
        ["quantize", &model, "--tokenizer", &tokenizer, "-c", &story, "--no-tune", "--planes", "2", "-q"];
    let text = trike.stdout(&quantize);
    let out = "stories260K-ternary";
    assert!(std::path::Path::new(&trike.path(out)).join("report.html").exists());
    let report: Value =
        serde_json::from_slice(&std::fs::read(trike.path(&format!("{out}/report.json"))).unwrap()).unwrap();
    assert!(text.starts_with(report["verdict"]["sentence"].as_str().expect("a sentence")), "{text}");
    assert!(text.ends_with(&format!("try it: trike run {out} \"Once upon a time\"\n")), "{text}");
    let layer = "model.layers.0.self_attn.q_proj.weight";
    assert!(!text.contains(layer), "{text}");
    let error = trike.fails(1, &quantize);
    assert!(error.contains(&format!("{out} exists: remove it or choose another output")), "{error}");
    let verbose = trike.stdout(&[&quantize[..], &["-o", "other", "--verbose"]].concat());
    assert!(verbose.contains(layer) && verbose.contains("written to other;"), "{verbose}");
    let usage = trike.fails(2, &["quantize", "--frobnicate"]);
    assert!(!usage.contains("--output"), "{usage}");
}
