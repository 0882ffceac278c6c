//! Folded weights compute the same function as those of the file, for every architecture.

#[path = "../../trike-llm/tests/it/common/mod.rs"]
mod common;

use std::path::Path;

use common::{ids, random_checkpoint};
use serde_json::{Value, json};
use tempfile::TempDir;
use trike_calibrate::{CalibrateError, Fold, FoldError, Folded};
use trike_cpu::Cpu;
use trike_llm::{HeadPrecision, LanguageModel, ModelFile, WeightSource};
use trike_nn::{ActivationPrecision, CpuBackend, DecoderSpec, HookPoint, KvPrecision, KvSpec, WeightName};
use trike_testkit::{Rng, assert_close};

const VOCAB: usize = 113;

fn config(architecture: &str, more: Value) -> Value {
    common::config(architecture, 2, VOCAB, more)
}

fn logits(source: &dyn WeightSource) -> Vec<f32> {
    let backend = CpuBackend::new(Cpu::new(1).expect("a thread"), ActivationPrecision::F32);
    let model = LanguageModel::from_source(backend, source, None, HeadPrecision::AsStored, &mut |_, _| ())
        .expect("it loads");
    let mut all = Vec::new();
    let kv = KvSpec::new(KvPrecision::F32, 20);
    model.logits_with(&ids(20, VOCAB, 1), &kv, |_, row| all.extend_from_slice(row)).expect("logits");
    all
}

fn width(spec: &DecoderSpec, site: HookPoint) -> usize {
    match site {
        HookPoint::Attention | HookPoint::Mlp => spec.hidden,
        HookPoint::Output => spec.query_width(),
        HookPoint::Down => spec.intermediate,
    }
}

/// Scales between a quarter and four for every site.
fn scaled(mut fold: Fold, spec: &DecoderSpec) -> Fold {
    let mut rng = Rng::new(9);
    for (layer, site) in (0..spec.layers).flat_map(|l| HookPoint::ALL.map(|site| (l, site))) {
        let mut scales: Vec<f32> =
            rng.normals(width(spec, site)).iter().map(|v| v.exp2().clamp(0.25, 4.0)).collect();
        if site == HookPoint::Output && !spec.sub_norms {
            // Heads that share a value head share scales.
            for group in scales.chunks_exact_mut(spec.query_width() / spec.kv_heads) {
                let first = group[..spec.head_dim].to_vec();
                group.chunks_exact_mut(spec.head_dim).for_each(|head| head.copy_from_slice(&first));
            }
        }
        fold = fold.with_scales(layer, site, scales);
    }
    fold
}

fn values(source: &dyn WeightSource, name: WeightName) -> Vec<f32> {
    source.load(name).expect("a weight").into_f32()
}

fn open(path: &Path) -> ModelFile {
    ModelFile::open(path).expect("a model")
}

#[test]
fn every_architecture_computes_the_same() {
    let dir = TempDir::new().expect("a directory");
    let all = [
        ("llama", config("LlamaForCausalLM", json!({}))),
        ("tied", config("LlamaForCausalLM", json!({"tie_word_embeddings": true, "num_key_value_heads": 6}))),
        ("biases", config("LlamaForCausalLM", json!({"attention_bias": true, "mlp_bias": true}))),
        ("mistral", config("MistralForCausalLM", json!({"sliding_window": 9, "num_key_value_heads": 1}))),
        ("qwen2", config("Qwen2ForCausalLM", json!({"tie_word_embeddings": true}))),
        ("qwen3", config("Qwen3ForCausalLM", json!({}))),
        ("bitnet", config("BitNetForCausalLM", json!({"hidden_act": "relu2"}))),
    ];
    for (name, config) in all {
        let path = dir.path().join(name);
        let spec = random_checkpoint(&path, &config, 3, false).spec;
        let plain = open(&path);
        let want = logits(&plain);
        let rotated = Fold::default().with_rotation(4);
        let both = scaled(rotated.clone(), &spec);
        for (how, fold) in [("rotated", rotated), ("scaled", scaled(Fold::default(), &spec)), ("both", both)]
        {
            println!("{name}, {how}");
            assert!(!fold.is_empty());
            let turns = how != "scaled";
            let file = Folded::new(&plain, fold).expect("it folds");
            assert_close(&logits(&file), &want, 1e-4);
            // All affected weights change.
            for layer in 0..spec.layers {
                for name in HookPoint::ALL.iter().flat_map(|site| site.matrices(layer)) {
                    assert_ne!(values(&file, name), values(&plain, name), "{name}");
                }
                assert_ne!(
                    values(&file, WeightName::MlpNorm(layer)),
                    values(&plain, WeightName::MlpNorm(layer))
                );
            }
            assert_eq!(turns, values(&file, WeightName::Embedding) != values(&plain, WeightName::Embedding));
            assert_eq!(file.config().spec.tied_head, spec.tied_head && !turns);
            assert_eq!(file.weights().contains(&WeightName::Head), !spec.tied_head || turns);
        }
        // A fold of a fold.
        let rotated = Folded::new(&plain, Fold::default().with_rotation(4)).expect("it folds");
        let scaled = Folded::new(&rotated, scaled(Fold::default(), &spec)).expect("it folds again");
        let twice = Folded::new(&scaled, Fold::default().with_rotation(5)).expect("and again");
        assert_close(&logits(&twice), &want, 1e-4);
    }
}

#[test]
fn what_cannot_be_rewritten_is_refused() {
    let dir = TempDir::new().expect("a directory");
    let (dense, packed) = (dir.path().join("dense"), dir.path().join("packed"));
    let config = config("LlamaForCausalLM", json!({}));
    let spec = random_checkpoint(&dense, &config, 3, false).spec;
    random_checkpoint(&packed, &config, 3, true);
    let ones = |n| vec![1.0f32; n];
    for fold in [
        Fold::default().with_rotation(1),
        Fold::default().with_scales(1, HookPoint::Mlp, ones(spec.hidden)),
        Fold::default().with_scales(1, HookPoint::Down, ones(spec.intermediate)),
    ] {
        let file = open(&packed);
        let error = Folded::new(&file, fold).err().expect("trits");
        let CalibrateError::Fold(FoldError::Ternary { tensor, .. }) = &error else { panic!("{error}") };
        assert!(tensor.to_string().contains("proj"), "{tensor}");
        assert!(error.to_string().contains("salience"), "{error}");
    }
    // An empty fold is always possible.
    let (packed, dense) = (open(&packed), open(&dense));
    assert!(Folded::new(&packed, Fold::default()).is_ok());
    let refused = |fold: Fold, says: &str| {
        let error = Folded::new(&dense, fold).err().expect(says);
        assert!(matches!(error, CalibrateError::Fold(_)) && error.to_string().contains(says), "{error}");
    };
    let none = Fold::default;
    refused(none().with_scales(2, HookPoint::Mlp, ones(spec.hidden)), "layer 2: the model has 2 layers");
    for n in [spec.intermediate - 1, spec.intermediate + 1] {
        refused(none().with_scales(0, HookPoint::Down, ones(n)), &format!("expected 160, got {n}"));
    }
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-40] {
        let mut scales = ones(spec.hidden);
        scales[7] = bad;
        refused(none().with_scales(0, HookPoint::Attention, scales), "finite numbers above 0");
    }
    let mut scales = ones(spec.query_width());
    scales[spec.head_dim + 1] = 2.0;
    refused(none().with_scales(0, HookPoint::Output, scales), "share a value head");
}
