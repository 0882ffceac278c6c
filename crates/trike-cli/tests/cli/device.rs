//! `--device`: a model runs on the software Vulkan driver as on the CPU, a missing device is refused by name, and `auto` falls back
//! to the CPU without a GPU.

use std::sync::OnceLock;
use trike_testkit::{assert_near, skip};

use serde_json::Value;

use crate::harness::{Trike, tiny};

/// The devices listed by `trike doctor`.
fn devices() -> &'static [Value] {
    static DEVICES: OnceLock<Vec<Value>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let json = Trike::new().json(&["doctor", "--json", "--threads", "1"]);
        json["devices"].as_array().expect("a list").clone()
    })
}

/// The software driver; if there is none, `None` after printing a line that the test runner counts.
pub(crate) fn software() -> Option<&'static str> {
    let found = devices().iter().find(|device| device["software"] == true);
    if found.is_none() {
        skip(if cfg!(feature = "wgpu") { "no Vulkan driver" } else { "built without the feature wgpu" });
    }
    found.map(|device| device["name"].as_str().expect("a name"))
}

#[test]
fn devices_that_are_none_are_wrong_usage() {
    let trike = Trike::new();
    let out = trike.path("logits.npy");
    for (name, part) in
        [("gpu", "--device"), ("cuda:first", "cuda:first"), ("wgpu:4242", "wgpu:4242"), ("cuda:77", "cuda")]
    {
        for args in [
            vec!["run", "-m", &tiny(), "-p", "x", "--device", name],
            vec!["chat", "-m", &tiny(), "--device", name],
            vec!["perplexity", "-m", &tiny(), "-f", &trike.write("text", "Once."), "--device", name],
            vec!["logits", "-m", &tiny(), "--ids", "1", "-o", &out, "--device", name],
            vec!["bench", "-m", &tiny(), "--device", name],
        ] {
            let error = trike.fails(2, &args);
            assert!(error.contains(part), "{name}: {error}");
        }
    }
    assert!(!std::path::Path::new(&out).exists());
}

#[test]
fn a_runtime_that_was_not_built_in_is_named_as_a_feature() {
    let trike = Trike::new();
    let built = [
        ("wgpu", cfg!(feature = "wgpu") || cfg!(feature = "vulkan")),
        ("vulkan", cfg!(feature = "vulkan")),
        ("cuda", cfg!(feature = "cuda")),
        ("hip", cfg!(feature = "hip")),
        ("metal", cfg!(feature = "metal")),
    ];
    for (runtime, is_built) in built {
        let error =
            trike.fails(2, &["run", "-m", &tiny(), "-p", "x", "--device", &format!("{runtime}:4242")]);
        let feature = format!("build with the feature `{runtime}`");
        assert_eq!(error.contains(&feature), !is_built, "{error}");
        assert!(error.contains("trike doctor"), "{error}");
    }
}

#[test]
fn auto_takes_the_processor_where_there_is_no_gpu_and_says_so() {
    let trike = Trike::new();
    if devices().iter().any(|device| device["software"] == false) {
        skip("there is a GPU");
        return;
    }
    let args = ["run", "-m", &tiny(), "-p", "Once", "-n", "3", "--temperature", "0", "--device", "auto"];
    let (on_auto, notes) = trike.both(&args);
    assert!(notes.contains("running on the CPU"), "{notes}");
    assert_eq!(on_auto, trike.stdout(&args[..9]));
    let (_, notes) =
        trike.both(&["bench", "-m", &tiny(), "-p", "0", "-n", "1", "-r", "1", "--device", "auto"]);
    assert!(notes.contains("running on the CPU"), "{notes}");
}

/// The text of a dense model, through kernels on a device, with one read-back per token: none after the last token, and the first
/// token is sampled from the prompt's logits.
#[test]
fn the_text_of_a_dense_model_comes_from_a_device() {
    let Some(device) = software() else { return };
    let trike = Trike::new();
    let [model, tokenizer] = trike.storyteller();
    let args = ["run", "-m", &model, "--tokenizer", &tokenizer, "-p", "", "--temperature", "0"];
    let golden = trike.stdout(&[&args[..], &["--max-tokens", "200", "-q"]].concat());
    let json =
        trike.json(&[&args[..], &["--max-tokens", "200", "--device", device, "--json", "-q"]].concat());
    let text = format!("{}{}", json["prompt"].as_str().unwrap(), json["text"].as_str().unwrap());
    assert_eq!(text.trim_end(), golden.trim_end());
    assert!(json["backend"].as_str().unwrap().starts_with(device), "{json}");
    let used = |name: &str| json["device"][name].as_u64().unwrap_or_else(|| panic!("{name}: {json}"));
    let tokens = json["ids"].as_array().unwrap().len() as u64;
    assert_eq!((tokens, used("read_backs")), (200, 200));
    // One id and one logit per token.
    assert_eq!(used("read_bytes"), 200 * 8);
    // One id and one position per token.
    assert_eq!(used("uploads"), 200 * 2);
    assert!(used("peak_bytes") > 260_032, "{json}");
    // Up to positions 63, 127 and 199 a step is recorded and replayed; the first step of each range is launched.
    assert_eq!((used("captures"), used("replays")), (3, 200 - 3), "{json}");
}

