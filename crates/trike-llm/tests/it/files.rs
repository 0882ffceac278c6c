//! Files written by other programs: old and new names of settings, tensor names, models in several files.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;
use trike_format::{
    DenseData, DenseTensor, Gguf, GgufType, GgufWriter, HfDirWriter, MetaArray, MetaValue, StoredType,
    TensorSource,
};
use trike_llm::{
    ConvertOptions, LanguageModel, LlmError, LoadOptions, ModelConfig, ModelFile, Target, convert, inspect,
};
use trike_nn::RopeScaling;

use crate::common::{SHAPE, config, random_checkpoint, random_llama};

fn floats(shape: Vec<usize>, values: Vec<f32>) -> trike_format::Tensor {
    DenseTensor::new(shape, DenseData::F32(values)).expect("a tensor").into()
}

/// The configuration of a GGUF file with these keys of the namespace `llama.` (or of another one, if written in full) in addition
/// to the sizes.
fn gguf(keys: &[(&str, MetaValue)], divisors: Option<Vec<f32>>) -> Result<ModelConfig, LlmError> {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("m.gguf");
    let mut writer = GgufWriter::create(&path).expect("a file");
    writer.metadata("general.architecture", "llama").expect("a key");
    for (key, size) in [
        ("block_count", 1u32),
        ("context_length", 64),
        ("embedding_length", 16),
        ("feed_forward_length", 32),
        ("attention.head_count", 2),
    ] {
        writer.metadata(&format!("llama.{key}"), size).expect("a key");
    }
    writer.metadata("llama.attention.layer_norm_rms_epsilon", 1e-5f32).expect("a key");
    for (key, value) in keys {
        let full = if key.starts_with("general.") || key.starts_with("adapter.") {
            (*key).to_owned()
        } else {
            format!("llama.{key}")
        };
        writer.metadata(&full, value.clone()).expect("a key");
    }
    writer.tensor("token_embd.weight", &floats(vec![3, 16], vec![0.5; 48]), GgufType::F32).expect("a tensor");
    if let Some(divisors) = divisors {
        writer
            .tensor("rope_freqs.weight", &floats(vec![divisors.len()], divisors), GgufType::F32)
            .expect("it");
    }
    writer.finish().expect("the file");
    ModelConfig::from_gguf(&Gguf::open(&path).expect("a file"))
}

#[test]
fn rope_settings_of_gguf_are_read_as_llama_cpp_reads_them() {
    let scaling = |keys: &[(&str, MetaValue)]| gguf(keys, None).expect("a configuration").spec.rope.scaling;
    let linear = |factor| RopeScaling::Linear { factor };
    let f = |value: f32| MetaValue::F32(value);
    assert_eq!(scaling(&[]), RopeScaling::None);
    assert_eq!(scaling(&[("rope.scale_linear", f(4.0))]), linear(4.0));
    assert_eq!(scaling(&[("rope.scaling.factor", f(4.0))]), linear(4.0));
    assert_eq!(scaling(&[("rope.scaling.factor", f(2.0)), ("rope.scale_linear", f(4.0))]), linear(2.0));
    assert_eq!(scaling(&[("rope.scaling.factor", f(0.0))]), RopeScaling::None);
    let kind = |kind: &str| ("rope.scaling.type", MetaValue::from(kind));
    assert_eq!(scaling(&[kind("linear")]), RopeScaling::None);
    assert_eq!(scaling(&[kind("none"), ("rope.scaling.factor", f(4.0))]), RopeScaling::None);
    assert_eq!(scaling(&[kind("linear"), ("rope.scale_linear", f(8.0))]), linear(8.0));
    // Without an original context, it defaults to the context length.
    let yarn =
        scaling(&[kind("yarn"), ("rope.scaling.factor", f(4.0)), ("rope.scaling.yarn_ext_factor", f(1.0))]);
    let RopeScaling::Yarn { factor, original_context, attention_factor, .. } = yarn else {
        panic!("{yarn:?}")
    };
    assert_eq!((factor, original_context, attention_factor), (4.0, 64, 0.1 * 4f32.ln() + 1.0));
    // Divisors and a linear factor are multiplied.
    let both =
        gguf(&[("rope.scale_linear", f(2.0))], Some(vec![1.0, 1.0, 3.0, 8.0])).expect("a configuration");
    assert_eq!(both.spec.rope.scaling, RopeScaling::Factors(vec![2.0, 2.0, 6.0, 16.0]));
}

