//! Reading of axolotl's configuration files.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::RunConfig;
use crate::TrainError;

/// The format of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigFormat {
    /// TOML.
    Toml,
    /// YAML, with anchors and merged keys.
    Yaml,
    /// JSON.
    Json,
}

/// Settings of axolotl that do not affect the weights here, whatever their value: GPU execution, data preparation, logging, and
/// classes of `transformers` that Trike detects by itself. Sorted; the page of `trike train` has this list.
#[rustfmt::skip]
pub(super) const WITHOUT_EFFECT: &[&str] = &[
    "activation_offloading", "attn_implementation", "auto_resume_from_checkpoints", "base_model_ignore_patterns",
    "cut_cross_entropy", "dataset_keep_in_memory", "dataset_num_proc", "dataset_prepared_path",
    "dataset_processes", "ddp_broadcast_buffers", "ddp_bucket_cap_mb", "ddp_find_unused_parameters", "ddp_timeout",
    "debug", "device_map", "eager_attention", "eval_batch_size", "eval_max_new_tokens", "eval_sample_packing",
    "eval_table_size", "flash_attention", "flash_attn_cross_entropy", "flash_attn_fuse_mlp",
    "flash_attn_fuse_qkv", "flash_attn_rms_norm", "flex_attention", "gc_steps", "gpu_memory_limit",
    "gradient_checkpointing_kwargs", "hf_use_auth_token", "include_tokens_per_second", "is_falcon_derived_model",
    "is_llama_derived_model", "is_mistral_derived_model", "is_qwen_derived_model", "local_rank",
    "loss_watchdog_patience", "loss_watchdog_threshold", "low_cpu_mem_usage", "max_memory", "model_type",
    "pad_to_sequence_len", "processor_type", "profiler_steps", "remove_unused_columns", "report_to",
    "sample_packing_bin_size", "sample_packing_eff_est", "sample_packing_group_size", "save_only_model",
    "save_safetensors", "sdp_attention", "skip_prepare_dataset", "strict", "tf32", "tokenizer_legacy",
    "tokenizer_type", "tokenizer_use_fast", "torch_compile", "torch_compile_backend", "torch_compile_mode",
    "total_num_tokens", "total_supervised_tokens", "trust_remote_code", "use_comet", "use_mlflow",
    "use_tensorboard", "use_wandb", "world_size", "xformers_attention",
];

/// Beginnings of further ones.
const PREFIXES: [&str; 8] =
    ["comet_", "dataloader_", "gradio_", "liger_", "mlflow_", "swanlab_", "trackio_", "wandb_"];

/// Settings without effect for these values, in JSON; other values are not supported.
const WITH: &[(&str, &[&str])] = &[
    ("chat_template", &["\"tokenizer_default\""]),
    ("deepspeed", &["\"\"", "[]", "{}"]),
    ("do_bench_eval", &["false"]),
    ("do_causal_lm_eval", &["false"]),
    ("eval_strategy", &["\"steps\""]),
    ("evaluation_strategy", &["\"steps\""]),
    ("fp8", &["false"]),
    ("fsdp", &["\"\"", "[]", "{}"]),
    ("fsdp_config", &["\"\"", "[]", "{}"]),
    ("gptq", &["false"]),
    ("group_by_length", &["false"]),
    ("load_in_4bit", &["false"]),
    ("load_in_8bit", &["false"]),
    ("resize_token_embeddings_to_32x", &["false"]),
    ("reward_model", &["false"]),
    ("s2_attention", &["false"]),
    ("save_strategy", &["\"steps\""]),
    ("shuffle_before_merging_datasets", &["false"]),
    ("shuffle_merged_datasets", &["true"]),
    ("tokens", &["[]"]),
    ("train_on_inputs", &["false"]),
    ("unfrozen_parameters", &["[]"]),
];

/// Plugins that compute the same values in less memory.
const PLUGINS: [&str; 2] = [
    "axolotl.integrations.liger.LigerPlugin",
    "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin",
];

fn wrong(problem: String) -> TrainError {
    TrainError::Config { problem }
}

impl RunConfig {
    /// Parses TOML.
    ///
    /// # Errors
    ///
    /// [`TrainError::Config`], naming the setting and the problem.
    pub fn parse(text: &str) -> Result<Self, TrainError> {
        Self::parse_as(text, ConfigFormat::Toml)
    }

