//! `trike perplexity`, `logits`, `bench`, `doctor`.

use serde_json::Value;
use trike_testkit::{assert_all_near, assert_near};

use crate::harness::{Trike, repository, shared, tiny, utf8};

fn near(value: &Value, want: f64, relative: f64) {
    let got = value.as_f64().expect("a number");
    assert_near!(got, want, rel = relative);
}

/// Perplexities of data/README.md, from a forward pass in NumPy.
#[test]
fn dense_perplexities_are_those_of_numpy() {
    let cases = [
        ("stories260K.bin", "tok512.bin", "tinystories_sample.txt", 3.548),
        ("stories3M-q80.bin", "tok4096.bin", "tinystories_sample.txt", 3.740),
        ("stories260K.bin", "tok512.bin", "tinystories_eval.txt", 4.591),
        ("stories3M-q80.bin", "tok4096.bin", "tinystories_eval.txt", 6.002),
    ];
    for (model, tokenizer, text, want) in cases {
        let Some(model) = shared(&format!("data/models/{model}")) else { return };
        let Some(tokenizer) = shared(&format!("data/tokenizers/{tokenizer}")) else { return };
        let Some(text) = shared(&format!("data/corpora/{text}")) else { return };
        let args = ["perplexity", "-m", &model, "--tokenizer", &tokenizer, "-f", &text, "--json"];
        let json = Trike::new().json(&args);
        near(&json["perplexity"], want, 1e-3);
        assert_eq!(json["split"], "stories");
    }
}

#[test]
fn the_likelihood_of_a_sentence_is_that_of_llama2c() {
    let Some(model) = shared("data/models/stories260K.bin") else { return };
    let Some(tokenizer) = shared("data/tokenizers/tok512.bin") else { return };
    let Some(golden) = shared("data/golden/stories260K_nll_golden.json") else { return };
    let golden: Value = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    let trike = Trike::new();
    let text = trike.write("sentence.txt", golden["sentence"].as_str().unwrap());
    let args =
        ["perplexity", "-m", &model, "--tokenizer", &tokenizer, "-f", &text, "--split", "lines", "--json"];
    let json = trike.json(&args);
    let nll = json["nats"].as_f64().unwrap() * json["tokens"].as_f64().unwrap();
    near(&nll.into(), golden["nll"].as_f64().unwrap(), 1e-4);
    near(&json["perplexity"], golden["perplexity"].as_f64().unwrap(), 1e-4);
}

#[test]
fn bits_a_byte_of_the_bundled_model() {
    let Some(text) = shared("data/corpora/tinystories_eval.txt") else { return };
    let json = Trike::new().json(&["perplexity", "-m", &tiny(), "-f", &text, "--json"]);
    near(&json["bits_per_byte"], 1.1313, 2e-3);
    assert_eq!((&json["tokens"], &json["sequences"]), (&15_258.into(), &40.into()));
}

#[test]
fn bits_a_byte_of_tiny_packed_or_not() {
    let golden = trike_testkit::golden();
    let trike = Trike::new();
    let (dense, text) = (trike.dense(), trike.write("stories.txt", golden.stories));
    let json = trike.json(&["perplexity", "-m", &tiny(), "-f", &text, "--base", &dense, "--json"]);
    for figures in [&json, &json["base"]] {
        near(&figures["bits_per_byte"], golden.bits_per_byte(), 2e-3);
        near(&figures["nats"], golden.nats, 1e-3);
        near(&figures["perplexity"], golden.nats.exp(), 2e-3);
        assert_eq!(figures["tokens"], golden.tokens);
        assert_eq!(figures["sequences"], 4);
    }
    assert!(json["kl"].as_f64().is_some_and(|kl| (0.0..1e-3).contains(&kl)), "{json}");
    assert!(json["top1_agreement"].as_f64().is_some_and(|share| (0.98..=1.0).contains(&share)), "{json}");
    assert_eq!(json["base"]["model"], dense);
}

