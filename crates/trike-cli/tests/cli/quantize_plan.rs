//! `trike quantize` with budgets, plans, pruning, curves and its page; `trike edit`; conversion of the result to other formats.

use std::{fs, path::Path};

use serde_json::{Value, json};
use trike::{
    format::{DenseData, DenseTensor, HfDir, HfDirWriter, Tensor, TensorSource},
    trit::{Encoding, Scales, TritTensor},
};
use trike_testkit::{Rng, assert_close};

use crate::harness::{Trike, text};

/// Hidden and inner size of the small model: a multiple of the block size of every format.
const WIDTH: usize = 256;

/// A random dense model with one block, without external data.
fn small(trike: &Trike) -> String {
    let path = trike.path("small");
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": WIDTH,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true,
    });
    let mut writer = HfDirWriter::create(&path, config).unwrap();
    let mut rng = Rng::new(7);
    let mut put = |name: &str, shape: Vec<usize>, values: Vec<f32>| {
        let tensor = DenseTensor::new(shape, DenseData::F32(values)).unwrap();
        writer.tensor(name, &Tensor::Dense(tensor)).unwrap();
    };
    put("model.embed_tokens.weight", vec![64, WIDTH], rng.normals(64 * WIDTH));
    put("model.norm.weight", vec![WIDTH], vec![1.0; WIDTH]);
    for norm in ["input_layernorm", "post_attention_layernorm"] {
        put(&format!("model.layers.0.{norm}.weight"), vec![WIDTH], vec![1.0; WIDTH]);
    }
    for layer in
        ["self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"]
    {
        let values = rng.normals(WIDTH * WIDTH).iter().map(|w| w / 16.0).collect();
        put(&format!("model.layers.0.{layer}_proj.weight"), vec![WIDTH, WIDTH], values);
    }
    writer.finish().unwrap();
    path
}

/// Runs `trike quantize` on the small model without any text, and returns the directory and the report.
fn rounded(trike: &Trike, model: &str, name: &str, more: &[&str]) -> (String, Value) {
    let out = trike.path(name);
    let mut args = vec!["quantize", "-m", model, "-o", &out, "--method", "nearest", "--json"];
    args.extend(more);
    let report = trike.json(&args);
    (out, report)
}

#[test]
fn a_model_without_a_tokenizer_is_not_measured_and_the_page_says_why() {
    let trike = Trike::new();
    let (out, report) = rounded(&trike, &small(&trike), "blind", &["--planes", "1"]);
    assert!(report["evaluation"].is_null() && report["verdict"].is_null());
    assert!(report["not_measured"].as_str().unwrap().contains("tokenizer"), "{}", report["not_measured"]);
    assert!(fs::read_to_string(format!("{out}/report.html")).unwrap().contains("Quality was not measured"));
}

/// Equal up to the order of additions: a GGUF file of this architecture has adjacent rotary pairs.
#[track_caller]
fn near(got: &[f32], want: &[f32]) {
    assert_close(got, want, 2e-6);
}

#[test]
fn one_plane_becomes_gguf_with_equal_logits() {
    let trike = Trike::new();
    let model = small(&trike);
    let (out, _) = rounded(&trike, &model, "one", &["--planes", "1", "--group", "256"]);
    let ids = [1, 5, 9, 60];
    let (_, want) = trike.logits(&out, &ids, &[]);
    // A type as the goal sets planes and groups, and the note says how to convert.
    let goal = trike.path("goal");
    let args = ["quantize", "-m", &model, "-o", &goal, "--method", "nearest", "--target", "tq2_0", "--json"];
    let (_, said) = trike.both(&args);
    assert!(said.contains("--to tq2_0"), "{said}");
    let file = |dir: &str| fs::read(format!("{dir}/model.safetensors")).unwrap();
    assert!(file(&goal) == file(&out));
    for target in ["tq2_0", "q2_0", "tq1_0"] {
        let gguf = trike.path(&format!("{target}.gguf"));
        let report = trike.json(&["convert", &out, &gguf, "--to", target, "--json"]);
        assert_eq!(report["largest_change"], 0.0);
        near(&trike.logits(&gguf, &ids, &[]).1, &want);
        // Converting back is bit-identical.
        let back = trike.path(&format!("{target}-back"));
        trike.json(&["convert", &gguf, &back, "--to", "trike", "--json"]);
        let weights =
            |dir: &str| HfDir::open(dir).unwrap().load("model.layers.0.self_attn.q_proj.weight").unwrap();
        assert_eq!(weights(&back).to_f32(), weights(&out).to_f32(), "{target}");
    }
    // Smaller groups fit one of the two types, and two planes neither.
    let (fine, _) = rounded(&trike, &model, "fine", &["--planes", "1", "--group", "64"]);
    let gguf = trike.path("fine.gguf");
    trike.fails(1, &["convert", &fine, &trike.path("x.gguf"), "--to", "tq2_0"]);
    trike.json(&["convert", &fine, &gguf, "--to", "q2_0", "--json"]);
    near(&trike.logits(&gguf, &ids, &[]).1, &trike.logits(&fine, &ids, &[]).1);
    let (two, _) = rounded(&trike, &model, "two", &["--planes", "2", "--group", "256"]);
    let error = trike.fails(1, &["convert", &two, &trike.path("y.gguf"), "--to", "tq2_0"]);
    assert!(error.contains("has 2 planes") && error.contains("--planes 1"), "{error}");
}

