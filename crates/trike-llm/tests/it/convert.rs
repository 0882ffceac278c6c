//! Conversions keep every value, or are refused.

use crate::common;
use std::path::{Path, PathBuf};

use crate::common::{SHAPE, Shape, ids, random_llama};
use tempfile::TempDir;
use trike_core::Layout;
use trike_llm::{
    ConvertOptions, ConvertReport, EmbeddingStorage, HeadPrecision, LanguageModel, LlmError, LoadOptions,
    ModelFile, ScaleStorage, Target, convert,
};
use trike_nn::{ActivationPrecision, KvPrecision, KvSpec};
use trike_testkit::assert_close;
use trike_trit::{Encoding, GroupSize};

/// Rows of 256 and 1024, supported by every GGUF type, with scales 1/16 and 1/32, exact in f16.
const WIDE: Shape = Shape { hidden: 256, inner: 1024, heads: 4, layers: 2, ..SHAPE };

fn to(input: &Path, output: &Path, target: Target, encoding: Encoding) -> Result<ConvertReport, LlmError> {
    let options = ConvertOptions::new(target).with_encoding(encoding);
    convert(&ModelFile::open(input)?, output, &options, &mut |_, _| ())
}

fn logits(path: &Path) -> Vec<f32> {
    let file = ModelFile::open(path).expect("a model");
    let options = LoadOptions::default()
        .with_head(HeadPrecision::AsStored)
        .with_activations(ActivationPrecision::F32)
        .with_cpu(trike_cpu::Cpu::new(1).expect("a thread"));
    let model = LanguageModel::load_with(&file, &options, &mut |_, _| ()).expect("it loads");
    let mut all = Vec::new();
    model
        .logits_with(&ids(20, WIDE.vocab, 1), &KvSpec::new(KvPrecision::F32, 20), |_, row| {
            all.extend_from_slice(row);
        })
        .expect("logits");
    all
}

fn model(dir: &TempDir, name: &str, shape: Shape, packed: bool) -> PathBuf {
    let path = dir.path().join(name);
    random_llama(&path, shape, 3, packed);
    path
}

#[test]
fn there_and_back_through_every_format() {
    let dir = TempDir::new().expect("a directory");
    let dense = model(&dir, "dense", WIDE, false);
    let want = logits(&dense);
    let file = |name: &str| dir.path().join(name);
    for (target, name) in [(Target::Tq1_0, "1.gguf"), (Target::Tq2_0, "2.gguf"), (Target::Q2_0, "q.gguf")] {
        let report = to(&dense, &file(name), target, Encoding::Base3).expect("it converts");
        assert_eq!((report.tensors, report.largest_change), (3 + 9 * 2, 0.0));
        assert_eq!(report.output_bytes, file(name).metadata().expect("it is there").len());
        // Heads are paired differently in GGUF: the same numbers added in another order.
        assert_close(&logits(&file(name)), &want, 1e-5);
        for encoding in Encoding::ALL {
            let back = file(&format!("{name}-{encoding}"));
            to(&file(name), &back, Target::Trike, encoding).expect("it converts back");
            assert_close(&logits(&back), &want, 1e-6);
        }
    }
    // A chain through all formats ends with the same bytes as a direct conversion.
    for (from, name) in [("1.gguf-csr", "chained"), ("dense", "direct")] {
        to(&file(from), &file(name), Target::Trike, Encoding::Base3).expect("it converts");
    }
    assert!(values(&file("chained")) == values(&file("direct")), "a value changed");
    assert!(values(&file("chained")) == values(&dense), "a value changed");
}

/// Every weight of a model, as floats.
fn values(path: &Path) -> Vec<Vec<f32>> {
    let file = ModelFile::open(path).expect("a model");
    file.weights().iter().map(|&name| file.load(name).expect("a weight").into_f32()).collect()
}