#[test]
fn the_split_follows_the_text_and_the_limit_counts_sequences() {
    let trike = Trike::new();
    let model = tiny();
    let stories = trike.write("stories.txt", "Once upon a time.\n<|endoftext|>\n\n<|endoftext|> The end. ");
    let lines = trike.write("lines.txt", "Once upon a time.\n\n The end. \n");
    let score = |text: &str, more: &[&str]| {
        trike.json(&[&["perplexity", "-m", &model, "-f", text, "--json"], more].concat())
    };
    let (a, b) = (score(&stories, &[]), score(&lines, &["--split", "lines"]));
    assert_eq!((&a["split"], &a["sequences"]), (&"stories".into(), &2.into()));
    for key in ["perplexity", "nats", "nats_error", "bits_per_byte", "tokens", "bytes", "sequences"] {
        assert!(a[key].is_number(), "{key}");
        assert_eq!(a[key], b[key], "the same sequences: {key}");
    }
    assert_eq!(a.get("kl"), None);
    let whole = score(&lines, &[]);
    assert_eq!((&whole["split"], &whole["sequences"]), (&"window".into(), &1.into()));
    assert_eq!(score(&stories, &["--limit", "1"])["sequences"], 1);
    let against_itself = score(&stories, &["--base", &model, "--activations", "f32"]);
    assert_eq!((&against_itself["kl"], &against_itself["top1_agreement"]), (&0.0.into(), &1.0.into()));
    // The base is computed with f32 activations, so this is the loss from rounding them.
    let rounded = score(&stories, &["--base", &model]);
    assert_eq!(rounded["activations"], "int8-token");
    let kl = rounded["kl"].as_f64().unwrap();
    assert!(kl > 0.0 && kl < 2e-3, "{kl}");
    let shown = trike.stdout(&["perplexity", "-m", &model, "-f", &stories, "--base", &model]);
    assert!(shown.contains("top-1 agreement") && shown.contains("100.0 %"), "{shown}");
    assert!(
        shown.lines().any(|line| line.starts_with("activations") && line.ends_with("int8-token")),
        "{shown}"
    );
}

#[test]
fn logits_of_stories_are_those_of_numpy() {
    let Some(model) = shared("data/models/stories260K.bin") else { return };
    let Some(golden) = shared("data/golden/golden_stories260K_numpy.npz") else { return };
    let golden = trike_testkit::npz(golden.as_ref());
    let (shape, got) = Trike::new().logits(&model, &golden["ids"].to_ids(), &[]);
    let want = &golden["logits"];
    assert_eq!(shape, want.shape);
    assert_all_near!(&got, &want.to_f32(), abs = 2e-4);
}

#[test]
fn logits_of_tiny_are_those_of_numpy() {
    let golden = trike_testkit::golden();
    let trike = Trike::new();
    for model in [tiny(), trike.dense()] {
        let more = ["--head", "stored", "--activations", "f32"];
        let (shape, got) = trike.logits(&model, &golden.ids[..golden.rows], &more);
        assert_eq!(shape, [golden.rows, 512]);
        trike_testkit::assert_close(&got, &golden.logits, 1e-3);
    }
}

#[test]
fn logits_say_what_they_wrote() {
    let trike = Trike::new();
    let out = trike.write("out.npy", "an older file");
    let json = trike.json(&["logits", "-m", &tiny(), "--ids", "0,405,422", "-o", &out, "--json"]);
    assert_eq!(json["shape"], serde_json::json!([3, 512]));
    assert_eq!((&json["kv"], &json["output"]), (&"f32".into(), &out.as_str().into()));
    assert_eq!(std::fs::metadata(&out).unwrap().len(), 128 + 3 * 512 * 4);
    // A failed run keeps it.
    trike.fails(1, &["logits", "-m", &tiny(), "--ids", "0,5000", "-o", &out]);
    assert_eq!(std::fs::metadata(&out).unwrap().len(), 128 + 3 * 512 * 4);
}