#[test]
fn a_plan_is_a_file_that_can_be_edited() {
    let trike = Trike::new();
    let model = small(&trike);
    let layer = |name: &str| format!("model.layers.0.{name}_proj.weight");
    let plan = |layers: Value| json!({ "format": "trike plan 1", "layers": layers }).to_string();
    let path = trike.write(
        "plan.json",
        plan(json!([
            { "name": layer("mlp.up"), "as": "int8" },
            { "name": layer("mlp.down"), "as": "dense", "reason": "mine" },
            { "name": layer("mlp.gate"), "as": "trits", "planes": 2, "group": "row" },
        ])),
    );
    let (out, report) = rounded(&trike, &model, "planned", &["--plan", &path, "--planes", "1"]);
    let stored = |name: &str| {
        let layers = report["layers"].as_array().unwrap();
        layers.iter().find(|l| l["name"] == layer(name)).unwrap().clone()
    };
    assert_eq!(stored("mlp.up")["stored"], "int8");
    assert_eq!(stored("mlp.down")["kept"], "mine");
    assert_eq!(stored("mlp.gate")["stored"], "2 planes, row, base3");
    assert_eq!(stored("self_attn.q")["stored"], "1 plane, group128, base3");
    let inspection = trike.json(&["inspect", &out, "--json"]);
    assert_eq!(inspection["totals"]["bytes"], report["output_bytes"]);
    for (layers, part) in [
        (json!([{ "name": "no.such.weight", "as": "int8" }]), "no.such.weight"),
        (json!([{ "name": layer("mlp.up"), "as": "trits", "planes": 9, "group": "64" }]), "1 to 6"),
    ] {
        let path = trike.write("bad.json", plan(layers));
        let error = trike.fails(
            1,
            &["quantize", "-m", &model, "-o", &trike.path("x"), "--method", "nearest", "--plan", &path],
        );
        assert!(error.contains(part), "{error}");
    }
    assert!(!Path::new(&trike.path("x")).exists());
}

