//! `trike run`, `trike chat` and `trike embed`.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use trike::llm::Pooling;

#[cfg(feature = "mpi")]
use super::names::PARALLEL;
use super::{
    CpuArgs, DeviceArg, JsonArg, KvArgs, ModelArg, PrecisionArgs, TemplateArg, TokenizerArg,
    names::{POOLINGS, Seed, Tokens, one_of, seed, tokens},
};

/// Continue a prompt
///
/// Prompt and continuation are streamed to stdout; times and speeds are printed to stderr. Without a prompt, it is read from stdin;
/// in a terminal, a chat starts if the model has a chat template. Ctrl-C stops after the current token.
///
/// A single argument is the prompt if it contains white space or another character that no model name has, unless a file has that
/// name; otherwise it is the model. With -m, a single argument is the prompt.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("source").args(["text", "prompt", "file"])))]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    /// The same as --prompt
    #[arg(value_name = "PROMPT")]
    pub(crate) text: Option<String>,
    #[command(flatten)]
    pub(crate) tokenizer: TokenizerArg,
    /// Text to continue; may be empty; - = stdin
    #[arg(short, long, allow_hyphen_values = true)]
    pub(crate) prompt: Option<String>,
    /// File with the text to continue, in UTF-8, without its final newline
    #[arg(short, long)]
    pub(crate) file: Option<PathBuf>,
    /// Maximum number of new tokens; -1 = until the text or the context ends [default: -1]
    #[arg(
        short = 'n',
        long,
        aliases = ["n-predict", "predict", "num-predict", "max-new-tokens"],
        env = "TRIKE_MAX_TOKENS",
        hide_env_values = true,
        value_name = "N",
        value_parser = tokens,
        allow_negative_numbers = true
    )]
    pub(crate) max_tokens: Option<Tokens>,
    /// Maximum number of tokens of prompt and continuation [default: the model's, or what fits into memory]
    #[arg(
        short,
        long,
        aliases = ["ctx-size", "num-ctx"],
        env = "TRIKE_CONTEXT",
        hide_env_values = true,
        value_name = "N"
    )]
    pub(crate) context: Option<usize>,
    /// Rolling attention window in tokens: each token attends to this many, and the text may outgrow the context
    #[arg(long, env = "TRIKE_WINDOW", hide_env_values = true, value_name = "N", conflicts_with = "kv_limit")]
    pub(crate) window: Option<usize>,
    /// Stop string, not part of the output; may be repeated
    #[arg(long, alias = "reverse-prompt", value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
    #[command(flatten)]
    pub(crate) form: FormArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    /// Print only the generated text, without the prompt
    ///
    /// The default with --json-schema, --grammar and --regex.
    #[arg(long, alias = "no-display-prompt")]
    pub(crate) no_echo: bool,
    /// Print the prompt, also with --json-schema, --grammar and --regex
    #[arg(long, conflicts_with = "no_echo")]
    pub(crate) echo: bool,
    /// With --json: the log-probability of each new token, and of this many most probable tokens
    #[arg(long, requires = "json", value_name = "COUNT")]
    pub(crate) logprobs: Option<usize>,
    /// File for the text's keys and values: the common prefix with the text of the last run is not prefilled again; CPU only
    #[arg(long, value_name = "FILE", conflicts_with_all = ["window", "kv_limit"])]
    pub(crate) prompt_cache: Option<PathBuf>,
    /// Divide the model between the ranks of `mpirun -n N trike run`: a row shard of every matrix per rank (tensor), or consecutive
    /// layers (pipeline); CPU only
    #[cfg(feature = "mpi")]
    #[arg(long, value_name = "DIVISION", value_parser = one_of(PARALLEL), conflicts_with = "prompt_cache")]
    pub(crate) parallel: Option<trike::llm::ModelParallel>,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    #[command(flatten)]
    pub(crate) precision: PrecisionArgs,
    #[command(flatten)]
    pub(crate) cpu: CpuArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

impl RunArgs {
    /// Whether the prompt is printed before the generated text.
    pub(crate) fn echoes(&self) -> bool {
        let FormArgs { json_schema, grammar, regex } = &self.form;
        let is_constrained = json_schema.is_some() || grammar.is_some() || regex.is_some();
        self.echo || !(self.no_echo || is_constrained)
    }
}

/// Constraints on the generated text.
#[derive(Args, Clone, Debug)]
#[group(id = "form", multiple = false)]
pub(crate) struct FormArgs {
    /// Generate JSON that is valid under this schema: a file, or the schema itself
    #[arg(long, alias = "json-schema-file", value_name = "SCHEMA")]
    pub(crate) json_schema: Option<String>,
    /// Generate text of this grammar, in llguidance's variant of Lark's syntax: a file, or the grammar itself
    #[arg(long)]
    pub(crate) grammar: Option<String>,
    /// Generate text that this regular expression matches as a whole
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) regex: Option<String>,
}