#[test]
fn bench_has_a_row_for_each_kind_and_number_of_threads() {
    let trike = Trike::new();
    let args = ["bench", "-m", &tiny(), "-p", "16", "-n", "4", "-t", "1,2", "-r", "2"];
    let json = trike.json(&[&args[..], &["-o", "json"]].concat());
    let rows = json["rows"].as_array().expect("rows");
    let found: Vec<_> =
        rows.iter().map(|r| (r["kind"].as_str(), r["threads"].as_u64(), r["tokens"].as_u64())).collect();
    let want = [("prefill", 1, 16), ("decode", 1, 4), ("prefill", 2, 16), ("decode", 2, 4)];
    assert_eq!(found, want.map(|(kind, threads, tokens)| (Some(kind), Some(threads), Some(tokens))));
    for row in rows {
        for key in ["tokens_per_second", "share_of_bandwidth", "share_of_int8_peak"] {
            assert!(row[key].as_f64().is_some_and(|n| n > 0.0 && n.is_finite()), "{key}: {row}");
        }
    }
    assert_eq!(json["ceilings"].as_array().map(Vec::len), Some(2));
    assert!(json["model"]["resident_bytes"].as_u64().is_some_and(|n| n > 0));
    let table = trike.stdout(&["bench", "-m", &tiny(), "-p", "0", "-n", "2", "-t", "1", "-r", "1"]);
    assert!(table.starts_with("| model"), "{table}");
    assert_eq!(table.lines().filter(|line| line.contains("| decode 2 ")).count(), 1, "{table}");
    assert!(!table.contains("depth"), "{table}");
}

#[test]
fn bench_measures_at_a_depth() {
    let trike = Trike::new();
    let args =
        ["bench", "-m", &tiny(), "-p", "0", "-n", "2", "-t", "1", "-r", "1", "--kv", "int8", "-d", "0,30"];
    let json = trike.json(&[&args[..], &["-o", "json"]].concat());
    let depths: Vec<_> = json["rows"].as_array().expect("rows").iter().map(|r| r["depth"].as_u64()).collect();
    assert_eq!((depths, &json["kv"]), (vec![Some(0), Some(30)], &"int8".into()));
    let table = trike.stdout(&args);
    assert!(table.lines().next().is_some_and(|line| line.contains("| depth |")), "{table}");
}

#[test]
fn bench_decodes_with_selected_keys() {
    let trike = Trike::new();
    let args = ["bench", "-m", &tiny(), "-p", "0", "-n", "2", "-t", "1", "-r", "1", "--position", "400"];
    let of = |more: &[&str]| trike.json(&[&args[..], more, &["-o", "json"]].concat());
    let (all, signs) = (of(&[]), of(&["--keys", "signs", "--keys-top-k", "8"]));
    assert_eq!((&all["keys"], &all["keys_top_k"]), (&"all".into(), &Value::Null));
    assert_eq!((&signs["keys"], &signs["keys_top_k"]), (&"signs".into(), &8.into()));
    // Two of four layers read 12 positions and nine bytes for each of 402, instead of 402 positions of 64 elements in f16.
    let bytes = |json: &Value| json["rows"][0]["bytes_per_token"].as_f64().expect("a number");
    let (kv_heads, mean) = (2.0, 401.5);
    let saved = 2.0 * kv_heads * (2.0 * 128.0 * (mean - 12.0) - 9.0 * mean);
    near(&(bytes(&all) - bytes(&signs)).into(), saved, 1e-6);
    let table = trike.stdout(&[&args[..], &["--keys", "signs", "--keys-top-k", "8"]].concat());
    assert!(table.contains("KV cache f16, 8 keys selected by signs;"), "{table}");
    for (wrong, message) in [
        (&["--keys-top-k", "8"][..], "--keys-top-k: needs --keys signs"),
        (&["--keys", "signs", "--keys-top-k", "0"], "expected a whole number, 1 or more"),
        (&["--keys", "hashes"], "[possible values: all, signs]"),
    ] {
        let said = trike.fails(2, &[&args[..], wrong].concat());
        assert!(said.contains(message), "{said}");
    }
}

