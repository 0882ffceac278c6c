//! Quantization of a dense model to ternary.

use std::{path::Path, time::Instant};

use trike_cpu::Cpu;
use trike_format::Claim;
use trike_llm::{LlmError, ModelFile, WeightSource, hf_config};
use trike_nn::{ActivationPrecision, CpuBackend, WeightName};
use trike_trit::Coupling;

use crate::{
    CalibrateError, Calibration, ConfigError, ModelQuantizationConfig, QuantizeMethod, QuantizeReport,
    TernaryTotals, Tuning,
    assemble::assemble,
    held_out::divided,
    memory, own_text,
    report::{HeldOut, alternatives},
    rewrite::Prepared,
    store::{self, Store},
    walk,
    weights::block_weights,
};

/// Quantizes `input` to ternary and writes the result, with its tokenizer, to the directory `output`. `progress` is
/// called with the current step, and the units of it done and in total.
///
/// With error compensation the text of `calibration` runs through the model one block at a time. The dense model and
/// the partially quantized model run side by side, so that a layer is fitted to the inputs that it gets at inference,
/// with the outputs of the dense model as its target. Only one block and the residual streams of the text are in
/// memory. Codes and scales are then tuned according to [`Tuning`]. The text that
/// [`hold_out`](ModelQuantizationConfig::hold_out) keeps back is in the report, for
/// [`QuantizeReport::evaluate_held_out`].
///
/// Finished blocks are kept in `<output>.partial` until the end: the same call after an interruption resumes from
/// there, and a call with other options starts over. Text that the model writes is kept in `<output>.text`. `output` is created atomically at the end.
///
/// # Errors
///
/// [`CalibrateError::OutputExists`], [`CalibrateError::AlreadyTernary`], [`CalibrateError::Config`] for incompatible options,
/// [`CalibrateError::CalibrationText`] for too little text, [`CalibrateError::Quantize`] for a weight, and errors of
/// reading, running and writing. `input` is never modified.
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
/// # let dir = tempfile::tempdir()?;
/// # let (dense, out) = (dir.path().join("dense"), dir.path().join("ternary"));
/// use trike_calibrate::{Calibration, ModelQuantizationConfig, QuantizeMethod, quantize};
/// use trike_llm::{LanguageModel, ModelFile};
/// use trike_quant::ScaleRule;
///
/// # use trike_llm::{ConvertOptions, EmbeddingStorage, Target, convert};
/// # let options = ConvertOptions::new(Target::F16).with_embeddings(EmbeddingStorage::F16);
/// # convert(&ModelFile::open(path)?, &dense, &options, &mut |_, _| ())?;
/// let model = ModelFile::open(&dense)?;
/// let text = Calibration::Generated { sequences: 1, seed: 1 };
/// let rounded = ModelQuantizationConfig::planes(1).with_method(QuantizeMethod::Round(ScaleRule::LeastSquares));
/// let report = quantize(&model, &out, &text, &rounded, &mut |_, _, _| ())?;
/// assert_eq!(report.ternary.layers, 28);
/// // The result has nothing left to quantize.
/// let ternary = ModelFile::open(&out)?;
/// assert!(quantize(&ternary, &dir.path().join("again"), &text, &rounded, &mut |_, _, _| ()).is_err());
/// # assert!(LanguageModel::load(&out).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn quantize(
    input: &ModelFile,
    output: &Path,
    calibration: &Calibration<'_>,
    config: &ModelQuantizationConfig,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<QuantizeReport, CalibrateError> {
    config.validate()?;
    refuse_existing(output)?;
    refuse_ternary(input)?;
    // Two runs would write to the same unfinished directory.
    let _claim = Claim::new(output)?;
    let (ids, held) = divided(input, calibration, config, output, progress)?;
    let prepared = Prepared::new(input, config, &ids, &mut |done, total| progress(SCALING, done, total))?;
    let mut report = quantize_ids(&prepared, output, &ids, config, progress)?;
    report.held = held;
    own_text::remove(output)?;
    Ok(report)
}

/// Name of the step that searches for scales of inputs.
pub(crate) const SCALING: &str = "scaling the inputs of layers";
/// Name of the step that writes the model.
const WRITING: &str = "writing the model";

pub(crate) fn refuse_existing(output: &Path) -> Result<(), CalibrateError> {
    match output.exists() {
        true => Err(CalibrateError::OutputExists { path: output.to_owned() }),
        false => Ok(()),
    }
}

/// Refuses a model that has nothing to quantize.
pub(crate) fn refuse_ternary(input: &ModelFile) -> Result<(), CalibrateError> {
    for name in input.weights().into_iter().filter(|name| name.is_block_matrix()) {
        if !input.is_online_ternary(name) && !input.info(name)?.kind.is_ternary() {
            return Ok(());
        }
    }
    Err(CalibrateError::AlreadyTernary { path: input.path().to_owned() })
}

