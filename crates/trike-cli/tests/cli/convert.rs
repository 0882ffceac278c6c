//! `trike convert` and `trike inspect`.

use serde_json::Value;
use trike_testkit::assert_near;

use crate::harness::{Trike, tiny};

const IDS: [u32; 6] = [0, 405, 422, 260, 378, 13];

/// The ternary model through every format and back: the logits are bit-identical to the original.
#[test]
fn conversions_there_and_back_keep_every_value() {
    let trike = Trike::new();
    let checkpoint = trike.dense();
    let exact = ["--head", "stored", "--threads", "1"];
    let (_, original) = trike.logits(&checkpoint, &IDS, &exact);
    let mut ways = vec![("tq1.gguf", vec!["tq1_0"]), ("tq2.gguf", vec!["tq2_0"]), ("q2.gguf", vec!["q2_0"])];
    for encoding in ["planes", "2bit", "base3", "bitmap", "csr"] {
        ways.push((encoding, vec!["trike", "--encoding", encoding]));
    }
    ways.push(("packed", vec!["trike", "--packed"]));
    for (name, to) in ways {
        let (there, back) = (trike.path(name), trike.path(&format!("{name}.f16")));
        let json = trike.json(&[&["convert", &checkpoint, &there, "--json", "--to"], &to[..]].concat());
        assert_eq!((&json["largest_change"], &json["tensors"]), (&0.0.into(), &38.into()), "{name}");
        assert_eq!(json["notes"], Value::Array(vec![]), "{name}: the tokenizer goes along");
        trike.stdout(&["convert", &there, &back, "--to", "f16"]);
        let (_, restored) = trike.logits(&back, &IDS, &exact);
        assert_eq!(restored, original, "{name}");
        // In another layout, sums are added in another order.
        let (_, packed) = trike.logits(&there, &IDS, &exact);
        trike_testkit::assert_close(&packed, &original, 1e-5);
        let json = trike.json(&[
            "run",
            "-m",
            &there,
            "-p",
            "Once upon a time",
            "--temperature",
            "0",
            "-n",
            "10",
            "--json",
        ]);
        assert_eq!(json["text"], ", there was a little girl named Lily", "{name}");
    }
}

#[test]
fn a_packed_checkpoint_has_a_third_of_the_bytes_and_the_shipped_model_stays_as_it_is() {
    let trike = Trike::new();
    let bytes = |dir: &str| -> u64 {
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
    };
    let pack = |from: &str, to: &str| {
        trike.json(&["convert", from, to, "--to", "trike", "--embeddings", "int8", "--json"])
    };
    let out = trike.path("packed");
    let json = pack(&trike.dense(), &out);
    assert_eq!(json["output_bytes"].as_u64(), Some(bytes(&out)));
    assert!(bytes(&out) < 700_000, "{json}");
    let change = json["largest_change"].as_f64();
    assert!(change.is_some_and(|change| change > 0.0 && change < 4e-3), "{json}");
    assert!(bytes(&tiny()) < 700_000);
    let out = trike.path("tiny");
    assert_eq!(pack(&tiny(), &out)["largest_change"], 0.0);
    let names = [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    ];
    for name in names {
        let read = |dir: &str| std::fs::read(format!("{dir}/{name}")).unwrap();
        assert!(read(&out) == read(&tiny()), "{name} of models/tiny is not what `trike convert` writes");
    }
}

#[test]
fn a_conversion_that_would_change_a_value_is_refused_and_leaves_nothing() {
    let trike = Trike::new();
    let [dense, _] = trike.storyteller();
    for (to, out) in [("trike", "out"), ("tq1_0", "out.gguf"), ("tq2_0", "out.gguf"), ("q2_0", "out.gguf")] {
        let out = trike.path(out);
        let error = trike.fails(1, &["convert", &dense, &out, "--to", to]);
        assert!(error.contains("q_proj") && error.contains("trike quantize"), "{error}");
        assert!(!std::path::Path::new(&out).exists(), "{to}");
    }
    let error = trike.fails(1, &["convert", &dense, &trike.path("out"), "--to", "f16"]);
    assert!(error.contains("which is not an f16 value"), "{error}");
}