/// Packed trits, an int8 head, sampling: the same choices as on the CPU.
#[test]
fn tiny_says_on_a_device_what_it_says_on_the_processor() {
    let Some(device) = software() else { return };
    let trike = Trike::new();
    let common = ["run", "-m", &tiny(), "-p", "Once upon a time", "-n", "24", "--activations", "f32"];
    for (sampling, reads) in [
        (&["--temperature", "0"][..], 8),
        (&["--temperature", "0.7", "--top-k", "4", "--seed", "3"], 4 * 8),
        (&["--temperature", "0.7", "--seed", "3"], 4 * 512),
        (&["--temperature", "0", "--repetition-penalty", "1.3"], 4 * 512),
    ] {
        let args = [&common[..], &["--kv", "f32", "--json", "-q"], sampling].concat();
        let (here, there) = (trike.json(&args), trike.json(&[&args[..], &["--device", device]].concat()));
        assert_eq!(here["ids"], there["ids"], "{sampling:?}");
        assert_eq!(here["device"], Value::Null);
        let backs = there["device"]["read_backs"].as_u64().unwrap();
        assert_eq!(backs, there["ids"].as_array().unwrap().len() as u64, "{sampling:?}");
        assert_eq!(there["device"]["read_bytes"], backs * reads, "{sampling:?}");
    }
}

#[test]
fn logits_and_perplexity_agree_with_the_processor() {
    let Some(device) = software() else { return };
    let trike = Trike::new();
    let ids = [0, 405, 422, 17, 3, 500];
    let exact = ["--activations", "f32", "--kv", "f32"];
    let (shape, want) = trike.logits(&tiny(), &ids, &exact);
    let (on_device, got) = trike.logits(&tiny(), &ids, &[&exact[..], &["--device", device]].concat());
    assert_eq!(shape, on_device);
    trike_testkit::assert_close(&got, &want, 1e-3);
    let text = trike.write("text", "Once upon a time, there was a little girl named Lily.");
    let args = ["perplexity", "-m", &tiny(), "-f", &text, "--json", "-q"];
    let here = trike.json(&[&args[..], &exact].concat());
    let there = trike.json(&[&args[..], &exact, &["--device", device]].concat());
    let nats = |json: &Value| json["nats"].as_f64().unwrap();
    assert_near!(nats(&here), nats(&there), abs = 1e-3, "{here} {there}");
    let answers = |more: &[&str]| {
        let template = trike.write("template", "{{ messages[-1].content }}");
        let mut command =
            trike.command(&["chat", "-m", &tiny(), "--chat-template", &template, "-n", "8", "-q"]);
        // The model's default is sampling with a random seed.
        command.args(["--temperature", "0"]);
        let questions = std::fs::File::open(trike.write("questions", "Once upon a time\n")).unwrap();
        let output = command.args(exact).args(more).stdin(questions).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    let answer = answers(&["--device", device]);
    assert!(answer.len() > 8 && answer == answers(&[]), "{answer:?}");
}

#[test]
fn bench_measures_a_device_with_its_memory() {
    let Some(device) = software() else { return };
    let trike = Trike::new();
    let args = ["bench", "-m", &tiny(), "-p", "16", "-n", "2", "-r", "1", "--device", device];
    let json = trike.json(&[&args[..], &["--json", "-q"]].concat());
    let rows = json["rows"].as_array().expect("rows");
    let found: Vec<_> = rows.iter().map(|r| (r["kind"].as_str(), r["tokens"].as_u64())).collect();
    assert_eq!(found, [(Some("prefill"), Some(16)), (Some("decode"), Some(2))]);
    for row in rows {
        assert!(row["tokens_per_second"].as_f64().is_some_and(|n| n > 0.0 && n.is_finite()), "{row}");
        assert_eq!((&row["threads"], &row["share_of_bandwidth"]), (&Value::Null, &Value::Null));
    }
    assert_eq!((&json["isa"], json["ceilings"].as_array().map(Vec::len)), (&Value::Null, Some(0)));
    assert!(json["backend"].as_str().is_some_and(|name| name.starts_with(device)), "{json}");
    let resident = json["model"]["resident_bytes"].as_u64().unwrap();
    assert!(json["device"]["peak_bytes"].as_u64().is_some_and(|peak| peak > resident), "{json}");
    let table = trike.stdout(&args);
    assert!(table.contains("| prefill 16 |") && table.contains("peak device memory"), "{table}");
    let error = trike.fails(2, &[&args[..], &["-t", "1,2"]].concat());
    assert!(error.contains("--threads") && error.contains("1,2"), "{error}");
}

/// A device supports int8 caches. With int4, commands whose results depend on the cache fail; `bench` uses the next larger
/// precision with a note.
#[test]
fn an_int4_cache_is_refused_on_a_device() {
    let Some(device) = software() else { return };
    let trike = Trike::new();
    let out = trike.path("logits.npy");
    let (text, template) = (trike.write("text", "Once upon a time."), trike.write("template", "{{ 1 }}"));
    let exact = ["-m", &tiny(), "--kv", "int8", "-p", "Once", "-n", "4", "--temperature", "0", "-q"];
    let there = trike.stdout(&[&["run"][..], &exact, &["--device", device]].concat());
    assert_eq!(there, trike.stdout(&[&["run"][..], &exact].concat()));
    let model = ["-m", &tiny(), "--kv", "int4", "--device", device];
    for command in
        [&["run", "-p", "Once"][..], &["perplexity", "-f", &text], &["logits", "--ids", "1,2", "-o", &out]]
    {
        let error = trike.fails(1, &[command, &model].concat());
        assert!(error.contains("int4 KV cache") && error.contains("does not support"), "{error}");
    }
    assert!(!std::path::Path::new(&out).exists());
    let both = ["run", "-m", &tiny(), "-p", "Once", "--kv", "int8-int4", "--device", device];
    let error = trike.fails(1, &both);
    assert!(error.contains("int8-int4 KV cache") && error.contains("does not support"), "{error}");
    let questions = std::fs::File::open(trike.write("questions", "Once\n")).unwrap();
    let args = [&["chat", "--chat-template", &template][..], &model].concat();
    let output = trike.command(&args).stdin(questions).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{error}");
    assert!(error.contains("int4 KV cache"), "{error}");

    let bench = [&["bench", "-p", "0", "-n", "1", "-r", "1", "-o", "json"][..], &model].concat();
    let (json, note) = trike.both(&bench);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["kv"], "int8");
    assert!(note.contains("--kv int4: not supported by") && note.contains("using int8"), "{note}");
    // The CPU supports them.
    for kv in ["int8", "int4", "int8-int4"] {
        trike.stdout(&["run", "-m", &tiny(), "-p", "Once", "-n", "2", "--kv", kv]);
    }
}

