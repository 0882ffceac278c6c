//! What a user can say.

mod edit;
mod eval;
mod names;
mod quantize;

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, builder::FalseyValueParser};
use trike::{
    ActivationPrecision, DeviceChoice, Encoding, HeadPrecision, Isa, KvPrecision, Split, Target,
    core::Layout, llm::Synthetic,
};

pub(crate) use edit::EditArgs;
pub(crate) use eval::EvalArgs;
use names::{
    ACTIVATIONS, EMBEDDINGS, ENCODINGS, HEADS, KV, LAYOUTS, SIZES, SPLITS, TARGETS, one_of, threads,
};
pub(crate) use names::{activations_name, kv_name, split_name};
pub(crate) use quantize::{BudgetArgs, Method, Packing, QuantizeArgs};

/// Run, make, inspect, convert and measure ternary language models
///
/// MODEL is a HuggingFace or Trike directory, a GGUF file or a llama2.c checkpoint. Exit codes: 0 done, 1 failed,
/// 2 wrong usage, 130 interrupted.
#[derive(Debug, Parser)]
#[command(name = "trike", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// No progress and no closing line on stderr
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

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(RunArgs),
    Chat(ChatArgs),
    Inspect(InspectArgs),
    Convert(ConvertArgs),
    Quantize(QuantizeArgs),
    Edit(EditArgs),
    Perplexity(PerplexityArgs),
    Eval(EvalArgs),
    Logits(LogitsArgs),
    Bench(BenchArgs),
    Doctor(DoctorArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Which model.
#[derive(Args, Debug)]
pub(crate) struct ModelArg {
    /// Model directory or file, or org/name[@revision][:file] on the HuggingFace hub; the model that comes with
    /// Trike when left out
    #[arg(short, long, env = "TRIKE_MODEL", hide_env_values = true)]
    pub(crate) model: Option<PathBuf>,
}

/// Which tokenizer.
#[derive(Args, Debug)]
pub(crate) struct TokenizerArg {
    /// Tokenizer file (tokenizer.json, SentencePiece .model, llama2.c .bin) in place of the model's own
    #[arg(long, env = "TRIKE_TOKENIZER", hide_env_values = true)]
    pub(crate) tokenizer: Option<PathBuf>,
}

/// How to show a result.
#[derive(Args, Debug)]
pub(crate) struct JsonArg {
    /// Print one JSON object in place of text
    #[arg(long)]
    pub(crate) json: bool,
}

/// What computes.
#[derive(Args, Debug)]
pub(crate) struct CpuArgs {
    /// Threads; 0 for one a processor
    #[arg(
        long,
        default_value_t = 0,
        env = "TRIKE_THREADS",
        hide_env_values = true,
        value_parser = threads()
    )]
    pub(crate) threads: usize,
    /// Instruction set, scalar, avx2 or avx512-vnni, in place of the best that this machine has
    #[arg(long, env = "TRIKE_ISA", hide_env_values = true, value_parser = Isa::by_name)]
    pub(crate) isa: Option<Isa>,
}

/// Where.
#[derive(Args, Debug)]
pub(crate) struct DeviceArg {
    /// Where to run: cpu, auto (the first GPU that is not a software driver, else cpu), or wgpu, vulkan, cuda, hip or metal
    /// with a number, as far as the build has them; `trike doctor` lists what there is
    #[arg(long, default_value = "cpu", env = "TRIKE_DEVICE", hide_env_values = true, value_name = "NAME")]
    pub(crate) device: DeviceChoice,
}

/// In which numbers.
#[derive(Args, Debug)]
pub(crate) struct PrecisionArgs {
    /// Activations of ternary layers [default: those that the model was trained with, f32 for most]
    #[arg(long, env = "TRIKE_ACTIVATIONS", hide_env_values = true, value_parser = one_of(ACTIVATIONS))]
    pub(crate) activations: Option<ActivationPrecision>,
    /// Output head: as stored, int8, or int8 only for a ternary model whose head is stored in floats (auto)
    /// [default: auto; stored for `logits`]
    #[arg(long, env = "TRIKE_HEAD", hide_env_values = true, value_parser = one_of(HEADS))]
    pub(crate) head: Option<HeadPrecision>,
    /// Cached keys and values [default: f32 for a model with f32 weights and for `logits`, else f16]
    #[arg(long, env = "TRIKE_KV", hide_env_values = true, value_parser = one_of(KV))]
    pub(crate) kv: Option<KvPrecision>,
    /// Memory layout of ternary weights, for those that the kernels have in it; auto chooses the fastest per weight
    #[arg(
        long,
        default_value = "auto",
        env = "TRIKE_LAYOUT",
        hide_env_values = true,
        value_parser = one_of(LAYOUTS)
    )]
    pub(crate) layout: LayoutChoice,
}

