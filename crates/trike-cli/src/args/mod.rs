//! The command line.

mod edit;
mod eval;
mod foreign;
mod help;
mod keys;
mod models;
mod names;
mod quantize;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod train;

use std::{ffi::OsString, path::PathBuf};

use clap::{
    Arg, ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand,
    builder::{FalseyValueParser, Resettable},
};
use trike::{
    ActivationPolicy, DeviceChoice, EmbeddingStorage, Encoding, HeadPrecision, Isa, KvPrecisions,
    ScaleStorage, Split, Target, core::Layout, llm::Synthetic, trit::Granularity,
};

use crate::topics::Topic;

pub(crate) use edit::EditArgs;
pub(crate) use eval::EvalArgs;
pub(crate) use foreign::reworded;
pub(crate) use keys::{KeyArgs, KvArgs, TOP_K};
#[cfg(feature = "hub")]
pub(crate) use models::PullArgs;
pub(crate) use models::{ListArgs, ModelArg, RmArgs, ShowArgs};
use names::{
    ACTIVATIONS, EMBEDDINGS, ENCODINGS, GROUPS, HEADS, KEYS, LAYOUTS, SCALES, SIZES, SPLITS, TARGETS, kl, kv,
    one_of, threads, topic,
};
pub(crate) use names::{activations_name, split_name};
pub(crate) use quantize::{Goal, Method, Packing, QuantizeArgs};
pub(crate) use run::{ChatArgs, EmbedArgs, FormArgs, RunArgs, SamplingArgs};
#[cfg(feature = "serve")]
pub(crate) use serve::ServeArgs;
pub(crate) use train::TrainArgs;

/// Run, make, inspect, convert and measure ternary language models
///
/// MODEL is a HuggingFace or Trike directory, a GGUF file or a llama2.c checkpoint. Exit codes: 0 done, 1 failed,
/// 2 wrong usage, 130 interrupted.
#[derive(Debug, Parser)]
#[command(name = "trike", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// Suppress progress and the summary line on stderr
    #[arg(
        short,
        long,
        global = true,
        env = "TRIKE_QUIET",
        hide_env_values = true,
        action = ArgAction::SetTrue,
        value_parser = FalseyValueParser::new()
    )]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The command line, with the examples of every command.
pub(crate) fn command() -> clap::Command {
    arranged(false)
}

/// The command line; `brief` if it is used to print the everyday options.
fn arranged(brief: bool) -> clap::Command {
    let command = help::arranged(crate::manual::with_examples(Cli::command()), brief);
    // With -m, the argument of `run` is the prompt: the command itself checks what excludes what.
    let run = |arg: Arg| match arg.get_id() == "name" {
        true => arg.conflicts_with(Resettable::Reset),
        false => arg,
    };
    let chat = |arg: Arg| match arg.get_id() == "name" {
        true => {
            arg.help("Directory, file or org/name on the HuggingFace hub [default: TRIKE_MODEL, else asks]")
        }
        false => arg,
    };
    // Not `mut_arg`, which moves the argument behind the others.
    command.mut_subcommand("run", |sub| sub.mut_args(run)).mut_subcommand("chat", |sub| sub.mut_args(chat))
}