#[test]
fn a_key_of_gguf_is_read_known_or_refused_by_name() {
    let f = |value: f32| MetaValue::F32(value);
    for (key, value) in [
        ("expert_count", MetaValue::U32(0)),
        ("logit_scale", f(1.0)),
        ("attention.causal", MetaValue::Bool(true)),
        ("vocab_size", MetaValue::U32(3)),
        ("tensor_data_layout", "Meta AI original pth".into()),
        ("rope.scaling.finetuned", MetaValue::Bool(false)),
        ("general.type", "model".into()),
        ("general.anything", "goes".into()),
    ] {
        gguf(&[(key, value)], None).unwrap_or_else(|e| panic!("{key}: {e}"));
    }
    for (key, value, words) in [
        ("expert_count", MetaValue::U32(8), "llama.expert_count` u32 8"),
        ("expert_weights_scale", f(2.5), "expert_weights_scale"),
        ("logit_scale", f(0.25), "logit_scale"),
        ("residual_scale", f(0.22), "residual_scale"),
        ("embedding_scale", f(12.0), "embedding_scale"),
        ("attention.scale", f(0.01), "attention.scale"),
        ("attn_logit_softcapping", f(50.0), "attn_logit_softcapping"),
        ("final_logit_softcapping", f(30.0), "final_logit_softcapping"),
        ("attention.causal", MetaValue::Bool(false), "attention.causal"),
        ("attention.sliding_window_pattern", MetaValue::Array(MetaArray::Bool(vec![false, true])), "pattern"),
        ("rope.scaling.type", "longrope".into(), "longrope"),
        ("rope.scaling.attn_factor", f(1.5), "attn_factor"),
        ("rope.scaling.yarn_log_multiplier", f(0.1), "yarn_log_multiplier"),
        ("rope.scaling.yarn_ext_factor", f(1.0), "yarn_ext_factor"),
        ("rope.dimension_count", MetaValue::U32(4), "rope.dimension_count"),
        ("rope.freqbase", f(5e5), "the nearest known key is `rope.freq_base`"),
        ("block_skip_connection", MetaValue::Bool(true), "llama.block_skip_connection"),
        ("ssm.conv_kernel", MetaValue::U32(4), "ssm.conv_kernel"),
        ("general.type", "adapter".into(), "adapter"),
        ("adapter.type", "lora".into(), "adapter.type"),
    ] {
        let error = gguf(&[(key, value)], None).expect_err(key).to_string();
        assert!(error.contains(words), "{key}: {error}");
    }
}

/// Loads a model without a tokenizer.
fn load(file: &ModelFile) -> Result<(), LlmError> {
    LanguageModel::load_with(file, &LoadOptions::default(), &mut |_, _| ()).map(drop)
}

/// A copy of a directory with renamed tensors, and additional tensors.
fn rename(from: &Path, to: &Path, name: impl Fn(&str) -> String, more: &[&str]) {
    let file = ModelFile::open(from).expect("a model");
    let trike_llm::Tensors::Hf(dir) = file.tensors() else { panic!("a directory") };
    let mut writer = HfDirWriter::create(to, dir.config().clone()).expect("a directory");
    for tensor in dir.tensors() {
        writer
            .tensor(&name(&tensor.name), &dir.load(&tensor.name).expect("a tensor"))
            .expect("it is written");
    }
    for name in more {
        writer.tensor(name, &floats(vec![1, 2], vec![0.0, 1.0])).expect("it is written");
    }
    writer.finish().expect("the directory");
}

#[test]
fn names_that_torch_leaves_in_checkpoints_are_read() {
    let dir = TempDir::new().expect("a directory");
    let plain = dir.path().join("plain");
    random_llama(&plain, SHAPE, 1, false);
    let want = ModelFile::open(&plain).expect("a model");
    let buffers =
        ["model.position_ids", "model.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq"];
    type Rename = fn(&str) -> String;
    let cases: [(&str, Rename); 4] = [
        ("compiled", |name| format!("_orig_mod.{name}")),
        ("blocks", |name| name.replace(".self_attn.", "._orig_mod.self_attn.")),
        ("bare", |name| name.trim_start_matches("model.").to_owned()),
        ("buffers", str::to_owned),
    ];
    for (folder, name) in cases {
        let path = dir.path().join(folder);
        rename(&plain, &path, name, &buffers);
        let file = ModelFile::open(&path).expect("a model");
        load(&file).unwrap_or_else(|e| panic!("{folder}: {e}"));
        for weight in want.weights() {
            assert!(
                file.load(weight).expect("a weight") == want.load(weight).expect("a weight"),
                "{folder} {weight}"
            );
        }
        assert!(file.is_f32());
        // All other operations use the checkpoint's names.
        let copy = dir.path().join(format!("{folder}-copy"));
        convert(&file, &copy, &ConvertOptions::new(Target::Trike), &mut |_, _| ()).expect("it converts");
        let copy = ModelFile::open(&copy).expect("a model");
        assert!(copy.source().info("model.layers.0.self_attn.q_proj.weight").is_some(), "{folder}");
    }
    // The same weight under two names is ambiguous.
    let twice = dir.path().join("twice");
    rename(&plain, &twice, str::to_owned, &["_orig_mod.model.norm.weight"]);
    let error = load(&ModelFile::open(&twice).expect("a model")).expect_err("two names").to_string();
    assert!(error.contains("_orig_mod.model.norm.weight"), "{error}");
}

