//! `trike eval`.

use anyhow::Context;
use serde::Serialize;
use trike::{
    HeadPrecision, ModelFile,
    llm::{TaskScore, answer, read_questions},
};

use super::{load, text::read};
use crate::{args::EvalArgs, progress::Progress};

/// How a model did on some tasks. The field names are the schema of `trike eval --json`.
#[derive(Debug, Serialize)]
pub(crate) struct EvalOutcome {
    pub(crate) model: String,
    pub(crate) tasks: Vec<TaskOutcome>,
}

/// One task.
#[derive(Debug, Serialize)]
pub(crate) struct TaskOutcome {
    pub(crate) file: String,
    #[serde(flatten)]
    pub(crate) score: TaskScore,
}

/// Answers the questions of every task.
pub(crate) fn eval(args: &EvalArgs, quiet: bool) -> anyhow::Result<EvalOutcome> {
    let path = args.model.path(quiet)?;
    let mut tasks = Vec::with_capacity(args.tasks.len());
    for file in &args.tasks {
        let mut questions = read_questions(file, &read(file)?)?;
        questions.truncate(args.limit.unwrap_or(usize::MAX));
        tasks.push((file, questions));
    }
    let precision = &args.precision;
    let model = load(
        &ModelFile::open(&path)?,
        &args.cpu.cpu()?,
        args.tokenizer.tokenizer.as_deref(),
        precision.activations,
        precision.head.unwrap_or(HeadPrecision::Auto),
        quiet,
    )?;
    let kv = precision.kv.unwrap_or(model.default_kv());
    let outcome = |(file, questions): (&std::path::PathBuf, Vec<_>)| {
        let name = file.display().to_string();
        let progress = Progress::start(format!("answering {name}"), quiet);
        let score = answer(&model, kv, &questions, &mut |done, total| progress.set(done, total));
        Ok(TaskOutcome { score: score.with_context(|| name.clone())?, file: name })
    };
    let tasks = tasks.into_iter().map(outcome).collect::<anyhow::Result<_>>()?;
    Ok(EvalOutcome { model: path.display().to_string(), tasks })
}
