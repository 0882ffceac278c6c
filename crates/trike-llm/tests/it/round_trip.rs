//! The text parts of a model through every pair of formats: tokenizer, chat templates, generation settings, special tokens.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::common::{SHAPE, Shape, random_llama};
use serde_json::json;
use tempfile::TempDir;
use trike_format::{Gguf, GgufWriter, HfDir, Int8Tensor, StringArray, Tensor, TensorSource};
use trike_llm::{
    ConvertOptions, ConvertReport, EmbeddingStorage, LanguageModel, LlmError, LoadOptions, ModelFile, Target,
    chat::Message, chat::RenderOptions, convert, sampler::GenerationConfig,
};
use trike_testkit::{byte_level_tokenizer, tiktoken_vocabulary};
use trike_trit::{Coupling, Granularity, Scales, TritTensor};

const TEXTS: [&str; 5] = ["", "the sea", "  he he\n\nhe", "<s>he</s>", "a\u{e9}\u{1F30A} \u{4E2D}"];
const DEFAULT: &str = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}";
const TOOLS: &str = "tools: {{ messages[0].content }}{{ eos_token }}";

/// A kind of model directory or file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Json,
    SentencePiece,
    Llama2c,
    Tiktoken,
    GgufLlama,
    GgufBytes,
}

/// Pieces of a SentencePiece vocabulary with all bytes: name, score, type.
fn pieces() -> Vec<(String, f32, u8)> {
    let mut all = vec![("<unk>".to_owned(), 0.0, 2), ("<s>".to_owned(), 0.0, 3), ("</s>".to_owned(), 0.0, 3)];
    all.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), 0.0, 6)));
    let words =
        ["\u{2581}", "h", "e", "t", "s", "a", "he", "th", "the", "\u{2581}the", "\u{2581}he", "se", "sea"];
    all.extend(words.iter().enumerate().map(|(i, word)| ((*word).to_owned(), -(i as f32), 1)));
    all
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, bytes.len() as u8][..], bytes].concat()
}

/// A `.model` file: pieces, a trainer_spec (BPE, byte fallback), a normalizer_spec that keeps spaces.
fn sentencepiece() -> Vec<u8> {
    let piece = |(name, score, kind): (String, f32, u8)| {
        field(
            1,
            &[field(1, name.as_bytes()), [&[0x15][..], &score.to_le_bytes()].concat(), vec![0x18, kind]]
                .concat(),
        )
    };
    let mut file: Vec<u8> = pieces().into_iter().flat_map(piece).collect();
    // model_type = 2, byte_fallback (35) = 1, unk_id, bos_id and eos_id (40 to 42).
    file.extend(field(2, &[0x18, 2, 0x98, 2, 1, 0xC0, 2, 0, 0xC8, 2, 1, 0xD0, 2, 2]));
    file.extend(field(3, &[0x20, 0]));
    file
}

fn llama2c() -> Vec<u8> {
    let mut file = 16_i32.to_le_bytes().to_vec();
    for (name, score, _) in pieces() {
        let name = match name.as_str() {
            "<s>" => "\n<s>\n".to_owned(),
            "</s>" => "\n</s>\n".to_owned(),
            name => name.replace('\u{2581}', " "),
        };
        file.extend(score.to_le_bytes());
        file.extend((name.len() as i32).to_le_bytes());
        file.extend(name.as_bytes());
    }
    file
}

