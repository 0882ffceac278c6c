//! The errors of loading, running, measuring and converting a model.

use std::path::PathBuf;

use trike_core::{DeviceSpec, OptionError};

/// Why a model could not be loaded, run, measured or converted.
///
/// The transparent variants carry the message of the layer below, which names the file, tensor or token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LlmError {
    /// A model file could not be read or written.
    #[error(transparent)]
    Format(Box<trike_format::FormatError>),
    /// A tokenizer could not be read, or text not tokenized.
    #[error(transparent)]
    Tokenizer(#[from] crate::tokenizer::TokenizerError),
    /// A conversation could not be made a prompt.
    #[error(transparent)]
    Chat(Box<crate::chat::ChatError>),
    /// The defaults for generation that come with a model could not be read.
    #[error(transparent)]
    GenerationConfig(#[from] crate::sampler::GenerationConfigError),
    /// Logits could not be sampled.
    #[error(transparent)]
    Sampler(#[from] crate::sampler::SamplerError),
    /// The decoder refused.
    #[error(transparent)]
    Nn(#[from] trike_nn::NnError),
    /// The host kernels refused.
    #[error(transparent)]
    Cpu(#[from] trike_cpu::CpuError),
    /// No memory, no threads, or an instruction set that this machine does not have.
    #[error(transparent)]
    Host(#[from] trike_cpu::HostError),
    /// The numbers of a tensor do not make one.
    #[error(transparent)]
    Tensor(#[from] trike_format::TensorError),
    /// A ternary tensor refused.
    #[error(transparent)]
    Trit(#[from] trike_trit::TritError),
    /// The checkpoint needs something that is not implemented.
    #[error("{}: {name} is not implemented; {remedy}", path.display())]
    Unsupported {
        /// The model.
        path: PathBuf,
        /// What it needs, by its name in the file.
        name: String,
        /// What to do.
        remedy: String,
    },
    /// A configuration value is missing or not usable.
    #[error("{}: `{key}`: expected {expected}, got {got}", path.display())]
    Config {
        /// The model.
        path: PathBuf,
        /// The key.
        key: String,
        /// What was expected.
        expected: String,
        /// What is there.
        got: String,
    },
    /// The model comes without a tokenizer, and none was given.
    #[error("{}: the model comes without a tokenizer: give it the one that it was trained with", path.display())]
    NoTokenizer {
        /// The model.
        path: PathBuf,
    },
    /// The tokenizer and the model do not belong together.
    #[error("{}: the tokenizer does not fit the model: {source}", path.display())]
    TokenizerMismatch {
        /// The model.
        path: PathBuf,
        /// The two sizes.
        source: crate::tokenizer::TokenizerError,
    },
    /// A prompt leaves no room to generate.
    #[error(
        "the prompt has {tokens} tokens, the context holds {context}: shorten it or use a rolling window"
    )]
    PromptTooLong {
        /// Tokens of the prompt, BOS included.
        tokens: usize,
        /// Positions that the model has.
        context: usize,
    },
    /// No sequence of the text has two tokens or more.
    #[error("nothing to score: no sequence of the text has two tokens or more")]
    NothingToScore,
    /// Logits hold infinities or values that are no numbers.
    #[error(
        "logit {index} of token {token} is {value}: the weights are damaged or overflow in this precision"
    )]
    NonFinite {
        /// Position in the sequence.
        token: usize,
        /// Entry of the vocabulary.
        index: usize,
        /// The value.
        value: f32,
    },
    /// Two models that cannot be compared.
    #[error("the models have vocabularies of {ours} and {base}: divergence needs the same one")]
    Vocabularies {
        /// Size of the measured model's vocabulary.
        ours: usize,
        /// Size of the base model's.
        base: usize,
    },
    /// A tensor cannot be converted without changing a value.
    #[error("{}: {tensor} cannot become {target}: {reason}", path.display())]
    NotLossless {
        /// The model.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What was asked for.
        target: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// A model of the hub is not in the cache.
    #[error("{id} is not in {}: {reason}; download it with the hub's own tools, or give a path", cache.display())]
    NotInCache {
        /// The model.
        id: String,
        /// Where it was looked for.
        cache: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// A repository of the hub holds no model that can be run, or several.
    #[error("{id}: {reason}; {}", listed(files))]
    HubFiles {
        /// The model.
        id: String,
        /// What is wrong, and what to do.
        reason: String,
        /// The files that this is about.
        files: Vec<String>,
    },
    /// A device whose runtime this build does not contain.
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
    #[error("{what}: {requested} bytes in one piece, {device} takes at most {limit}: {remedy}")]
    TooLarge {
        /// A weight, or keys and values.
        what: String,
        /// The device.
        device: String,
        /// Bytes that it takes.
        requested: u64,
        /// Bytes of the device's largest allocation.
        limit: u64,
        /// What to do.
        remedy: &'static str,
    },
    /// A field of an options struct is out of range.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The name of a model on the hub that is none.
    #[error("`{got}` is no name of a model: expected a path, or org/name[@revision][:file]")]
    ModelName {
        /// The name given.
        got: String,
    },
    /// The target of a conversion is one file, and the output is not named like one.
    #[error("{}: {target} is stored in a GGUF file: expected a path that ends in .gguf", path.display())]
    ExpectedGguf {
        /// The output.
        path: PathBuf,
        /// The target.
        target: &'static str,
    },
    /// The target of a conversion is a directory, and the output is named like a file.
    #[error("{}: {target} is stored in a directory: expected a path that does not end in .gguf", path.display())]
    ExpectedDirectory {
        /// The output.
        path: PathBuf,
        /// The target.
        target: &'static str,
    },
    /// A GGUF file's own tokenizer is of a kind that is not implemented.
    #[error("{}: {name} is not implemented: give the model's own tokenizer.json", path.display())]
    GgufTokenizer {
        /// The file.
        path: PathBuf,
        /// The tokenizer, by its name in the file.
        name: String,
    },
    /// A tokenizer that no directory of a model holds under this kind of name.
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

/// The name of a device's runtime, which is also the feature's.
fn runtime(device: &DeviceSpec) -> &'static str {
    match device {
        DeviceSpec::Auto => "gpu",
        DeviceSpec::Numbered(runtime, _) => runtime.name(),
    }
}

/// The names come from elsewhere: nothing in them may steer a terminal.
fn listed(files: &[String]) -> String {
    if files.is_empty() {
        return "there are no files".to_owned();
    }
    let plain = |name: &String| -> String {
        name.chars().take(200).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
    };
    format!("there are: {}", files.iter().map(plain).collect::<Vec<_>>().join(", "))
}

impl From<crate::chat::ChatError> for LlmError {
    fn from(error: crate::chat::ChatError) -> Self {
        Self::Chat(Box::new(error))
    }
}

impl From<trike_format::FormatError> for LlmError {
    fn from(error: trike_format::FormatError) -> Self {
        // It is several times as large as the others.
        Self::Format(Box::new(error))
    }
}
