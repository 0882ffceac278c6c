//! `trike eval`.

use std::path::PathBuf;

use clap::Args;

use super::{CpuArgs, JsonArg, ModelArg, PrecisionArgs, TokenizerArg};

/// Let a model answer multiple-choice questions by likelihood
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
    #[arg(short, long, required = true, num_args = 1..)]
    pub(crate) tasks: Vec<PathBuf>,
    /// Most questions of each task
    #[arg(long)]
    pub(crate) limit: Option<usize>,
    #[command(flatten)]
    pub(crate) precision: PrecisionArgs,
    #[command(flatten)]
    pub(crate) cpu: CpuArgs,
    #[command(flatten)]
    pub(crate) json: JsonArg,
}