/// Writes the tensors of a file into `count` files, as `llama-gguf-split` does.
fn split(from: &Path, dir: &Path, count: usize) -> Vec<PathBuf> {
    let file = Gguf::open(from).expect("a file");
    let each = file.tensors().len().div_ceil(count);
    let mut paths = Vec::new();
    for (number, tensors) in file.tensors().chunks(each).enumerate() {
        let path = dir.join(format!("m-{:05}-of-{count:05}.gguf", number + 1));
        let mut writer = GgufWriter::create(&path).expect("a file");
        let own = file.metadata().iter().filter(|(key, _)| number == 0 && *key != "general.alignment");
        for (key, value) in own {
            writer.metadata(key, value.clone()).expect("a key");
        }
        writer.metadata("split.no", number as u16).expect("a key");
        writer.metadata("split.count", count as u16).expect("a key");
        writer.metadata("split.tensors.count", file.tensors().len() as i32).expect("a key");
        for tensor in tensors {
            let kind = match tensor.kind {
                StoredType::F32 => GgufType::F32,
                StoredType::F16 => GgufType::F16,
                _ => GgufType::Tq2_0,
            };
            writer
                .tensor(&tensor.name, &file.load(&tensor.name).expect("a tensor"), kind)
                .expect("it is written");
        }
        writer.finish().expect("the file");
        paths.push(path);
    }
    paths
}

#[test]
fn a_model_in_several_gguf_files_opens_by_any_of_them() {
    let dir = TempDir::new().expect("a directory");
    let (packed, whole) = (dir.path().join("packed"), dir.path().join("whole.gguf"));
    let sizes = json!({
        "hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 32,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16},
    });
    random_checkpoint(&packed, &config("LlamaForCausalLM", 2, 50, sizes), 3, true);
    let to = |from: &Path, out: &Path, target| {
        let file = ModelFile::open(from).expect("a model");
        convert(&file, out, &ConvertOptions::new(target), &mut |_, _| ()).expect("it converts");
    };
    to(&packed, &whole, Target::Tq2_0);
    let parts = split(&whole, dir.path(), 3);
    let want = ModelFile::open(&whole).expect("a model");
    let mut prints = Vec::new();
    for part in &parts {
        let file = ModelFile::open(part).expect("a model");
        assert_eq!((file.path(), file.config()), (parts[0].as_path(), want.config()));
        for weight in want.weights() {
            assert!(file.load(weight).expect("a weight") == want.load(weight).expect("a weight"), "{weight}");
        }
        let bytes = |path: &Path| inspect(path, &mut |_, _| ()).expect("a report").totals.bytes;
        assert_eq!(bytes(part), bytes(&whole), "the whole size");
        prints.push(file.fingerprint().expect("a fingerprint"));
        load(&file).expect("it loads");
    }
    assert!(prints.windows(2).all(|pair| pair[0] == pair[1]));
    // A conversion of the parts is one file, including the divisors.
    let again = dir.path().join("again.gguf");
    to(&parts[1], &again, Target::Tq1_0);
    let again = ModelFile::open(&again).expect("a model");
    assert_eq!(again.config().spec, want.config().spec);
    let trike_llm::Tensors::Gguf(file) = again.tensors() else { panic!("a GGUF file") };
    assert!(file.metadata().iter().all(|(key, _)| !key.starts_with("split.")));
    // A part under another name, a missing part, a part of another model.
    let alone = dir.path().join("alone.gguf");
    std::fs::copy(&parts[1], &alone).expect("a copy");
    let open = |path: &Path| ModelFile::open(path).expect_err("an error").to_string();
    assert!(
        open(&alone).contains("part 2 of 3") && open(&alone).contains("NAME-00002-of-00003.gguf"),
        "{}",
        open(&alone)
    );
    std::fs::remove_file(&parts[2]).expect("it is removed");
    for part in &parts[..2] {
        let error = open(part);
        assert!(
            error.contains("part 3 is missing: m-00003-of-00003.gguf") && !error.contains("again"),
            "{error}"
        );
    }
    std::fs::copy(&parts[1], &parts[2]).expect("a copy");
    assert!(open(&parts[0]).contains("part 3 of 3"), "{}", open(&parts[0]));
}

#[test]
fn generation_settings_that_are_not_implemented_do_not_hide_the_rest() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("m");
    random_llama(&path, SHAPE, 1, false);
    let write =
        |value: &Value| std::fs::write(path.join("generation_config.json"), value.to_string()).expect("it");
    write(&json!({"num_beams": 4, "eos_token_id": [7], "temperature": 0.5}));
    // The model opens, with its end-of-text tokens; sampling with the file's settings is refused.
    let file = ModelFile::open(&path).expect("a model");
    assert_eq!(file.config().special.eos, [7]);
    let error = file.generation_config().expect_err("beams").to_string();
    assert!(error.contains("`num_beams` 4 of generation_config.json"), "{error}");
    write(
        &json!({"num_beams": 1, "temperature": 0.5, "transformers_version": "5.0.0", "_from_model_config": true}),
    );
    let file = ModelFile::open(&path).expect("a model");
    assert_eq!(file.generation_config().expect("settings").temperature, Some(0.5));
}