/// A layout of ternary weights, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayoutChoice(pub(crate) Option<Layout>);

/// Continue a prompt
///
/// The prompt and its continuation go to stdout as they come and nothing else does; the speed goes to stderr.
/// Ctrl-C stops after the current token.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    #[command(flatten)]
    pub(crate) tokenizer: TokenizerArg,
    /// Text to continue; may be empty
    #[arg(short, long, allow_hyphen_values = true)]
    pub(crate) prompt: String,
    /// Most tokens to generate; until the text or the context ends when left out
    #[arg(short = 'n', long, env = "TRIKE_MAX_TOKENS", hide_env_values = true)]
    pub(crate) max_tokens: Option<usize>,
    /// Rolling window of so many tokens: each token sees only these, and the text may outgrow the context
    #[arg(long, env = "TRIKE_WINDOW", hide_env_values = true)]
    pub(crate) window: Option<usize>,
    /// End the text before this string; may be repeated
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
    #[command(flatten)]
    pub(crate) precision: PrecisionArgs,
    #[command(flatten)]
    pub(crate) cpu: CpuArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
    // Last, because its heading holds for all that follow.
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

/// Talk to a model
///
/// Reads a message a line from stdin and answers on stdout, with the chat template that comes with the model. When
/// the conversation outgrows the context its oldest turns are dropped, with a notice. `/clear` starts over, `/exit`
/// or the end of stdin ends. Ctrl-C stops an answer, and ends the command while it waits for a message.
#[derive(Args, Debug)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    #[command(flatten)]
    pub(crate) tokenizer: TokenizerArg,
    /// What the model is told before the first message
    #[arg(long, env = "TRIKE_SYSTEM", hide_env_values = true)]
    pub(crate) system: Option<String>,
    /// Chat template in Jinja, in place of the model's own
    #[arg(long, env = "TRIKE_CHAT_TEMPLATE", hide_env_values = true)]
    pub(crate) chat_template: Option<PathBuf>,
    /// Most tokens of an answer; the conversation is trimmed to leave room for them
    #[arg(short = 'n', long, default_value_t = 512, env = "TRIKE_MAX_TOKENS", hide_env_values = true)]
    pub(crate) max_tokens: usize,
    /// End an answer before this string; may be repeated
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
    #[command(flatten)]
    pub(crate) precision: PrecisionArgs,
    #[command(flatten)]
    pub(crate) cpu: CpuArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArg,
    // Last, because its heading holds for all that follow.
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}

/// How tokens are chosen. What is left out comes from the model's `generation_config.json`.
#[derive(Args, Debug)]
#[command(next_help_heading = "Sampling (what is left out comes from the model's generation_config.json)")]
pub(crate) struct SamplingArgs {
    /// 0 takes the best token always [default: 1 when another option of this group samples, else 0]
    #[arg(long, env = "TRIKE_TEMPERATURE", hide_env_values = true, allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Choose among this many best tokens
    #[arg(long, env = "TRIKE_TOP_K", hide_env_values = true, allow_negative_numbers = true)]
    pub(crate) top_k: Option<usize>,
    /// Choose among the best tokens that together reach this probability
    #[arg(long, env = "TRIKE_TOP_P", hide_env_values = true, allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Choose among tokens with at least this share of the best one's probability
    #[arg(long, env = "TRIKE_MIN_P", hide_env_values = true, allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Divides the logits of the last 64 tokens; 1 leaves them
    #[arg(long, env = "TRIKE_REPETITION_PENALTY", hide_env_values = true, allow_negative_numbers = true)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Where chance starts; a new one each time when left out, shown at the end
    #[arg(long, env = "TRIKE_SEED", hide_env_values = true)]
    pub(crate) seed: Option<u64>,
}

/// Show a model's architecture and every tensor's encoding, size, zeros and scales
///
/// Every tensor is loaded once. A model that Trike cannot run is shown too, with the reason.
#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    /// Model directory or file
    pub(crate) model: PathBuf,
    /// Show what the model takes on a GPU instead: weights, keys and values of one sequence over the context, activations
    #[arg(long)]
    pub(crate) memory: bool,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// Convert a model to another format without changing a value
