//! From a model file to text: configuration, tokenizers, generation, sampling, measurement, conversion, quantization.
//!
//! Start from [`LanguageModel`]: `LanguageModel::load(path)` reads any file that [`ModelFile`] can open, with its
//! tokenizer, and [`LanguageModel::generate`] continues a prompt.
//!
//! The decision that shaped this crate: a checkpoint is opened once as a [`ModelFile`], which knows its
//! architecture, the names of its tensors and its special tokens, and everything else (running, inspecting,
//! converting, scoring) works on that. A new file format is one arm there and not a second loader; the price is
//! that formats share the names of HuggingFace checkpoints, and others are mapped to them.
//!
//! * models: [`ModelFile`], [`LanguageModel`], [`LoadOptions`], [`HeadPrecision`], [`Tensors`],
//!   [`ModelConfig`], [`Family`], [`SpecialIds`]
//! * text: [`tokenizer`], [`gguf_tokenizer`], [`chat`], [`sampler`], [`stream`], [`GenerateOptions`], [`GenerationConfig`],
//!   [`Generation`], [`FinishReason`]
//! * the hub's cache: [`HubCache`], [`ModelId`], [`HubModel`], [`hub_shards`]
//! * measurement: [`score()`], [`Score`], [`compare()`], [`Comparison`], [`Split`], [`answer()`], [`Question`], [`TaskScore`],
//!   [`inspect()`], [`mod@bench`]
//! * making a model ternary: [`quantize()`], [`ModelQuantizationConfig`], [`Tuning`], [`Calibration`], [`QuantizeReport`];
//!   [`Fold`], what it may rewrite first; for a budget: [`quantize_to()`], [`Budget`], [`PlanOptions`], [`Plan`]; [`Pruning`]
//! * changing a packed model: [`edit_tensor`], [`edit_file`], [`undo_edits`], [`LanguageModel::edit_layer`], [`Change`]
//! * devices: [`Place`], [`Opened`], [`Use`], [`devices()`], [`DeviceReport`], [`memory_plan()`]
//! * conversion: [`convert()`], [`Target`], [`ConvertOptions`]
//! * errors: [`LlmError`]
//!
//! `trike` re-exports what an application needs; the feature `candle` passes the reference backend through,
//! and `gpu` with `wgpu`, `vulkan`, `cuda`, `hip` and `metal` the device backend and its runtimes.
#![forbid(unsafe_code)]

pub mod bench;
mod config;
mod convert;
mod device;
mod edit;
mod error;
mod file;
mod fold;
mod generate;
mod hub;
mod inspect;
mod load;
mod names;
mod perplexity;
mod quantize;
mod tasks;
mod text;

pub use trike_text::{
    chat,
    sampler::{self, GenerationConfig},
    stream, tokenizer,
};

pub use config::{Family, ModelConfig, SpecialIds};
pub use convert::{ConvertOptions, ConvertReport, Target, convert};
pub use device::{DeviceReport, Opened, Place, SyntheticBench, Use, devices, memory_plan};
pub use edit::{Change, EditReport, edit_file, edit_tensor, undo_edits};
pub use error::LlmError;
pub use file::{ModelFile, Tensors};
pub use fold::Fold;
pub use generate::{FinishReason, GenerateOptions, Generation};
pub use hub::{HubCache, HubModel, ModelId, hub_shards};
pub use inspect::{Inspection, ModelReport, ScaleReport, TensorReport, Totals, inspect};
pub use load::{HeadPrecision, LanguageModel, LoadOptions};
pub use perplexity::{Comparison, Score, Split, compare, score};
pub use quantize::{
    Budget, Calibration, Compensation, CurvePoint, Evaluation, Importance, LayerChoice, LayerReport,
    Measured, ModelQuantizationConfig, Plan, PlanOptions, PlannedLayer, Planning, Pruning, QuantizeMethod,
    QuantizeReport, SalienceReport, Sensitivity, Stored, StoredKind, TernaryTotals, Trial, Tuning,
    TuningReport, plan_for, quantize, quantize_to,
};
pub use tasks::{Question, TaskScore, answer, read_questions};
pub use text::{gguf_chat_template, gguf_tokenizer};