impl Cli {
    /// Parses a command line.
    pub(crate) fn read(args: &[OsString]) -> Result<Self, clap::Error> {
        let brief = args.iter().any(|arg| arg == "-h");
        Self::from_arg_matches(&arranged(brief).try_get_matches_from(args)?)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Chat(ChatArgs),
    #[cfg(feature = "serve")]
    Serve(ServeArgs),
    #[cfg(feature = "hub")]
    Pull(PullArgs),
    #[command(alias = "ls")]
    List(ListArgs),
    Show(ShowArgs),
    Rm(RmArgs),
    Inspect(InspectArgs),
    Convert(ConvertArgs),
    Quantize(QuantizeArgs),
    Train(TrainArgs),
    Edit(EditArgs),
    Perplexity(PerplexityArgs),
    Eval(EvalArgs),
    Logits(LogitsArgs),
    Embed(EmbedArgs),
    Bench(BenchArgs),
    Doctor(DoctorArgs),
    Explain(ExplainArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Tokenizer argument.
#[derive(Args, Debug)]
pub(crate) struct TokenizerArg {
    /// Tokenizer file (tokenizer.json, SentencePiece .model, llama2.c .bin) [default: the model's own]
    #[arg(long, env = "TRIKE_TOKENIZER", hide_env_values = true, value_name = "FILE")]
    pub(crate) tokenizer: Option<PathBuf>,
}

/// Chat template argument.
#[derive(Args, Debug, Default)]
pub(crate) struct TemplateArg {
    /// Jinja chat template: a file, or the text itself [default: the model's own]
    #[arg(
        long,
        alias = "chat-template-file",
        env = "TRIKE_CHAT_TEMPLATE",
        hide_env_values = true,
        value_name = "TEMPLATE"
    )]
    pub(crate) chat_template: Option<String>,
}

/// Output format argument.
#[derive(Args, Debug)]
pub(crate) struct JsonArg {
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

/// CPU arguments.
#[derive(Args, Debug)]
pub(crate) struct CpuArgs {
    /// Number of threads; 0 = one per physical core
    #[arg(
        short,
        long,
        default_value_t = 0,
        allow_negative_numbers = true,
        env = "TRIKE_THREADS",
        hide_env_values = true,
        value_name = "N",
        value_parser = threads()
    )]
    pub(crate) threads: usize,
    /// Instruction set: scalar, sse4.1, avx2, avx-vnni or avx512-vnni [default: the best available]
    #[arg(long, env = "TRIKE_ISA", hide_env_values = true, value_parser = Isa::by_name)]
    pub(crate) isa: Option<Isa>,
}

/// Device argument.
#[derive(Args, Debug)]
pub(crate) struct DeviceArg {
    /// cpu, auto, or a GPU such as cuda:0; `trike doctor` lists them
    ///
    /// auto is the first hardware GPU, else the CPU. A GPU is a runtime of this build (wgpu, vulkan, cuda, hip, metal) with an
    /// index. Several devices split the layers of the model in proportion to their free memory (cuda:0,cuda:1), or as given
    /// (cuda:0=20,cuda:1=12).
    #[arg(long, default_value = "cpu", env = "TRIKE_DEVICE", hide_env_values = true, value_name = "NAME")]
    pub(crate) device: DeviceChoice,
}

/// Precision arguments.
#[derive(Args, Debug)]
pub(crate) struct PrecisionArgs {
    /// Activations of ternary layers; auto = as the model was trained, else int8; int8 = one factor per token or, for weights with
    /// scales per group, one per group of the same size [default: auto; f32 for `logits`]
    #[arg(long, env = "TRIKE_ACTIVATIONS", hide_env_values = true, value_parser = one_of(ACTIVATIONS))]
    pub(crate) activations: Option<ActivationChoice>,
    /// Precision of the output head: as stored, int8, or auto (int8 if the model is ternary and its head is stored as floats)
    /// [default: auto; stored for `logits`]
    #[arg(long, env = "TRIKE_HEAD", hide_env_values = true, value_parser = one_of(HEADS))]
    pub(crate) head: Option<HeadPrecision>,
    /// Precision of the KV cache: f32, f16, int8, int8-int4, int4 or auto
    ///
    /// int8-int4 is int8 keys and int4 values. Single layers: int4,int8:0-1+5 is int8 in layers 0, 1 and 5 and int4 in the others.
    /// auto is the smallest cache within --kv-kl, measured on text sampled from the model; the choice is stored in the user's
    /// cache. On devices f32, f16 or int8 in all layers [default: f32 for models with f32 weights and for `logits`, else f16]
    #[arg(long, env = "TRIKE_KV", hide_env_values = true, value_name = "PRECISION", value_parser = kv)]
    pub(crate) kv: Option<KvChoice>,
    /// With `--kv auto`: bound on the KL divergence from the default precision, in nats per token [default: 0.002]
    #[arg(long, value_name = "NATS", value_parser = kl)]
    pub(crate) kv_kl: Option<f64>,
    /// In-memory layout of ternary weights; auto chooses the fastest per matrix. A matrix that does not support the layout stays
    /// two-bit
    #[arg(
        long,
        default_value = "auto",
        env = "TRIKE_LAYOUT",
        hide_env_values = true,
        value_parser = one_of(LAYOUTS)
    )]
    pub(crate) layout: LayoutChoice,
}