#[test]
fn an_existing_output_and_paths_that_do_not_fit_are_refused() {
    let trike = Trike::new();
    let model = tiny();
    let there = trike.write("there.gguf", "mine");
    assert!(trike.fails(1, &["convert", &model, &there, "--to", "tq1_0"]).contains("exists"));
    assert_eq!(std::fs::read_to_string(&there).unwrap(), "mine");
    assert!(trike.fails(1, &["convert", &model, &model, "--to", "trike"]).contains("exists"));
    assert!(trike.fails(2, &["convert", &model, &trike.path("a"), "--to", "tq1_0"]).contains(".gguf"));
    assert!(
        trike.fails(2, &["convert", &model, &trike.path("a.gguf"), "--to", "trike"]).contains("directory")
    );
    let error =
        trike.fails(2, &["convert", &model, &trike.path("a.gguf"), "--to", "tq1_0", "--encoding", "csr"]);
    trike.fails(2, &["convert", &model, &trike.path("a.gguf"), "--to", "tq1_0", "--packed"]);
    assert!(error.contains("--to trike"), "{error}");
    trike.fails(2, &["convert", &model, &trike.path("a"), "--to", "f16", "--embeddings", "int8"]);
    trike.fails(2, &["convert", &model, &trike.path("a"), "--to", "q4_0"]);
}

#[test]
fn a_second_writer_to_a_path_is_refused() {
    let trike = Trike::new();
    let dense = trike.path("dense");
    trike.stdout(&["convert", &tiny(), &dense, "--to", "f16", "--embeddings", "f16"]);
    let (out, gguf) = (trike.path("out"), trike.path("out.gguf"));
    let text = trike.write("text.txt", "Once upon a time there was a sea. ".repeat(20));
    let first = [&out, &gguf].map(|path| trike::format::Claim::new(path.as_ref()).unwrap());
    for args in [
        vec!["convert", &dense, &out, "--to", "f16"],
        vec!["convert", &dense, &gguf, "--to", "f16"],
        vec!["quantize", "-m", &dense, "-o", &out, "-c", &text, "--method", "absmean", "--planes", "1"],
        vec!["quantize", "-m", &dense, "-o", &out, "-c", &text, "--target", "3bpw"],
    ] {
        let error = trike.fails(1, &args);
        assert!(error.contains("another process is writing it"), "{args:?}: {error}");
    }
    drop(first);
    trike
        .stdout(&["quantize", "-m", &dense, "-o", &out, "-c", &text, "--method", "absmean", "--planes", "1"]);
    trike.stdout(&["convert", &dense, &gguf, "--to", "f16"]);
    assert!(trike.fails(1, &["convert", &dense, &gguf, "--to", "f16"]).contains("exists"));
}