/// A few selected keys change the probabilities of a text a little; a selection of all keys does not.
#[test]
fn a_text_is_scored_with_selected_keys() {
    let trike = Trike::new();
    let text =
        trike.write("text.txt", "Once upon a time there was a little girl who liked to play. ".repeat(30));
    let args = ["perplexity", "-m", &tiny(), "-f", &text, "--limit", "1", "--base", &tiny(), "--json"];
    let of = |more: &[&str]| trike.json(&[&args[..], &["--activations", "f32"], more].concat());
    let few = of(&["--keys", "signs", "--keys-top-k", "16"]);
    let kl = few["kl"].as_f64().expect("a number");
    assert!(kl > 0.0 && kl < 0.1, "{kl}");
    assert_eq!((&few["keys"], &few["keys_top_k"]), (&"signs".into(), &16.into()));
    let none = of(&["--keys", "signs", "--keys-top-k", "300"]);
    near(&none["perplexity"], none["base"]["perplexity"].as_f64().expect("a number"), 1e-4);
    let said = trike.fails(2, &["eval", "-m", &tiny(), "--tasks", &text, "--keys", "signs"]);
    assert!(said.contains("--keys signs: needs --text"), "{said}");
}

/// Block-sparse prefill.
#[test]
fn prompts_attend_to_a_share_of_the_keys() {
    let trike = Trike::new();
    let text =
        trike.write("text.txt", "Once upon a time there was a little girl who liked to play. ".repeat(60));
    let args =
        ["perplexity", "-m", &tiny(), "-f", &text, "--limit", "1", "--split", "window", "--base", &tiny()];
    let of = |share: &str| {
        trike.json(&[&args[..], &["--activations", "f32", "--json", "--prompt-keys", share]].concat())
    };
    let half = of("0.5");
    let kl = half["kl"].as_f64().expect("a number");
    assert!(kl > 0.0 && kl < 0.1, "{kl}");
    assert_eq!(half["prompt_keys"], 0.5);
    let all = of("1");
    near(&all["perplexity"], all["base"]["perplexity"].as_f64().expect("a number"), 1e-6);
    assert_eq!(all["prompt_keys"], Value::Null);
    let bench =
        ["bench", "-m", &tiny(), "-p", "500", "-n", "0", "-t", "1", "-r", "1", "--prompt-keys", "0.25"];
    let table = trike.stdout(&bench);
    assert!(table.contains("KV cache f16, prompts attend to 25.0 % of the keys;"), "{table}");
    for wrong in ["0", "1.5", "half"] {
        let said = trike.fails(2, &["run", "-m", &tiny(), "-p", "Once", "--prompt-keys", wrong]);
        assert!(said.contains("expected a number, 0.001 to 1"), "{said}");
    }
    let said = trike.fails(2, &["eval", "-m", &tiny(), "--tasks", &text, "--prompt-keys", "0.5"]);
    assert!(said.contains("--prompt-keys: needs --text"), "{said}");
}

