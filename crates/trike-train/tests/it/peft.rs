//! Adapters in peft's layout: writing, reading, and refusals.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};
use trike_nn::DecoderSpec;
use trike_train::{Adapter, AdapterError, LoraConfig, LoraTarget, TrainError};

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";

/// Name, type, shape and bytes.
type RawTensor = (String, Dtype, Vec<usize>, Vec<u8>);

fn spec() -> DecoderSpec {
    DecoderSpec { kv_heads: 2, ..DecoderSpec::llama(16, 2, 4, 29) }
}

/// Values that f16 and bf16 represent exactly.
fn adapter() -> Adapter {
    let targets = [LoraTarget::Query, LoraTarget::Value, LoraTarget::Down].into();
    let config = LoraConfig { rank: 2, alpha: 3.0, targets, rank_stabilized: false };
    let mut adapter = Adapter::new(config, &spec(), 7).expect("an adapter");
    let mut n = 0u32;
    for factor in adapter.parameters_mut().all_mut() {
        for value in &mut factor.values {
            n += 1;
            *value = (n % 251) as f32 / 32.0 - 3.0;
        }
    }
    adapter
}

fn saved() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    adapter().save(dir.path(), "org/model").expect("it is written");
    dir
}

fn json_of(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join(CONFIG)).expect("a file")).expect("JSON")
}

/// The reason of an error, which must be an error of an adapter file.
fn refused(dir: &Path) -> AdapterError {
    match Adapter::open(dir, &spec()) {
        Err(TrainError::Adapter { source, .. }) => *source,
        other => panic!("expected an error of the adapter, got {other:?}"),
    }
}

/// Replaces the tensors; each is a name, a type, a shape and its bytes.
fn write_tensors(dir: &Path, all: &[RawTensor]) {
    let views = all.iter().map(|(name, dtype, shape, bytes)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"))
    });
    fs::write(dir.join(TENSORS), safetensors::serialize(views, None).expect("tensors")).expect("a file");
}

/// The tensors as written, in another type.
fn tensors_as(dir: &Path, dtype: Dtype) -> Vec<RawTensor> {
    let bytes = fs::read(dir.join(TENSORS)).expect("a file");
    let tensors = SafeTensors::deserialize(&bytes).expect("tensors");
    let convert = |b: &[u8]| {
        let value = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        match dtype {
            Dtype::F16 => f16::from_f32(value).to_le_bytes().to_vec(),
            Dtype::BF16 => bf16::from_f32(value).to_le_bytes().to_vec(),
            Dtype::F64 => f64::from(value).to_le_bytes().to_vec(),
            _ => b.to_vec(),
        }
    };
    let each = tensors.tensors().into_iter().map(|(name, view)| {
        let bytes = view.data().chunks_exact(4).flat_map(convert).collect();
        (name, dtype, view.shape().to_vec(), bytes)
    });
    each.collect()
}

#[test]
fn files_are_those_of_peft() {
    let dir = saved();
    let config = json_of(dir.path());
    for (field, want) in [
        ("peft_type", json!("LORA")),
        ("task_type", json!("CAUSAL_LM")),
        ("base_model_name_or_path", json!("org/model")),
        ("r", json!(2)),
        ("lora_alpha", json!(3)),
        ("bias", json!("none")),
        ("target_modules", json!(["q_proj", "v_proj", "down_proj"])),
        ("use_rslora", json!(false)),
    ] {
        assert_eq!(config[field], want, "{field}");
    }
    let bytes = fs::read(dir.path().join(TENSORS)).expect("a file");
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("a header");
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    assert_eq!(header.metadata(), &Some(format));
    let tensors = SafeTensors::deserialize(&bytes).expect("tensors");
    assert_eq!(tensors.len(), 2 * 3 * 2);
    for (name, shape) in [
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", [2, 16]),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", [16, 2]),
        ("base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight", [8, 2]),
        ("base_model.model.model.layers.1.mlp.down_proj.lora_A.weight", [2, 64]),
    ] {
        let tensor = tensors.tensor(name).expect(name);
        assert_eq!((tensor.shape(), tensor.dtype()), (&shape[..], Dtype::F32), "{name}");
    }
    let mut left: Vec<_> = fs::read_dir(dir.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .collect();
    left.sort();
    assert_eq!(left, [CONFIG, TENSORS]);
}

