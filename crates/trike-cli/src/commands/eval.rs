//! `trike eval`.

use anyhow::Context;
use serde::Serialize;
use trike::{
    ActivationPrecision, Device, ModelFile, ScoreOptions, Split,
    eval::{TaskScore, answer, read_questions},
};

use super::{
    kv::ChosenOutcome,
    load::load,
    needle::{NeedleOutcome, find},
    perplexity::{Against, Figures, measure},
    text::read,
};
use crate::{
    args::{self, EvalArgs},
    output,
    progress::Progress,
};

/// Results of a model on tasks and texts. The field names are the schema of `trike eval --json`.
#[derive(Debug, Serialize)]
pub(crate) struct EvalOutcome {
    pub(crate) model: String,
    /// Activation precisions of ternary layers; the base's are f32.
    pub(crate) activations: String,
    /// The choice of `--kv auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kv_chosen: Option<ChosenOutcome>,
    pub(crate) tasks: Vec<TaskOutcome>,
    /// The mean over the tasks, if there are several.
    pub(crate) mean: Option<TaskScore>,
    pub(crate) texts: Vec<TextOutcome>,
    /// Results of `--needle`.
    pub(crate) needle: Option<NeedleOutcome>,
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
    /// Comparison with the base model.
    #[serde(flatten)]
    pub(crate) against: Option<Against>,
}

/// Evaluates all tasks and scores all texts.
pub(crate) fn eval(args: &EvalArgs, quiet: bool) -> anyhow::Result<EvalOutcome> {
    if args.tasks.is_empty() && args.text.is_empty() && args.needle.is_none() {
        return Err(super::conflict(
            "nothing to evaluate: give task files with --tasks, texts with --text, or a text for needles with --needle",
        ));
    }
    let settings = args.kv.options(true)?;
    let has_texts = !args.text.is_empty() || args.needle.is_some();
    if !settings.prompt_keys.is_all() && !has_texts {
        return Err(super::conflict(
            "--prompt-keys: needs --text or --needle, since tasks are scored with attention to all keys",
        ));
    }
    if settings.limit.is_some() && !has_texts {
        return Err(super::conflict("--kv-limit: needs --text or --needle, since tasks are shorter"));
    }
    if !settings.keys.is_all() && !has_texts {
        return Err(super::conflict(
            "--keys signs: needs --text or --needle, since tasks are scored in prefill steps, which attend to all keys",
        ));
    }
    let request = args.precision.kv_request(true)?;
    let path = args.model.path(quiet)?;
    let mut tasks = Vec::with_capacity(args.tasks.len());
    for file in &args.tasks {
        let mut questions = read_questions(file, &read(file)?)?;
        questions.truncate(args.limit.unwrap_or(usize::MAX));
        tasks.push((file, questions));
    }
    let texts: Vec<_> =
        args.text.iter().map(|file| Ok((file, read(file)?))).collect::<anyhow::Result<_>>()?;
    let needles =
        args.needle.as_deref().map(|file| Ok::<_, anyhow::Error>((file, read(file)?))).transpose()?;
    let cpu = args.cpu.cpu()?;
    let file = ModelFile::open(&path)?;
    let tokenizer = file.tokenizer(args.tokenizer.tokenizer.as_deref())?;
    // Plan memory only for sequences as long as the questions and texts.
    let wanted = |file: &ModelFile| args.precision.options(file, &cpu).with_sequence(None);
    let own = wanted(&file).with_tokenizer(tokenizer);
    let known = request.known(&file, &own)?;
    let model = load(Device::cpu(), &file, &own, quiet)?;
    let kv = request.choose(known, &file, &own, &*model, quiet)?;
    let base = match &args.base {
        Some(base) => {
            let file = ModelFile::open(super::hub::resolve(base, quiet)?)?;
            // Activations of the reference are not rounded.
            let wanted = wanted(&file).with_activations(ActivationPrecision::F32);
            Some((base, load(Device::cpu(), &file, &wanted, quiet)?))
        }
        None => None,
    };
    let outcome = |(file, questions): (&std::path::PathBuf, Vec<_>)| {
        let name = file.display().to_string();
        let progress = Progress::start(format!("evaluating {name}"), quiet);
        let mut set = |done, total| progress.set(done, total);
        let score = answer(&*model, &questions, kv.precision, &mut set);
        Ok(TaskOutcome { score: score.with_context(|| name.clone())?, file: name })
    };
    let tasks = tasks.into_iter().map(outcome).collect::<anyhow::Result<Vec<_>>>()?;
    let scores: Vec<_> = tasks.iter().map(|task| task.score.clone()).collect();
    let mean = TaskScore::mean(&scores).filter(|_| scores.len() > 1);
    let settings = settings.with_precision(kv.precision);
    let base = base.as_ref().map(|(path, base)| (path.as_path(), &**base));
    let score = |(file, text): &(&std::path::PathBuf, String)| {
        let split = args.split.unwrap_or_else(|| Split::of(text));
        let options = ScoreOptions::new(split).with_limit(args.limit).with_kv(settings);
        let (figures, against) = measure(&*model, base, file, text, &options, quiet)?;
        let (file, split) = (file.display().to_string(), args::split_name(split));
        Ok(TextOutcome { file, split, figures, against })
    };
    let texts = texts.iter().map(score).collect::<anyhow::Result<_>>()?;
    let needle = match &needles {
        Some((file, text)) => Some(find(&*model, file, text, args, settings, quiet)?),
        None => None,
    };
    let activations = args::activations_name(&model.activations());
    let (model, kv_chosen) = (output::model_name(&path), kv.chosen);
    Ok(EvalOutcome { model, activations, kv_chosen, tasks, mean, texts, needle })
}