/// Writes the vocabulary, a default and a named template and sampling settings as GGUF keys.
fn gguf_keys(writer: &mut GgufWriter, kind: Kind) -> usize {
    let (tokens, types): (Vec<String>, Vec<i32>) = if kind == Kind::GgufLlama {
        let (scores, rest): (Vec<f32>, Vec<(String, i32)>) =
            pieces().into_iter().map(|(name, score, kind)| (score, (name, i32::from(kind)))).unzip();
        writer.metadata("tokenizer.ggml.model", "llama").unwrap();
        writer.metadata("tokenizer.ggml.scores", scores).unwrap();
        writer.metadata("tokenizer.ggml.unknown_token_id", 0_u32).unwrap();
        writer.metadata("tokenizer.ggml.bos_token_id", 1_u32).unwrap();
        writer.metadata("tokenizer.ggml.eos_token_id", 2_u32).unwrap();
        writer.metadata("tokenizer.ggml.add_bos_token", true).unwrap();
        rest.into_iter().unzip()
    } else {
        let mut tokens: Vec<String> = (0..=255_u8)
            .map(|byte| match byte {
                b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte).to_string(),
                0..=b' ' => char::from_u32(256 + u32::from(byte)).unwrap().to_string(),
                0x7F..=0xA0 => char::from_u32(256 + 33 + u32::from(byte) - 0x7F).unwrap().to_string(),
                0xAD => char::from_u32(256 + 67).unwrap().to_string(),
            })
            .collect();
        tokens.extend(["he", "<|s|>", "<|e|>", "<|turn|>"].map(str::to_owned));
        let mut types = vec![1_i32; tokens.len()];
        types[257..].fill(3);
        writer.metadata("tokenizer.ggml.model", "gpt2").unwrap();
        writer.metadata("tokenizer.ggml.pre", "qwen2").unwrap();
        writer.metadata("tokenizer.ggml.merges", ["h e"].into_iter().collect::<StringArray>()).unwrap();
        writer.metadata("tokenizer.ggml.bos_token_id", 257_u32).unwrap();
        writer.metadata("tokenizer.ggml.eos_token_id", 258_u32).unwrap();
        writer.metadata("tokenizer.ggml.eot_token_id", 259_u32).unwrap();
        (tokens, types)
    };
    writer.metadata("tokenizer.ggml.tokens", tokens.iter().collect::<StringArray>()).unwrap();
    writer.metadata("tokenizer.ggml.token_type", types).unwrap();
    writer.metadata("tokenizer.chat_template", DEFAULT).unwrap();
    writer.metadata("tokenizer.chat_template.tool_use", TOOLS).unwrap();
    writer.metadata("tokenizer.chat_templates", ["tool_use"].iter().collect::<StringArray>()).unwrap();
    writer.metadata("general.sampling.temp", 0.6_f32).unwrap();
    writer.metadata("general.sampling.top_k", 20_i32).unwrap();
    writer.metadata("general.sampling.min_p", 0.05_f32).unwrap();
    tokens.len()
}

/// A small model with text of this kind.
fn source(dir: &Path, kind: Kind) -> PathBuf {
    let path = dir.join("source");
    // Byte-level; the bundled model's tokenizer has characters.
    let json = byte_level_tokenizer();
    let vocab = match kind {
        Kind::Json => serde_json::from_str::<serde_json::Value>(&json).unwrap()["model"]["vocab"]
            .as_object()
            .unwrap()
            .len(),
        Kind::Tiktoken => 128_256,
        Kind::GgufBytes => 260,
        Kind::SentencePiece | Kind::Llama2c | Kind::GgufLlama => pieces().len(),
    };
    let hidden = if kind == Kind::Tiktoken { 16 } else { 256 };
    let shape = Shape { hidden, inner: 256, layers: 1, heads: 2, kv_heads: 1, vocab, tied: true, ..SHAPE };
    random_llama(&path, shape, 1, true);
    let put = |name: &str, content: &[u8]| fs::write(path.join(name), content).unwrap();
    let config = |template: serde_json::Value| json!({ "add_bos_token": true, "bos_token": "<s>", "eos_token": { "content": "</s>" }, "model_max_length": 99, "chat_template": template });
    let both = json!([{ "name": "default", "template": DEFAULT }, { "name": "tool_use", "template": TOOLS }]);
    match kind {
        Kind::Json => {
            put("tokenizer.json", json.as_bytes());
            put("tokenizer_config.json", config(both).to_string().as_bytes());
            put(
                "generation_config.json",
                br#"{"temperature": 0.7, "top_p": 0.9, "transformers_version": "5"}"#,
            );
            put("special_tokens_map.json", b"{\"bos_token\": \"<s>\"}");
        }
        Kind::SentencePiece => {
            put("tokenizer.model", &sentencepiece());
            // The template in its own file takes precedence.
            put("tokenizer_config.json", config("old".into()).to_string().as_bytes());
            put("chat_template.jinja", DEFAULT.as_bytes());
            put(
                "generation_config.json",
                br#"{"do_sample": false, "repetition_penalty": 1.1, "eos_token_id": [2, 5, 1, 3]}"#,
            );
        }
        Kind::Llama2c => put("tokenizer.bin", &llama2c()),
        Kind::Tiktoken => put("tokenizer.model", &tiktoken_vocabulary()),
        Kind::GgufLlama | Kind::GgufBytes => {
            let plain = dir.join("plain.gguf");
            run(&path, &plain, &rounded(&ConvertOptions::new(Target::F16))).unwrap();
            let old = Gguf::open(&plain).unwrap();
            let out = dir.join("source.gguf");
            let mut writer = GgufWriter::create(&out).unwrap();
            for (key, value) in old.metadata().iter().filter(|(key, _)| !key.starts_with("tokenizer.")) {
                writer.metadata(key, value.clone()).unwrap();
            }
            assert_eq!(gguf_keys(&mut writer, kind), vocab);
            for tensor in old.tensors() {
                let kind = match tensor.shape.len() {
                    1 => trike_format::GgufType::F32,
                    _ => trike_format::GgufType::F16,
                };
                writer.tensor(&tensor.name, &old.load(&tensor.name).unwrap(), kind).unwrap();
            }
            writer.finish().unwrap();
            return out;
        }
    }
    path
}

