//! Every architecture compared with implementations that share no code: candle-transformers, and NumPy.

use crate::common;
use std::path::Path;

use crate::common::{ids, numpy, random_checkpoint};
use candle_core::{DType, Device, Tensor as Candle};
use candle_nn::{Activation, VarBuilder};
use candle_transformers::models::{mistral, qwen2, qwen3};
use serde_json::{Value, json};
use tempfile::TempDir;
use trike_format::Tensor;
use trike_llm::{ConvertOptions, HeadPrecision, LanguageModel, LoadOptions, ModelFile, Target, convert};
use trike_nn::{ActivationPrecision, KvPrecision, KvSpec, RopeScaling};
use trike_testkit::{assert_close, max_rel};
use trike_trit::Encoding;

const VOCAB: usize = 113;

/// A small configuration of an architecture; `more` replaces or adds keys.
fn config(architecture: &str, more: Value) -> Value {
    common::config(architecture, 3, VOCAB, more)
}

fn logits(path: &Path, ids: &[u32], activations: Option<ActivationPrecision>) -> Vec<f32> {
    let file = ModelFile::open(path).expect("a model");
    let head = HeadPrecision::AsStored;
    let trained = || file.config().family.trained_activations();
    let options = LoadOptions::default()
        .with_cpu(trike_cpu::Cpu::new(1).expect("a thread"))
        .with_activations(activations.or_else(trained).unwrap_or(ActivationPrecision::F32))
        .with_head(head);
    let model = LanguageModel::load_with(&file, &options, &mut |_, _| ()).expect("it loads");
    let mut all = Vec::new();
    model
        .logits_with(ids, &KvSpec::new(KvPrecision::F32, ids.len()), |_, row| all.extend_from_slice(row))
        .expect("logits");
    all
}

fn builder(dir: &Path) -> VarBuilder<'static> {
    let bytes = std::fs::read(dir.join("model.safetensors")).expect("weights");
    VarBuilder::from_buffered_safetensors(bytes, DType::F32, &Device::Cpu).expect("a builder")
}

/// The last logits of every prefix.
fn of_prefixes(ids: &[u32], mut run: impl FnMut(&Candle) -> candle_core::Result<Candle>) -> Vec<f32> {
    let mut all = Vec::new();
    for n in 1..=ids.len() {
        let input = Candle::new(&ids[..n], &Device::Cpu).and_then(|t| t.unsqueeze(0)).expect("a tensor");
        let out = run(&input).and_then(|out| out.flatten_all()?.to_vec1::<f32>()).expect("logits");
        all.extend(out);
    }
    all
}

#[test]
fn mistral_agrees_with_candle_transformers_beyond_its_window() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("m");
    random_checkpoint(&path, &config("MistralForCausalLM", json!({"sliding_window": 9})), 1, false);
    let ids = ids(30, VOCAB, 1);
    let theirs = mistral::Config {
        vocab_size: VOCAB,
        hidden_size: 96,
        intermediate_size: 160,
        num_hidden_layers: 3,
        num_attention_heads: 6,
        head_dim: Some(16),
        num_key_value_heads: 2,
        hidden_act: Activation::Silu,
        max_position_embeddings: 64,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        // A window of 9 positions includes the query's own; this one counts those before it.
        sliding_window: Some(8),
        use_flash_attn: false,
    };
    let mut model = mistral::Model::new(&theirs, builder(&path)).expect("it loads");
    let want = of_prefixes(&ids, |input| {
        model.clear_kv_cache();
        model.forward(input, 0)
    });
    let got = logits(&path, &ids, None);
    assert_close(&got, &want, 1e-3);
    // The window matters: without it the later tokens differ.
    let open = dir.path().join("open");
    random_checkpoint(&open, &config("MistralForCausalLM", json!({})), 1, false);
    let open = logits(&open, &ids, None);
    assert_close(&open[..9 * VOCAB], &got[..9 * VOCAB], 1e-6);
    assert!(max_rel(&open, &got) > 1e-2);
}

#[test]
fn qwen2_agrees_with_candle_transformers() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("m");
    let config = config("Qwen2ForCausalLM", json!({"tie_word_embeddings": true, "rope_theta": 1000000.0}));
    random_checkpoint(&path, &config, 2, false);
    let ids = ids(20, VOCAB, 2);
    let theirs = qwen2::Config {
        vocab_size: VOCAB,
        hidden_size: 96,
        intermediate_size: 160,
        num_hidden_layers: 3,
        num_attention_heads: 6,
        num_key_value_heads: 2,
        max_position_embeddings: 64,
        sliding_window: 64,
        max_window_layers: 3,
        tie_word_embeddings: true,
        rope_theta: 1_000_000.0,
        rms_norm_eps: 1e-5,
        use_sliding_window: false,
        hidden_act: Activation::Silu,
    };
    let mut model = qwen2::ModelForCausalLM::new(&theirs, builder(&path)).expect("it loads");
    let want = of_prefixes(&ids, |input| {
        model.clear_kv_cache();
        model.forward(input, 0)
    });
    assert_close(&logits(&path, &ids, None), &want, 1e-3);
}