#[test]
fn edits_change_the_file_and_are_taken_back() {
    let trike = Trike::new();
    let model = small(&trike);
    for encoding in ["base3", "2bit", "planes"] {
        let (out, _) = rounded(&trike, &model, encoding, &["--planes", "2", "--encoding", encoding]);
        let weights = || fs::read(format!("{out}/model.safetensors")).unwrap();
        let first = weights();
        let tensor = "model.layers.0.mlp.up_proj.weight";
        let differ = |a: &[u8], b: &[u8]| a.iter().zip(b).filter(|(a, b)| a != b).count();
        let report =
            trike.json(&["edit", &out, "-t", tensor, "--set", "3,17=0.4", "--set", "3,18=-0.4", "--json"]);
        assert_eq!(report["undoable"], 1);
        let second = weights();
        assert!((1..=64).contains(&differ(&first, &second)), "{encoding}: {}", differ(&first, &second));
        let before = trike.logits(&out, &[1, 2], &[]).1;
        trike.json(&["edit", &out, "-t", tensor, "--zero-row", "5", "--negate-row", "6", "--json"]);
        assert_ne!(trike.logits(&out, &[1, 2], &[]).1, before);
        trike.json(&["edit", &out, "--undo", "--json"]);
        assert!(weights() == second, "{encoding}");
        trike.json(&["edit", &out, "--undo", "--json"]);
        assert!(weights() == first && !Path::new(&format!("{out}/edits.json")).exists(), "{encoding}");
        let error = trike.fails(2, &["edit", &out, "--undo"]);
        assert!(error.contains("1 of 0"), "{error}");
        // A journal of other weights cannot be undone.
        let journal = format!("{out}/edits.json");
        trike.json(&["edit", &out, "-t", tensor, "--zero-row", "5", "--json"]);
        let older = fs::read(&journal).unwrap();
        trike.json(&["edit", &out, "-t", tensor, "--zero-row", "6", "--json"]);
        let (newer, changed) = (fs::read(&journal).unwrap(), weights());
        fs::write(&journal, older).unwrap();
        let error = trike.fails(1, &["edit", &out, "--undo"]);
        assert!(error.contains("was changed since"), "{error}");
        assert!(weights() == changed, "{encoding}");
        fs::write(&journal, newer).unwrap();
        trike.json(&["edit", &out, "--undo", "2", "--json"]);
        assert!(weights() == first, "{encoding}");
        for (args, part) in [
            (&["-t", tensor, "--set", "256,0=1"][..], "256"),
            (&["-t", "model.norm.weight", "--zero-row", "0"], "ternary"),
            (&["-t", "no", "--zero-row", "0"], "no"),
            (&["-t", tensor, "--set", "1,1=NaN"], "finite"),
        ] {
            let output = trike.output(&[&["edit", &out], args].concat());
            let error = String::from_utf8(output.stderr).unwrap();
            assert!(matches!(output.status.code(), Some(1 | 2)), "{args:?}: {error}");
            assert!(error.contains(part), "{args:?}: {error}");
        }
        assert!(weights() == first);
    }
    trike.fails(2, &["edit", &trike.path("base3")]);
    // A compressed encoding has no room for another nonzero.
    let (out, _) = rounded(&trike, &model, "bitmap", &["--planes", "1", "--encoding", "bitmap"]);
    let args = ["edit", &out, "-t", "model.layers.0.mlp.up_proj.weight", "--zero-row", "0"];
    let error = trike.fails(1, &args);
    assert!(error.contains("base3") && !Path::new(&format!("{out}/edits.json")).exists(), "{error}");
}

#[test]
fn tensors_are_written_over_only_by_their_like() {
    let trike = Trike::new();
    let (out, _) = rounded(&trike, &small(&trike), "one", &["--planes", "1"]);
    let other = TritTensor::from_trits(1, 2, &[1, 0], Encoding::Base3, Scales::tensor(1.0)).unwrap();
    for name in ["model.layers.0.mlp.up_proj.weight", "model.norm.weight", "no"] {
        let dir = trike::format::HfDir::open(&out).unwrap();
        assert!(dir.overwrite(name, &Tensor::Ternary(other.clone())).is_err(), "{name}");
    }
}

#[test]
fn pages_have_every_section_and_plot_and_need_nothing_else() {
    let bench = crate::quantize::Bench::new();
    let more = ["--target", "3.2bpw", "--sequences", "8", "--curve", "--planes", "3", "--group", "64"];
    let report = bench.run_with("paged", &more, 4);
    let out = bench.trike.path("paged");
    let page = fs::read_to_string(format!("{out}/report.html")).unwrap();
    for section in ["samples", "alternatives", "curve", "summary", "layers", "sensitivity", "plan"] {
        assert!(page.contains(&format!("<h2 id=\"{section}\"")), "{section}");
    }
    let at = page.find("<figure id=\"plot-curve\"").unwrap();
    // Rows of 172 weights are not multiples of 32: the other formats are absent.
    assert_eq!(page[at..].matches("<circle").count(), 5, "a point for each setting");
    // Every layer has a bar for its bits and its errors, and for its sensitivity.
    let bars = |section: &str, next: &str| {
        let (start, end) = (page.find(section).unwrap(), page.find(next).unwrap());
        page[start..end].matches("class=\"bar\"").count()
    };
    assert_eq!(bars("id=\"layers\"", "id=\"sensitivity\""), 3 * 35);
    assert_eq!(bars("id=\"sensitivity\"", "id=\"plan\""), 2 * 35);
    for media in ["prefers-color-scheme:dark", "@media print", "@media (max-width"] {
        assert!(page.contains(media), "{media}");
    }
    assert!(!page.contains('`'), "backquotes are for source code");
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    for foreign in ["http:", "https:", "<script", "<link", "@import", "url("] {
        let found = page.replace("http://www.w3.org/2000/svg", "").contains(foreign);
        assert!(!found, "{foreign}");
    }
    for l in report["layers"].as_array().unwrap() {
        assert!(page.contains(l["name"].as_str().unwrap()));
    }
    // The budget is met, and its plan gives the same model again.
    let planned = |key: &str| -> f64 {
        report["layers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|l| {
                let weights = l["rows"].as_f64().unwrap() * l["cols"].as_f64().unwrap();
                if key == "bits" { 8.0 * l["bytes"].as_f64().unwrap() } else { weights }
            })
            .sum()
    };
    let bits = planned("bits") / planned("weights");
    assert!(bits <= 3.2 && bits > 3.0, "{bits}");
    assert_eq!(report["curve"].as_array().unwrap().len(), 5);
    assert!(!Path::new(&format!("{out}.plan")).exists() && !Path::new(&format!("{out}.curve")).exists());
}