#[test]
fn dense_floats_are_refused_by_name_and_come_back_as_floats() {
    let dir = TempDir::new().expect("a directory");
    // 1 / sqrt(200) is not exact in f16.
    let narrow = model(&dir, "narrow", SHAPE, true);
    let error = to(&narrow, &dir.path().join("n.gguf"), Target::Tq2_0, Encoding::TwoBit).unwrap_err();
    assert!(error.to_string().contains("TQ2_0"), "{error}");
    assert!(!dir.path().join("n.gguf").exists(), "nothing half-written is left");
    let error = to(&narrow, &dir.path().join("half"), Target::F16, Encoding::TwoBit).unwrap_err();
    assert!(matches!(error, LlmError::NotLossless { .. }), "{error}");

    for (target, name) in [(Target::Tq2_0, "no-extension"), (Target::Trike, "d.gguf")] {
        let error = to(&narrow, &dir.path().join(name), target, Encoding::TwoBit).unwrap_err();
        let named = matches!(
            (target, &error),
            (Target::Tq2_0, LlmError::OutputPath { is_file: true, .. })
                | (Target::Trike, LlmError::OutputPath { is_file: false, .. })
        );
        assert!(named && error.to_string().contains(name), "{error}");
    }
}

#[test]
fn a_dense_model_needs_quantize() {
    let dir = TempDir::new().expect("a directory");
    let stories = dir.path().join("stories.bin");
    trike_testkit::storyteller().write_f32(&stories);
    let error = to(&stories, &dir.path().join("out"), Target::Trike, Encoding::Base3).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("quantize the dense model") && text.contains("model.layers.0."), "{text}");
}

#[test]
fn rounded_embeddings_say_how_much_they_changed() {
    let dir = TempDir::new().expect("a directory");
    let dense = model(&dir, "dense", Shape { tied: true, ..WIDE }, false);
    let options = ConvertOptions::new(Target::Trike)
        .with_encoding(Encoding::TwoBit)
        .with_embeddings(EmbeddingStorage::Int8);
    let out = dir.path().join("int8");
    let report = convert(&ModelFile::open(&dense).expect("a model"), &out, &options, &mut |_, _| ())
        .expect("it converts");
    assert!(report.largest_change > 1e-4 && report.largest_change < 1.0 / 127.0, "{report:?}");
    assert_close(&logits(&out), &logits(&dense), 2e-2);
}

#[test]
fn scales_are_rounded_on_request() {
    let dir = TempDir::new().expect("a directory");
    // 1 / sqrt(512) is not exact in f16.
    let odd = model(&dir, "odd", Shape { hidden: 512, ..WIDE }, true);
    let want = logits(&odd);
    let refused = to(&odd, &dir.path().join("n.gguf"), Target::Tq2_0, Encoding::TwoBit).unwrap_err();
    assert!(refused.to_string().contains("f16"), "{refused}");
    for (target, name) in [(Target::Tq2_0, "two.gguf"), (Target::F16, "half"), (Target::Trike, "packed")] {
        let options =
            ConvertOptions::new(target).with_scales(ScaleStorage::F16).with_embeddings(EmbeddingStorage::F16);
        let out = dir.path().join(name);
        let report = convert(&ModelFile::open(&odd).expect("a model"), &out, &options, &mut |_, _| ())
            .expect("it converts");
        assert!(report.largest_change > 0.0 && report.largest_change <= 1.0 / 2048.0, "{report:?}");
        assert_close(&logits(&out), &want, 5e-3);
    }
}

#[test]
fn packed_weights_are_mapped_and_compute_the_same() {
    let dir = TempDir::new().expect("a directory");
    let dense = model(&dir, "dense", WIDE, false);
    for (encoding, int8) in [(Encoding::TwoBit, true), (Encoding::Base3, true), (Encoding::Base3, false)] {
        let [plain, packed, back] =
            ["plain", "packed", "back"].map(|name| dir.path().join(format!("{name}-{encoding}-{int8}")));
        let options = ConvertOptions::new(Target::Trike).with_encoding(encoding).with_embeddings(if int8 {
            EmbeddingStorage::Int8
        } else {
            EmbeddingStorage::Stored
        });
        let run = |from: &Path, to: &Path, packed: bool| {
            let options = options.clone().with_packed(packed);
            convert(&ModelFile::open(from).expect("a model"), to, &options, &mut |_, _| ())
                .expect("it converts")
        };
        run(&dense, &plain, false);
        run(&dense, &packed, true);
        run(&packed, &back, false);
        let same = std::fs::read(plain.join("model.safetensors")).expect("weights")
            == std::fs::read(back.join("model.safetensors")).expect("weights");
        assert!(same, "{encoding}: a packed model does not convert back");
        assert_eq!(logits(&plain), logits(&packed), "{encoding}");
        // A layout other than the file's is packed at load time, and every weight is counted once.
        for layout in [None, Some(Layout::TwoBit), Some(Layout::Base3), Some(Layout::Sparse)] {
            let load = |path: &Path| {
                let options = LoadOptions::default().with_layout(layout);
                let (mut last, mut calls) = ((0, 0), 0);
                let file = ModelFile::open(path).expect("a model");
                let model = LanguageModel::load_with(&file, &options, &mut |done, total| {
                    (last, calls) = ((done, total), calls + 1);
                });
                assert_eq!((last.0, calls), (last.1, last.1));
                model.expect("it loads")
            };
            let (plain, packed) = (load(&plain), load(&packed));
            assert_eq!(plain.decoder().layouts(), packed.decoder().layouts(), "{layout:?}");
            assert_eq!(plain.activations(), packed.activations());
        }
    }
}

