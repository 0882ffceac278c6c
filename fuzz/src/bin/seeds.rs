//! Writes the first inputs of every target to `corpus/`: small whole files, from which the engine goes on.

#[path = "../../../crates/trike-format/tests/it/common/mod.rs"]
mod common;

use std::path::Path;

use common::{RawGguf, string};
use serde_json::{Value, json};
use trike_format::{DenseData, DenseTensor, HfDir, HfDirWriter, Int8Tensor};
use trike_trit::{Coupling, Encoding, Granularity, GroupSize, Scales, TritTensor};
use trike_vsa::{Algebra, Bipolar, ItemMemory, PackedTritVec, Ternary, Z3};

fn main() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let seeds = [
        ("gguf", gguf()),
        ("llama2c", llama2c()),
        ("hf_dir", hf_dir()),
        ("tokenizer", tokenizer()),
        ("config_json", config_json()),
        ("chat_template", chat_template()),
        ("hypervectors", hypervectors()),
    ];
    for (target, inputs) in seeds {
        let dir = corpus.join(target);
        std::fs::create_dir_all(&dir).expect("the corpus can be made");
        for (name, bytes) in inputs {
            std::fs::write(dir.join(format!("seed-{name}")), bytes).expect("the corpus can be written to");
        }
    }
}

/// A file of each algebra, without its checksum, which the target adds.
fn hypervectors() -> Inputs {
    fn file<A: Algebra>() -> Vec<u8> {
        let set = PackedTritVec::<A>::random_set(37, 3, 1).expect("37 dimensions");
        let mut bytes = Vec::new();
        ItemMemory::of(&set).and_then(|memory| memory.write(&mut bytes)).expect("memory can be written to");
        bytes.truncate(bytes.len() - 8);
        bytes
    }
    vec![
        ("z3".to_owned(), file::<Z3>()),
        ("bipolar".to_owned(), file::<Bipolar>()),
        ("ternary".to_owned(), file::<Ternary>()),
    ]
}

type Inputs = Vec<(String, Vec<u8>)>;

/// A file for each type, one with all kinds of metadata, and one with several tensors.
fn gguf() -> Inputs {
    // Id, weights and bytes of a block, bytes after all blocks.
    let types = [
        (0u32, 1usize, 4usize, 0usize),
        (1, 1, 2, 0),
        (30, 1, 2, 0),
        (2, 32, 18, 0),
        (3, 32, 20, 0),
        (6, 32, 22, 0),
        (7, 32, 24, 0),
        (8, 32, 34, 0),
        (12, 256, 144, 0),
        (13, 256, 176, 0),
        (14, 256, 210, 0),
        (34, 256, 54, 0),
        (35, 256, 66, 0),
        (36, 128, 32, 32),
        (42, 64, 18, 0),
        (42, 128, 34, 0),
        (142, 128, 34, 0),
        (143, 128, 28, 0),
    ];
    let mut inputs: Inputs = types
        .iter()
        .map(|&(id, weights, bytes, trailer)| {
            let rows = if id == 42 { 8 } else { 2 };
            let data = vec![0x15; rows * bytes + trailer];
            let raw = RawGguf::default().tensor("w", &[weights as u64, rows as u64], id, &data).tensor(
                "norm",
                &[2],
                0,
                &[0; 8],
            );
            (format!("type-{id}-{bytes}"), raw.bytes())
        })
        .collect();
    let list = |id: u32, n: u64, data: &[u8]| [&id.to_le_bytes()[..], &n.to_le_bytes(), data].concat();
    let words = ["<s>", "a"].map(string).concat();
    let metadata = RawGguf::default()
        .key("general.architecture", 8, &string("llama"))
        .key("general.alignment", 4, &32u32.to_le_bytes())
        .key("llama.rope.freq_base", 6, &1e4f32.to_le_bytes())
        .key("tokenizer.ggml.tokens", 9, &list(8, 2, &words))
        .key("tokenizer.ggml.scores", 9, &list(6, 2, &[0; 8]))
        .key("nested", 9, &list(9, 1, &list(7, 2, &[0, 1])))
        .key("long", 10, &[0; 8])
        .tensor("half", &[4, 2], 1, &[0; 16])
        .tensor("brain", &[2, 2, 2], 30, &[0; 16]);
    inputs.push(("metadata".to_owned(), metadata.bytes()));
    inputs
}

/// A tiny model of each version.
fn llama2c() -> Inputs {
    let numbers = |vocab: i32| [4i32, 6, 2, 2, 1, vocab, 5].map(i32::to_le_bytes).concat();
    let padded = |version: u32, tail: &[u8]| {
        let mut header = [0x616b_3432u32, version].map(u32::to_le_bytes).concat();
        header.extend(numbers(3));
        header.extend(tail);
        header.resize(256, 0);
        header
    };
    let floats = |n: usize| vec![0u8; 4 * n];
    let matrices = 3 * 4 + 2 * (16 + 8 + 8 + 16 + 3 * 24);
    vec![
        ("v0".to_owned(), [numbers(-3), floats(20 + matrices + 10 + 12)].concat()),
        ("v1".to_owned(), [padded(1, &[1]), floats(20 + matrices)].concat()),
        ("v2".to_owned(), [padded(2, &[1, 4, 0, 0, 0]), floats(20), vec![0; 2 * matrices]].concat()),
    ]
}

