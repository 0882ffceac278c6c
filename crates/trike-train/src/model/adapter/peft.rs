//! Adapters in the layout of the Python package peft (0.18): `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Map, Value, json};
use trike_format::OutputFile;
use trike_nn::{DecoderSpec, WeightName};

use super::{Adapter, AdapterError, LoraConfig, LoraTarget, targeted};
use crate::{Parameter, Part, TrainError};

/// File name of the configuration.
const CONFIG: &str = "adapter_config.json";
/// File name of the factors.
const TENSORS: &str = "adapter_model.safetensors";
/// Maximum size of the configuration in bytes.
const CONFIG_LIMIT: u64 = 1 << 20;
/// Maximum header bytes per factor; the header may have at least [`CONFIG_LIMIT`].
const HEADER: u64 = 1 << 10;

/// Settings without effect on a trained adapter's outputs: dropout is for training only, the rest are provenance or qualify a
/// setting that is refused.
const WITHOUT_EFFECT: [&str; 11] = [
    "auto_mapping",
    "base_model_name_or_path",
    "ensure_weight_tying",
    "inference_mode",
    "layers_pattern",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
];

impl Adapter {
    /// Writes the adapter into a directory, which is created if needed, in peft's format. `base_model` is the name or path of the
    /// frozen model, which peft loads with the adapter.
    ///
    /// # Errors
    ///
    /// [`TrainError::Io`]; each file is written atomically.
    pub fn save(&self, dir: &Path, base_model: &str) -> Result<(), TrainError> {
        let wrong =
            |file: &str, source| TrainError::Adapter { path: dir.join(file), source: Box::new(source) };
        fs::create_dir_all(dir).map_err(|source| TrainError::Io { path: dir.to_owned(), source })?;
        let config = serde_json::to_vec_pretty(&config_json(&self.config, base_model))
            .map_err(|e| wrong(CONFIG, AdapterError::Json(e)))?;
        let tensors =
            serialize(self.parameters().all()).map_err(|e| wrong(TENSORS, AdapterError::Tensors(e)))?;
        write(dir, CONFIG, &config)?;
        write(dir, TENSORS, &tensors)
    }

    /// Reads an adapter written by this crate or by peft, for a model of this architecture. Factors are f32, f16 or bf16.
    ///
    /// # Errors
    ///
    /// [`TrainError::Io`]; [`TrainError::Nn`] for an inconsistent spec; [`TrainError::Adapter`] for a malformed file, for factors
    /// that do not match the model, and, naming the setting, for unsupported features: ranks or scales per module, DoRA, trained
    /// biases, fully trained modules, subsets of the layers, and initializations that change the frozen weights.
    pub fn open(dir: &Path, spec: &DecoderSpec) -> Result<Self, TrainError> {
        spec.validate()?;
        let wrong =
            |file: &str, source| TrainError::Adapter { path: dir.join(file), source: Box::new(source) };
        let bytes = read(dir, CONFIG, CONFIG_LIMIT)?;
        let config = parse_config(&bytes).map_err(|e| wrong(CONFIG, e))?;
        config.validate()?;
        let mut limit = CONFIG_LIMIT;
        for (_, (rows, cols)) in targeted(&config, spec) {
            let values = (rows as u64).saturating_add(cols as u64).saturating_mul(config.rank as u64);
            limit = limit.saturating_add(values.saturating_mul(4)).saturating_add(2 * HEADER);
        }
        let bytes = read(dir, TENSORS, limit)?;
        parse_tensors(&bytes, config, spec).map_err(|e| wrong(TENSORS, e))
    }
}

fn read(dir: &Path, name: &str, limit: u64) -> Result<Vec<u8>, TrainError> {
    let path = dir.join(name);
    let io = |source| TrainError::Io { path: path.clone(), source };
    let mut bytes = Vec::new();
    // The reported length is not trusted: a pipe or a growing file may contain more.
    File::open(&path)
        .and_then(|file| file.take(limit.saturating_add(1)).read_to_end(&mut bytes))
        .map_err(io)?;
    if bytes.len() as u64 > limit {
        let bytes = fs::metadata(&path).map_or(bytes.len() as u64, |file| file.len().max(bytes.len() as u64));
        return Err(TrainError::Adapter { path, source: Box::new(AdapterError::Size { bytes, limit }) });
    }
    Ok(bytes)
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), TrainError> {
    let path = dir.join(name);
    OutputFile::replace(&path, bytes).map_err(|source| TrainError::Io { path, source })
}

/// The tensor name of a factor in peft: the layer's name with the prefix of peft's two wrapper models.
fn key(name: WeightName, part: Part) -> String {
    format!("base_model.model.{}", Parameter::key_of(name, part))
}

fn config_json(config: &LoraConfig, base_model: &str) -> Value {
    // peft declares alpha as an integer.
    let is_whole = config.alpha.fract() == 0.0;
    let alpha = if is_whole { json!(config.alpha as i64) } else { json!(config.alpha) };
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": config.rank,
        "lora_alpha": alpha,
        "target_modules": config.targets,
        "use_rslora": config.rank_stabilized,
        "use_dora": false,
        "bias": "none",
        "lora_dropout": 0.0,
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "modules_to_save": null,
        "rank_pattern": {},
        "alpha_pattern": {},
        "layers_to_transform": null,
        "layers_pattern": null,
        "revision": null,
    })
}