#[test]
fn other_formats_are_beside_trits_on_the_curve() {
    let trike = Trike::new();
    let (dense, out) = (trike.path("dense"), trike.path("out"));
    trike.stdout(&["convert", &crate::harness::tiny(), &dense, "--to", "f16", "--embeddings", "f16"]);
    let story = trike.write("story.txt", "Once upon a time there was a dog. It ran to the park. ".repeat(12));
    let more = ["--planes", "1", "--no-tune", "--sequences", "1", "--head", "int8", "--curve", "--json"];
    let args = [&["quantize", "-m", &dense, "-o", &out, "-c", &story, "-e", &story], &more[..]].concat();
    let report: Value = serde_json::from_str(&trike.both(&args).0).expect("JSON");
    let point = |name: &str, key: &str| {
        let all = report["curve"].as_array().unwrap();
        let of = all.iter().find(|p| p["setting"] == name).unwrap_or_else(|| panic!("{name}: {all:?}"));
        of[key].as_f64().unwrap()
    };
    assert_eq!(["Q8_0", "Q4_0", "Q4_K"].map(|name| point(name, "bits_per_weight")), [8.5, 4.5, 4.5]);
    assert!(point("Q8_0", "kl") < point("Q4_K", "kl") && point("Q4_K", "kl") < point("this model", "kl"));
    // All tensors but the layers are unchanged; the layers' 2,359,296 weights took two bytes each; the embedding stays f16.
    let before = report["input_bytes"].as_f64().unwrap();
    assert_eq!(point("Q4_0", "bytes"), before - 2_359_296.0 * (2.0 - 4.5 / 8.0));
    let page = fs::read_to_string(format!("{out}/report.html")).unwrap();
    let at = page.find("<figure id=\"plot-curve\"").unwrap();
    assert_eq!(page[at..].matches("<circle").count(), 7);
}