    /// Parses a configuration in this format. Settings of axolotl's files without effect on the weights are ignored; all other
    /// unknown settings are refused.
    ///
    /// # Errors
    ///
    /// As [`parse`](Self::parse).
    ///
    /// ```
    /// use trike_train::run::{ConfigFormat, RunConfig};
    ///
    /// let yaml = "base_model: dense\ngradient_checkpointing: true\nbf16: auto\nflash_attention: true\nwandb_project:";
    /// let config = RunConfig::parse_as(yaml, ConfigFormat::Yaml)?;
    /// assert_eq!((config.gradient_checkpointing, config.bf16), (1, false));
    /// let error = RunConfig::parse_as("num_epoch: 3", ConfigFormat::Yaml).unwrap_err().to_string();
    /// assert!(error.contains("did you mean num_epochs?"), "{error}");
    /// # Ok::<(), trike_train::TrainError>(())
    /// ```
    pub fn parse_as(text: &str, format: ConfigFormat) -> Result<Self, TrainError> {
        parse(text, format)
    }

    /// Reads a file: YAML if its name ends in `.yaml` or `.yml`, JSON if it ends in `.json`, otherwise TOML. Paths in it are relative
    /// to its folder.
    ///
    /// # Errors
    ///
    /// [`TrainError::Io`], and as [`parse`](Self::parse).
    pub fn open(path: &Path) -> Result<Self, TrainError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| TrainError::Io { path: path.to_owned(), source })?;
        let ending = path.extension().and_then(|ending| ending.to_str()).map(str::to_ascii_lowercase);
        let format = match ending.as_deref() {
            Some("yaml" | "yml") => ConfigFormat::Yaml,
            Some("json") => ConfigFormat::Json,
            _ => ConfigFormat::Toml,
        };
        let mut config = Self::parse_as(&text, format)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let inputs = [
            &mut config.base_model,
            &mut config.base_model_config,
            &mut config.tokenizer,
            &mut config.teacher,
        ];
        for path in inputs.into_iter().flatten().chain(config.datasets.iter_mut().map(|d| &mut d.path)) {
            // A path that does not exist relative to the file may be a model name, or wrong.
            if folder.join(&*path).exists() {
                *path = folder.join(&*path);
            }
        }
        if !config.output_dir.as_os_str().is_empty() {
            config.output_dir = folder.join(&config.output_dir);
        }
        Ok(config)
    }
}

/// Reads a configuration. Errors name the line of the setting.
fn parse(text: &str, format: ConfigFormat) -> Result<RunConfig, TrainError> {
    parse_text(text, format).map_err(|error| match error {
        TrainError::Config { problem } => match line_of(text, &problem) {
            Some(line) => wrong(format!("line {line}: {problem}")),
            None => wrong(problem),
        },
        other => other,
    })
}

/// The line of the setting that a message starts with.
fn line_of(text: &str, problem: &str) -> Option<usize> {
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
    };
    let name = Some(word(problem)).filter(|name| !name.is_empty())?;
    let is_its = |line: &str| {
        let line = line.trim_start_matches([' ', '\t', '{', '"', '\'']);
        let after = line.strip_prefix(&name)?.trim_start_matches(['"', '\'', ' ', '\t']);
        after.starts_with([':', '=']).then_some(())
    };
    text.lines().position(|line| is_its(line).is_some()).map(|at| at + 1)
}

fn parse_text(text: &str, format: ConfigFormat) -> Result<RunConfig, TrainError> {
    let all: Value = match format {
        ConfigFormat::Toml => {
            let table: toml::Table = toml::from_str(text).map_err(|e| wrong(e.to_string()))?;
            serde_json::to_value(table).map_err(|e| wrong(e.to_string()))?
        }
        ConfigFormat::Yaml => {
            let failed = |e: serde_yaml_ng::Error| wrong(format!("YAML: {e}"));
            let mut yaml: serde_yaml_ng::Value = serde_yaml_ng::from_str(text).map_err(failed)?;
            yaml.apply_merge().map_err(failed)?;
            serde_json::to_value(yaml).map_err(|e| wrong(format!("YAML: {e}")))?
        }
        ConfigFormat::Json => serde_json::from_str(text).map_err(|e| wrong(format!("JSON: {e}")))?,
    };
    match all {
        Value::Object(all) => read(all),
        Value::Null => read(Map::new()),
        _ => Err(wrong("expected a mapping of settings, got a list or a scalar".to_owned())),
    }
}

