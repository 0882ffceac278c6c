//! `trike eval`.

use std::path::PathBuf;

use clap::Args;
use trike::Split;

use super::{
    CpuArgs, JsonArg, ModelArg, PrecisionArgs, TokenizerArg,
    names::{SPLITS, one_of},
};

/// Measure a model: multiple-choice tasks by likelihood, perplexity, divergence from another
///
/// Each line of a task is a JSON object: `context`, `choices`, `answer` (an index); or BLiMP (`sentence_good`,
/// `sentence_bad`), HellaSwag (`ctx`, `endings`, `label`), PIQA (`goal`, `sol1`, `sol2`, `label`), ARC (`question`,
/// `answerKey`). Shown are the share answered right by the likelihood of an option, and by that over its bytes, each with
/// its standard error, and the share that guessing gets right.
#[derive(Args, Debug)]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    pub(crate) model: ModelArg,
    #[command(flatten)]
    pub(crate) tokenizer: TokenizerArg,
    /// Tasks, one JSON object a line
    #[arg(short, long, required_unless_present = "text", num_args = 1..)]
    pub(crate) tasks: Vec<PathBuf>,
    /// UTF-8 texts to measure the perplexity on
    #[arg(long, num_args = 1..)]
    pub(crate) text: Vec<PathBuf>,
    /// Model whose divergence from this one is measured on the texts; must have the same vocabulary
    #[arg(long, requires = "text")]
    pub(crate) base: Option<PathBuf>,
    /// How texts are cut, as for `perplexity` [default: stories where the text has `<|endoftext|>`, else window]
    #[arg(long, requires = "text", value_parser = one_of(SPLITS))]
    pub(crate) split: Option<Split>,
    /// Most questions of each task, and sequences of each text
    #[arg(long)]
    pub(crate) limit: Option<usize>,
    #[command(flatten)]
    pub(crate) precision: PrecisionArgs,
    #[command(flatten)]
    pub(crate) cpu: CpuArgs,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}
