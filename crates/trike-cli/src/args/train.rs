//! `trike train`.

use std::path::PathBuf;

use clap::{Args, builder::TypedValueParser, value_parser};
use trike::{DeviceChoice, trit::Granularity};

use super::{
    CpuArgs, JsonArg,
    names::{GROUPS, one_of, positive},
};

fn planes() -> impl TypedValueParser<Value = usize> {
    value_parser!(u64).range(0..=1).map(|n| n as usize)
}

/// Length of the run.
#[derive(Args, Debug)]
#[group(id = "extent", multiple = false)]
pub(crate) struct LengthArgs {
    /// Minutes of the run, excluding text generation by a teacher; the number of steps is computed from the measured time per step
    #[arg(long)]
    pub(crate) minutes: Option<f64>,
    /// Steps of the run
    #[arg(long, value_parser = positive)]
    pub(crate) steps: Option<usize>,
    /// Passes through the data
    #[arg(long)]
    pub(crate) epochs: Option<f64>,
}

/// Train a ternary model by distillation from a dense one, or from random weights
///
/// Quantization-aware training: in every step the weights of the blocks are rounded to one ternary plane, and gradients update the
/// latent weights (straight-through estimator). Writes a model directory with its tokenizer, a report.html, a log.jsonl, events for
/// TensorBoard and checkpoints. An interrupted run resumes bit-identically when the same command is run again. Settings without an
/// option here are in CONFIG.
#[derive(Args, Debug)]
pub(crate) struct TrainArgs {
    /// Configuration in TOML, YAML or JSON with the names of axolotl, such as base_model, datasets and learning_rate; options
    /// replace its settings
    pub(crate) config: Option<PathBuf>,
    /// Dense model to start from, and the default teacher
    #[arg(long, value_name = "MODEL")]
    pub(crate) from: Option<PathBuf>,
    /// Tokenizer file (tokenizer.json, SentencePiece .model, llama2.c .bin) [default: the model's own]
    #[arg(long, env = "TRIKE_TOKENIZER", hide_env_values = true)]
    pub(crate) tokenizer: Option<PathBuf>,
    /// Training data, may be repeated: text (.txt, .md) with documents between <|endoftext|>, or JSON (.jsonl, .json: one object
    /// per line or a list) with text, instruction and output, conversations or messages
    #[arg(short, long, value_name = "FILE")]
    pub(crate) data: Vec<PathBuf>,
    /// Teacher model for distillation, or none [default: the model to start from]
    #[arg(long, value_name = "MODEL")]
    pub(crate) teacher: Option<PathBuf>,
    /// Ternary planes: 1, or 0 to train a dense model [default: 1]
    #[arg(short, long, value_parser = planes())]
    pub(crate) planes: Option<usize>,
    /// Weights per scale along a row [default: 32]
    #[arg(short, long, value_parser = one_of(GROUPS))]
    pub(crate) group: Option<Granularity>,
    #[command(flatten)]
    pub(crate) run: LengthArgs,
    /// Rows per batch; a step accumulates two batches unless CONFIG says otherwise [default: 1]
    #[arg(short, long, value_parser = positive)]
    pub(crate) batch: Option<usize>,
    /// Tokens per row [default: the context of the model, at most 512]
    #[arg(long, value_name = "TOKENS", value_parser = positive)]
    pub(crate) length: Option<usize>,
    /// Learning rate after the warm-up
    #[arg(long, value_name = "RATE")]
    pub(crate) learning_rate: Option<f32>,
    /// Seed of the order of the data and of random weights [default: 0]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Directory to write; must not contain a model
    #[arg(short, long)]
    pub(crate) output: Option<PathBuf>,
    /// Only check configuration and data, and print what the run would do and how long it would take
    #[arg(long)]
    pub(crate) check: bool,
    /// Device: cpu, auto (the first hardware GPU, else cpu), or a runtime of this build (wgpu, vulkan, cuda, hip, metal) with an
    /// index, such as cuda:0; `trike doctor` lists them [default: cpu]
    #[arg(long, env = "TRIKE_DEVICE", hide_env_values = true, value_name = "NAME")]
    pub(crate) device: Option<DeviceChoice>,
    #[command(flatten)]
    pub(crate) cpu: CpuArgs,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}