/// A cache with eviction: its loss, and the output of the command.
#[test]
fn a_limited_cache_is_measured_and_counted() {
    let trike = Trike::new();
    let once = "Once upon a time there was a little girl who liked to play. ";
    let text = trike.write("text.txt", once.repeat(60));
    let args =
        ["perplexity", "-m", &tiny(), "-f", &text, "--limit", "1", "--split", "window", "--base", &tiny()];
    let of = |more: &[&str]| trike.json(&[&args[..], &["--activations", "f32", "--json"], more].concat());
    let [oldest, attention] =
        [&["--kv-limit", "128"][..], &["--kv-limit", "128", "--evict", "attention"]].map(of);
    for (outcome, name) in [(&attention, "attention"), (&oldest, "oldest")] {
        assert_eq!((&outcome["kv_limit"], &outcome["evict"]), (&128.into(), &name.into()));
        assert!(outcome["kl"].as_f64().is_some_and(|kl| kl > 0.0), "{outcome}");
    }
    assert_ne!(attention["kl"], oldest["kl"]);
    let wide = of(&["--kv-limit", "600"]);
    near(&wide["perplexity"], wide["base"]["perplexity"].as_f64().expect("a number"), 1e-6);
    let shown = trike.stdout(&[&args[..], &["--kv-limit", "64"]].concat());
    assert!(shown.contains("f16, at most 64 positions, the oldest evicted"), "{shown}");
    let run = ["run", "-m", &tiny(), "-p", &once.repeat(8), "-n", "4", "--kv-limit", "64"];
    let said = trike.json(&[&run[..], &["--json"]].concat());
    let tokens = said["prompt_ids"].as_array().expect("ids").len() + 3;
    assert_eq!(said["evicted_positions"], ((tokens - 64).div_ceil(16) * 16) as u64);
    for (wrong, expected) in [
        (&["--kv-limit", "63"][..], "expected a whole number, 64 or more"),
        (&["--evict", "attention"], "--kv-limit"),
        (&["--kv-limit", "64", "--window", "32"], "cannot be used with"),
        (&["--kv-limit", "64", "--prompt-cache", "x"], "cannot be used with"),
    ] {
        let said = trike.fails(2, &[&["run", "-m", &tiny(), "-p", "Once"], wrong].concat());
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn bench_decodes_many_sequences_at_once() {
    let trike = Trike::new();
    let args = ["bench", "-m", &tiny(), "-p", "0", "-n", "2", "-t", "1", "-r", "1", "--sequences", "1,3"];
    let json = trike.json(&[&args[..], &["-o", "json"]].concat());
    let rows = json["rows"].as_array().expect("rows");
    let counts: Vec<_> = rows.iter().map(|row| row["sequences"].as_u64()).collect();
    assert_eq!(counts, [Some(1), Some(3)]);
    // The weights are read once for all sequences.
    let bytes = |row: usize| rows[row]["bytes_per_token"].as_f64().unwrap();
    assert!(bytes(1) < bytes(0) / 2.0, "{rows:?}");
    let table = trike.stdout(&args);
    assert!(table.lines().next().is_some_and(|line| line.contains("| sequences |")), "{table}");
    assert!(trike.fails(2, &["bench", "-m", &tiny(), "--sequences", "0"]).contains("--sequences"));
}

#[test]
fn bench_runs_on_the_chosen_instruction_set() {
    let trike = Trike::new();
    let tiny = tiny();
    for args in [["-m", &tiny].as_slice(), &["--synthetic", "125m"]] {
        let rest = ["-p", "0", "-n", "1", "-t", "1", "-r", "1", "--isa", "scalar", "--json"];
        let json = trike.json(&[&["bench"], args, &rest].concat());
        assert_eq!((&json["isa"], &json["backend"]), (&"scalar".into(), &"cpu (scalar, 1 threads)".into()));
    }
    assert!(trike.fails(2, &["bench", "--isa", "mmx"]).contains("avx2"));
}

#[test]
fn bench_makes_a_model_of_random_trits() {
    let args =
        ["bench", "--synthetic", "125m", "--encoding", "base3", "-p", "0", "-n", "1", "-t", "1", "-r", "1"];
    let json = Trike::new().json(&[&args[..], &["--json"]].concat());
    assert_eq!(
        (&json["model"]["name"], &json["model"]["encoding"]),
        (&"synthetic 125m".into(), &"base3".into())
    );
    // 12 layers of 4 x 768 x 768 and 3 x 768 x 2048 weights, five per byte, and one f16 scale per row.
    let weights = 12 * (4 * 768 * 768 + 3 * 768 * 2048) as u64;
    let stored = json["model"]["stored_bytes"].as_u64().unwrap();
    assert!((weights / 5..weights * 21 / 100).contains(&stored), "{stored} bytes for {weights} weights");
    assert_eq!(json["rows"].as_array().map(Vec::len), Some(1));
}

#[test]
fn bench_makes_a_model_with_one_scale_per_matrix() {
    let args =
        ["bench", "--synthetic", "125m", "--group", "tensor", "-p", "2", "-n", "1", "-t", "1", "-r", "1"];
    let json = Trike::new().json(&[&args[..], &["--json"]].concat());
    assert_eq!((&json["model"]["encoding"], &json["activations"]), (&"2bit".into(), &"int8-token".into()));
    // Four weights per byte, and an f16 scale for each of the 12 x 7 matrices.
    let weights = 12 * (4 * 768 * 768 + 3 * 768 * 2048) as u64;
    assert_eq!(json["model"]["stored_bytes"], weights / 4 + 2 * 12 * 7);
    let rows = json["rows"].as_array().expect("rows");
    let found: Vec<_> = rows.iter().map(|r| (r["kind"].as_str(), r["tokens"].as_u64())).collect();
    assert_eq!(found, [(Some("prefill"), Some(2)), (Some("decode"), Some(1))]);
    assert!(rows.iter().all(|r| r["tokens_per_second"].as_f64().is_some_and(|n| n > 0.0)), "{json}");
}

#[test]
fn doctor_names_the_machine_the_model_and_the_environment() {
    let trike = Trike::new();
    let mut command = trike.command(&["doctor", "--json"]);
    let output = command.current_dir(repository()).env("TRIKE_THREADS", "1").output().unwrap();
    assert!(output.status.success());
    let json: Value = serde_json::from_str(&utf8(output.stdout)).unwrap();
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(json["threads"], 1);
    assert_eq!(json["environment"]["TRIKE_THREADS"], "1");
    assert!(json["isa_available"].as_array().is_some_and(|all| all.contains(&json["isa"])), "{json}");
    for ceiling in ["bandwidth", "int8_peak"] {
        let best = json[ceiling]["best"].as_f64().expect("a figure");
        let variants = json[ceiling]["variants"].as_object().expect("variants");
        assert!(best > 0.0 && variants.values().all(|figure| figure.as_f64().unwrap() <= best), "{json}");
    }
    assert!(json["shipped_model"].as_str().is_some_and(|path| path.contains("/trike/tiny-")), "{json}");
    let text = trike.stdout(&["doctor", "-t", "1"]);
    let line = text.lines().find(|line| line.starts_with("memory bandwidth")).expect("a line");
    assert!(line.ends_with(" GB/s") && !text.contains("huge pages"), "{text}");
    assert!(trike.stdout(&["doctor", "-t", "1", "--verbose"]).contains("huge pages"));
}

/// A trained model prefers sentences like those of its training text.
#[test]
fn eval_answers_by_likelihood() {
    let trike = Trike::new();
    let good = "Once upon a time, there was a little girl named Lily. She was very happy.";
    let bad = "Once upon time a, there little was a girl Lily named. Happy she very was.";
    let pair = serde_json::json!({"sentence_good": good, "sentence_bad": bad}).to_string();
    let choice =
        serde_json::json!({"context": "Once upon a", "choices": ["zzq", "time", "xwv"], "answer": 1})
            .to_string();
    let wrong =
        serde_json::json!({"context": "Once upon a", "choices": ["zzq", "time"], "answer": 0}).to_string();
    let long =
        serde_json::json!({"context": good.repeat(200), "choices": ["a", "b"], "answer": 0}).to_string();
    let task = trike.write("task.jsonl", [pair, choice, wrong, long].join("\n"));
    let json = trike.json(&["eval", "-m", &tiny(), "--tasks", &task, "--json"]);
    let score = &json["tasks"][0];
    assert_eq!((&score["questions"], &score["too_long"]), (&3.into(), &1.into()), "{json}");
    let near = |key: &str, want: f64| assert_near!(score[key].as_f64().unwrap(), want, abs = 1e-9, "{json}");
    near("accuracy", 2.0 / 3.0);
    near("accuracy_error", (2.0f64 / 27.0).sqrt());
    near("chance", (0.5 + 1.0 / 3.0 + 0.5) / 3.0);
    assert!(json["mean"].is_null(), "of one task: {json}");
    let other = trike
        .write("other.jsonl", serde_json::json!({"sentence_good": good, "sentence_bad": bad}).to_string());
    let text = trike.stdout(&["eval", "-m", &tiny(), "--tasks", &task, &other]);
    // Two of three and one of one; half the error of the first.
    let mean = text.lines().find(|line| line.contains("mean of 2 tasks"));
    assert!(mean.is_some_and(|line| line.contains(" 4 ") && line.contains("83.3 +- 13.6 %")), "{text}");
    let text = trike.stdout(&["eval", "-m", &tiny(), "--tasks", &task, "--limit", "1"]);
    assert!(text.contains("100.0 +- 0.0 %") && text.contains("accuracy per byte"), "{text}");
    let broken = trike.write("broken.jsonl", "{}\n");
    assert!(trike.fails(1, &["eval", "-m", &tiny(), "--tasks", &broken]).contains("line 1"));
    let empty = trike.write("empty.jsonl", "");
    assert!(trike.fails(1, &["eval", "-m", &tiny(), "--tasks", &empty]).contains("empty.jsonl"));
}

/// Texts are scored as by `trike perplexity`, and windows as by llama.cpp: the second half of each whole window.
#[test]
fn eval_scores_texts_and_windows() {
    let trike = Trike::new();
    let story =
        "Once upon a time, there was a little girl named Lily. She was very happy and played all day. ";
    // About a window long, and hard to predict only at its start.
    let noise: String =
        (0..100u32).flat_map(|i| [char::from(b'a' + ((i * i * 7 + i * 3) % 26) as u8), ' ']).collect();
    let text = trike.write("text.txt", (noise + &story.repeat(15)).repeat(3));
    let eval = |more: &[&str]| {
        trike.json(&[&["eval", "-m", &tiny(), "--text", &text, "--json", "--kv", "f32"], more].concat())["texts"][0].clone()
    };
    let plain = eval(&[]);
    let alone = trike.json(&["perplexity", "-m", &tiny(), "-f", &text, "--kv", "f32", "--json"]);
    assert_eq!((&plain["perplexity"], &plain["split"]), (&alone["perplexity"], &"window".into()));
    // The context is 512: of each whole window, 255 tokens are predicted from 256 or more before them.
    let halves = eval(&["--split", "llama.cpp"]);
    let windows = halves["sequences"].as_u64().unwrap();
    assert_eq!(halves["tokens"], windows * 255);
    assert!(windows >= 2 && windows == plain["tokens"].as_u64().unwrap() / 512, "{plain} {halves}");
    assert!(halves["perplexity"].as_f64() < plain["perplexity"].as_f64(), "the second halves are easier");
    let model = tiny();
    let with_context = |tokens: &'static str| {
        ["perplexity", "-m", &model, "-f", &text, "--split", "llama.cpp", "--context", tokens, "--json"]
    };
    let short = trike.json(&with_context("64"));
    assert_eq!(short["tokens"], short["sequences"].as_u64().unwrap() * 31);
    assert!(short["sequences"].as_u64().unwrap() >= 8 * windows && short["context"] == 64, "{short}");
    assert!(trike.fails(2, &with_context("513")).contains("--context"));
    // The base is computed with f32 activations.
    let exact = ["--base", &tiny(), "--split", "llama.cpp", "--limit", "1", "--activations", "f32"];
    let same = eval(&exact);
    assert_eq!((&same["sequences"], &same["tokens"]), (&1.into(), &255.into()));
    assert_near!(same["kl"].as_f64().unwrap(), 0.0, abs = 1e-9, "{same}");
    assert!(same["ratio"] == 1.0 && same["ratio_error"] == 0.0, "{same}");
    trike.fails(2, &["eval", "-m", &tiny()]);
}

#[test]
fn eval_reports_the_activation_precision() {
    let trike = Trike::new();
    let text = trike.write("text.txt", "Once upon a time, there was a little girl named Lily.");
    let eval = ["eval", "-m", &tiny(), "--text", &text];
    for (more, want) in
        [(&[][..], "int8-token"), (&["--activations", "f32"], "f32"), (&["--activations", "int16"], "int16")]
    {
        let args = [&eval[..], more].concat();
        assert_eq!(trike.json(&[&args[..], &["--json"]].concat())["activations"], want);
        let shown = trike.stdout(&args);
        let line = shown.lines().find(|line| line.starts_with("activations"));
        assert!(line.is_some_and(|line| line.ends_with(want)), "{shown}");
    }
}