/// Random weights are not exact in f16: the embedding is rounded.
fn rounded(options: &ConvertOptions) -> ConvertOptions {
    options.clone().with_embeddings(EmbeddingStorage::F16)
}

fn run(from: &Path, to: &Path, options: &ConvertOptions) -> Result<ConvertReport, LlmError> {
    convert(&ModelFile::open(from)?, to, options, &mut |_, _| ())
}

/// Behaviour of a model's text parts.
#[derive(Debug, PartialEq)]
struct Text {
    ids: Vec<Vec<u32>>,
    prompt: Vec<u32>,
    special: (Option<u32>, Vec<u32>, bool),
    chats: Vec<(String, String)>,
    generation: GenerationConfig,
}

fn text(path: &Path) -> Text {
    let file = ModelFile::open(path).unwrap();
    let tokenizer = file.tokenizer(None).unwrap();
    let template = file.chat_template(&tokenizer).unwrap();
    let messages = [Message::user("the sea"), Message::assistant("he")];
    let chats = template.iter().flat_map(|template| {
        template.names().map(|name| {
            let options = RenderOptions::default().with_template(name.to_owned());
            (name.to_owned(), template.render(&messages, &options).unwrap())
        })
    });
    Text {
        ids: TEXTS.iter().map(|text| tokenizer.encode(text, false).unwrap()).collect(),
        prompt: tokenizer.encode_prompt("the sea").unwrap(),
        special: (tokenizer.bos(), tokenizer.eos().to_vec(), tokenizer.adds_bos()),
        chats: chats.collect(),
        generation: file.generation_config().unwrap(),
    }
}

/// The text files of a directory, by name.
fn files(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<(String, Vec<u8>)> = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(path).unwrap()))
        .filter(|(name, _)| name != "config.json" && !name.ends_with(".safetensors"))
        .collect();
    all.sort();
    all
}