#[test]
fn inspect_shows_every_tensor() {
    let trike = Trike::new();
    let json = trike.json(&["inspect", &tiny(), "--json"]);
    assert_eq!(
        (&json["model"]["architecture"], &json["model"]["layers"]),
        (&"LlamaForCausalLM".into(), &4.into())
    );
    assert_eq!(json["refusal"], Value::Null);
    let tensors = json["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), 38);
    let tensor = |name: &str| tensors.iter().find(|t| t["name"] == name).unwrap_or_else(|| panic!("{name}"));
    let query = tensor("model.layers.0.self_attn.q_proj.weight");
    assert_eq!(query["shape"], serde_json::json!([256, 256]));
    // 256 trits are 52 bytes in base 3.
    assert_eq!(query["bytes"], 256 * 52 + 2);
    assert_eq!((&query["scales"]["granularity"], &query["scales"]["count"]), (&"tensor".into(), &1.into()));
    let embedding = tensor("model.embed_tokens.weight");
    assert_eq!((&embedding["bits_per_weight"], &embedding["scales"]["count"]), (&8.5.into(), &4096.into()));
    let totals = &json["totals"];
    assert_eq!((&totals["tensors"], &totals["ternary_parameters"]), (&38.into(), &2_359_296.into()));
    let percent = 100.0 * totals["ternary_zeros"].as_f64().unwrap();
    assert_near!(percent, 35.8, abs = 0.1);

    let text = trike.stdout(&["inspect", &tiny()]);
    for part in [
        "LlamaForCausalLM",
        "model.layers.3.mlp.down_proj.weight",
        "ternary zeros",
        "35.8 %",
        "4096 x group32",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.lines().all(|line| line.trim_end() == line), "no white space at the end of a line");
}

#[test]
fn inspect_shows_what_it_cannot_run_with_the_reason() {
    let trike = Trike::new();
    let dir = trike.copy_model(&tiny(), "other");
    let config = std::fs::read_to_string(dir.join("config.json")).unwrap();
    std::fs::write(dir.join("config.json"), config.replace("LlamaForCausalLM", "MambaForCausalLM")).unwrap();
    let dir = crate::harness::text(dir);
    let json = trike.json(&["inspect", &dir, "--json"]);
    assert_eq!(json["model"], Value::Null);
    assert!(json["refusal"].as_str().is_some_and(|reason| reason.contains("MambaForCausalLM")), "{json}");
    assert!(trike.stdout(&["inspect", &dir]).contains("cannot run"));
    assert!(trike.fails(1, &["run", "-m", &dir, "-p", "x"]).contains("MambaForCausalLM"));
}

#[test]
fn inspect_fails_on_damaged_weights_and_names_tensors_without_a_layer() {
    let trike = Trike::new();
    let dir = trike.copy_model(&tiny(), "damaged");
    let weights = dir.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    // An infinite scale: scales are the widest numbers that are stored after the header.
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[start..start + 4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    std::fs::write(&weights, bytes).unwrap();
    let path = crate::harness::text(dir);
    let (_, error) = trike.both_failing(&["inspect", &path]);
    assert!(error.contains("1 of 38 tensors are damaged"), "{error}");

    let dir = trike.copy_model(&tiny(), "half");
    let config = std::fs::read_to_string(dir.join("config.json")).unwrap();
    let fewer = config.replace("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 3");
    assert_ne!(fewer, config);
    std::fs::write(dir.join("config.json"), fewer).unwrap();
    let path = crate::harness::text(dir);
    let error = trike.fails(1, &["run", "-m", &path, "-p", "x"]);
    assert!(error.contains("9 tensors belong to no layer") && error.contains("model.layers.3."), "{error}");
    let json = trike.json(&["inspect", &path, "--json"]);
    assert_eq!(json["damaged"], 0);
    assert!(json["refusal"].as_str().is_some_and(|reason| reason.contains("model.layers.3.")), "{json}");
}

#[test]
fn inspect_reads_all_formats() {
    let trike = Trike::new();
    let [dense, _] = trike.storyteller();
    let int8 = trike.write("int8.bin", trike_testkit::storyteller().to_int8_bytes(64));
    let cases = [
        (dense, "llama2.c checkpoint", "F32"),
        (int8, "llama2.c checkpoint", "int8"),
        (trike.dense(), "HuggingFace directory", "F16"),
        (tiny(), "HuggingFace directory", "base3"),
    ];
    for (path, format, encoding) in cases {
        let json = trike.json(&["inspect", &path, "--json"]);
        assert_eq!(json["format"], format);
        let tensors = json["tensors"].as_array().unwrap();
        let found =
            |t: &Value| t["encoding"].as_str().unwrap().to_lowercase().contains(&encoding.to_lowercase());
        assert!(tensors.iter().any(found), "{path}: {encoding}: {}", tensors[0]);
    }
}
