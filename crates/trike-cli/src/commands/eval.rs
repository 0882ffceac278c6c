//! `trike eval`.

use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use trike::{
    HeadPrecision, LanguageModel, ModelFile, Split,
    llm::{TaskScore, answer, read_questions},
};

use super::{
    load,
    perplexity::{Against, Figures, in_file},
    text::read,
};
use crate::{
    args::{self, EvalArgs},
    progress::Progress,
};

/// How a model did on some tasks and texts. The field names are the schema of `trike eval --json`.
#[derive(Debug, Serialize)]
pub(crate) struct EvalOutcome {
    pub(crate) model: String,
    pub(crate) tasks: Vec<TaskOutcome>,
    /// The mean over the tasks, where there are several.
    pub(crate) mean: Option<TaskScore>,
    pub(crate) texts: Vec<TextOutcome>,
}

/// One task.
#[derive(Debug, Serialize)]
pub(crate) struct TaskOutcome {
    pub(crate) file: String,
    #[serde(flatten)]
    pub(crate) score: TaskScore,
}

/// One text.
#[derive(Debug, Serialize)]
pub(crate) struct TextOutcome {
    pub(crate) file: String,
    pub(crate) split: &'static str,
    #[serde(flatten)]
    pub(crate) figures: Figures,
    /// Against another model.
    #[serde(flatten)]
    pub(crate) against: Option<Against>,
}

/// Answers the questions of every task and scores every text.
pub(crate) fn eval(args: &EvalArgs, quiet: bool) -> anyhow::Result<EvalOutcome> {
    let path = args.model.path(quiet)?;
    let mut tasks = Vec::with_capacity(args.tasks.len());
    for file in &args.tasks {
        let mut questions = read_questions(file, &read(file)?)?;
        questions.truncate(args.limit.unwrap_or(usize::MAX));
        tasks.push((file, questions));
    }
    let texts: Vec<_> =
        args.text.iter().map(|file| Ok((file, read(file)?))).collect::<anyhow::Result<_>>()?;
    let precision = &args.precision;
    let open = |path: &Path, tokenizer| {
        let file = ModelFile::open(path)?;
        let head = precision.head.unwrap_or(HeadPrecision::Auto);
        load(&file, &args.cpu.cpu()?, tokenizer, precision.activations, head, quiet)
    };
    let model = open(&path, args.tokenizer.tokenizer.as_deref())?;
    let base = match &args.base {
        Some(base) => Some((base, open(&super::hub::resolve(base, quiet)?, None)?)),
        None => None,
    };
    let kv = precision.kv.unwrap_or(model.default_kv());
    let outcome = |(file, questions): (&std::path::PathBuf, Vec<_>)| {
        let name = file.display().to_string();
        let progress = Progress::start(format!("answering {name}"), quiet);
        let score = answer(&model, kv, &questions, &mut |done, total| progress.set(done, total));
        Ok(TaskOutcome { score: score.with_context(|| name.clone())?, file: name })
    };
    let tasks = tasks.into_iter().map(outcome).collect::<anyhow::Result<Vec<_>>>()?;
    let scores: Vec<_> = tasks.iter().map(|task| task.score.clone()).collect();
    let mean = TaskScore::mean(&scores).filter(|_| scores.len() > 1);
    let base = base.as_ref().map(|(path, base)| (path.as_path(), base));
    let score = |(file, text): &(&std::path::PathBuf, String)| measure(args, &model, base, file, text, quiet);
    let texts = texts.iter().map(score).collect::<anyhow::Result<_>>()?;
    Ok(EvalOutcome { model: path.display().to_string(), tasks, mean, texts })
}

fn measure(
    args: &EvalArgs,
    model: &LanguageModel,
    base: Option<(&Path, &LanguageModel)>,
    file: &Path,
    text: &str,
    quiet: bool,
) -> anyhow::Result<TextOutcome> {
    let split =
        args.split.unwrap_or(if text.contains("<|endoftext|>") { Split::Stories } else { Split::Window });
    let kv = args.precision.kv.unwrap_or(model.default_kv());
    let progress = Progress::start(format!("scoring {}", file.display()), quiet);
    let mut set = |done, total| progress.set(done, total);
    let (score, against) = match base {
        None => {
            let score = trike::score(model, kv, text, split, args.limit, &mut set);
            (score.map_err(|e| in_file(e, file))?, None)
        }
        Some((path, base)) => {
            let base_kv = args.precision.kv.unwrap_or(base.default_kv());
            let all = trike::compare(model, kv, base, base_kv, text, split, args.limit, &mut set);
            let all = all.map_err(|e| in_file(e, file))?;
            let against = Against::new(path, &all);
            (all.score, Some(against))
        }
    };
    let (file, split) = (file.display().to_string(), args::split_name(split));
    Ok(TextOutcome { file, split, figures: score.into(), against })
}