/// The configuration of names and values.
fn read(mut given: Map<String, Value>) -> Result<RunConfig, TrainError> {
    // Null means not set.
    given.retain(|_, value| !value.is_null());
    let own = super::to_json(&RunConfig::default())?;
    let own: Vec<&String> = own.as_object().into_iter().flat_map(Map::keys).collect();
    translate(&mut given)?;
    let mut known = Map::new();
    for (key, value) in given {
        if own.contains(&&key) {
            let value = fitted(&key, value)?;
            known.insert(key, value);
        } else if !is_without_effect(&key, &value)? {
            let names = own.iter().map(|name| name.as_str()).chain(WITHOUT_EFFECT.iter().copied());
            let hint = nearest(&key, names.chain(WITH.iter().map(|(name, _)| *name)));
            let hint = hint.map_or(String::new(), |name| format!("; did you mean {name}?"));
            return Err(wrong(format!(
                "{key} is neither a setting of a run nor an ignored setting of axolotl{hint}"
            )));
        }
    }
    RunConfig::deserialize(Value::Object(known)).map_err(|e| wrong(e.to_string()))
}

/// Whether a setting has no effect.
fn is_without_effect(key: &str, value: &Value) -> Result<bool, TrainError> {
    if let Some((_, values)) = WITH.iter().find(|(name, _)| *name == key) {
        let got = value.to_string();
        return match values.contains(&got.as_str()) {
            true => Ok(true),
            false => Err(wrong(format!("{key} is {got}: expected {} or none", values.join(" or ")))),
        };
    }
    Ok(WITHOUT_EFFECT.contains(&key) || PREFIXES.iter().any(|prefix| key.starts_with(prefix)))
}

/// The value of one of Trike's settings; numbers and booleans may be strings that Python would parse.
fn fitted(key: &str, value: Value) -> Result<Value, TrainError> {
    let try_one = |value: &Value| RunConfig::deserialize(json!({ key: value })).map(drop);
    let Err(error) = try_one(&value) else { return Ok(value) };
    let other = value.as_str().and_then(|text| match text {
        "yes" | "on" | "True" => Some(Value::Bool(true)),
        "no" | "off" | "False" => Some(Value::Bool(false)),
        text => serde_json::from_str(text).ok().or_else(|| text.parse::<f64>().ok().map(Value::from)),
    });
    match other.filter(|other| try_one(other).is_ok()) {
        Some(other) => Ok(other),
        None => Err(wrong(format!("{key}: {error}"))),
    }
}

/// Translates axolotl's settings to those of a run, and refuses settings that would change the result.
fn translate(given: &mut Map<String, Value>) -> Result<(), TrainError> {
    let text =
        |given: &Map<String, Value>, key: &str| given.get(key).and_then(Value::as_str).map(str::to_owned);
    // The settings of adapters have no effect without one.
    match text(given, "adapter").as_deref() {
        None | Some("") => {
            given.retain(|key, _| key != "adapter" && !key.starts_with("lora_") && !key.starts_with("peft_"));
        }
        Some(adapter) => {
            return Err(wrong(format!(
                "adapter is {adapter}: expected none, since a run trains all weights; for adapters use the library's Trainer"
            )));
        }
    }
    if let Some(value) = given.get_mut("gradient_checkpointing") {
        match value {
            Value::Bool(is_on) => *value = usize::from(*is_on).into(),
            Value::String(how) => {
                return Err(wrong(format!("gradient_checkpointing is {how}: expected true or false")));
            }
            _ => {}
        }
    }
    for key in ["bf16", "fp16"] {
        match text(given, key).as_deref() {
            // f32 is supported on every device.
            Some("auto") => given.insert(key.to_owned(), false.into()),
            Some("full") => {
                return Err(wrong(format!("{key} is full: expected true, with which weights stay f32")));
            }
            _ => None,
        };
    }
    // axolotl gives max_steps precedence over the number of epochs.
    if given.contains_key("max_steps") {
        given.remove("num_epochs");
    }
    if let Some(path) = given.remove("tokenizer_config") {
        given.entry("tokenizer").or_insert(path);
    }
    if given.contains_key("base_model_config") && given.get("base_model_config") == given.get("base_model") {
        given.remove("base_model_config");
    }
    if let Some(value) = given.remove("special_tokens") {
        let others = value
            .as_object()
            .map(|all| all.iter().filter(|(key, value)| *key != "pad_token" && !value.is_null()));
        if let Some((key, _)) = others.and_then(|mut all| all.next()) {
            return Err(wrong(format!(
                "special_tokens.{key}: expected pad_token only, since the tokenizer has the others"
            )));
        }
    }
    if let Some(value) = given.remove("plugins") {
        let all = value.as_array().cloned().unwrap_or_else(|| vec![value]);
        if let Some(other) =
            all.iter().find(|plugin| !plugin.as_str().is_some_and(|name| PLUGINS.contains(&name)))
        {
            return Err(wrong(format!(
                "plugins: {other} is not supported, expected {}",
                PLUGINS.join(" or ")
            )));
        }
    }
    if let Some(value) = given.remove("datasets") {
        let all = value.as_array().ok_or_else(|| wrong("datasets is no list".to_owned()))?;
        let mut datasets = Vec::new();
        for (i, data) in all.iter().enumerate() {
            let data = data.as_object().ok_or_else(|| wrong(format!("datasets[{i}] has no path")))?;
            datasets.extend(dataset(data).map_err(|problem| wrong(format!("datasets[{i}].{problem}")))?);
        }
        given.insert("datasets".to_owned(), Value::Array(datasets));
    }
    Ok(())
}

