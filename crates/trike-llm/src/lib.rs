//! From a model file to text: configuration, tokenizers, generation, sampling, conversion.
//!
//! Start from [`LanguageModel`]: `LanguageModel::load(name)` reads any file that [`ModelFile`] can open, or a model of the HuggingFace
//! hub, with its tokenizer; [`LanguageModel::generate`] continues a prompt, and [`Chat`] is a conversation. [`open()`] does the same on any device and returns a
//! [`Model`], which hides the backend.
//!
//! The decision that shaped this crate: a checkpoint is opened once as a [`ModelFile`], which holds its
//! architecture, the names of its tensors and its special tokens, and everything else (running, inspecting,
//! converting) works on that. A new file format is one match arm there, not a second loader; the price is
//! that all formats use the tensor names of HuggingFace checkpoints, and other names are mapped to these.
//!
//! * models: [`ModelFile`], [`WeightSource`], [`LanguageModel`], [`LoadOptions`], [`HeadPrecision`], [`Tensors`],
//!   [`ModelConfig`], [`Family`], [`SpecialIds`]
//! * one trait object for every backend: [`Model`], [`SequenceBatch`] with [`DecoderBatch`], [`open()`], [`DeviceChoice`],
//!   [`DeviceShare`], [`InvalidDevice`], [`Device`], [`devices()`], [`DeviceReport`], [`memory_plan()`]
//! * one model on several ranks: [`RankPlans`], [`RankPlan`], [`RankModel`], [`ModelParallel`]
//! * text: [`Chat`], [`tokenizer`], [`gguf_tokenizer`], [`chat`], [`gguf_chat_template`], [`sampler`], [`stream`], [`reply`], [`GenerateOptions`], [`ReasoningLimit`],
//!   [`PreparedRequest`], [`Continuation`],
//!   [`GenerationConfig`], [`Generation`], [`FinishReason`], [`OnText`], [`PROMPT_STEP`]
//! * a text as sequences: [`Split`], [`STORY_MARK`], [`sequences()`]; contents of a file: [`inspect()`]; models of random trits:
//!   [`Synthetic`], [`SyntheticModel`]
//! * conversion: [`convert()`], [`Target`], [`ConvertOptions`]; parts for other writers of a model directory: [`hf_config()`],
//!   [`hf_tensor()`], [`write_tokenizer()`], [`write_tokenizer_file()`]
//! * errors: [`LlmError`]
//!
//! `trike-eval` measures models. `trike` re-exports what an application needs; the feature `gpu` with `wgpu`, `vulkan`, `cuda`, `hip` and
//! `metal` passes the device backend and its runtimes through.
#![forbid(unsafe_code)]

mod config;
mod convert;
mod device;
mod error;
mod file;
mod fingerprint;
mod generate;
mod inspect;
mod load;
mod model;
mod names;
mod sampling;
mod source;
mod synthetic;
mod text;

pub use trike_text::{
    chat, constraint, reply,
    sampler::{self, GenerationConfig, SamplingOptions},
    stream, tokenizer,
};

pub use config::{Family, ModelConfig, SpecialIds};
pub use convert::{
    ConvertOptions, ConvertReport, EmbeddingStorage, ScaleStorage, Target, convert, hf_config, hf_tensor,
    write_tokenizer, write_tokenizer_file,
};
pub use device::{
    Device, DeviceChoice, DeviceReport, DeviceShare, InvalidDevice, ModelParallel, RankModel, RankPlan,
    RankPlans, devices, fitting_context, memory_plan, open,
};
pub use error::LlmError;
pub use file::{ModelFile, Tensors};
pub use generate::{
    Continuation, FinishReason, GenerateOptions, Generation, OnText, PROMPT_STEP, Pooling, PreparedRequest,
    ReasoningLimit, Session, TokenLogprobs,
};
pub use inspect::{Inspection, ModelReport, ScaleReport, TensorReport, Totals, inspect};
pub use load::{HeadPrecision, LanguageModel, LoadOptions};
pub use model::{Chat, DecoderBatch, Model, SequenceBatch};
pub use source::WeightSource;
pub use synthetic::{Synthetic, SyntheticModel};
pub use text::{STORY_MARK, Split, gguf_chat_template, gguf_tokenizer, sequences};