#[test]
fn adapters_come_back_in_every_precision() {
    let dir = saved();
    assert_eq!(Adapter::open(dir.path(), &spec()).expect("an adapter"), adapter());
    for dtype in [Dtype::F16, Dtype::BF16] {
        let converted = tensors_as(saved().path(), dtype);
        write_tensors(dir.path(), &converted);
        assert_eq!(Adapter::open(dir.path(), &spec()).expect("an adapter"), adapter(), "{dtype:?}");
    }
    let dir = tempfile::tempdir().expect("a folder");
    let all = LoraConfig { rank_stabilized: true, ..LoraConfig::default() };
    let stabilized = Adapter::new(all, &spec(), 1).expect("an adapter");
    stabilized.save(dir.path(), "org/model").expect("it is written");
    let back = Adapter::open(dir.path(), &spec()).expect("an adapter");
    assert_eq!((back.config().scale(), back), ((8.0 / 8f64.sqrt()) as f32, stabilized));
}

/// The settings that peft 0.18 writes, with their values for an ordinary adapter.
#[test]
fn a_configuration_of_peft_is_read() {
    let dir = saved();
    let config = json!({
        "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
        "base_model_name_or_path": "org/model", "bias": "none", "corda_config": null,
        "ensure_weight_tying": false, "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false,
        "inference_mode": true, "init_lora_weights": true, "layer_replication": null,
        "layers_pattern": null, "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 3,
        "lora_bias": false, "lora_dropout": 0.05, "megatron_config": null,
        "megatron_core": "megatron.core", "modules_to_save": null, "peft_type": "LORA",
        "peft_version": "0.18.0", "qalora_group_size": 16, "r": 2, "rank_pattern": {}, "revision": null,
        "target_modules": ["down_proj", "v_proj", "q_proj"], "target_parameters": null,
        "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_dora": false,
        "use_qalora": false, "use_rslora": false
    });
    fs::write(dir.path().join(CONFIG), config.to_string()).expect("a file");
    assert_eq!(Adapter::open(dir.path(), &spec()).expect("an adapter"), adapter());
}

#[test]
fn settings_that_compute_something_else_are_refused_by_name() {
    let dir = saved();
    let good = json_of(dir.path());
    for (field, value) in [
        ("peft_type", json!("IA3")),
        ("task_type", json!("SEQ_CLS")),
        ("bias", json!("all")),
        ("fan_in_fan_out", json!(true)),
        ("use_dora", json!(true)),
        ("use_rslora", json!("yes")),
        ("use_qalora", json!(true)),
        ("lora_bias", json!(true)),
        ("rank_pattern", json!({"q_proj": 4})),
        ("alpha_pattern", json!({"q_proj": 4})),
        ("modules_to_save", json!(["lm_head"])),
        ("layers_to_transform", json!([0])),
        ("layer_replication", json!([[0, 2]])),
        ("exclude_modules", json!("q_proj")),
        ("trainable_token_indices", json!([1])),
        ("init_lora_weights", json!("pissa_niter_4")),
        ("init_lora_weights", json!("olora")),
        ("a_setting_of_the_future", json!(3)),
        ("target_modules", json!(["q_proj", "lm_head"])),
        ("target_modules", json!(".*_proj")),
        ("target_modules", json!([])),
        ("r", json!(-1)),
        ("r", json!(1.5)),
        ("r", json!(null)),
        ("lora_alpha", json!("16")),
    ] {
        let mut config = good.clone();
        let written = value.to_string();
        config[field] = value;
        fs::write(dir.path().join(CONFIG), config.to_string()).expect("a file");
        let error = refused(dir.path());
        assert!(
            matches!(&error, AdapterError::Setting { field: named, got, .. }
                if named == field && *got == written),
            "{field}: {error}"
        );
    }
    for field in ["peft_type", "r", "lora_alpha", "target_modules"] {
        let mut config = good.clone();
        config.as_object_mut().expect("an object").remove(field);
        fs::write(dir.path().join(CONFIG), config.to_string()).expect("a file");
        let error = refused(dir.path());
        assert!(matches!(&error, AdapterError::Setting { field: named, got, .. }
            if named == field && got == "missing"));
    }
    // Values out of range are reported as options out of range.
    for (field, value) in [("r", json!(0)), ("r", json!(u64::MAX)), ("lora_alpha", json!(-2.0))] {
        let mut config = good.clone();
        config[field] = value;
        fs::write(dir.path().join(CONFIG), config.to_string()).expect("a file");
        assert!(matches!(Adapter::open(dir.path(), &spec()), Err(TrainError::Option(_))), "{field}");
    }
}