/// [`quantize()`] with a tokenized text.
pub(crate) fn quantize_ids(
    prepared: &Prepared<'_>,
    output: &Path,
    ids: &[Vec<u32>],
    config: &ModelQuantizationConfig,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<QuantizeReport, CalibrateError> {
    config.validate()?;
    let start = Instant::now();
    let (input, file) = (prepared.source(), prepared.original);
    let json = hf_config(file, input.config(), output).ok_or_else(|| LlmError::Unsupported {
        path: file.path().to_owned(),
        name: "a directory of this model".to_owned(),
        remedy: "no HuggingFace configuration is equivalent to this file's".to_owned(),
    })?;
    let cpu = Cpu::new(config.threads)?;
    let backend = CpuBackend::new(cpu.clone(), ActivationPrecision::F32).with_products(walk::PRODUCTS);
    let tokens = ids.iter().map(Vec::len).sum();
    let store = Store::open(output, &store::identity(file, config, &[ids])?)?;
    let mut notes = prepared.notes.clone();
    notes.extend(store.replaced.as_ref().map(store::note));
    let tuning = tuning_of(input, config, &mut notes)?;
    memory::check(input, config, ids)?;
    // Rounding depends only on the weights, even if the text was needed for another purpose.
    let seen = if config.compensation().is_some() { ids } else { &[] };
    let walk::Walked { layers, blocks, model, recovered } =
        walk::Walk::new(input, config, &backend, &store, seen, tuning)?.run(file, progress)?;
    for pattern in &config.skip_patterns {
        let alone = ModelQuantizationConfig { skip_patterns: vec![pattern.clone()], ..config.clone() };
        let heads = [WeightName::Embedding, WeightName::Head].map(|name| name.to_string());
        if !layers.iter().map(|l| &l.name).chain(&heads).any(|name| alone.skips(name)) {
            notes.push(format!("the skip pattern `{pattern}` matches no layer name"));
        }
    }
    if layers.iter().any(|l| l.damping.is_some_and(|d| d > compensation_damping(config))) {
        notes.push("some Hessians needed more damping than configured: use more calibration text".to_owned());
    }
    progress(WRITING, 0, 1);
    let (output_bytes, parameters) = assemble(file, input, config, &store, json, &mut notes)?;
    store.finish(output)?;
    let plain = (config.planes_name(), config.layout.granularity.to_string());
    let layouts = match config.layers.is_empty() {
        true => plain,
        false => ("per layer, from the plan".to_owned(), "group from the plan".to_owned()),
    };
    progress(WRITING, 1, 1);
    let alternatives = alternatives::listed(&layers, config, output_bytes);
    let mut report = QuantizeReport {
        version: env!("CARGO_PKG_VERSION"),
        command: None,
        date: None,
        model: file.path().display().to_string(),
        verdict: None,
        input: file.path().display().to_string(),
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
        recovered,
        input_bytes: file.source().tensors().iter().map(|t| t.bytes).sum(),
        output_bytes,
        bits_per_weight: 8.0 * output_bytes as f64 / parameters.max(1) as f64,
        evaluation: None,
        not_measured: None,
        samples: Vec::new(),
        alternatives,
        options: None,
        held: HeldOut::default(),
        planning: None,
        curve: Vec::new(),
        seconds: start.elapsed().as_secs_f64(),
        notes,
    };
    report.notes.extend(report.rejected());
    Ok(report)
}

/// Tuning options; `None` if the model is not tuned, with a note if tuning was requested.
pub(crate) fn tuning_of(
    input: &dyn WeightSource,
    config: &ModelQuantizationConfig,
    notes: &mut Vec<String>,
) -> Result<Option<Tuning>, CalibrateError> {
    let Some(tuning) = config.tuning.filter(|_| matches!(config.method, QuantizeMethod::Compensate(_)))
    else {
        return Ok(None);
    };
    if config.layout.coupling == Coupling::Free && config.layout.depth > 1 {
        notes.push("free planes are not tuned; only tied planes are".to_owned());
        return Ok(None);
    }
    let (got, most) = (block_weights(input)?, tuning.max_weights);
    if got > most && tuning.recover > 0.0 {
        return Err(ConfigError::RecoverLarge { got, most }.into());
    }
    if got > most && tuning.tunes_model() {
        notes.push(format!(
            "of all blocks together only scales and norms were tuned: they have {got} weights, more than {most}"
        ));
    }
    Ok(Some(Tuning { keep_zeros: tuning.keep_zeros || config.prune.is_some(), ..tuning }))
}

fn compensation_damping(config: &ModelQuantizationConfig) -> f64 {
    match config.method {
        QuantizeMethod::Round(_) => f64::INFINITY,
        QuantizeMethod::Compensate(c) => c.damping,
    }
}
