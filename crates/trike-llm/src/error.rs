//! The errors of loading, running and converting a model.

use std::path::PathBuf;

use trike_core::{DeviceSpec, OptionError};

/// Error of loading, running or converting a model.
///
/// The transparent variants carry the message of the lower layer, which names the file, tensor or token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LlmError {
    /// A model file could not be read or written.
    #[error(transparent)]
    Format(Box<trike_format::FormatError>),
    /// A model of the hub that is not in the cache, or cannot be downloaded.
    #[error(transparent)]
    Hub(Box<trike_hub::HubError>),
    /// A tokenizer could not be read, or text not tokenized.
    #[error(transparent)]
    Tokenizer(#[from] crate::tokenizer::TokenizerError),
    /// A conversation could not be rendered as a prompt.
    #[error(transparent)]
    Chat(Box<crate::chat::ChatError>),
    /// The generation defaults of a model could not be read.
    #[error(transparent)]
    GenerationConfig(#[from] crate::sampler::GenerationConfigError),
    /// Logits could not be sampled.
    #[error(transparent)]
    Sampler(#[from] crate::sampler::SamplerError),
    /// An invalid grammar, or text that violates it.
    #[error(transparent)]
    Constraint(#[from] trike_text::constraint::ConstraintError),
    /// A file without the expected saved [`Session`](crate::Session).
    #[error("{}: expected {expected}, got {got}", path.display())]
    SessionFile {
        /// The file.
        path: PathBuf,
        /// The expected content.
        expected: String,
        /// The content.
        got: String,
    },
    /// The host has too little free memory for a model. Nothing was loaded.
    #[error(
        "the model needs {} of memory ({} weights, {} keys and values, the rest for activations and buffers), but {limit} leaves {}",
        gigabytes(*needed), gigabytes(plan.weights), gigabytes(plan.cache), gigabytes(*available)
    )]
    HostMemory {
        /// Bytes in total.
        needed: u64,
        /// Sizes of the model's parts.
        plan: trike_nn::MemoryPlan,
        /// Free bytes.
        available: u64,
        /// The limiting resource, such as `its control group`.
        limit: &'static str,
    },
    /// A rank has too little free memory for its part of a model. Nothing was loaded.
    #[error("the model does not fit on its ranks: {}: use more ranks or shorten the sequence", needs(ranks))]
    RankMemory {
        /// The plans of all ranks.
        ranks: Vec<crate::RankPlan>,
    },
    /// An error of the decoder, of its kernels or of a tensor.
    #[error(transparent)]
    Nn(#[from] trike_nn::NnError),
    /// The checkpoint requires a feature that is not implemented.
    #[error("{}: {name} is not implemented; {remedy}", path.display())]
    Unsupported {
        /// The model.
        path: PathBuf,
        /// The missing feature, by its name in the file.
        name: String,
        /// Suggested action.
        remedy: String,
    },
    /// An unknown configuration key, which may change the result.
    #[error(
        "{}: `{key}` is not a known key of {place} and may change the result{}; correct or remove it",
        path.display(),
        nearest.map(|name| format!(": the nearest known key is `{name}`")).unwrap_or_default()
    )]
    UnknownKey {
        /// The model.
        path: PathBuf,
        /// The key.
        key: String,
        /// The file or object that has it.
        place: &'static str,
        /// The most similar known key.
        nearest: Option<&'static str>,
    },
    /// A configuration value is missing or invalid.
    #[error("{}: `{key}`: expected {expected}, got {got}", path.display())]
    Config {
        /// The model.
        path: PathBuf,
        /// The key.
        key: String,
        /// The expected value or type.
        expected: String,
        /// The value found.
        got: String,
    },
    /// The model has no tokenizer, and none was given.
    #[error("{}: the model has no tokenizer: pass the one it was trained with", path.display())]
    NoTokenizer {
        /// The model.
        path: PathBuf,
    },
    /// The tokenizer does not match the model's vocabulary.
    #[error("{}: the tokenizer does not match the model: {source}", path.display())]
    TokenizerMismatch {
        /// The model.
        path: PathBuf,
        /// The mismatch.
        source: crate::tokenizer::TokenizerError,
    },
    /// A prompt fills the context, so that nothing can be generated.
    #[error(
        "the prompt has {tokens} tokens, but the context length is {context}: shorten it or use a rolling window"
    )]
    PromptTooLong {
        /// Tokens of the prompt, BOS included.
        tokens: usize,
        /// Context length of the model, in tokens.
        context: usize,
    },
    /// A logit is infinite or NaN.
    #[error(
        "logit {index} of token {token} is {value}: the weights are damaged or overflow in this precision"
    )]
    NonFinite {
        /// Position in the sequence.
        token: usize,
        /// Token id of the logit.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A tensor cannot be converted without changing a value.
    #[error("{}: {tensor} cannot be converted to {target}: {reason}", path.display())]
    NotLossless {
        /// The model.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The requested target.
        target: String,
        /// The reason and a suggested action.
        reason: String,
    },
    /// A ternary matrix with more planes than the target can store.
    #[error("{}: {tensor} has {planes} planes of trits, and {target} holds one", path.display())]
    Planes {
        /// The model.
        path: PathBuf,
        /// The matrix.
        tensor: String,
        /// Its planes.
        planes: usize,
        /// The requested target.
        target: String,
    },
    /// An int8 matrix with a group size or scale type that the target cannot store.
    #[error(
        "{}: {tensor} is int8 in groups of {group} with {scales} scales, and {target} holds groups of 32 with f16 scales",
        path.display()
    )]
    Int8Groups {
        /// The model.
        path: PathBuf,
        /// The matrix.
        tensor: String,
        /// Columns that share a scale.
        group: usize,
        /// `f16` or `f32`.
        scales: &'static str,
        /// The type that would store it.
        target: &'static str,
    },
    /// Tensors that no layer reads: the configuration does not match the weights.
    #[error("{}: {count} tensors belong to no layer of the configuration: {names}", path.display())]
    UnreadTensors {
        /// The model.
        path: PathBuf,
        /// Number of tensors.
        count: usize,
        /// The names of the first ones.
        names: String,
    },
    /// Parts of the model that the target cannot store, with [`strict`](crate::ConvertOptions::strict).
    #[error("{}: {notes}", path.display())]
    LeftOut {
        /// The model.
        path: PathBuf,
        /// The parts left out.
        notes: String,
    },
    /// A device whose runtime is not part of this build.
    #[error(
        "device {device}: this build has no {} runtime, build with the feature `{}`",
        runtime(device),
        runtime(device)
    )]
    NotBuilt {
        /// The device.
        device: DeviceSpec,
    },
    /// An allocation larger than the device supports. Nothing was loaded.
    #[error("{what}: one allocation of {requested} bytes, but {device} supports at most {limit}: {remedy}")]
    TooLarge {
        /// A weight, or keys and values.
        what: String,
        /// The device.
        device: String,
        /// Size of the allocation, in bytes.
        requested: u64,
        /// The device's largest allocation, in bytes.
        limit: u64,
        /// Suggested action.
        remedy: &'static str,
    },
    /// A field of an options struct is out of range.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The output path of a conversion does not match its target: a path that ends in `.gguf` is a file, any other a directory.
    #[error(
        "{}: {target} is stored in {}",
        path.display(),
        if *is_file {
            "a GGUF file: expected a path that ends in .gguf"
        } else {
            "a directory: expected a path that does not end in .gguf"
        }
    )]
    OutputPath {
        /// The output.
        path: PathBuf,
        /// The target.
        target: &'static str,
        /// Whether the target is a file.
        is_file: bool,
    },
    /// The tokenizer of a GGUF file is of a kind that is not implemented.
    #[error("{}: {name} is not implemented: give the model's own tokenizer.json", path.display())]
    GgufTokenizer {
        /// The file.
        path: PathBuf,
        /// The tokenizer, by its name in the file.
        name: String,
    },
    /// A tokenizer file with an unknown extension.
    #[error("{}: expected a tokenizer.json, a SentencePiece .model or a llama2.c .bin file", path.display())]
    TokenizerFile {
        /// The file.
        path: PathBuf,
    },
    /// A file that is not a model could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