/// Settings of a data set with their supported values.
const OF_DATASET: &[(&str, &[&str])] = &[
    ("chat_template", &["\"tokenizer_default\""]),
    ("field", &["\"text\""]),
    ("field_human", &["\"human\""]),
    ("field_input", &["\"input\""]),
    ("field_instruction", &["\"instruction\""]),
    ("field_messages", &["\"messages\"", "\"conversations\""]),
    ("field_model", &["\"gpt\""]),
    ("field_output", &["\"output\""]),
    ("field_system", &["\"system\""]),
    ("field_thinking", &["\"reasoning_content\"", "\"thinking\"", "\"reasoning\""]),
    ("field_tools", &["\"tools\""]),
    ("message_field_content", &["\"content\"", "\"value\""]),
    ("message_field_role", &["\"role\"", "\"from\""]),
    ("message_field_training", &["\"train\"", "\"training\"", "\"weight\"", "\"loss\""]),
    (
        "roles_to_train",
        &["[\"assistant\"]", "[\"gpt\"]", "[\"assistant\",\"gpt\"]", "[\"gpt\",\"assistant\"]"],
    ),
    ("split", &["\"train\""]),
    ("train_on_eos", &["\"turn\""]),
    ("train_on_inputs", &["false"]),
    ("trust_remote_code", &["true", "false"]),
];