fn check(kind: Kind) {
    let dir = TempDir::new().unwrap();
    let start = source(dir.path(), kind);
    let want = text(&start);
    let is_gguf = start.extension().is_some();
    let expected = match kind {
        Kind::Json | Kind::GgufLlama | Kind::GgufBytes => 2,
        Kind::SentencePiece => 1,
        Kind::Llama2c | Kind::Tiktoken => 0,
    };
    assert_eq!(want.chats.len(), expected, "{kind:?}");
    if kind == Kind::SentencePiece {
        // Four end tokens: from the generation configuration instead of `config.json`, and more than GGUF keys can name.
        assert_eq!(want.special.1, [2, 5, 1, 3]);
    }
    let (trike, dense) = (ConvertOptions::new(Target::Trike), ConvertOptions::new(Target::F16));
    let gguf = if kind == Kind::Tiktoken { dense.clone() } else { ConvertOptions::new(Target::Tq2_0) };
    let mut steps: Vec<(&str, ConvertOptions)> = vec![
        ("1.gguf", rounded(&gguf)),
        ("2-trike", trike.clone()),
        ("3.gguf", gguf.clone()),
        ("4-dense", dense.clone()),
        ("5.gguf", dense.clone()),
        ("6-packed", trike.clone().with_packed(true)),
        ("7.gguf", dense.clone()),
        ("8.gguf", gguf.clone()),
        ("9-end", trike.clone()),
    ];
    if kind == Kind::Tiktoken {
        // Its rows are too short for the ternary types, and its vocabulary is large.
        steps.truncate(2);
    }
    let mut from = start.clone();
    for (name, options) in steps {
        let to = dir.path().join(name);
        // There is no key for tiktoken: other programs cannot read it, which the report notes.
        let noted = kind == Kind::Tiktoken && name.ends_with("gguf");
        let report =
            run(&from, &to, &options.with_strict(!noted)).unwrap_or_else(|e| panic!("{kind:?} {name}: {e}"));
        assert_eq!(report.notes.len(), usize::from(noted), "{:?}", report.notes);
        assert_eq!(text(&to), want, "{kind:?} after {name}");
        if !is_gguf && to.is_dir() {
            let names = |path: &Path| files(path).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
            assert_eq!(names(&to), names(&start), "{kind:?} after {name}");
            assert!(files(&to) == files(&start), "{kind:?} after {name}: files come back byte for byte");
        }
        from = to;
    }
}

#[test]
fn a_tokenizer_json_and_its_templates() {
    check(Kind::Json);
}

#[test]
fn a_sentencepiece_model() {
    check(Kind::SentencePiece);
}

#[test]
fn a_llama2c_vocabulary() {
    check(Kind::Llama2c);
}

#[test]
fn a_tiktoken_model() {
    check(Kind::Tiktoken);
}

#[test]
fn a_sentencepiece_vocabulary_in_gguf() {
    check(Kind::GgufLlama);
}

#[test]
fn a_byte_level_vocabulary_in_gguf() {
    check(Kind::GgufBytes);
}

#[test]
fn other_programs_find_a_sentencepiece_vocabulary_in_its_keys() {
    for kind in [Kind::SentencePiece, Kind::Llama2c] {
        let dir = TempDir::new().unwrap();
        let start = source(dir.path(), kind);
        let out = dir.path().join("out.gguf");
        run(&start, &out, &rounded(&ConvertOptions::new(Target::F16))).unwrap();
        let file = Gguf::open(&out).unwrap();
        assert_eq!(file.str("tokenizer.ggml.model").unwrap(), Some("llama"));
        let tokens: Vec<&str> = file.strings("tokenizer.ggml.tokens").unwrap().unwrap().iter().collect();
        let names: Vec<String> = pieces().into_iter().map(|(name, ..)| name).collect();
        assert_eq!(tokens, names, "{kind:?}");
        assert_eq!(file.i64s("tokenizer.ggml.token_type").unwrap().unwrap()[..5], [2, 3, 3, 6, 6]);
        assert_eq!(file.u32("tokenizer.ggml.bos_token_id").unwrap(), Some(1));
        assert_eq!(file.u32("tokenizer.ggml.eos_token_id").unwrap(), Some(2));
        assert_eq!(file.bool("tokenizer.ggml.add_bos_token").unwrap(), Some(true));
        if kind == Kind::SentencePiece {
            assert_eq!(file.str("tokenizer.chat_template").unwrap(), Some(DEFAULT));
            assert_eq!(file.f32("general.sampling.temp").unwrap(), Some(0.0), "greedy");
        }
    }
}

