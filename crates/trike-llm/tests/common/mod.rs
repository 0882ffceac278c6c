//! Random models for the integration tests.

use std::path::Path;

use serde_json::json;
use trike_format::{DenseData, DenseTensor, HfDirWriter, Tensor};
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

/// Ids that do not repeat soon.
pub(crate) fn ids(n: usize, vocab: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| rng.below(vocab) as u32).collect()
}