///
/// A dense matrix becomes trits only where each of its values is one scale times -1, 0 or 1. What cannot be held
/// exactly is refused.
#[derive(Args, Debug)]
pub(crate) struct ConvertArgs {
    /// Model directory or file to read
    pub(crate) input: PathBuf,
    /// What to write; must not exist. tq1_0, tq2_0 and q2_0 take a path that ends in .gguf, trike a directory, f16
    /// either
    pub(crate) output: PathBuf,
    /// Format of the result
    #[arg(long, value_parser = one_of(TARGETS))]
    pub(crate) to: Target,
    /// How `--to trike` packs trits [default: base3]
    #[arg(long, value_parser = one_of(ENCODINGS))]
    pub(crate) encoding: Option<Encoding>,
    /// Embedding and output head: as stored, or rounded to int8 in groups of 32, the one change of values there is
    #[arg(long, default_value = "stored", value_parser = one_of(EMBEDDINGS))]
    pub(crate) embeddings: Embeddings,
    #[command(flatten)]
    pub(crate) tokenizer: TokenizerArg,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// Measure how well a model predicts a text
///
/// Perplexity, nats a token and bits a byte; with --base, the divergence from another model as well.
#[derive(Args, Debug)]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    #[command(flatten)]
    pub(crate) tokenizer: TokenizerArg,
    /// UTF-8 text
    #[arg(short, long)]
    pub(crate) file: PathBuf,
    /// Sequences: stories between `<|endoftext|>`, lines, windows of the context over the whole text, or the second
    /// halves of such windows as llama-perplexity scores them (llama.cpp) [default: stories where the text has `<|endoftext|>`, else window]
    #[arg(long, value_parser = one_of(SPLITS))]
    pub(crate) split: Option<Split>,
    /// Most sequences to score
    #[arg(long)]
    pub(crate) limit: Option<usize>,
    /// Model to compare with, which must have the same vocabulary
    #[arg(long)]
    pub(crate) base: Option<PathBuf>,
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
    /// File to write, f32 of shape [ids, vocabulary]; replaced when it exists
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

/// Measure tokens per second against what this machine can do
///
/// Medians over the repetitions. The shares are of the bandwidth and the int8 peak that the same run measured with
/// the same threads. On a GPU there are the speeds and the most memory that was used.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    // Without `env`, which would make a set variable conflict with `--synthetic`; the command reads it.
    /// Model directory or file; the model that comes with Trike when left out [env: TRIKE_MODEL]
    #[arg(short, long)]
    pub(crate) model: Option<PathBuf>,
    /// A model of random trits in place of a real one
    #[arg(long, conflicts_with = "model", value_parser = one_of(SIZES))]
    pub(crate) synthetic: Option<Synthetic>,
    /// How the random trits are stored before they are packed for the kernels
    #[arg(
        long,
        requires = "synthetic",
        // A requirement that conflicts with something given is waived.
        conflicts_with = "model",
        default_value = "2bit",
        value_parser = one_of(ENCODINGS)
    )]
    pub(crate) encoding: Encoding,
    /// Tokens of the prompt; 0 leaves prefill out [default: 512, or the context where that is shorter]
    #[arg(short, long)]
    pub(crate) prompt: Option<usize>,
    /// Tokens generated one by one; 0 leaves decode out
    #[arg(short = 'n', long, default_value_t = 32)]
    pub(crate) generate: usize,
    /// Numbers of threads, separated by commas; 0 for one a processor
    #[arg(
        short,
        long,
        default_value = "0",
        value_delimiter = ',',
        env = "TRIKE_THREADS",
        hide_env_values = true,
        value_parser = threads()
    )]
    pub(crate) threads: Vec<usize>,
    /// Repetitions, after one that is not counted
    #[arg(short, long, default_value_t = 3)]
    pub(crate) repetitions: usize,
    /// Activations of ternary layers [default: those that the model was trained with, f32 for most]
    #[arg(long, env = "TRIKE_ACTIVATIONS", hide_env_values = true, value_parser = one_of(ACTIVATIONS))]
    pub(crate) activations: Option<ActivationPrecision>,
    /// Cached keys and values
    #[arg(
        long,
        default_value = "f16",
        env = "TRIKE_KV",
        hide_env_values = true,
        value_parser = one_of(KV)
    )]
    pub(crate) kv: KvPrecision,
    /// Memory layout of ternary weights, for those that the kernels have in it; auto chooses the fastest per weight
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
    /// How to print the result
    #[arg(short, long, default_value = "md", value_parser = ["md", "json"])]
    pub(crate) output: String,
    /// The same as `-o json`
    #[arg(long, conflicts_with = "output")]
    pub(crate) json: bool,
}

/// Show what this machine offers and how Trike uses it
///
/// The ceilings are measured, which takes a few seconds and 256 MiB.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) cpu: CpuArgs,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}

/// How `trike convert` writes the embedding and the output head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Embeddings {
    Stored,
    Int8,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

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
        assert!(error.to_string().contains("[possible values: f32, f16]"), "{error}");
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
    /// Directory for trike.1 and a page for each command; made when it is not there
    pub(crate) dir: PathBuf,
}