#[test]
fn a_device_selects_keys_of_tokens_and_leaves_the_rest_to_the_processor() {
    let Some(device) = software() else { return };
    let trike = Trike::new();
    let text = trike.write("text", "Once upon a time, there was a little girl. ".repeat(12));
    let keys = ["-m", &tiny(), "--keys", "signs", "--keys-top-k", "8", "--device", device];
    trike.stdout(&[&["run", "-p", "Once", "-n", "100"][..], &keys].concat());
    trike.stdout(&[&["bench", "-n", "1", "-r", "1"][..], &keys].concat());
    let compared = |kept: &[&str]| -> f64 {
        let score = ["perplexity", "-f", &text, "--base", &tiny(), "--kv", "f32", "--json"];
        let json: serde_json::Value =
            serde_json::from_str(&trike.stdout(&[&score[..], kept].concat())).expect("JSON");
        json["kl"].as_f64().unwrap_or_else(|| panic!("no kl: {json}"))
    };
    let (selected, host) = (compared(&keys), compared(&keys[..6]));
    // On a device selection begins later, which loses less.
    assert!(selected > 0.0 && selected < 2.0 * host, "{selected}, and {host} on the host");
    let error =
        trike.fails(2, &["run", "-m", &tiny(), "-p", "Once", "--prompt-keys", "0.5", "--device", device]);
    assert!(error.contains("--prompt-keys: only the CPU selects keys of prompts"), "{error}");
    let error = trike.fails(2, &["run", "-m", &tiny(), "-p", "Once", "--kv-limit", "64", "--device", device]);
    assert!(error.contains("--kv-limit: only the CPU evicts"), "{error}");
}

#[test]
fn what_a_device_does_not_hold_is_refused_before_it_is_loaded() {
    let Some(device) = software() else { return };
    let trike = Trike::new();
    let dir = trike.copy_model(&tiny(), "long");
    let config = std::fs::read_to_string(dir.join("config.json")).unwrap();
    let long = config.replace("\"max_position_embeddings\": 512", "\"max_position_embeddings\": 16777216");
    assert_ne!(config, long);
    std::fs::write(dir.join("config.json"), long).unwrap();
    let dir = dir.to_str().unwrap();
    let run = ["run", "-m", dir, "-p", "Once", "--kv", "f32", "--device", device];
    let error = trike.fails(1, &run);
    // Two heads of 64 at each position, or the whole cache if the driver reports its memory.
    assert!(
        error.contains("one allocation of 8589934592 bytes") || error.contains("keys and values"),
        "{error}"
    );
    assert!(error.contains("--device cpu"), "{error}");
    // A short text fits, and the CPU is not limited.
    trike.stdout(&[&run[..], &["-n", "2"]].concat());
    trike.stdout(&["run", "-m", dir, "-p", "Once", "-n", "2"]);
}