/// An activation policy, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ActivationChoice(pub(crate) Option<ActivationPolicy>);

/// Precisions of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KvChoice {
    /// Chosen for the model.
    Auto,
    Given(KvPrecisions),
}

/// A layout of ternary weights, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayoutChoice(pub(crate) Option<Layout>);

/// A method of key selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeysChoice {
    All,
    Signs,
}

/// Show a model's architecture and the encoding, size, zeros and scales of each tensor
///
/// Each tensor is loaded once. Models that Trike cannot run are shown too, with the reason.
#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    /// Show the memory that the model needs on a GPU instead: weights, KV cache of one full-context sequence, activations
    #[arg(long)]
    pub(crate) memory: bool,
    /// With --memory, devices as for `trike run`: also show which layers each would hold, and the memory needed and free there
    #[arg(long, requires = "memory", value_name = "NAME")]
    pub(crate) device: Option<DeviceChoice>,
    /// With --memory, selection of keys as for `trike run`: count the memory of their codes
    #[arg(long, requires = "memory", conflicts_with = "device", value_parser = one_of(KEYS))]
    pub(crate) keys: Option<KeysChoice>,
    /// With --memory, precision of the KV cache as for `trike run`; auto = the stored choice of an earlier command [default: f32
    /// for models with f32 weights, else f16]
    #[arg(long, requires = "memory", conflicts_with = "device", value_name = "PRECISION", value_parser = kv)]
    pub(crate) kv: Option<KvChoice>,
    /// With `--kv auto`: bound on the KL divergence of that choice [default: 0.002]
    #[arg(long, requires = "kv", value_name = "NATS", value_parser = kl)]
    pub(crate) kv_kl: Option<f64>,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// Convert a model to another format, without loss