#[test]
fn damaged_packed_weights_are_named() {
    let dir = TempDir::new().expect("a directory");
    let dense = model(&dir, "dense", WIDE, false);
    let packed = dir.path().join("packed");
    let options = ConvertOptions::new(Target::Trike).with_packed(true).with_encoding(Encoding::TwoBit);
    convert(&ModelFile::open(&dense).expect("a model"), &packed, &options, &mut |_, _| ())
        .expect("it converts");
    let weights = packed.join("model.safetensors");
    let mut bytes = std::fs::read(&weights).expect("weights");
    // Tiles come first, ordered by name.
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    bytes[start + 5] = 0xFF;
    std::fs::write(&weights, bytes).expect("it is written");
    let file = ModelFile::open(&packed).expect("a model");
    let error =
        LanguageModel::load_with(&file, &LoadOptions::default(), &mut |_, _| ()).err().expect("damaged");
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    assert!(text.contains("model.layers.0.mlp.down_proj.weight") && text.contains("0xff"), "{text}");
}

#[test]
fn default_activations_match_the_scales_of_the_weights() {
    let dir = TempDir::new().expect("a directory");
    let dense = model(&dir, "dense", WIDE, false);
    let used = |path: &Path, options: &LoadOptions| {
        let file = ModelFile::open(path).expect("a model");
        let model = LanguageModel::load_with(&file, options, &mut |_, _| ()).expect("it loads");
        model.activations().iter().copied().collect::<Vec<_>>()
    };
    let auto = LoadOptions::default();
    assert_eq!(used(&dense, &auto), [], "no ternary layers");
    let per_row = model(&dir, "packed", WIDE, true);
    assert_eq!(used(&per_row, &auto), [ActivationPrecision::Int8PerToken]);
    for (target, name, group) in
        [(Target::Tq2_0, "2.gguf", GroupSize::G256), (Target::Q2_0, "q.gguf", GroupSize::G64)]
    {
        let path = dir.path().join(name);
        to(&dense, &path, target, Encoding::Base3).expect("it converts");
        assert_eq!(used(&path, &auto), [ActivationPrecision::Int8PerGroup(group)], "{name}");
        let exact = LoadOptions::default().with_activations(ActivationPrecision::F32);
        assert_eq!(used(&path, &exact), [ActivationPrecision::F32], "{name}");
    }
}

#[test]
fn a_model_keeps_the_activations_that_it_was_trained_with() {
    let dir = TempDir::new().expect("a directory");
    let (packed, converted) = (dir.path().join("packed"), dir.path().join("bitnet.gguf"));
    let mut config = common::config("BitNetForCausalLM", 3, 113, serde_json::json!({"hidden_act": "relu2"}));
    (config["hidden_size"], config["intermediate_size"]) = (256.into(), 512.into());
    (config["num_attention_heads"], config["num_key_value_heads"]) = (8.into(), 2.into());
    config["head_dim"] = 32.into();
    common::random_checkpoint(&packed, &config, 5, true);
    to(&packed, &converted, Target::Tq2_0, Encoding::TwoBit).expect("it converts");
    let file = ModelFile::open(&converted).expect("a model");
    let model = LanguageModel::load_with(&file, &LoadOptions::default(), &mut |_, _| ()).expect("it loads");
    assert_eq!(model.activations().iter().collect::<Vec<_>>(), [&ActivationPrecision::Int8PerToken]);
}