/// Trike's own packing in every encoding, a dense directory, and BitNet's packing with either meaning of its scale.
fn hf_dir() -> Inputs {
    let dir = std::env::temp_dir().join(format!("trike-seeds-{}", std::process::id()));
    let mut inputs = Inputs::new();
    for encoding in Encoding::ALL {
        let trits: Vec<i8> = (0..3 * 70).map(|i| (i % 7 % 3) as i8 - 1).collect();
        let scales =
            Scales::new(Granularity::Group(GroupSize::G64), vec![0.5f32; 12], Some(vec![0.25; 6].into()));
        let tensor = TritTensor::from_planes(3, 70, &[&trits, &trits], encoding, Coupling::Free, scales);
        let mut writer = HfDirWriter::create(&dir, json!({})).expect("a writer");
        writer.tensor("w", &tensor.expect("a tensor").into()).expect("a part");
        inputs.push((encoding.to_string(), finished(writer, &dir)));
    }
    let dense = DenseTensor::new(vec![2, 40], DenseData::F32(vec![0.5; 80])).expect("a tensor");
    let mut writer = HfDirWriter::create(&dir, json!({ "model_type": "llama" })).expect("a writer");
    writer.tensor("q", &Int8Tensor::quantize(&dense, 32, true).expect("a tensor").into()).expect("a part");
    writer.tensor("norm", &dense.into()).expect("a part");
    inputs.push(("int8".to_owned(), finished(writer, &dir)));

    let header = |u8s: &str| {
        format!(
            r#"{{"a.weight":{{"dtype":"U8","shape":[2,3],"data_offsets":[0,6]}},"a.weight_scale":{{"dtype":"{u8s}","shape":[1],"data_offsets":[6,8]}}}}"#
        )
    };
    for (class, mode) in [("bitlinear", "offline"), ("autobitlinear", "offline"), ("autobitlinear", "online")]
    {
        let config = json!({ "quantization_config": {
            "quant_method": "bitnet", "linear_class": class, "quantization_mode": mode,
            "modules_to_not_convert": ["lm_head"] } });
        let header = header("BF16");
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend([0x95, 0x66, 0x59, 0x00, 0xAA, 0x55, 0x00, 0x3F]);
        inputs.push((format!("{class}-{mode}"), input(&config, &file)));
    }
    inputs
}

fn finished(writer: HfDirWriter, dir: &Path) -> Vec<u8> {
    writer.finish().expect("a directory");
    let config = HfDir::open(dir).expect("a directory").config().clone();
    let weights = std::fs::read(dir.join("model.safetensors")).expect("a file");
    std::fs::remove_dir_all(dir).expect("a directory");
    input(&config, &weights)
}

fn input(config: &Value, weights: &[u8]) -> Vec<u8> {
    let config = config.to_string();
    [&(config.len() as u16).to_le_bytes()[..], config.as_bytes(), weights].concat()
}

/// A tokenizer of each kind behind the byte that chooses the reader.
fn tokenizer() -> Inputs {
    let json = json!({
        "version": "1.0", "added_tokens": [{"id": 0, "content": "<s>", "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false}],
        "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {"<s>": 0, "a": 1, "b": 2, "ab": 3, "\u{120}": 4}, "merges": [["a", "b"]]},
    });
    let pieces: [(&str, f32, u8); 5] =
        [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("<0x0A>", 0.0, 6), ("\u{2581}a", -1.0, 1)];
    let mut bin = 8i32.to_le_bytes().to_vec();
    let mut model = Vec::new();
    for (piece, score, kind) in pieces {
        bin.extend(score.to_le_bytes());
        bin.extend((piece.len() as i32).to_le_bytes());
        bin.extend(piece.as_bytes());
        // Field 1 of the file: a piece with its text (1), score (2) and type (3).
        let mut entry = vec![0x0A, piece.len() as u8];
        entry.extend(piece.as_bytes());
        entry.push(0x15);
        entry.extend(score.to_le_bytes());
        entry.extend([0x18, kind]);
        model.extend([0x0A, entry.len() as u8]);
        model.extend(entry);
    }
    // Field 2: model type BPE (3) and byte fallback (35).
    model.extend([0x12, 5, 0x18, 2, 0x98, 0x02, 1]);
    let ranks = b"YQ== 0\nYg== 1\nYWI= 2\n".to_vec();
    let kinds = [("json", json.to_string().into_bytes()), ("bin", bin), ("model", model), ("ranks", ranks)];
    let behind = |(kind, (name, bytes)): (usize, (&str, Vec<u8>))| {
        (name.to_owned(), [vec![kind as u8], bytes].concat())
    };
    kinds.into_iter().enumerate().map(behind).collect()
}

/// A configuration of each family.
fn config_json() -> Inputs {
    let scalings = [
        json!(null),
        json!({"type": "linear", "factor": 2.0}),
        json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}),
        json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
    ];
    let names = ["Llama", "Mistral", "Qwen2", "Qwen3", "BitNet"];
    names
        .iter()
        .enumerate()
        .map(|(i, name)| {
            let config = json!({
                "architectures": [format!("{name}ForCausalLM")], "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                "vocab_size": 99, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                "tie_word_embeddings": true, "rope_scaling": scalings[i % scalings.len()], "eos_token_id": [1, 2],
            });
            ((*name).to_owned(), config.to_string().into_bytes())
        })
        .collect()
}

/// Templates with loops, conditions, filters and what they are filled with.
fn chat_template() -> Inputs {
    [
        ("plain", "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}{% endfor %}\0Hello"),
        ("cases", "{%- if messages[0].role == 'system' -%}{{ messages[0].content | upper }}{%- else -%}x{%- endif -%}"),
        ("calls", "{{ raise_exception('no') if not messages else strftime_now('%Y') }}{{ messages | tojson(indent=2) }}"),
        ("state", "{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}\0<s>"),
    ]
    .map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()))
    .into()
}