///
/// A dense matrix becomes trits only if each of its values is one scale times -1, 0 or 1. A value that the format cannot
/// represent exactly is an error.
#[derive(Args, Debug)]
pub(crate) struct ConvertArgs {
    /// Model directory or file to read
    pub(crate) input: PathBuf,
    /// Output, which must not exist: a path ending in .gguf for tq1_0, tq2_0 and q2_0, a directory for trike, either for
    /// f16
    pub(crate) output: PathBuf,
    /// Output format [default: tq2_0 for an output that ends in .gguf, else trike]
    #[arg(long, value_parser = one_of(TARGETS))]
    pub(crate) to: Option<Target>,
    /// Encoding of trits with `--to trike` [default: base3]
    #[arg(long, value_parser = one_of(ENCODINGS))]
    pub(crate) encoding: Option<Encoding>,
    /// With `--to trike`: matrices in the memory layout of the CPU kernels, mapped at start instead of repacked
    #[arg(long)]
    pub(crate) packed: bool,
    /// Embedding and output head: as stored, rounded to int8 in groups of 32 (GGUF's q8_0), or rounded to f16
    #[arg(long, default_value = "stored", value_parser = one_of(EMBEDDINGS))]
    pub(crate) embeddings: EmbeddingStorage,
    /// Scales of trits: as stored, or rounded to f16, as GGUF requires for models written by `trike train`. This and --embeddings
    /// are the only lossy options
    #[arg(long, default_value = "stored", value_parser = one_of(SCALES))]
    pub(crate) scales: ScaleStorage,
    /// Fail if anything would be left out (a tokenizer, a template), instead of printing a note
    #[arg(long)]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) tokenizer: TokenizerArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// Measure the perplexity of a text
///
/// Prints perplexity, nats per token and bits per byte; with --base, also the KL divergence from another model, and for sequences of
/// more than 512 tokens both by position.
#[derive(Args, Debug)]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    #[command(flatten)]
    pub(crate) tokenizer: TokenizerArg,
    /// UTF-8 text file
    #[arg(short, long)]
    pub(crate) file: PathBuf,
    /// How the text is split into sequences [default: stories if the text contains `<|endoftext|>`, else window]
    ///
    /// stories (separated by `<|endoftext|>`), lines, windows of the context length, or the second halves of such windows, as
    /// llama-perplexity scores them (llama.cpp).
    #[arg(long, value_parser = one_of(SPLITS))]
    pub(crate) split: Option<Split>,
    /// Maximum number of sequences
    #[arg(long, value_name = "N", alias = "chunks")]
    pub(crate) limit: Option<usize>,
    /// Longest sequence, in tokens; 512 is llama-perplexity's default [default: the model's context length]
    #[arg(short, long, value_name = "TOKENS", alias = "ctx-size")]
    pub(crate) context: Option<usize>,
    /// Base model for the KL divergence
    ///
    /// It is computed with f32 activations, and must have the same vocabulary.
    #[arg(long, value_name = "MODEL")]
    pub(crate) base: Option<PathBuf>,
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

/// Write the logits of token ids to a .npy file
#[derive(Args, Debug)]
pub(crate) struct LogitsArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    /// Token ids, separated by commas
    #[arg(long, required = true, value_delimiter = ',')]
    pub(crate) ids: Vec<u32>,
    /// Output file: f32, shape [ids, vocabulary]; overwritten if it exists
    #[arg(short, long)]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) precision: PrecisionArgs,
    #[command(flatten)]
    pub(crate) cpu: CpuArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// Measure tokens per second, compared with the machine's peaks
///
/// Prints medians over the repetitions, as fractions of the memory bandwidth and the int8 peak measured in the same run with the
/// same threads. On a GPU it prints speeds and peak memory.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    /// Synthetic model of random trits instead of a real one
    #[arg(long, conflicts_with_all = ["model", "name"], value_parser = one_of(SIZES))]
    pub(crate) synthetic: Option<Synthetic>,
    /// Stored encoding of the synthetic model
    #[arg(
        long,
        requires = "synthetic",
        // clap waives `requires` if the required argument conflicts with a given one.
        conflicts_with_all = ["model", "name"],
        default_value = "2bit",
        value_parser = one_of(ENCODINGS)
    )]
    pub(crate) encoding: Encoding,
    /// Weights per scale of the synthetic model along a row
    #[arg(
        short,
        long,
        requires = "synthetic",
        conflicts_with_all = ["model", "name"],
        default_value = "row",
        value_parser = one_of(GROUPS)
    )]
    pub(crate) group: Granularity,
    /// Prompt tokens; 0 = skip prefill [default: 512, or the context length if shorter]
    #[arg(short, long, value_name = "N", alias = "n-prompt")]
    pub(crate) prompt: Option<usize>,
    /// Generated tokens; 0 = skip decode
    #[arg(short = 'n', long, default_value_t = 32, value_name = "N", alias = "n-gen")]
    pub(crate) generate: usize,
    /// Positions in the KV cache before the measured tokens, comma-separated
    ///
    /// On the CPU they are filled with random values, on a GPU by a prompt; a synthetic model's context grows as needed.
    #[arg(
        short,
        long,
        visible_alias = "position",
        alias = "n-depth",
        default_value = "0",
        value_delimiter = ',',
        value_name = "N"
    )]
    pub(crate) depth: Vec<usize>,
    /// Numbers of sequences to decode together, comma-separated
    ///
    /// Such as 1,4,16. Tokens/s are those of all sequences.
    #[arg(long, default_value = "1", value_delimiter = ',', value_name = "N")]
    pub(crate) sequences: Vec<usize>,
    /// Numbers of threads, comma-separated; 0 = one per physical core
    #[arg(
        short,
        long,
        default_value = "0",
        value_delimiter = ',',
        env = "TRIKE_THREADS",
        hide_env_values = true,
        value_name = "N",
        value_parser = threads()
    )]
    pub(crate) threads: Vec<usize>,
    /// Instruction set: scalar, sse4.1, avx2, avx-vnni or avx512-vnni; peaks are those of the same one [default: the best
    /// available]
    #[arg(long, env = "TRIKE_ISA", hide_env_values = true, value_parser = Isa::by_name)]
    pub(crate) isa: Option<Isa>,
    /// First autotune the GPU kernels
    ///
    /// The kernels of the model's ternary layers are timed for the measured numbers of tokens, and the fastest are used in this and
    /// every later command on this device. The choices are stored in the user's cache. They can change the last bits of results with
    /// scales per group.
    #[arg(long)]
    pub(crate) tune: bool,
    /// Repetitions, after one warm-up
    #[arg(short, long, default_value_t = 3, value_name = "N")]
    pub(crate) repetitions: usize,
    /// Activations of ternary layers; auto = as the model was trained, else int8; int8 = one factor per token or, for weights with
    /// scales per group, one per group of the same size
    #[arg(
        long,
        default_value = "auto",
        env = "TRIKE_ACTIVATIONS",
        hide_env_values = true,
        value_parser = one_of(ACTIVATIONS)
    )]
    pub(crate) activations: ActivationChoice,
    /// Precision of the KV cache, as for `trike run`; a GPU that does not support it uses the next larger supported one
    #[arg(
        long,
        default_value = "f16",
        env = "TRIKE_KV",
        hide_env_values = true,
        value_name = "PRECISION",
        value_parser = kv
    )]
    pub(crate) kv: KvChoice,
    /// With `--kv auto`: bound on the KL divergence from the default precision, in nats per token [default: 0.002]
    #[arg(long, conflicts_with = "synthetic", value_name = "NATS", value_parser = kl)]
    pub(crate) kv_kl: Option<f64>,
    #[command(flatten)]
    pub(crate) keys: KeyArgs,
    /// In-memory layout of ternary weights; auto chooses the fastest per matrix. A matrix that does not support the layout stays
    /// two-bit
    #[arg(
        long,
        default_value = "auto",
        env = "TRIKE_LAYOUT",
        hide_env_values = true,
        value_parser = one_of(LAYOUTS)
    )]
    pub(crate) layout: LayoutChoice,
    #[command(flatten)]
    pub(crate) device: DeviceArg,
    /// Output format
    #[arg(short, long, default_value = "md", value_parser = ["md", "json"])]
    pub(crate) output: String,
    /// The same as `-o json`
    #[arg(long, conflicts_with = "output")]
    pub(crate) json: bool,
}

