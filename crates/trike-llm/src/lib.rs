//! From a model file to text: configuration, tokenizers, generation, sampling, measurement, conversion.
//!
//! Start from [`LanguageModel`]: `LanguageModel::load(path)` reads any file that [`ModelFile`] can open, with its
//! tokenizer, and [`LanguageModel::generate`] continues a prompt.
//!
//! The decision that shaped this crate: a checkpoint is opened once as a [`ModelFile`], which knows its
//! architecture, the names of its tensors and its special tokens, and everything else (running, inspecting,
//! converting, scoring) works on that. A new file format is one arm there and not a second loader; the price is
//! that formats share the names of HuggingFace checkpoints, and others are mapped to them.
//!
//! * models: [`ModelFile`], [`WeightSource`], [`LanguageModel`], [`LoadOptions`], [`HeadPrecision`], [`Tensors`],
//!   [`ModelConfig`], [`Family`], [`SpecialIds`]
//! * text: [`tokenizer`], [`gguf_tokenizer`], [`chat`], [`sampler`], [`stream`], [`GenerateOptions`], [`GenerationConfig`],
//!   [`Generation`], [`FinishReason`]
//! * the hub's cache: [`HubCache`], [`ModelId`], [`HubModel`], [`hub_shards`]
//! * measurement: [`score()`], [`Score`], [`compare()`], [`compare_ids()`], [`Comparison`], [`Split`], [`sequences()`], [`divergence()`], [`answer()`], [`Question`], [`TaskScore`],
//!   [`inspect()`], [`mod@bench`]
//! * devices: [`Place`], [`Opened`], [`Use`], [`devices()`], [`DeviceReport`], [`memory_plan()`]
//! * conversion: [`convert()`], [`Target`], [`ConvertOptions`]; what else writes a directory: [`hf_config()`], [`hf_tensor()`],
//!   [`carry_tokenizer()`]
//! * errors: [`LlmError`]
//!
//! `trike` re-exports what an application needs; the feature `gpu` with `wgpu`, `vulkan`, `cuda`, `hip` and `metal` passes
//! the device backend and its runtimes through.
#![forbid(unsafe_code)]

pub mod bench;
mod config;
mod convert;
mod device;
mod error;
mod file;
mod generate;
mod hub;
mod inspect;
mod load;
mod names;
mod perplexity;
mod source;
mod tasks;
mod text;

pub use trike_text::{
    chat,
    sampler::{self, GenerationConfig},
    stream, tokenizer,
};

pub use config::{Family, ModelConfig, SpecialIds};
pub use convert::{ConvertOptions, ConvertReport, Target, carry_tokenizer, convert, hf_config, hf_tensor};
pub use device::{DeviceReport, Opened, Place, SyntheticBench, Use, devices, memory_plan};
pub use error::LlmError;
pub use file::{ModelFile, Tensors};
pub use generate::{FinishReason, GenerateOptions, Generation};
pub use hub::{HubCache, HubModel, ModelId, hub_shards};
pub use inspect::{Inspection, ModelReport, ScaleReport, TensorReport, Totals, inspect};
pub use load::{HeadPrecision, LanguageModel, LoadOptions};
pub use perplexity::{Comparison, Score, Split, compare, compare_ids, divergence, score, sequences};
pub use source::WeightSource;
pub use tasks::{Question, TaskScore, answer, read_questions};
pub use text::{gguf_chat_template, gguf_tokenizer};