#[test]
fn budgets_are_met_or_refused_with_the_nearest() {
    let bench = crate::quantize::Bench::new();
    let out = bench.trike.path("none");
    for (code, more, part) in [
        (1, &["--target", "0.5bpw"][..], "closest achievable"),
        (1, &["--target", "50kB"], "bytes"),
        (1, &["--target", "0.1GB"], "the dense model already meets that"),
        (1, &["--target", "33bpw"], "no layer would become ternary"),
        (2, &["--target", "0.9x"], "closest achievable"),
        (2, &["--target", "0nats"], "more than 0"),
        (2, &["--target", "3bpw", "--method", "nearest"], "error compensation"),
    ] {
        let error = bench.trike.fails(code, &bench.args(&out, &[more, &["--sequences", "2"]].concat()));
        assert!(error.contains(part), "{more:?}: {error}");
        assert!(!Path::new(&out).exists() && !Path::new(&format!("{out}.plan")).exists(), "{more:?}");
    }
    bench.trike.fails(2, &bench.args(&out, &["--target", "3"]));
    // Violated constraints of a GGUF type are reported before anything is measured.
    for (more, part) in [
        (&["--target", "q2_0"][..], "--group"),
        (&["--target", "tq2_0", "--planes", "2"], "--planes"),
        (&["--target", "q2_0", "--group", "64", "--planes", "2"], "--planes"),
        (&["--target", "q2_0", "--group", "row"], "rows of 172"),
        (&["--target", "q2_0", "--group", "64", "--skip", "down_proj"], "--skip"),
    ] {
        let all = bench.args(&out, more);
        // The group of `args` is 32.
        let more_group = more.contains(&"--group");
        let args: Vec<&str> = match all.windows(2).position(|pair| pair == ["--group", "32"]) {
            Some(at) if more_group => [&all[..at], &all[at + 2..]].concat(),
            _ => all,
        };
        let error = bench.trike.fails(1, &args);
        assert!(error.contains(part), "{more:?}: {error}");
    }
    // A budget of bytes is met, and used.
    let report = bench.run_with(
        "bytes",
        &["--target", "220kB", "--sequences", "4", "--planes", "3", "--group", "64"],
        2,
    );
    let bytes = report["output_bytes"].as_u64().unwrap();
    assert!(bytes <= 220_000 && bytes > 210_000, "{bytes}");
    // Unchanged layers count among the bits.
    let kept = bench.run_with(
        "bits",
        &["--target", "10bpw", "--skip", "down_proj", "--sequences", "2", "--planes", "2", "--group", "64"],
        1,
    );
    let layers = kept["layers"].as_array().unwrap();
    let sum = |of: &dyn Fn(&Value) -> f64| layers.iter().map(of).sum::<f64>();
    let weights = sum(&|l| l["rows"].as_f64().unwrap() * l["cols"].as_f64().unwrap());
    let bits = 8.0 * sum(&|l| l["bytes"].as_f64().unwrap()) / weights;
    assert!(bits <= 10.0 && bits > 9.0, "{bits}");
    // A plan alone is a file, and gives the same model.
    let path = bench.trike.path("plan.json");
    let args = bench.bare(
        &path,
        &["--target", "220kB", "--sequences", "4", "--planes", "3", "--group", "64", "--plan-only"],
    );
    let outcome = bench.trike.json(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(outcome["plan"], report["planning"]["plan"]);
    let saved: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(saved, outcome["plan"]);
    assert_eq!(fs::read(bench.trike.path("bytes/plan.json")).unwrap(), fs::read(&path).unwrap());
    // A loose quality budget: met on held-out text, with less than the largest size.
    let report = bench.run_with(
        "quality",
        &["--target", "0.002nats", "--sequences", "8", "--planes", "3", "--group", "64"],
        4,
    );
    let trials = report["planning"]["trials"].as_array().unwrap();
    assert!(trials.iter().any(|t| t["met"] == true), "{trials:?}");
    assert!(report["evaluation"]["kl"].as_f64().unwrap() < 0.003);
}

#[test]
fn pruning_makes_zeros_of_the_kind_that_was_asked_for() {
    let bench = crate::quantize::Bench::new();
    let weights = |name: &str| fs::read(bench.trike.path(&format!("{name}/model.safetensors"))).unwrap();
    let base = ["--planes", "1", "--sequences", "4"];
    let run = |name: &str, more: &[&str]| {
        let args = [&base[..], more].concat();
        bench.run_with(name, &args, 1)
    };
    let plain = run("plain", &[]);
    let zeros = |report: &Value| report["ternary"]["zeros"].as_f64().unwrap();
    let half = run("half", &["--prune", "0.7"]);
    assert!(zeros(&half) >= 0.7 && zeros(&half) > zeros(&plain) + 0.1, "{} {}", zeros(&half), zeros(&plain));
    let sparse = run("sparse", &["--prune", "0.96", "--group", "row"]);
    assert!(
        sparse["layers"][0]["stored"].as_str().unwrap().contains("row"),
        "{}",
        sparse["layers"][0]["stored"]
    );
    for (i, more) in [
        &["--prune", "0.7", "--prune-by", "magnitude"][..],
        &["--prune", "0.7", "--prune-by", "wanda"],
        &["--prune", "0.7", "--prune-pattern", "rows"],
        &["--prune", "0.7", "--prune-pattern", "1x32"],
        &["--prune-pattern", "1:4"],
        &["--prune", "0.7", "--encoding", "2bit"],
    ]
    .iter()
    .enumerate()
    {
        let name = format!("pruned{i}");
        assert!(zeros(&run(&name, more)) >= 0.69, "{more:?}");
        assert!(weights(&name) != weights("half"), "{more:?}");
    }
    for (more, part) in [
        (&["--prune", "1"][..], "below 1"),
        (&["--prune", "0.5", "--mean"], "no mean"),
        (&["--prune", "0.5", "--method", "nearest"], "error compensation"),
    ] {
        let out = text(bench.trike.path("refused").into());
        let args = bench.bare(&out, more);
        let error = bench.trike.fails(2, &args.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(error.contains(part), "{more:?}: {error}");
    }
}