/// Show the machine's instruction sets, peaks and devices, and which of them Trike uses
///
/// Measuring the peaks takes a few seconds and 256 MiB.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) cpu: CpuArgs,
    /// Print all measured variants of the peaks
    #[arg(short, long)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// Explain an error or a symptom, offline
///
/// Prints a section of the handbook's page on troubleshooting. Without a topic it lists the topics. Errors name theirs.
#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    /// What to explain
    #[arg(value_parser = topic())]
    pub(crate) topic: Option<Topic>,
}

/// Storage of the output head in `trike quantize`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadStorage {
    Stored,
    Int8,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn names_are_parsed_to_their_values() {
        let parse = |words: &[&str]| Cli::try_parse_from(words.iter().copied());
        let cli = parse(&["trike", "bench", "--synthetic", "2b", "--encoding", "csr", "-t", "1,2"]).unwrap();
        let Command::Bench(bench) = cli.command else { panic!("bench was asked for") };
        assert_eq!(bench.synthetic, Some(Synthetic::B2));
        assert_eq!(bench.encoding, Encoding::RowCompressed);
        assert_eq!(bench.threads, [1, 2]);
        let error = parse(&["trike", "run", "-p", "", "--kv", "f8"]).unwrap_err();
        assert!(error.to_string().contains("`f8`: expected f32, f16, int8, int8-int4 or int4"), "{error}");
        assert!(parse(&["trike", "doctor", "--threads", "5000"]).is_err());
        assert!(parse(&["trike", "bench", "--encoding", "csr"]).is_err(), "nothing to encode");
    }
}

/// Print a completion script for a shell
///
/// For example `trike completions bash > ~/.local/share/bash-completion/completions/trike`.
#[derive(Args, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// Write the manual pages
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// Directory for trike.1 and a page for each command; created if missing
    pub(crate) dir: PathBuf,
}