fn setting(field: &str, expected: &'static str, got: Option<&Value>) -> AdapterError {
    let mut got = got.map_or_else(|| "missing".to_owned(), Value::to_string);
    if let Some((end, _)) = got.char_indices().nth(200) {
        got.truncate(end);
        got.push_str("...");
    }
    AdapterError::Setting { field: field.to_owned(), expected, got }
}

fn parse_config(bytes: &[u8]) -> Result<LoraConfig, AdapterError> {
    let all: Map<String, Value> = serde_json::from_slice(bytes).map_err(AdapterError::Json)?;
    for (field, value) in &all {
        check_setting(field, value)?;
    }
    let get = |field: &str| all.get(field);
    // Without it, the file may not describe a LoRA adapter.
    if get("peft_type").is_none() {
        return Err(setting("peft_type", r#""LORA""#, None));
    }
    let rank = get("r").and_then(Value::as_u64).and_then(|rank| usize::try_from(rank).ok());
    let Some(rank) = rank else { return Err(setting("r", "a whole number from 1", get("r"))) };
    let Some(alpha) = get("lora_alpha").and_then(Value::as_f64) else {
        return Err(setting("lora_alpha", "a number above 0", get("lora_alpha")));
    };
    let targets = targets(get("target_modules"))?;
    let rank_stabilized = get("use_rslora") == Some(&Value::Bool(true));
    Ok(LoraConfig { rank, alpha: alpha as f32, targets, rank_stabilized })
}

/// Refuses settings that change the computation.
fn check_setting(field: &str, value: &Value) -> Result<(), AdapterError> {
    let neutral = match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    let (fits, expected) = match field {
        // Read by the caller.
        "r" | "lora_alpha" | "target_modules" => (true, ""),
        "use_rslora" => (value.is_boolean(), "true or false"),
        "peft_type" => (value == "LORA", r#""LORA""#),
        "task_type" => (value.is_null() || value == "CAUSAL_LM", r#""CAUSAL_LM""#),
        "bias" => (value.is_null() || value == "none", r#""none""#),
        // The other initializations change the frozen weights, so their factors do not match the original weights.
        "init_lora_weights" => (
            value.is_boolean() || ["gaussian", "eva", "orthogonal"].iter().any(|name| value == name),
            r#"true, false, "gaussian", "eva" or "orthogonal""#,
        ),
        "eva_config" => (true, ""),
        field if WITHOUT_EFFECT.contains(&field) => (true, ""),
        _ => (neutral, "null, false or empty: the setting is not supported"),
    };
    if fits { Ok(()) } else { Err(setting(field, expected, Some(value))) }
}

fn targets(value: Option<&Value>) -> Result<BTreeSet<LoraTarget>, AdapterError> {
    let refused = || {
        let expected =
            r#"a list of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj, or "all-linear""#;
        setting("target_modules", expected, value)
    };
    match value {
        Some(Value::String(all)) if all == "all-linear" => Ok(LoraTarget::ALL.into()),
        Some(Value::Array(list)) if !list.is_empty() => {
            let each = list.iter().map(|name| name.as_str().and_then(LoraTarget::from_name));
            each.map(|target| target.ok_or_else(refused)).collect()
        }
        _ => Err(refused()),
    }
}

fn serialize(factors: &[Parameter]) -> Result<Vec<u8>, safetensors::SafeTensorError> {
    let bytes: Vec<Vec<u8>> =
        factors.iter().map(|factor| factor.values.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();
    let views = factors.iter().zip(&bytes).map(|(factor, bytes)| {
        let shape = vec![factor.rows(), factor.cols];
        Ok((key(factor.name, factor.part), TensorView::new(Dtype::F32, shape, bytes)?))
    });
    let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    // Required by the readers of transformers.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize(views, Some(metadata))
}

fn parse_tensors(bytes: &[u8], config: LoraConfig, spec: &DecoderSpec) -> Result<Adapter, AdapterError> {
    let tensors = SafeTensors::deserialize(bytes).map_err(AdapterError::Tensors)?;
    let mut used = BTreeSet::new();
    let adapter = Adapter::fill(config, spec, |name, part, expected| {
        let name = key(name, part);
        let Ok(view) = tensors.tensor(&name) else { return Err(AdapterError::Missing { name }) };
        if view.shape() != [expected.0, expected.1] {
            return Err(AdapterError::Shape { name, expected, got: view.shape().to_vec() });
        }
        let values = match view.dtype() {
            Dtype::F32 => numbers(view.data(), f32::from_le_bytes),
            Dtype::F16 => numbers(view.data(), |b| f16::from_le_bytes(b).to_f32()),
            Dtype::BF16 => numbers(view.data(), |b| bf16::from_le_bytes(b).to_f32()),
            other => return Err(AdapterError::Dtype { name, got: format!("{other:?}") }),
        };
        if !values.iter().all(|v: &f32| v.is_finite()) {
            return Err(AdapterError::NonFinite { name });
        }
        used.insert(name);
        Ok(values)
    })?;
    match tensors.names().into_iter().find(|name| !used.contains(*name)) {
        Some(name) => Err(AdapterError::Unexpected { name: name.to_owned() }),
        None => Ok(adapter),
    }
}

fn numbers<const N: usize>(bytes: &[u8], of: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    bytes.as_chunks::<N>().0.iter().map(|chunk| of(*chunk)).collect()
}
