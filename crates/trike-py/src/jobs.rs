//! Models on disk: inspection, conversion, quantization, training, and models of the hub.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    ops::ControlFlow,
    path::PathBuf,
};

use pyo3::prelude::*;
use serde::Serialize;
use trike::{
    Calibration, ConvertOptions, EmbeddingStorage, ModelFile, ScaleStorage, Target,
    calibrate::{OptionNames, quantize_to},
    hub::{Hub, ModelId},
    train::run::{ConfigFormat, Run, RunConfig, RunEvent},
};

use crate::{
    errors, host, options,
    plan::Quantization,
    work::{self, Line},
};

fn json(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(errors::value)
}

/// Describes a checkpoint. Returns JSON.
#[pyfunction]
#[pyo3(signature = (path, progress=None))]
fn _inspect(py: Python<'_>, path: PathBuf, progress: Option<Bound<'_, PyAny>>) -> PyResult<String> {
    work::run(py, progress.as_ref(), move |line: &Line<String>| {
        let mut report = |done, total| line.progress("reading", done, total);
        json(&trike::inspect(&path, &mut report).map_err(errors::model)?)
    })
}

/// Converts a checkpoint. Returns the report as JSON.
#[pyfunction]
#[pyo3(signature = (path, output, to, *, encoding, embeddings, scales, strict, packed, tokenizer=None, progress=None))]
#[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
fn _convert(
    py: Python<'_>,
    path: PathBuf,
    output: PathBuf,
    to: &str,
    encoding: &str,
    embeddings: &str,
    scales: &str,
    strict: bool,
    packed: bool,
    tokenizer: Option<PathBuf>,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<String> {
    let target = match to {
        "tq1_0" => Target::Tq1_0,
        "tq2_0" => Target::Tq2_0,
        "q2_0" => Target::Q2_0,
        "trike" => Target::Trike,
        "f16" => Target::F16,
        got => return Err(errors::unknown("to", got, &["tq1_0", "tq2_0", "q2_0", "trike", "f16"])),
    };
    let embeddings = match embeddings {
        "stored" => EmbeddingStorage::Stored,
        "int8" => EmbeddingStorage::Int8,
        "f16" => EmbeddingStorage::F16,
        got => return Err(errors::unknown("embeddings", got, &["stored", "int8", "f16"])),
    };
    let scales = match scales {
        "stored" => ScaleStorage::Stored,
        "f16" => ScaleStorage::F16,
        got => return Err(errors::unknown("scales", got, &["stored", "f16"])),
    };
    let options = ConvertOptions::new(target)
        .with_encoding(encoding.parse().map_err(errors::value)?)
        .with_embeddings(embeddings)
        .with_scales(scales)
        .with_strict(strict)
        .with_packed(packed)
        .with_tokenizer(tokenizer);
    work::run(py, progress.as_ref(), move |line: &Line<String>| {
        let input = ModelFile::open(&path).map_err(errors::model)?;
        let mut report = |done, total| line.progress("converting", done, total);
        json(&trike::convert(&input, &output, &options, &mut report).map_err(errors::model)?)
    })
}

/// Quantizes a dense model. Returns the report as JSON and as a page of HTML.
#[pyfunction]
#[pyo3(signature = (path, output, options, progress=None))]
fn _quantize(
    py: Python<'_>,
    path: PathBuf,
    output: PathBuf,
    options: Quantization,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<(String, String)> {
    let config = options.config()?;
    work::run(py, progress.as_ref(), move |line: &Line<(String, String)>| {
        let input = ModelFile::open(&path).map_err(errors::model)?;
        let split = |text: &str| options::split(options.split.as_deref(), text);
        let calibration = match &options.text {
            Some(text) => Calibration::Text { text, split: split(text)?, limit: options.sequences },
            None => Calibration::Generated {
                sequences: options.sequences.unwrap_or(Calibration::GENERATED),
                seed: options.seed,
            },
        };
        let mut set = |step: &str, done: usize, total: usize| line.progress(step, done, total);
        let report = match options.goal(&input)? {
            None => trike::quantize(&input, &output, &calibration, &config, &mut set),
            Some(goal) => quantize_to(&input, &output, &calibration, &config, &goal, &mut set),
        };
        let mut report = report.map_err(errors::model)?.with_option_names(OptionNames {
            setting: |planes, group| match group {
                "row" => format!("planes={planes}, group=\"row\""),
                size => format!("planes={planes}, group={size}"),
            },
            plan: "",
            curve: None,
        });
        // Save first: the model is complete, and the evaluation can fail or be interrupted.
        report.save().map_err(errors::model)?;
        let mut measure = |done, total| line.progress("measuring", done, total);
        match &options.eval {
            Some((name, text)) => {
                let split = split(text)?;
                report.evaluate(name, text, split, None, &config, &mut measure).map_err(errors::model)?;
            }
            None => report.evaluate_held_out(&config, &mut measure).map_err(errors::model)?,
        }
        report.save().map_err(errors::model)?;
        Ok((json(&report)?, report.html().map_err(errors::model)?))
    })
}

/// Trains a model with a configuration in JSON or, with `path`, in a file. Returns the report, or with `check` the plan, as JSON.
#[pyfunction]
#[pyo3(signature = (config, path, check=false, progress=None))]
fn _train(
    py: Python<'_>,
    config: Option<&str>,
    path: Option<PathBuf>,
    check: bool,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<String> {
    let config: RunConfig = match (config, path) {
        (Some(text), _) => RunConfig::parse_as(text, ConfigFormat::Json).map_err(errors::value)?,
        (None, Some(path)) => RunConfig::open(&path).map_err(errors::value)?,
        (None, None) => RunConfig::default(),
    };
    let cpu = host::cpu()?;
    work::run_and_save(py, progress.as_ref(), move |line: &Line<String>| {
        let run = Run::open(config).map_err(errors::model)?;
        if check {
            return json(&run.check(&cpu).map_err(errors::model)?);
        }
        let report = run.train(&cpu, &mut |event| {
            if line.is_cancelled() {
                // The run writes a checkpoint, from which the same configuration resumes.
                return ControlFlow::Break(());
            }
            match event {
                RunEvent::Step { report, steps, .. } => line.tell("training", report.step + 1, steps),
                RunEvent::Writing { done, of } => line.tell("writing", done, of),
                _ => {}
            }
            ControlFlow::Continue(())
        });
        json(&report.map_err(errors::model)?)
    })
}

/// The path of a model by its name, `tiny` or one on the hub, downloaded if it is missing; `variables` are those of the environment.
#[pyfunction]
#[pyo3(signature = (name, variables, progress=None))]
fn _hub_path(
    py: Python<'_>,
    name: &str,
    variables: HashMap<OsString, OsString>,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<PathBuf> {
    if name != Hub::BUNDLED {
        // Any other text would be taken as a path.
        name.parse::<ModelId>().map_err(errors::value)?;
    }
    let name = PathBuf::from(name);
    let hub = Hub::from_variables(|name| variables.get(OsStr::new(name)).cloned());
    work::run(py, progress.as_ref(), move |line: &Line<PathBuf>| {
        let mut report = |done: u64, total: u64| line.progress("downloading", done as usize, total as usize);
        hub.find(&name, &mut report).map_err(errors::hub)
    })
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(_inspect, m)?)?;
    m.add_function(wrap_pyfunction!(_convert, m)?)?;
    m.add_function(wrap_pyfunction!(_quantize, m)?)?;
    m.add_function(wrap_pyfunction!(_train, m)?)?;
    m.add_function(wrap_pyfunction!(_hub_path, m)?)
}
