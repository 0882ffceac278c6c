//! The walk that makes a dense model ternary.

mod budget;
mod config;
mod curve;
mod hidden;
mod html;
mod plan;
mod pruning;
mod report;
mod rewrite;
mod sensitivity;
mod store;
#[cfg(test)]
mod tests;
mod tune;
mod walk;

use std::{path::Path, time::Instant};

pub use budget::{Budget, PlanOptions, Trial, plan_for, quantize_to};
pub use config::{Calibration, Compensation, LayerChoice, ModelQuantizationConfig, QuantizeMethod};
pub use plan::{Plan, PlannedLayer, Stored, StoredKind};
pub use pruning::{Importance, Pruning};
pub use report::{
    CurvePoint, Evaluation, LayerReport, Planning, QuantizeReport, SalienceReport, TernaryTotals,
};
use rewrite::Prepared;
pub use sensitivity::{Measured, Sensitivity};
use store::Store;
use trike_cpu::Cpu;
use trike_format::{HfDirWriter, Int8Tensor, Tensor};
use trike_nn::{ActivationPrecision, CpuBackend, KvPrecision, RopePairing, WeightName};
use trike_quant::QuantError;
use trike_trit::Coupling;
pub use tune::{Tuning, TuningReport};

use crate::{
    GenerateOptions, HeadPrecision, LanguageModel, LlmError, LoadOptions, ModelFile, Split, compare, convert,
    file::select_rows, names, perplexity::sequences, sampler::SamplerConfig,
};

/// Weights that share a scale when a head is rounded: a block of `Q8_0`.
const HEAD_GROUP: usize = 32;
/// Longest sequence of a calibration text: attention over it is in memory as a whole, and longer ones say little more of weights.
const LONGEST: usize = 2048;
/// Tokens of the shortest text that calibration learns anything from.
const LEAST_TOKENS: usize = 16;
/// The report's file in a directory.
const REPORT: &str = "report.json";
/// The same for readers.
const PAGE: &str = "report.html";
/// The plan's file in a directory.
const PLAN: &str = "plan.json";

pub(crate) fn quant_error(tensor: impl ToString, source: QuantError) -> LlmError {
    LlmError::Quantize { tensor: tensor.to_string(), source: Box::new(source) }
}

/// Makes `input` ternary and writes the result to the directory `output`, with its tokenizer. `progress` is called with the number
/// of linear layers done and to do; tuning the model as a whole counts as a tenth more of them. A search for scales of inputs counts
/// layers for itself, before.
///
/// With error compensation the text of `calibration` runs through the model one block at a time. The dense model and the one that
/// is ternary so far run side by side, so that a layer sees the inputs that it will get and aims at the output that the dense model
/// has. Only one block and the residual streams of the text are in memory. Codes and scales are then tuned, as [`Tuning`] says.
///
/// Finished blocks are kept in `<output>.partial` until all is done: the same call after an interruption goes on from there, and a
/// call with other options starts over. `output` appears in one step at the end.
///
/// # Errors
///
/// [`LlmError::Option`] when `output` exists or options do not go together, [`LlmError::Calibration`] for too little text,
/// [`LlmError::Quantize`] for a weight, and what reading, running and writing say. `input` is never touched.
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
/// # let dir = tempfile::tempdir()?;
/// # let out = dir.path().join("ternary");
/// use trike_llm::{Calibration, ModelFile, ModelQuantizationConfig, quantize};
///
/// let model = ModelFile::open(path)?;
/// let text = Calibration::Generated { sequences: 1, seed: 1 };
/// let report = quantize(&model, &out, &text, &ModelQuantizationConfig::planes(2), &mut |_, _| ())?;
/// // This one is ternary already, and stays as it is.
/// assert_eq!(report.ternary.layers, 0);
/// assert!(trike_llm::LanguageModel::load(&out).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn quantize(
    input: &ModelFile,
    output: &Path,
    calibration: &Calibration<'_>,
    config: &ModelQuantizationConfig,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<QuantizeReport, LlmError> {
    config.validate()?;
    refuse_existing(output)?;
    let ids = match rewrite::needs_text(config) {
        false => Vec::new(),
        true => calibration_ids(input, calibration, config)?,
    };
    let prepared = Prepared::new(input, config, &ids, progress)?;
    quantize_ids(&prepared, output, &ids, config, progress)
}