#[test]
fn another_tokenizer_of_any_kind_replaces_the_model_s() {
    let dir = TempDir::new().unwrap();
    let start = source(dir.path(), Kind::Llama2c);
    let other = TempDir::new().unwrap();
    let gguf = source(other.path(), Kind::GgufLlama);
    let model = other.path().join("new.model");
    fs::write(&model, sentencepiece()).unwrap();
    let embedded = dir.path().join("start.gguf");
    let half = rounded(&ConvertOptions::new(Target::F16));
    run(&start, &embedded, &half).unwrap();
    for (i, given) in [gguf, model.clone(), other.path().join("source")].into_iter().enumerate() {
        // A directory stands for the tokenizer in it.
        if given.is_dir() {
            fs::copy(&model, given.join("tokenizer.model")).unwrap();
        }
        for from in [&start, &embedded] {
            for name in ["dir", "out.gguf"] {
                let to = dir.path().join(format!("{i}-{}-{name}", from == &start));
                let options = half.clone().with_tokenizer(given.clone());
                let report = run(from, &to, &options).unwrap();
                assert_eq!(report.notes, [""; 0]);
                let converted = ModelFile::open(&to).unwrap();
                let (got, want) = (
                    converted.tokenizer(None).unwrap(),
                    ModelFile::open(&start).unwrap().tokenizer(Some(&given)).unwrap(),
                );
                for text in TEXTS {
                    assert_eq!(got.encode(text, false).unwrap(), want.encode(text, false).unwrap(), "{to:?}");
                }
                if to.is_dir() {
                    assert!(!to.join("tokenizer.bin").exists(), "the old one is gone");
                }
            }
        }
    }
}

#[test]
fn what_is_left_out_is_a_note_or_an_error() {
    let dir = TempDir::new().unwrap();
    let start = source(dir.path(), Kind::Json);
    fs::remove_file(start.join("tokenizer.json")).unwrap();
    fs::create_dir(start.join("additional_chat_templates")).unwrap();
    for name in ["out", "out.gguf"] {
        let options = rounded(&ConvertOptions::new(Target::F16));
        let refused = dir.path().join(format!("strict-{name}"));
        let error = run(&start, &refused, &options.clone().with_strict(true)).unwrap_err();
        assert!(matches!(error, LlmError::LeftOut { .. }), "{error}");
        assert!(!refused.exists() && !dir.path().join(format!("strict-{name}.incomplete")).exists());
        let report = run(&start, &dir.path().join(name), &options).unwrap();
        assert_eq!(report.notes.len(), 2, "{:?}", report.notes);
        assert!(report.notes.iter().any(|note| note.contains("tokenizer")));
        assert!(report.notes.iter().any(|note| note.contains("additional_chat_templates")));
    }
}

/// Int8 in groups other than those of `Q8_0` is refused with the group size, after too many planes, and rounded again on request.
#[test]
fn embeddings_are_rounded_again_on_request() {
    let dir = TempDir::new().unwrap();
    let start = source(dir.path(), Kind::Llama2c);
    let original = HfDir::open(&start).unwrap();
    let make = |name: &str, planes: usize| {
        let path = dir.path().join(name);
        let mut writer = trike_format::HfDirWriter::create(&path, original.config().clone()).unwrap();
        for tensor in original.tensors() {
            let loaded = match original.load(&tensor.name).unwrap() {
                Tensor::Dense(dense) if tensor.name == "model.embed_tokens.weight" => {
                    Int8Tensor::quantize(&dense, 64, false).unwrap().into()
                }
                Tensor::Ternary(trits) if planes > 1 => {
                    let plane = trits.data(0).unwrap().into_owned();
                    let scales = Scales::new(Granularity::Tensor, vec![0.5; planes], None);
                    let (rows, cols) = (trits.rows(), trits.cols());
                    TritTensor::new(rows, cols, vec![plane; planes], Coupling::Free, scales).unwrap().into()
                }
                other => other,
            };
            writer.tensor(&tensor.name, &loaded).unwrap();
        }
        writer.finish().unwrap();
        path
    };
    let options = ConvertOptions::new(Target::Tq2_0);
    let two = run(&make("two", 2), &dir.path().join("two.gguf"), &options).unwrap_err();
    assert!(matches!(&two, LlmError::Planes { planes: 2, .. }), "planes before scales: {two}");
    let one = make("one", 1);
    let out = dir.path().join("one.gguf");
    let refused = run(&one, &out, &options).unwrap_err();
    assert!(matches!(&refused, LlmError::Int8Groups { group: 64, scales: "f32", .. }), "{refused}");
    assert!(!out.exists());
    for (storage, kind, most) in
        [(EmbeddingStorage::Int8, "Q8_0", 1.0 / 100.0), (EmbeddingStorage::F16, "F16", 1.0 / 2000.0)]
    {
        let out = dir.path().join(kind);
        let out = out.with_extension("gguf");
        let report = run(&one, &out, &options.clone().with_embeddings(storage)).unwrap();
        assert!(report.largest_change > 0.0 && report.largest_change < most, "{report:?}");
        let file = Gguf::open(&out).unwrap();
        assert_eq!(file.info("token_embd.weight").unwrap().kind.to_string(), kind);
        // A second conversion changes nothing.
        let again = run(
            &out,
            &dir.path().join(format!("again-{kind}")),
            &ConvertOptions::new(Target::Trike).with_embeddings(storage),
        );
        assert_eq!(again.unwrap().largest_change, 0.0);
    }
}

