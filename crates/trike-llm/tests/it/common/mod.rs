//! Random models for the integration tests.
#![allow(dead_code, reason = "`trike-calibrate` uses a part")]

use std::path::Path;

use serde_json::{Value, json};
use trike_format::{DenseData, DenseTensor, HfDirWriter, Tensor};
use trike_llm::ModelConfig;
use trike_testkit::Rng;
use trike_trit::{Encoding, Scales, TritTensor};

/// Sizes of a random Llama.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) hidden: usize,
    pub(crate) inner: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) vocab: usize,
    pub(crate) context: usize,
    pub(crate) tied: bool,
}

pub(crate) const SHAPE: Shape =
    Shape { hidden: 96, inner: 200, layers: 3, heads: 6, kv_heads: 2, vocab: 131, context: 64, tied: false };

/// Writes a random Llama to `dir`, its linear layers as trits or as the same weights in f32.
pub(crate) fn random_llama(dir: &Path, shape: Shape, seed: u64, packed: bool) {
    let Shape { hidden, inner, layers, heads, kv_heads, vocab, context, tied } = shape;
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "vocab_size": vocab, "max_position_embeddings": context,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": tied, "hidden_act": "silu",
    });
    let mut writer = HfDirWriter::create(dir, config).expect("a new directory");
    let mut rng = Rng::new(seed);
    let dense = |values: Vec<f32>, shape: Vec<usize>| -> Tensor {
        DenseTensor::new(shape, DenseData::F32(values)).expect("a tensor").into()
    };
    let mut add = |name: &str, tensor: &Tensor| writer.tensor(name, tensor).expect("it is written");
    add("model.embed_tokens.weight", &dense(rng.normals(vocab * hidden), vec![vocab, hidden]));
    let kv = hidden / heads * kv_heads;
    for layer in 0..layers {
        for (name, rows, cols) in [
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", kv, hidden),
            ("self_attn.v_proj", kv, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ] {
            let trits = rng.trits(rows * cols, 0.6);
            let scale = 1.0 / (cols as f32).sqrt();
            let tensor = TritTensor::from_trits(rows, cols, &trits, Encoding::Base3, Scales::tensor(scale));
            let tensor = tensor.expect("a tensor");
            let name = format!("model.layers.{layer}.{name}.weight");
            let dense = dense(tensor.dequantize(), vec![rows, cols]);
            add(&name, &if packed { tensor.into() } else { dense });
        }
        for name in ["input_layernorm", "post_attention_layernorm"] {
            let weights = rng.normals(hidden).iter().map(|v| 1.0 + 0.1 * v).collect();
            add(&format!("model.layers.{layer}.{name}.weight"), &dense(weights, vec![hidden]));
        }
    }
    add("model.norm.weight", &dense(vec![1.0; hidden], vec![hidden]));
    if !tied {
        add("lm_head.weight", &dense(rng.normals(vocab * hidden), vec![vocab, hidden]));
    }
    writer.finish().expect("the directory is whole");
}

/// The nearest half float, so that every format can hold the value.
fn half(value: f32) -> f32 {
    half::f16::from_f32(value).to_f32()
}