/// The name of a device's runtime, which is also the name of the Cargo feature.
fn runtime(device: &DeviceSpec) -> &'static str {
    match device {
        DeviceSpec::Auto => "gpu",
        DeviceSpec::Numbered(runtime, _) => runtime.name(),
    }
}

impl From<trike_core::SpecError> for LlmError {
    fn from(error: trike_core::SpecError) -> Self {
        Self::Nn(error.into())
    }
}

trike_nn::from_kernel_errors!(
    LlmError: trike_cpu::CpuError, trike_cpu::HostError, trike_format::TensorError, trike_trit::TritError
);

impl From<crate::chat::ChatError> for LlmError {
    fn from(error: crate::chat::ChatError) -> Self {
        Self::Chat(Box::new(error))
    }
}

impl From<trike_hub::HubError> for LlmError {
    fn from(error: trike_hub::HubError) -> Self {
        Self::Hub(Box::new(error))
    }
}

impl From<trike_format::FormatError> for LlmError {
    fn from(error: trike_format::FormatError) -> Self {
        // Boxed: it is several times as large as the other variants.
        Self::Format(Box::new(error))
    }
}

/// The required memory of each rank.
fn needs(ranks: &[crate::RankPlan]) -> String {
    let each = ranks.iter().enumerate().map(|(rank, plan)| format!("rank {rank} needs {plan}"));
    each.collect::<Vec<_>>().join("; ")
}

/// A size in GB with two decimals.
fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}
