//! Invalid input of any kind: an error with the file and a remedy, and the right exit code.

use trike::format::{GgufWriter, StringArray};
use trike_testkit::{
    Llama2cCheckpoint, Llama2cShape, other_llama2c_vocabulary, sentencepiece_vocabulary, tiktoken_vocabulary,
};

use crate::harness::{Trike, text, tiny};

#[test]
fn files_that_are_no_models() {
    let trike = Trike::new();
    let noise: Vec<u8> = (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let noise_gguf = [b"GGUF".as_slice(), &noise].concat();
    std::fs::create_dir(trike.path("directory")).unwrap();
    let cases = [
        (trike.path("missing"), "cannot open"),
        (trike.write("empty.bin", ""), "empty"),
        (trike.write("short.bin", "abc"), "GGUF"),
        (trike.write("noise.bin", &noise), "noise.bin"),
        (trike.write("noise.gguf", noise_gguf), "noise.gguf"),
        (trike.path("directory"), "config.json"),
    ];
    for (path, part) in cases {
        let out = trike.path("out");
        for args in [
            vec!["run", "-m", &path, "-p", "x"],
            vec!["logits", "-m", &path, "--ids", "1", "-o", &out],
            vec!["bench", "-m", &path],
            vec!["inspect", &path],
            vec!["convert", &path, &out, "--to", "trike"],
        ] {
            let error = trike.fails(1, &args);
            assert!(error.contains(&path) && error.contains(part), "{error}");
        }
        assert!(!std::path::Path::new(&out).exists(), "{path}");
    }
}

#[test]
fn a_model_that_is_cut_off_or_lacks_a_file() {
    let trike = Trike::new();
    for len in [0, 7, 8, 100, 5000, 600_000] {
        let dir = trike.copy_model(&tiny(), &format!("cut{len}"));
        let weights = dir.join("model.safetensors");
        let bytes = std::fs::read(&weights).unwrap();
        std::fs::write(&weights, &bytes[..len]).unwrap();
        let error = trike.fails(1, &["run", "-m", &text(dir), "-p", "x"]);
        assert!(error.contains("model.safetensors"), "{len}: {error}");
    }
    for (file, part) in [("model.safetensors", "model.safetensors"), ("config.json", "config.json")] {
        let dir = trike.copy_model(&tiny(), &format!("without_{file}"));
        std::fs::remove_file(dir.join(file)).unwrap();
        let error = trike.fails(1, &["run", "-m", &text(dir), "-p", "x"]);
        assert!(error.contains(part), "{error}");
    }
    let dir = trike.copy_model(&tiny(), "without_tokenizer");
    std::fs::remove_file(dir.join("tokenizer.json")).unwrap();
    let error = trike.fails(1, &["run", "-m", &text(dir.clone()), "-p", "x"]);
    assert!(error.contains("--tokenizer"), "{error}");
    // Ids need none.
    let (shape, _) = trike.logits(&text(dir), &[1, 2], &[]);
    assert_eq!(shape, [2, 512]);
    for (file, content) in [
        ("config.json", "{"),
        ("config.json", "[]"),
        ("tokenizer.json", "{}"),
        ("generation_config.json", r#"{"temperature": "hot"}"#),
    ] {
        let dir = trike.copy_model(&tiny(), &format!("broken_{file}_{}", content.len()));
        std::fs::write(dir.join(file), content).unwrap();
        let error = trike.fails(1, &["run", "-m", &text(dir), "-p", "x"]);
        assert!(error.contains(file), "{error}");
    }
}

#[test]
fn truncated_checkpoints_of_llama2c() {
    let bytes = trike_testkit::storyteller().to_f32_bytes();
    let trike = Trike::new();
    for len in [27, 28, 30_000, bytes.len() - 1_000] {
        let path = trike.write("cut.bin", &bytes[..len]);
        assert!(trike.fails(1, &["run", "-m", &path, "-p", "x"]).contains("cut.bin"), "{len}");
    }
}

#[test]
fn weights_that_are_no_numbers_are_named() {
    let trike = Trike::new();
    let [model, tokenizer] = trike.storyteller();
    let mut bytes = std::fs::read(model).unwrap();
    // The header, the embedding of 512 x 64, five norms of 64, and then the first query matrix.
    let at = 28 + 4 * (512 * 64 + 5 * 64 + 25);
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let (path, out) = (trike.write("nan.bin", bytes), trike.path("out"));
    let words = trike.write("words.txt", "Once upon a time");
    for args in [
        vec!["run", "-m", &path, "--tokenizer", &tokenizer, "-p", "x"],
        vec!["logits", "-m", &path, "--ids", "1,2", "-o", &out],
        vec!["perplexity", "-m", &path, "--tokenizer", &tokenizer, "-f", &words],
    ] {
        let error = trike.fails(1, &args);
        assert!(error.contains("nan.bin") && error.contains("layers.0.self_attn.q_proj"), "{error}");
    }
    let (text, error) = trike.both_failing(&["inspect", &path]);
    assert!(text.contains("note: model.layers.0.self_attn.q_proj.weight"), "{text}");
    assert!(error.contains("1 of 47 tensors are damaged"), "{error}");
}

#[test]
fn a_tokenizer_of_another_model() {
    let trike = Trike::new();
    let [model, _] = trike.storyteller();
    let gguf = trike.path("vocabulary.gguf");
    let mut writer = GgufWriter::create(&gguf).unwrap();
    let tokens = ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter();
    let tokens: Vec<String> = tokens.chain((0..256).map(|byte| format!("<0x{byte:02X}>"))).collect();
    let types: Vec<i32> = [2, 3, 3].into_iter().chain([6; 256]).collect();
    writer.metadata("general.architecture", "llama").unwrap();
    writer.metadata("tokenizer.ggml.model", "llama").unwrap();
    writer.metadata("tokenizer.ggml.tokens", tokens.iter().collect::<StringArray>()).unwrap();
    writer.metadata("tokenizer.ggml.scores", vec![0f32; tokens.len()]).unwrap();
    writer.metadata("tokenizer.ggml.token_type", types).unwrap();
    writer.finish().unwrap();
    for tokenizer in [
        trike.write("tok4096.bin", other_llama2c_vocabulary(4096)),
        // As SentencePiece, with one piece more.
        trike.write(
            "tokenizer.model",
            [&sentencepiece_vocabulary()[..], &[10, 4, 10, 2, b'z', b'z']].concat(),
        ),
        trike.write("llama3.model", tiktoken_vocabulary()),
        gguf,
    ] {
        for model in [&model, &tiny()] {
            let error = trike.fails(1, &["run", "-m", model, "--tokenizer", &tokenizer, "-p", "x"]);
            assert!(error.contains("tokenizer"), "{error}");
        }
    }
    let none = trike.fails(1, &["run", "-m", &model, "-p", "x"]);
    assert!(none.contains("--tokenizer"), "{none}");
    let missing = trike.path("missing.json");
    let error = trike.fails(1, &["run", "-m", &model, "--tokenizer", &missing, "-p", "x"]);
    assert!(error.contains("missing.json"), "{error}");
}

#[test]
fn a_prompt_over_the_context() {
    let trike = Trike::new();
    let long = "hello world ".repeat(200);
    let error = trike.fails(1, &["run", "-m", &tiny(), "-p", &long]);
    assert!(error.contains("context length is 512") && error.contains("rolling window"), "{error}");
    let ids = vec!["1"; 513].join(",");
    let error = trike.fails(1, &["logits", "-m", &tiny(), "--ids", &ids, "-o", &trike.path("out")]);
    assert!(error.contains("513") && error.contains("512"), "{error}");
    let args = ["run", "-m", &tiny(), "-p", &long, "--window", "32", "-n", "2", "--temperature", "0"];
    assert!(trike.stdout(&args).starts_with(&long));
}

#[test]
fn options_out_of_range_are_wrong_usage() {
    let trike = Trike::new();
    let model = tiny();
    for (args, part) in [
        (vec!["--temperature", "-1"], "temperature"),
        (vec!["--temperature", "nan"], "temperature"),
        (vec!["--top-k", "-1"], "--top-k"),
        (vec!["--top-p", "0"], "top_p"),
        (vec!["--top-p", "1.5"], "top_p"),
        (vec!["--min-p", "-0.5"], "min_p"),
        (vec!["--repetition-penalty", "0"], "repetition_penalty"),
        (vec!["--max-tokens", "-2"], "-1 for no limit"),
        (vec!["--window", "0"], "window"),
        (vec!["--window", "513"], "window"),
        (vec!["--stop", ""], "stop"),
        (vec!["--threads", "1025"], "--threads"),
        (vec!["--isa", "mmx"], "avx2"),
        (vec!["--kv", "f8"], "f16"),
        (vec!["--frobnicate"], "--frobnicate"),
    ] {
        let error = trike.fails(2, &[&["run", "-m", &model, "-p", "x"], &args[..]].concat());
        assert!(error.contains(part), "{args:?}: {error}");
    }
    for args in [
        vec!["run", "-m", &model],
        vec!["logits", "-m", &model, "--ids", "", "-o", "out"],
        vec!["logits", "-m", &model, "--ids", "1,-3", "-o", "out"],
        vec!["bench", "-m", &model, "-p", "513"],
        vec!["bench", "-m", &model, "-r", "0"],
        vec!["bench", "-m", &model, "--synthetic", "125m"],
        vec!["bench", "-m", &model, "--encoding", "csr"],
        vec!["frobnicate"],
    ] {
        trike.fails(2, &args);
    }
    let error = trike.fails(1, &["logits", "-m", &model, "--ids", "1,1024", "-o", "out"]);
    assert!(error.contains("1024"), "{error}");
}

#[test]
fn texts_that_cannot_be_scored() {
    let trike = Trike::new();
    let directory = trike.path("directory");
    std::fs::create_dir(&directory).unwrap();
    for (path, part) in [
        (trike.path("missing.txt"), "cannot read"),
        (trike.write("empty.txt", ""), "nothing to score"),
        (trike.write("blank.txt", "<|endoftext|> \n <|endoftext|>"), "nothing to score"),
        (trike.write("latin1.txt", [b'a', 0xe9, b'b']), "UTF-8"),
        (directory, "cannot read"),
    ] {
        let error = trike.fails(1, &["perplexity", "-m", &tiny(), "-f", &path]);
        assert!(error.contains(&path) && error.contains(part), "{error}");
    }
    let other = Llama2cCheckpoint::random(Llama2cShape::STORIES_3M, 3).to_int8_bytes(64);
    let other = trike.write("other.bin", other);
    let words = trike.write("words.txt", "Once upon a time");
    let error = trike.fails(1, &["perplexity", "-m", &tiny(), "-f", &words, "--base", &other]);
    assert!(error.contains("4096") && error.contains("512"), "{error}");
}

#[test]
fn an_output_that_cannot_be_written() {
    let trike = Trike::new();
    let nowhere = trike.write("no", "") + "/where";
    let error = trike.fails(1, &["logits", "-m", &tiny(), "--ids", "1", "-o", &nowhere]);
    assert!(error.contains("/no"), "{error}");
    // Parent folders of an output are created, but not in place of a file.
    let file = trike.write("file", "");
    for output in [format!("{file}/where.gguf"), format!("{file}/where")] {
        let target = if output.ends_with("gguf") { "tq1_0" } else { "trike" };
        let error = trike.fails(1, &["convert", &tiny(), &output, "--to", target]);
        assert!(error.contains(&file), "{error}");
    }
    trike.stdout(&["convert", &tiny(), &trike.path("a/new/folder/x.gguf"), "--to", "tq1_0"]);
    let left: Vec<_> = std::fs::read_dir(trike.path("a/new/folder")).unwrap().collect();
    assert_eq!(left.len(), 1, "no lock is left: {left:?}");
}