fn refuse_existing(output: &Path) -> Result<(), LlmError> {
    if output.exists() {
        return Err(LlmError::Option {
            option: "output",
            expected: "the path of a directory that does not exist",
            got: output.display().to_string(),
        });
    }
    Ok(())
}

fn io(path: &Path) -> impl Fn(std::io::Error) -> LlmError + '_ {
    move |source| LlmError::Io { path: path.to_owned(), source }
}

/// [`quantize()`] with the tokens of a text.
fn quantize_ids(
    prepared: &Prepared<'_>,
    output: &Path,
    ids: &[Vec<u32>],
    config: &ModelQuantizationConfig,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<QuantizeReport, LlmError> {
    config.validate()?;
    let start = Instant::now();
    let input = prepared.file();
    let json = convert::directory_config(input, output).ok_or_else(|| LlmError::Unsupported {
        path: input.path().to_owned(),
        name: "a directory of this model".to_owned(),
        remedy: "no HuggingFace configuration says the same as this file's".to_owned(),
    })?;
    let cpu = Cpu::new(config.threads)?;
    let backend = CpuBackend::new(cpu.clone(), ActivationPrecision::F32);
    let tokens = ids.iter().map(Vec::len).sum();
    let store = Store::open(output, &store::fingerprint(input, config, &[ids]))?;
    let mut notes = prepared.notes.clone();
    let tuning = tuning_of(input, config, &mut notes)?;
    // Rounding looks at weights only, whatever the text was needed for.
    let seen = if config.compensation().is_some() { ids } else { &[] };
    let walk::Walked { layers, blocks, model } =
        walk::Walk::new(input, config, &backend, &store, seen, tuning)?.run(progress)?;
    for pattern in &config.skip_patterns {
        let alone = ModelQuantizationConfig { skip_patterns: vec![pattern.clone()], ..config.clone() };
        if !layers.iter().any(|l| alone.skips(&l.name)) {
            notes.push(format!("the skip pattern `{pattern}` is in no layer's name"));
        }
    }
    if layers.iter().any(|l| l.damping.is_some_and(|d| d > compensation_damping(config))) {
        notes.push(
            "some Hessians needed more damping than asked for: more calibration text would help".to_owned(),
        );
    }
    let (output_bytes, parameters) = assemble(input, config, &store, json, &mut notes)?;
    store.finish(output)?;
    let plain = (config.planes_name(), config.layout.granularity.to_string());
    let layouts = match config.layers.is_empty() {
        true => plain,
        false => ("as planned for each layer".to_owned(), "layer's plan".to_owned()),
    };
    Ok(QuantizeReport {
        input: input.path().display().to_string(),
        output: output.display().to_string(),
        planes: layouts.0,
        granularity: layouts.1,
        method: match config.method {
            QuantizeMethod::Round(rule) => format!("rounding, {rule:?}"),
            QuantizeMethod::Compensate(_) => "error compensation".to_owned(),
        },
        calibration_sequences: ids.len(),
        calibration_tokens: tokens,
        salience: prepared.salience.clone(),
        ternary: TernaryTotals::of(&layers),
        layers,
        tuned_blocks: blocks,
        tuned_model: model,
        input_bytes: input.source().tensors().iter().map(|t| t.bytes).sum(),
        output_bytes,
        bits_per_weight: 8.0 * output_bytes as f64 / parameters.max(1) as f64,
        evaluation: None,
        planning: None,
        curve: Vec::new(),
        seconds: start.elapsed().as_secs_f64(),
        notes,
    })
}

/// How the model is tuned; `None`, with a note where it was asked for, when it is not.
fn tuning_of(
    input: &ModelFile,
    config: &ModelQuantizationConfig,
    notes: &mut Vec<String>,
) -> Result<Option<Tuning>, LlmError> {
    let Some(tuning) = config.tuning.filter(|_| matches!(config.method, QuantizeMethod::Compensate(_)))
    else {
        return Ok(None);
    };
    if config.layout.coupling == Coupling::Free && config.layout.depth > 1 {
        notes.push("free planes are not tuned: tied ones are".to_owned());
        return Ok(None);
    }
    let mut weights = 0u64;
    for name in input.weights().into_iter().filter(|&name| names::is_block_matrix(name)) {
        weights += input.info(name)?.elements();
    }
    if weights > tuning.most_weights {
        notes.push(format!(
            "the model was not tuned: its blocks have {weights} weights, more than {}",
            tuning.most_weights
        ));
        return Ok(None);
    }
    Ok(Some(Tuning { keep_zeros: tuning.keep_zeros || config.prune.is_some(), ..tuning }))
}

fn compensation_damping(config: &ModelQuantizationConfig) -> f64 {
    match config.method {
        QuantizeMethod::Round(_) => f64::INFINITY,
        QuantizeMethod::Compensate(c) => c.damping,
    }
}

impl QuantizeReport {
    /// Measures the dense and the ternary model on a text, which `name` describes, both with f32 activations and heads as stored,
    /// and keeps the result in the report. `progress` is called with the number of sequences done and to do.
    ///
    /// # Errors
    ///
    /// What loading either model and [`compare`] say.
    pub fn evaluate(
        &mut self,
        name: &str,
        text: &str,
        split: Split,
        limit: Option<usize>,
        config: &ModelQuantizationConfig,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), LlmError> {
        let load = |path: &str, tokenizer| {
            let options = LoadOptions {
                tokenizer,
                threads: config.threads,
                activations: Some(ActivationPrecision::F32),
                head: HeadPrecision::AsStored,
            };
            LanguageModel::load_with(&ModelFile::open(path)?, &options, &mut |_, _| ())
        };
        let dense = load(&self.input, config.tokenizer.clone())?;
        let ternary = load(&self.output, config.tokenizer.clone())?;
        let kv = KvPrecision::F32;
        let comparison = compare(&ternary, kv, &dense, kv, text, split, limit, progress)?;
        self.evaluation = Some(Evaluation::new(name.to_owned(), &comparison));
        Ok(())
    }

    /// Checks that [`evaluate`](Self::evaluate) will find something to measure in a text, before a model is made for it.
    ///
    /// # Errors
    ///
    /// [`LlmError::NothingToScore`], and what the tokenizer says.
    pub fn check_text(
        input: &ModelFile,
        text: &str,
        split: Split,
        config: &ModelQuantizationConfig,
    ) -> Result<(), LlmError> {
        let tokenizer = input.tokenizer(config.tokenizer.as_deref())?;
        let ids = sequences(&tokenizer, text, split, input.config().spec.context, None)?;
        if ids.iter().all(|ids| ids.len() < 2) {
            return Err(LlmError::NothingToScore);
        }
        Ok(())
    }

    /// Writes `report.json` and `report.html` into the model's directory, and `plan.json` where there is a plan.
    ///
    /// # Errors
    ///
    /// [`LlmError::Io`].
    pub fn save(&self) -> Result<(), LlmError> {
        let json = serde_json::to_vec_pretty(self).map_err(|e| io(Path::new(REPORT))(e.into()))?;
        let plan = self.planning.as_ref().map(|p| p.plan.to_json().into_bytes());
        let files = [(REPORT, Some(json)), (PAGE, Some(self.html().into_bytes())), (PLAN, plan)];
        for (name, content) in files {
            if let Some(content) = content {
                let path = Path::new(&self.output).join(name);
                std::fs::write(&path, content).map_err(io(&path))?;
            }
        }
        Ok(())
    }
}

/// The sequences to calibrate on.
fn calibration_ids(
    input: &ModelFile,
    calibration: &Calibration<'_>,
    config: &ModelQuantizationConfig,
) -> Result<Vec<Vec<u32>>, LlmError> {
    let context = input.config().spec.context.min(LONGEST);
    let mut ids = match *calibration {
        Calibration::Text { text, split, limit } => {
            let tokenizer = input.tokenizer(config.tokenizer.as_deref())?;
            sequences(&tokenizer, text, split, context, limit)?
        }
        Calibration::Generated { sequences, seed } => {
            let options = LoadOptions {
                tokenizer: config.tokenizer.clone(),
                threads: config.threads,
                ..LoadOptions::default()
            };
            let model = LanguageModel::load_with(input, &options, &mut |_, _| ())?;
            let one = |i: usize| {
                let sampler = SamplerConfig {
                    temperature: 1.0,
                    seed: seed.wrapping_add(i as u64),
                    ..SamplerConfig::default()
                };
                let options = GenerateOptions {
                    max_tokens: Some(context.min(512)),
                    sampler,
                    ..GenerateOptions::default()
                };
                let text = model.generate("", &options)?;
                Ok([text.prompt_ids, text.ids].concat())
            };
            (0..sequences).map(one).collect::<Result<_, LlmError>>()?
        }
    };
    ids.retain(|ids| ids.len() > 1);
    for ids in &mut ids {
        ids.truncate(context);
    }
    let tokens = ids.iter().map(Vec::len).sum();
    if tokens < LEAST_TOKENS {
        return Err(LlmError::Calibration { sequences: ids.len(), tokens, needed: LEAST_TOKENS });
    }
    Ok(ids)
}

/// Bytes that a tensor takes in the result when it is no linear layer that becomes ternary.
fn stored_bytes(
    input: &ModelFile,
    config: &ModelQuantizationConfig,
    name: WeightName,
) -> Result<u64, LlmError> {
    let tensor = input.load_stored(name)?;
    Ok(match rounded_head(config, name, &tensor)? {
        Some(int8) => int8.bytes() as u64,
        None => tensor.bytes() as u64,
    })
}

/// A head or embedding in int8, where that was asked for.
fn rounded_head(
    config: &ModelQuantizationConfig,
    name: WeightName,
    tensor: &Tensor,
) -> Result<Option<Int8Tensor>, LlmError> {
    match tensor {
        Tensor::Dense(dense)
            if config.int8_head && matches!(name, WeightName::Embedding | WeightName::Head) =>
        {
            Ok(Some(Int8Tensor::quantize(dense, HEAD_GROUP, true)?))
        }
        _ => Ok(None),
    }
}

/// Writes the model's directory into the store, and returns the bytes and weights of its tensors.
fn assemble(
    input: &ModelFile,
    config: &ModelQuantizationConfig,
    store: &Store,
    json: serde_json::Value,
    notes: &mut Vec<String>,
) -> Result<(u64, u64), LlmError> {
    let mut writer = HfDirWriter::create(store.model(), json)?;
    let spec = &input.config().spec;
    let (mut bytes, mut parameters) = (0u64, 0u64);
    let blocks = store.blocks(spec.layers)?;
    for name in input.weights() {
        let mut tensor = match blocks.iter().find_map(|block| block.load(name)) {
            Some(tensor) => tensor?,
            None => input.load_stored(name)?,
        };
        if let Some(rows) = names::rotary_rows(name, spec, spec.rope.pairing, RopePairing::Halves) {
            tensor = select_rows(&tensor, &rows)?;
        }
        if let Some(int8) = rounded_head(config, name, &tensor)? {
            tensor = int8.into();
        }
        writer.tensor(&name.to_string(), &tensor)?;
        bytes += tensor.bytes() as u64;
        parameters += tensor.shape().iter().map(|&d| d as u64).product::<u64>();
    }
    notes.extend(convert::carry_tokenizer(&writer, input, config.tokenizer.as_deref())?);
    writer.finish()?;
    Ok((bytes, parameters))
}