/// The files of a data set.
fn dataset(data: &Map<String, Value>) -> Result<Vec<Value>, String> {
    let text = |key: &str| data.get(key).and_then(Value::as_str);
    let path = text("path").ok_or("path is missing")?;
    let mut found = Map::new();
    for (key, value) in data.iter().filter(|(_, value)| !value.is_null()) {
        match key.as_str() {
            "path" | "ds_type" | "data_files" => {}
            "type" => {
                let kind = value.as_str().unwrap_or_default();
                // A suffix after a dot or colon selects a prompt format, which is determined by the model's template here.
                if !["any", "completion", "alpaca", "chat_template", "sharegpt"].contains(&kind) {
                    return Err(format!(
                        "type is {value}: expected completion, alpaca, chat_template, sharegpt, or none"
                    ));
                }
                found.insert("type".to_owned(), kind.into());
            }
            "message_property_mappings" => {
                for (name, is) in value.as_object().into_iter().flatten() {
                    let may = match name.as_str() {
                        "role" => ["role", "from"],
                        "content" => ["content", "value"],
                        _ => return Err(format!("{key}.{name} is not supported: expected role and content")),
                    };
                    if !is.as_str().is_some_and(|is| may.contains(&is)) {
                        return Err(format!("{key}.{name} is {is}: expected {}", may.join(" or ")));
                    }
                }
            }
            _ => {
                let got = value.to_string();
                match OF_DATASET.iter().find(|(name, _)| name == key) {
                    Some((_, values)) if values.contains(&got.as_str()) => {}
                    Some((_, values)) => {
                        return Err(format!("{key} is {got}: expected {}", values.join(" or ")));
                    }
                    None => {
                        let names = OF_DATASET.iter().map(|(name, _)| *name);
                        let names = names.chain(["path", "type", "ds_type", "data_files"]);
                        let hint = nearest(key, names)
                            .map_or(String::new(), |name| format!(": did you mean {name}?"));
                        return Err(format!("{key} is not supported{hint}"));
                    }
                }
            }
        }
    }
    let ds_type = text("ds_type");
    // `path: json` with data files is the name of a loader.
    let loader = ["json", "text", "parquet"].contains(&path).then_some(path);
    let files: Vec<String> = match data.get("data_files").filter(|files| !files.is_null()) {
        None => vec![path.to_owned()],
        Some(Value::String(file)) => vec![file.clone()],
        Some(Value::Array(files)) => files.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Some(other) => return Err(format!("data_files is {other}: expected a file or a list of files")),
    };
    if loader.is_none() && data.get("data_files").is_some_and(|files| !files.is_null()) {
        return Err(
            "data_files with a path of a data set: expected the path of a file, or json, text or parquet"
                .to_owned(),
        );
    }
    if let Some(kind) = ds_type.or(loader) {
        let endings: &[&str] = match kind {
            "json" => &["json", "jsonl"],
            "text" => &["txt", "text", "md"],
            "parquet" => &["parquet"],
            other => return Err(format!("ds_type is {other}: expected json, text or parquet")),
        };
        for file in &files {
            let ending = file.rsplit_once('.').map_or("", |(_, ending)| ending);
            if !endings.contains(&ending) {
                return Err(format!(
                    "ds_type is {kind} and the file {file}: expected a name that ends in .{}",
                    endings.join(" or .")
                ));
            }
        }
    }
    Ok(files
        .into_iter()
        .map(|file| {
            let mut one = found.clone();
            one.insert("path".to_owned(), file.into());
            Value::Object(one)
        })
        .collect())
}

/// The nearest valid name to a misspelt one, if it is close.
fn nearest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let (distance, best) = names.map(|other| (trike_core::edit_distance(name, other), other)).min()?;
    (distance <= 1 + name.len() / 4).then_some(best)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::OptimizerKind;
    use crate::data::RecordKind;
    use crate::run::{Dataset, Scheduler};

    /// A file like axolotl's examples, with every setting that they use and a full training supports.
    const YAML: &str = "
base_model: dense
model_type: LlamaForCausalLM
tokenizer_type: AutoTokenizer
load_in_8bit: false
load_in_4bit: false
strict: false
plugins:
  - axolotl.integrations.liger.LigerPlugin
liger_rms_norm: true
datasets:
  - path: chats.jsonl
    type: chat_template
    split: train
    field_messages: conversations
    message_property_mappings: {role: from, content: value}
    field_tools: tools
    field_thinking: reasoning_content
    roles_to_train: [assistant]
    train_on_eos: turn
  - path: json
    data_files: [alpaca.json]
    type: alpaca
dataset_prepared_path: last_run_prepared
val_set_size: 0.05
output_dir: ./outputs/out
adapter:
lora_r: 8
lora_alpha: 16
lora_target_linear: true
sequence_len: 64
sample_packing: true
eval_sample_packing: false
pad_to_sequence_len: true
wandb_project:
wandb_entity: me
gradient_accumulation_steps: 8
micro_batch_size: 1
num_epochs: 3
max_steps: 20
optimizer: adamw_torch_fused
lr_scheduler: linear
learning_rate: 2e-5
bf16: auto
fp16:
tf32: false
gradient_checkpointing: true
gradient_checkpointing_kwargs: {use_reentrant: false}
early_stopping_patience:
resume_from_checkpoint:
logging_steps: 1
flash_attention: true
warmup_steps: 10
eval_steps: 5
save_steps: 5
debug:
deepspeed:
weight_decay: 0.0
fsdp: []
fsdp_config: {}
special_tokens:
  pad_token: <|end_of_text|>
