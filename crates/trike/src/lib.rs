//! Ternary language models: load, generate, measure, convert, quantize.
//!
//! Start from [`LanguageModel`]: it reads a HuggingFace directory, a GGUF file or a llama2.c checkpoint, by its path or by its name
//! on the HuggingFace hub, and continues a prompt. `tiny` is bundled.
//!
//! ```
//! let model = trike::LanguageModel::load("tiny")?;
//! let story = model.generate("Once upon a time", &trike::GenerateOptions::default())?;
//! println!("{}", story.text);
//! # assert!(story.text.starts_with(", there was a little girl named Lily."), "{}", story.text);
//! # Ok::<(), trike::LlmError>(())
//! ```
//!
//! A conversation, with the model's own chat template:
//!
//! ```no_run
//! let model = trike::LanguageModel::load("prism-ml/Ternary-Bonsai-1.7B-gguf:Q2_0")?;
//! let mut chat = trike::Chat::new(&model)?;
//! println!("{}", chat.ask(&model, "What is the capital of France?")?);
//! println!("{}", chat.ask(&model, "And of Italy?")?);
//! # Ok::<(), trike::LlmError>(())
//! ```
//!
//! Ternarize a dense model, save it, load it and run it, in four lines:
//!
//! ```
//! # let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
//! # let dir = tempfile::tempdir()?;
//! # let (path, out) = (dir.path().join("dense"), dir.path().join("ternary"));
//! # // The bundled model is ternary: its weights as floats serve as the dense model here.
//! # use trike::format::{DenseData, DenseTensor, HfDirWriter};
//! # let file = trike::ModelFile::open(tiny)?;
//! # let trike::llm::Tensors::Hf(parts) = file.tensors() else { panic!("a directory") };
//! # let mut writer = HfDirWriter::create(&path, parts.config().clone())?;
//! # for info in file.source().tensors() {
//! #     let tensor = file.source().load(&info.name)?;
//! #     let dense = DenseTensor::new(tensor.shape(), DenseData::F32(tensor.into_f32()))?;
//! #     writer.tensor(&info.name, &dense.into())?;
//! # }
//! # writer.copy_file(parts.file("tokenizer.json").ok_or("no tokenizer")?)?;
//! # writer.finish()?;
//! # let text = trike::Calibration::Generated { sequences: 1, seed: 1 };
//! # let options = trike::ModelQuantizationConfig::planes(2);
//! let dense = trike::ModelFile::open(&path)?;
//! let report = trike::quantize(&dense, &out, &text, &options, &mut |_, _, _| ())?;
//! let story = trike::LanguageModel::load(&out)?.generate("Once upon a time", &Default::default())?;
//! println!("{:.2} bits per weight: {}", report.ternary.bits_per_weight, story.text);
//! # assert_eq!(report.ternary.layers, 28);
//! # assert!(story.text.starts_with(", there was a little girl named Lily."), "{}", story.text);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The decision that shaped this crate: it contains no logic. It re-exports the names of the crates below, with their
//! documentation. The alternative, a simplified API, would have to grow until it equals the API that it hides.
//!
//! * text: [`LanguageModel`], [`Chat`], [`LoadOptions`], [`HeadPrecision`], [`GenerateOptions`], [`Generation`],
//!   [`FinishReason`], [`SamplerConfig`], [`Tokenizer`]
//! * files: [`ModelFile`], [`inspect()`] with [`Inspection`], [`convert()`] with [`ConvertOptions`],
//!   [`ConvertReport`] and [`Target`]
//! * ternarization of a model: [`quantize()`] with [`ModelQuantizationConfig`], [`QuantizeMethod`], [`Calibration`] and
//!   [`QuantizeReport`]
//! * one trait object for every device: [`Model`], [`open()`], [`DeviceChoice`], [`DeviceShare`], [`InvalidDevice`], [`Device`],
//!   [`devices()`], [`memory_plan()`], [`MemoryPlan`]
//! * measurement, as functions of [`eval`] over any [`Model`]: [`eval::score`](fn@eval::score) with [`ScoreOptions`], [`Split`] and [`Score`],
//!   [`Comparison`], [`NeedleOptions`], [`NeedleScore`], [`eval::bench`](mod@eval::bench)
//! * precision: [`ActivationPolicy`], [`ActivationPrecision`], [`KvPrecision`], [`KvPrecisions`], [`KvSpec`], [`KvOptions`], [`KvLimit`] with [`Eviction`], [`KeySelector`], [`PromptKeys`]; backends: [`Cpu`], [`Isa`], [`CpuBackend`],
//!   [`Backend`]
//! * storage: [`Trit`], [`TritTensor`], [`Encoding`]
//! * errors: [`LlmError`], [`EvalError`], [`CalibrateError`]
//! * models by their names on the HuggingFace hub: [`hub`], which the feature `hub` lets download
//! * many requests at once: [`engine`]; a server with the OpenAI API, with the feature `serve`: `trike::serve`
//! * everything else, by crate: [`trit`], [`cpu`], [`comm`], [`format`](mod@format), [`quant`], [`model`], [`nn`], [`text`], [`llm`],
//!   [`eval`], [`calibrate`], [`autodiff`], [`train`], [`vsa`]
//!
//! An application depends on this crate. The feature `candle`, off by default, adds `trike::candle`: ternary layers as
//! Candle modules. A library should depend only on the individual crate that it needs.
#![forbid(unsafe_code)]

// Compiles and runs the examples of the README and of the handbook as doc tests. These files are not in the published package.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/guide/rust.md")]
struct Handbook;
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/migration.md")]
struct Migration;

pub use trike_autodiff as autodiff;
pub use trike_calibrate as calibrate;
#[cfg(feature = "candle")]
pub use trike_candle as candle;
pub use trike_comm as comm;
pub use trike_core as core;
pub use trike_cpu as cpu;
pub use trike_engine as engine;
pub use trike_eval as eval;
pub use trike_format as format;
pub use trike_hub as hub;
pub use trike_llm as llm;
pub use trike_model as model;
pub use trike_nn as nn;
pub use trike_quant as quant;
#[cfg(feature = "serve")]
pub use trike_serve as serve;
pub use trike_text as text;
pub use trike_train as train;
pub use trike_trit as trit;
pub use trike_vsa as vsa;

pub use trike_calibrate::{
    CalibrateError, Calibration, ModelQuantizationConfig, QuantizeMethod, QuantizeReport, quantize,
};
pub use trike_cpu::{Cpu, Isa};
pub use trike_eval::{Comparison, EvalError, NeedleOptions, NeedleScore, Score, ScoreOptions};
pub use trike_llm::{
    Chat, ConvertOptions, ConvertReport, Device, DeviceChoice, DeviceShare, EmbeddingStorage, FinishReason,
    GenerateOptions, Generation, HeadPrecision, Inspection, InvalidDevice, LanguageModel, LlmError,
    LoadOptions, Model, ModelFile, ScaleStorage, Split, Target, convert, devices, inspect, memory_plan, open,
};
#[cfg(feature = "gpu")]
pub use trike_nn::CubeBackend;
pub use trike_nn::{
    ActivationPolicy, ActivationPrecision, Backend, CpuBackend, Eviction, KeySelector, KvLimit, KvOptions,
    KvPrecision, KvPrecisions, KvSpec, MemoryPlan, PromptKeys,
};
pub use trike_text::{sampler::SamplerConfig, tokenizer::Tokenizer};
pub use trike_trit::{Encoding, Trit, TritTensor};