/// Chat with a model
///
/// In a terminal, lines can be edited and recalled, and `/help` lists the commands. From a pipe, each line is a message. Answers go
/// to stdout, everything else to stderr. When the conversation outgrows the context, its oldest turns are dropped, with a notice.
/// Ctrl-C stops an answer, or exits while waiting for a message.
#[derive(Args, Debug)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    #[command(flatten)]
    pub(crate) tokenizer: TokenizerArg,
    /// System prompt
    #[arg(long, alias = "system-prompt", env = "TRIKE_SYSTEM", hide_env_values = true, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    #[command(flatten)]
    pub(crate) template: TemplateArg,
    /// Maximum number of new tokens per answer; -1 = until the answer or the context ends [default: -1]
    ///
    /// The conversation is trimmed to leave room for them.
    #[arg(
        short = 'n',
        long,
        aliases = ["n-predict", "predict", "num-predict", "max-new-tokens"],
        env = "TRIKE_MAX_TOKENS",
        hide_env_values = true,
        value_name = "N",
        value_parser = tokens,
        allow_negative_numbers = true
    )]
    pub(crate) max_tokens: Option<Tokens>,
    /// Maximum number of tokens of the conversation [default: the model's, or what fits into memory]
    #[arg(
        short,
        long,
        aliases = ["ctx-size", "num-ctx"],
        env = "TRIKE_CONTEXT",
        hide_env_values = true,
        value_name = "N"
    )]
    pub(crate) context: Option<usize>,
    /// Stop string, not part of the answer; may be repeated
    #[arg(long, alias = "reverse-prompt", value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
    #[command(flatten)]
    pub(crate) form: FormArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    #[command(flatten)]
    pub(crate) precision: PrecisionArgs,
    #[command(flatten)]
    pub(crate) cpu: CpuArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArg,
    /// Print one JSON object per answer, on a line of its own, instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

/// Sampling. Options that are not given are taken from the model's `generation_config.json`.
#[derive(Args, Clone, Debug)]
pub(crate) struct SamplingArgs {
    /// Sampling temperature; 0 = greedy decoding
    ///
    /// [default: 0.8 for `chat`; 1 if another sampling option is given; else 0]
    #[arg(
        long,
        alias = "temp",
        env = "TRIKE_TEMPERATURE",
        hide_env_values = true,
        value_name = "T",
        allow_negative_numbers = true
    )]
    pub(crate) temperature: Option<f32>,
    /// Sample from the k most probable tokens; 0 = all
    #[arg(
        long,
        env = "TRIKE_TOP_K",
        hide_env_values = true,
        value_name = "K",
        allow_negative_numbers = true
    )]
    pub(crate) top_k: Option<usize>,
    /// Sample from the most probable tokens with this total probability
    #[arg(
        long,
        env = "TRIKE_TOP_P",
        hide_env_values = true,
        value_name = "P",
        allow_negative_numbers = true
    )]
    pub(crate) top_p: Option<f32>,
    /// Sample from tokens with at least this fraction of the highest probability [default: 0.05 for `chat`, else 0]
    #[arg(
        long,
        env = "TRIKE_MIN_P",
        hide_env_values = true,
        value_name = "P",
        allow_negative_numbers = true
    )]
    pub(crate) min_p: Option<f32>,
    /// Repetition penalty over the last 64 tokens; 1 = none
    #[arg(
        long,
        alias = "repeat-penalty",
        env = "TRIKE_REPETITION_PENALTY",
        hide_env_values = true,
        value_name = "PENALTY",
        allow_negative_numbers = true
    )]
    pub(crate) repetition_penalty: Option<f32>,
    /// RNG seed; -1 = a random one, printed at the end [default: -1]
    #[arg(
        long,
        env = "TRIKE_SEED",
        hide_env_values = true,
        value_name = "N",
        value_parser = seed,
        allow_negative_numbers = true
    )]
    pub(crate) seed: Option<Seed>,
}

/// Compute embeddings of texts
///
/// An embedding is the pooled hidden states after the model's final norm, normalized to unit length, so that dot products are
/// cosine similarities. Prints one per line, as numbers or, with --json, all in one object.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("source").required(true).args(["texts", "prompt", "file"])))]
pub(crate) struct EmbedArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    #[command(flatten)]
    pub(crate) tokenizer: TokenizerArg,
    /// Texts
    #[arg(value_name = "TEXT")]
    pub(crate) texts: Vec<String>,
    /// A text; may be repeated; - = stdin
    #[arg(short, long, allow_hyphen_values = true)]
    pub(crate) prompt: Vec<String>,
    /// File with one text per line, in UTF-8; empty lines are skipped
    #[arg(short, long)]
    pub(crate) file: Option<PathBuf>,
    /// Pooling of the hidden states of a text's tokens
    #[arg(long, default_value = "mean", value_parser = one_of(POOLINGS))]
    pub(crate) pooling: Pooling,
    /// Write the embeddings to this .npy file instead: f32, shape [texts, width]; overwritten if it exists
    #[arg(short, long)]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) precision: PrecisionArgs,
    #[command(flatten)]
    pub(crate) cpu: CpuArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}