seed: 42
";

    #[test]
    fn files_of_axolotl_are_read_as_they_are() {
        let config = parse(YAML, ConfigFormat::Yaml).expect("it is read");
        config.validate().expect("it is valid");
        assert_eq!(config.base_model.as_deref(), Some(Path::new("dense")));
        assert_eq!((config.gradient_checkpointing, config.bf16, config.fp16), (1, false, false));
        assert_eq!((config.max_steps, config.num_epochs, config.warmup_steps), (Some(20), None, Some(10)));
        assert_eq!((config.optimizer, config.lr_scheduler), (OptimizerKind::AdamW, Scheduler::Linear));
        assert_eq!((config.learning_rate, config.seed, config.sequence_len), (2e-5, 42, Some(64)));
        let data = |path: &str, kind| Dataset { path: path.into(), kind };
        let all = [data("chats.jsonl", RecordKind::ChatTemplate), data("alpaca.json", RecordKind::Alpaca)];
        assert_eq!(config.datasets, all);
        // The same in the other formats, and as serialized by Trike.
        let yaml: Value = serde_yaml_ng::from_str(YAML).expect("YAML");
        assert_eq!(parse(&yaml.to_string(), ConfigFormat::Json).expect("it is read"), config);
        let text = config.to_toml().expect("TOML");
        assert_eq!(parse(&text, ConfigFormat::Toml).expect("it is read"), config);
        let toml = "gradient_checkpointing = true\nbf16 = 'auto'\nlearning_rate = '1e-4'\nsample_packing = 'no'\nwandb_mode = 'offline'";
        let config = parse(toml, ConfigFormat::Toml).expect("it is read");
        assert_eq!(
            (config.gradient_checkpointing, config.sample_packing, config.learning_rate),
            (1, false, 1e-4)
        );
        let merged = "base: &base\n  learning_rate: 0.5\n<<: *base\nbase_model: a\n";
        let refused = parse(merged, ConfigFormat::Yaml).expect_err("a name that is not known").to_string();
        assert!(refused.starts_with("line 1: base is neither a setting"), "{refused}");
    }

    #[test]
    fn what_would_train_something_else_is_named() {
        for (line, words) in [
            (
                "learnig_rate: 0.1",
                "learnig_rate is neither a setting of a run nor an ignored setting of axolotl; did you mean learning_rate?",
            ),
            ("micro_batchsize: 2", "did you mean micro_batch_size?"),
            ("flash_atention: true", "did you mean flash_attention?"),
            ("neftune_noise_alpha: 5", "neftune_noise_alpha is neither a setting"),
            ("adapter: lora", "adapter is lora"),
            ("adapter: qlora\nload_in_4bit: true", "adapter is qlora"),
            ("load_in_8bit: true", "load_in_8bit is true: expected false"),
            ("train_on_inputs: true", "train_on_inputs is true"),
            ("optimizer: adamw_bnb_8bit", "optimizer: unknown variant `adamw_bnb_8bit`"),
            ("lr_scheduler: cosine_with_restarts", "lr_scheduler: unknown variant"),
            ("learning_rate: fast", "learning_rate: invalid type"),
            ("chat_template: chatml", "chat_template is \"chatml\""),
            ("gradient_checkpointing: unsloth", "gradient_checkpointing is unsloth"),
            ("special_tokens: {eos_token: a}", "special_tokens.eos_token"),
            ("plugins: [axolotl.integrations.kd.KDPlugin]", "plugins: \"axolotl.integrations.kd.KDPlugin\""),
            ("deepspeed: zero3.json", "deepspeed is \"zero3.json\""),
            ("rl: dpo", "rl is neither a setting"),
            (
                "datasets: [{path: a.jsonl, type: sharegpt.load_role}]",
                "datasets[0].type is \"sharegpt.load_role\"",
            ),
            ("datasets: [{path: a.jsonl}, {path: b.jsonl, split: 'train[:5%]'}]", "datasets[1].split is"),
            (
                "datasets: [{path: a.jsonl, roles_to_train: [user]}]",
                "datasets[0].roles_to_train is [\"user\"]",
            ),
            (
                "datasets: [{path: a.jsonl, fields: x}]",
                "datasets[0].fields is not supported: did you mean field?",
            ),
            ("datasets: [{path: a.txt, ds_type: json}]", "datasets[0].ds_type is json and the file a.txt"),
            ("datasets: [{type: alpaca}]", "datasets[0].path is missing"),
            ("- a", "a mapping of settings"),
            ("a: [", "YAML"),
        ] {
            let error = parse(line, ConfigFormat::Yaml).expect_err(line).to_string();
            assert!(error.contains(words), "{line}: {error}");
        }
        assert!(WITHOUT_EFFECT.is_sorted());
    }
}