/// A checkpoint with a tied head may store the one matrix under either name, or twice.
#[test]
fn a_tied_matrix_under_the_name_of_the_head() {
    let dir = TempDir::new().unwrap();
    let start = source(dir.path(), Kind::Llama2c);
    let want = text(&start);
    let weights = |path: &Path| {
        let file = ModelFile::open(path).unwrap();
        file.weights().into_iter().map(|name| file.load(name).unwrap().into_f32()).collect::<Vec<_>>()
    };
    let original = HfDir::open(&start).unwrap();
    let variant = |name: &str, names: &[&str], change: f32| {
        let path = dir.path().join(name);
        let mut writer = trike_format::HfDirWriter::create(&path, original.config().clone()).unwrap();
        for tensor in original.tensors() {
            let loaded = original.load(&tensor.name).unwrap();
            if tensor.name != "model.embed_tokens.weight" {
                writer.tensor(&tensor.name, &loaded).unwrap();
                continue;
            }
            for (i, name) in names.iter().enumerate() {
                let values = loaded.to_f32().iter().map(|v| v + change * i as f32).collect();
                let data = trike_format::DenseData::F32(values);
                writer
                    .tensor(name, &trike_format::DenseTensor::new(loaded.shape(), data).unwrap().into())
                    .unwrap();
            }
        }
        writer.copy_file(start.join("tokenizer.bin")).unwrap();
        writer.finish().unwrap();
        path
    };
    let options = ConvertOptions::new(Target::Trike);
    for names in [&["lm_head.weight"][..], &["model.embed_tokens.weight", "lm_head.weight"]] {
        let path = variant(&format!("tied-{}", names.len()), names, 0.0);
        assert_eq!(weights(&path), weights(&start));
        LanguageModel::load(&path).unwrap();
        let out = dir.path().join(format!("out-{}", names.len()));
        run(&path, &out, &options).unwrap();
        assert_eq!((weights(&out), text(&out)), (weights(&start), text(&start)));
    }
    let path = variant("differs", &["model.embed_tokens.weight", "lm_head.weight"], 0.5);
    let error = run(&path, &dir.path().join("lossy"), &options).unwrap_err();
    assert!(error.to_string().contains("lm_head.weight"), "{error}");
    assert_eq!(text(&path), want);
}

#[test]
fn tensors_that_no_layer_reads_are_refused_by_name() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("model");
    random_llama(&path, Shape { layers: 3, ..SHAPE }, 1, true);
    let config = path.join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2")).unwrap();
    let load = |file: &ModelFile| LanguageModel::load_with(file, &LoadOptions::default(), &mut |_, _| ());
    let error = load(&ModelFile::open(&path).unwrap()).err().expect("two of three layers");
    let LlmError::UnreadTensors { count, names, .. } = &error else { panic!("{error}") };
    assert_eq!(*count, 9);
    assert!(names.starts_with("model.layers.2.") && names.ends_with(", ..."), "{names}");
}