#[test]
fn doctor_lists_devices_with_their_features() {
    let text = Trike::new().stdout(&["doctor", "--threads", "1"]);
    assert!(text.contains("device "), "{text}");
    if !cfg!(feature = "gpu") {
        assert!(text.contains("none supported by this build"), "{text}");
    }
    for device in devices() {
        let name = device["name"].as_str().expect("a name");
        assert!(
            text.contains(name) && text.contains(device["adapter"].as_str().unwrap()),
            "{device}: {text}"
        );
        assert!(device["features"].is_array(), "{device}");
    }
    let Some(software) = software() else { return };
    let line = text.lines().find(|line| line.contains(software)).expect("its line");
    assert!(line.contains("software"), "{line}");
}

#[test]
fn the_memory_plan_adds_up() {
    let trike = Trike::new();
    let plan = trike.json(&["inspect", &tiny(), "--memory", "--json"]);
    let of = |name: &str| plan[name].as_u64().unwrap();
    assert_eq!(of("total"), of("weights") + of("cache") + of("scratch"));
    // Keys and values of 4 layers, 2 heads of 64, at 512 positions, in halves.
    assert_eq!((of("cache"), of("positions")), (2 * 4 * 128 * 512 * 2, 512));
    assert!(of("weights") > 0);
    assert!(trike.stdout(&["inspect", &tiny(), "--memory"]).contains("KV cache"));
    // A word and a byte for each of two heads and 512 positions, in two of four layers.
    let signs = trike.json(&["inspect", &tiny(), "--memory", "--keys", "signs", "--json"]);
    assert_eq!(signs["index"], 2 * 2 * 512 * 9);
    assert_eq!(signs["cache"].as_u64(), plan["cache"].as_u64().map(|bytes| bytes + 2 * 2 * 512 * 9));
    let text = trike.stdout(&["inspect", &tiny(), "--memory", "--keys", "signs"]);
    assert!(text.contains("of it codes of keys"), "{text}");
    let Some(device) = software() else { return };
    // The plan is close to the memory of a run, and never below its weights.
    let args = ["run", "-m", &tiny(), "-p", "x", "--kv", "f16", "--json", "-q", "--device", device];
    let peak = trike.json(&args)["device"]["peak_bytes"].as_u64().unwrap();
    assert!(peak <= of("total") * 11 / 10, "{peak} bytes, planned {plan}");
}

#[test]
fn tuned_kernels_are_stored_and_used() {
    let trike = Trike::new();
    let error = trike.fails(2, &["bench", "-m", &tiny(), "--tune"]);
    assert!(error.contains("--device"), "{error}");

    let Some(device) = software() else { return };
    let bench = ["bench", "-m", &tiny(), "--device", device, "--prompt", "0", "-n", "1", "-r", "1"];
    let tuned = trike.json(&[&bench[..], &["--tune", "--json"]].concat());
    let rows = tuned["tuned"].as_array().expect("a list");
    assert!(!rows.is_empty());
    for row in rows {
        let ns = |field: &str| row[field].as_f64().expect("a time");
        assert!(ns("chosen_ns") > 0.0 && ns("chosen_ns") <= ns("predicted_ns"), "{row}");
        assert!(row["candidates"].as_u64() > Some(1) && row["tokens"] == 1, "{row}");
    }

    let folder = trike.path("cache/trike/tuned");
    let files: Vec<_> =
        std::fs::read_dir(folder).expect("the folder").map(|file| file.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    let table = std::fs::read_to_string(file).expect("a table");
    for row in rows {
        assert!(table.contains(row["chosen"].as_str().unwrap()), "{table}");
    }

    let run = ["run", "-m", &tiny(), "-p", "Once", "-n", "4", "--temperature", "0", "--device", device];
    let used = trike.output(&run);
    assert!(used.status.success());
    assert!(!String::from_utf8_lossy(&used.stderr).contains("tuned"), "{used:?}");
    std::fs::write(file, table.replacen("trike-tuned 1-", "trike-tuned 0-", 1)).expect("written");
    let old = trike.output(&run);
    assert_eq!(old.stdout, used.stdout);
    assert!(String::from_utf8_lossy(&old.stderr).contains("trike bench --tune"), "{old:?}");
}