/// Writes a random checkpoint of the architecture that `config` describes, its linear layers as trits or as the
/// same weights in f32, and returns its configuration as Trike reads it.
pub(crate) fn random_checkpoint(dir: &Path, config: &Value, seed: u64, packed: bool) -> ModelConfig {
    let parsed = ModelConfig::from_hf(dir, config).expect("a configuration");
    let mut writer = HfDirWriter::create(dir, config.clone()).expect("a new directory");
    let mut rng = Rng::new(seed);
    let spec = &parsed.spec;
    let (q, kv) = (spec.query_width(), spec.kv_width());
    let dense = |writer: &mut HfDirWriter, rng: &mut Rng, name: String, shape: Vec<usize>, around: f32| {
        let spread = if shape.len() == 1 { 0.2 } else { 1.0 };
        let values = rng.normals(shape.iter().product()).iter().map(|v| half(around + spread * v)).collect();
        let tensor = DenseTensor::new(shape, DenseData::F32(values)).expect("a tensor").into();
        writer.tensor(&name, &tensor).expect("it is written");
    };
    dense(&mut writer, &mut rng, "model.embed_tokens.weight".to_owned(), vec![spec.vocab, spec.hidden], 0.0);
    for layer in 0..spec.layers {
        let name = |rest: &str| format!("model.layers.{layer}.{rest}");
        for (rest, rows, cols, bias) in [
            ("self_attn.q_proj", q, spec.hidden, spec.biases.qkv),
            ("self_attn.k_proj", kv, spec.hidden, spec.biases.qkv),
            ("self_attn.v_proj", kv, spec.hidden, spec.biases.qkv),
            ("self_attn.o_proj", spec.hidden, q, spec.biases.output),
            ("mlp.gate_proj", spec.intermediate, spec.hidden, spec.biases.mlp),
            ("mlp.up_proj", spec.intermediate, spec.hidden, spec.biases.mlp),
            ("mlp.down_proj", spec.hidden, spec.intermediate, spec.biases.mlp),
        ] {
            let trits = rng.trits(rows * cols, 0.6);
            let scale = Scales::tensor(half(1.5 / (cols as f32).sqrt()));
            let tensor =
                TritTensor::from_trits(rows, cols, &trits, Encoding::TwoBit, scale).expect("a tensor");
            let floats = DenseTensor::new(vec![rows, cols], DenseData::F32(tensor.dequantize()));
            let tensor = if packed { tensor.into() } else { floats.expect("a tensor").into() };
            writer.tensor(&name(&format!("{rest}.weight")), &tensor).expect("it is written");
            if bias {
                dense(&mut writer, &mut rng, name(&format!("{rest}.bias")), vec![rows], 0.0);
            }
        }
        let mut norms = vec![("input_layernorm", spec.hidden), ("post_attention_layernorm", spec.hidden)];
        if spec.qk_norm {
            norms.extend([("self_attn.q_norm", spec.head_dim), ("self_attn.k_norm", spec.head_dim)]);
        }
        if spec.sub_norms {
            norms.extend([("self_attn.attn_sub_norm", q), ("mlp.ffn_sub_norm", spec.intermediate)]);
        }
        for (rest, len) in norms {
            dense(&mut writer, &mut rng, name(&format!("{rest}.weight")), vec![len], 1.0);
        }
    }
    dense(&mut writer, &mut rng, "model.norm.weight".to_owned(), vec![spec.hidden], 1.0);
    if !spec.tied_head {
        dense(&mut writer, &mut rng, "lm_head.weight".to_owned(), vec![spec.vocab, spec.hidden], 0.0);
    }
    writer.finish().expect("the directory is whole");
    parsed
}

/// A `config.json` of a small model; `more` adds or replaces keys.
pub(crate) fn config(architecture: &str, layers: usize, vocab: usize, more: Value) -> Value {
    let mut config = json!({
        "architectures": [architecture], "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": layers,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": vocab,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": false, "hidden_act": "silu",
    });
    for (key, value) in more.as_object().expect("an object") {
        config[key] = value.clone();
    }
    config
}

/// Pseudo-random ids.
pub(crate) fn ids(n: usize, vocab: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| rng.below(vocab) as u32).collect()
}

/// Logits by the NumPy script; `None` without NumPy.
pub(crate) fn numpy(dir: &Path, ids: &[u32]) -> Option<Vec<f32>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/decoder.py");
    let written = tempfile::TempDir::new().expect("a directory");
    let out = written.path().join("reference.f32");
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    let run = trike_testkit::python("numpy")?
        .arg(script)
        .arg(dir)
        .arg(&out)
        .arg(ids.join(","))
        .output()
        .expect("it starts");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let bytes = std::fs::read(out).expect("logits");
    Some(bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four"))).collect())
}