#[test]
fn qwen3_agrees_with_candle_transformers() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("m");
    // head_dim 24, which is not 96 / 6 = 16.
    random_checkpoint(&path, &config("Qwen3ForCausalLM", json!({"head_dim": 24})), 3, false);
    let ids = ids(20, VOCAB, 3);
    let theirs = qwen3::Config {
        vocab_size: VOCAB,
        hidden_size: 96,
        intermediate_size: 160,
        num_hidden_layers: 3,
        num_attention_heads: 6,
        head_dim: 24,
        attention_bias: false,
        num_key_value_heads: 2,
        max_position_embeddings: 64,
        sliding_window: None,
        max_window_layers: 3,
        tie_word_embeddings: false,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-5,
        use_sliding_window: false,
        hidden_act: Activation::Silu,
    };
    let mut model = qwen3::ModelForCausalLM::new(&theirs, builder(&path)).expect("it loads");
    let want = of_prefixes(&ids, |input| {
        model.clear_kv_cache();
        model.forward(input, 0)
    });
    assert_close(&logits(&path, &ids, None), &want, 1e-3);
}

/// Every feature of the decoder block, compared with a NumPy script.
fn cases() -> Vec<(&'static str, Value)> {
    let linear = json!({"rope_scaling": {"rope_type": "linear", "factor": 4.0}});
    let llama3 = json!({"rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }});
    // Positions 16 to 49 are past the original context.
    let yarn = json!({"max_position_embeddings": 16, "rope_scaling": {
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16,
    }});
    // As in BitCPM4: the list for longer texts is never used. The epsilon is close to the mean square to which it is added.
    let minicpm = json!({
        "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 64, "rms_norm_eps": 0.5, "tie_word_embeddings": null,
        "rope_scaling": {
            "rope_type": "longrope", "original_max_position_embeddings": 64, "long_factor": vec![9.0; 16],
            "short_factor": (0..16).map(|i| 1.0 + 0.1 * f64::from(i)).collect::<Vec<_>>(),
        },
    });
    // What differs between layers, in patterns that GGUF has no keys for.
    let listed = json!({"no_rope_layers": [0, 1, 1], "use_sliding_window": true, "sliding_window": 5});
    let some_windows = json!({
        "num_hidden_layers": 3, "use_sliding_window": true, "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    });
    vec![
        ("LlamaForCausalLM", json!({})),
        ("LlamaForCausalLM", json!({"attention_bias": true, "mlp_bias": true, "tie_word_embeddings": true})),
        ("LlamaForCausalLM", linear),
        ("LlamaForCausalLM", llama3),
        ("Qwen3ForCausalLM", yarn),
        ("MistralForCausalLM", json!({"sliding_window": 7})),
        ("Qwen2ForCausalLM", json!({})),
        ("BitNetForCausalLM", json!({"hidden_act": "relu2", "tie_word_embeddings": true})),
        ("MiniCPMForCausalLM", minicpm),
        ("SmolLM3ForCausalLM", json!({"num_hidden_layers": 5, "tie_word_embeddings": null})),
        ("SmolLM3ForCausalLM", listed),
        ("Qwen3ForCausalLM", some_windows),
    ]
}

#[test]
fn every_switch_agrees_with_numpy_as_floats_as_trits_and_through_gguf() {
    for (seed, (architecture, more)) in cases().into_iter().enumerate() {
        let dir = TempDir::new().expect("a directory");
        let (dense, packed) = (dir.path().join("dense"), dir.path().join("packed"));
        // Rows of 256, which GGUF's blocks need.
        let mut config = config(architecture, more);
        (config["hidden_size"], config["intermediate_size"]) = (json!(256), json!(512));
        (config["num_attention_heads"], config["num_key_value_heads"]) = (json!(8), json!(2));
        config["head_dim"] = json!(32);
        random_checkpoint(&dense, &config, seed as u64, false);
        let parsed = random_checkpoint(&packed, &config, seed as u64, true);
        let ids = ids(50, VOCAB, seed as u64);
        let Some(want) = numpy(&dense, &ids) else { return };
        // Ternary layers use the activations that the family was trained with; dense ones always use floats.
        assert_close(&logits(&packed, &ids, None), &want, 1e-3);
        let exact = parsed.family.trained_activations().is_none();
        if exact {
            assert_close(&logits(&dense, &ids, None), &want, 1e-3);
        } else {
            assert!(max_rel(&logits(&packed, &ids, Some(ActivationPrecision::F32)), &want) > 1e-3);
        }
        let convert = |from: &Path, name: &str, target| {
            let out = dir.path().join(name);
            let options = ConvertOptions::new(target);
            let input = ModelFile::open(from).expect("a model");
            convert(&input, &out, &options, &mut |_, _| ()).map(|_| out)
        };
        if parsed.spec.window_of_all() != parsed.spec.window || config.get("no_rope_layers").is_some() {
            let refused = convert(&packed, "trits.gguf", Target::Tq2_0).expect_err("no key").to_string();
            assert!(refused.contains("write a directory instead"), "{refused}");
            continue;
        }
        let trits = convert(&packed, "trits.gguf", Target::Tq2_0).expect("it converts");
        assert_close(&logits(&trits, &ids, None), &want, 1e-3);
        if exact {
            let floats = convert(&packed, "floats.gguf", Target::F16).expect("it converts");
            assert_close(&logits(&floats, &ids, None), &want, 1e-3);
        }
        // Llama 3's constants become a list of divisors in GGUF; converting back to a directory restores the constants.
        let back = convert(&trits, "back", Target::Trike).expect("it converts back");
        assert_close(&logits(&back, &ids, None), &want, 1e-3);
        let scaling = ModelFile::open(&back).expect("a model").config().spec.rope.scaling.clone();
        assert_eq!(scaling, parsed.spec.rope.scaling);
    }
}

/// A list of divisors without equivalent constants is kept in every format.
#[test]
fn any_divisors_of_rotary_frequencies_pass_through_every_format() {
    let dir = TempDir::new().expect("a directory");
    let listed = dir.path().join("listed");
    let factors = [1.0, 1.5, 1.25, 3.0, 3.5, 6.0, 7.0, 8.0];
    let config = config(
        "LlamaForCausalLM",
        json!({"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 16, "rope_scaling": {
            "rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0,
        }}),
    );
    let parsed = random_checkpoint(&listed, &config, 5, true);
    assert_eq!(parsed.spec.rope.scaling, RopeScaling::Factors(factors.map(|f| f as f32).to_vec()));
    let ids = ids(30, VOCAB, 6);
    let want = logits(&listed, &ids, None);
    let convert = |from: &Path, name: &str, options: ConvertOptions| {
        let out = dir.path().join(name);
        convert(&ModelFile::open(from).expect("a model"), &out, &options, &mut |_, _| ())
            .expect("it converts");
        out
    };
    let gguf = convert(&listed, "m.gguf", ConvertOptions::new(Target::Tq2_0));
    for (path, name) in [(&gguf, "back"), (&listed, "again")] {
        let back = convert(path, name, ConvertOptions::new(Target::Trike));
        assert_eq!(
            ModelFile::open(&back).expect("a model").config().spec.rope.scaling,
            parsed.spec.rope.scaling
        );
        assert_close(&logits(&back, &ids, None), &want, 1e-3);
    }
    // Without the divisors, the logits differ.
    let plain = dir.path().join("plain");
    let mut config = config;
    config["rope_scaling"] = Value::Null;
    random_checkpoint(&plain, &config, 5, true);
    assert!(max_rel(&logits(&plain, &ids, None), &want) > 1e-2);
}

#[test]
fn a_bitnet_that_is_ternary_when_it_runs_agrees_with_its_packed_form() {
    let dir = TempDir::new().expect("a directory");
    let (packed, master) = (dir.path().join("packed"), dir.path().join("master"));
    let mut config = config("BitNetForCausalLM", json!({"hidden_act": "relu2", "tie_word_embeddings": true}));
    random_checkpoint(&packed, &config, 21, true);
    // Weights whose absmean gives the same trits: the packed ones. Their mean is not the scale, so the logits are those of the
    // trits with another scale.
    random_checkpoint(&master, &config, 21, false);
    config["quantization_config"] =
        json!({"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"});
    std::fs::write(master.join("config.json"), config.to_string()).expect("a configuration");
    let file = ModelFile::open(&master).expect("a model");
    assert!(file.is_ternary());
    let plain = ModelFile::open(&packed).expect("a model");
    for name in file.weights() {
        let (ours, theirs) = (file.load(name).expect("a weight"), plain.load(name).expect("a weight"));
        if let (Tensor::Ternary(ours), Tensor::Ternary(theirs)) = (&ours, &theirs) {
            assert_eq!(ours.data(0), theirs.to_encoding(Encoding::TwoBit).expect("2-bit").data(0), "{name}");
        } else {
            assert!(ours == theirs, "{name}");
        }
    }
    // Running and converting give the same weights.
    let options = ConvertOptions::new(Target::Trike);
    let converted = dir.path().join("converted");
    convert(&file, &converted, &options, &mut |_, _| ()).expect("it converts");
    let ids = ids(10, VOCAB, 4);
    assert_close(&logits(&converted, &ids, None), &logits(&master, &ids, None), 1e-6);
}
