//! `trike eval`.

use std::path::PathBuf;

use clap::Args;
use trike::Split;

use super::{
    CpuArgs, JsonArg, KvArgs, ModelArg, PrecisionArgs, TokenizerArg,
    names::{SPLITS, one_of},
};

/// Evaluate a model on multiple-choice tasks and texts, and on needles in a long context
///
/// Each line of a task is a JSON object: `context` or `question` (MMLU), `choices`, `answer` (an index); or BLiMP
/// (`sentence_good`, `sentence_bad`), HellaSwag (`ctx`, `endings`, `label`), PIQA (`goal`, `sol1`, `sol2`, `label`), ARC (`question`,
/// `answerKey`). Prints the accuracy by likelihood, the accuracy by likelihood per byte, each with its standard error, and
/// the chance level.
///
/// With `--needle`, sentences of a text are hidden in other parts of it; the model has to continue their first halves. --kv and --keys
/// are compared with exact attention on the same prompts.
#[derive(Args, Debug)]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    #[command(flatten)]
    pub(crate) tokenizer: TokenizerArg,
    /// Task files, one JSON object per line
    #[arg(long, num_args = 1..)]
    pub(crate) tasks: Vec<PathBuf>,
    /// UTF-8 text files for perplexity
    #[arg(long, num_args = 1..)]
    pub(crate) text: Vec<PathBuf>,
    /// Base model for the KL divergence on the texts
    ///
    /// It is computed with f32 activations, and must have the same vocabulary.
    #[arg(long, value_name = "MODEL", requires = "text")]
    pub(crate) base: Option<PathBuf>,
    /// How texts are split into sequences, as for `perplexity` [default: stories if the text contains `<|endoftext|>`, else
    /// window]
    #[arg(long, requires = "text", value_parser = one_of(SPLITS))]
    pub(crate) split: Option<Split>,
    /// UTF-8 text file for needles, longer than the context
    #[arg(long, value_name = "FILE")]
    pub(crate) needle: Option<PathBuf>,
    /// With --needle: tokens of a prompt [default: the model's context length]
    #[arg(long, requires = "needle", value_name = "N")]
    pub(crate) context: Option<usize>,
    /// With --needle: RNG seed of the haystacks
    #[arg(long, requires = "needle", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Maximum number of questions, sequences and haystacks
    ///
    /// Questions per task, sequences per text, and haystacks for --needle, 16 by default.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    // Applies only to texts and the questions about needles, which are run token by token.
    #[command(flatten)]
    pub(crate) kv: KvArgs,
    #[command(flatten)]
    pub(crate) precision: PrecisionArgs,
    #[command(flatten)]
    pub(crate) cpu: CpuArgs,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}