#[test]
fn tensors_that_do_not_fit_are_refused() {
    let dir = saved();
    let good = tensors_as(dir.path(), Dtype::F32);
    let name = good[0].0.clone();
    let with = |edit: &dyn Fn(&mut Vec<RawTensor>)| {
        let mut all = good.clone();
        edit(&mut all);
        write_tensors(dir.path(), &all);
        refused(dir.path())
    };
    let missing = with(&|all| drop(all.remove(0)));
    assert!(matches!(missing, AdapterError::Missing { name: found } if found == name));
    let more =
        with(&|all| all.push(("base_model.model.lm_head.lora_A.weight".into(), Dtype::F32, vec![0], vec![])));
    assert!(matches!(more, AdapterError::Unexpected { name } if name.contains("lm_head")));
    let turned = with(&|all| all[0].2.reverse());
    assert!(
        matches!(turned, AdapterError::Shape { expected, got, .. } if [expected.1, expected.0] == got[..])
    );
    let infinite = with(&|all| all[0].3[..4].copy_from_slice(&f32::INFINITY.to_le_bytes()));
    assert!(matches!(infinite, AdapterError::NonFinite { .. }));
    write_tensors(dir.path(), &tensors_as(saved().path(), Dtype::F64));
    assert!(matches!(refused(dir.path()), AdapterError::Dtype { got, .. } if got == "F64"));
    fs::write(dir.path().join(TENSORS), vec![b' '; 3 << 20]).expect("a file");
    assert!(matches!(refused(dir.path()), AdapterError::Size { bytes, .. } if bytes == 3 << 20));
    fs::write(dir.path().join(CONFIG), "[]").expect("a file");
    assert!(matches!(refused(dir.path()), AdapterError::Json(_)));
    fs::remove_file(dir.path().join(CONFIG)).expect("it is removed");
    assert!(matches!(Adapter::open(dir.path(), &spec()), Err(TrainError::Io { .. })));
}

/// Truncations and flipped bits throughout the header: an error or an adapter, never a panic.
#[test]
fn broken_files_do_not_panic() {
    let dir = saved();
    let path = dir.path().join(TENSORS);
    let good = fs::read(&path).expect("a file");
    let header = 8 + u64::from_le_bytes(good[..8].try_into().expect("a length")) as usize;
    for len in (0..header).step_by(5).chain([header + 1, good.len() - 1]) {
        fs::write(&path, &good[..len]).expect("a file");
        refused(dir.path());
    }
    let mut opened = 0;
    for at in (0..header).step_by(2) {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&path, &bytes).expect("a file");
        opened += usize::from(Adapter::open(dir.path(), &spec()).is_ok());
    }
    // A flip in the metadata or in white space is harmless.
    assert!(opened < header / 20, "{opened} of {}", header / 2);
    fs::write(&path, &good).expect("a file");
    let config = fs::read(dir.path().join(CONFIG)).expect("a file");
    for len in (0..config.len()).step_by(3) {
        fs::write(dir.path().join(CONFIG), &config[..len]).expect("a file");
        refused(dir.path());
    }
}
