//! Quality loss of a ternary model, and the files of the report.

use std::{ops::ControlFlow, path::Path};

use trike_cpu::Cpu;
use trike_eval::{EvalError, ScoreOptions, compare_ids};
use trike_format::OutputFile;
use trike_llm::{
    GenerateOptions, HeadPrecision, LanguageModel, LlmError, ModelFile, Split, WeightSource, sequences,
    tokenizer::Tokenizer,
};
use trike_nn::{ActivationPrecision, CpuBackend, KvPrecision};

use crate::{
    CalibrateError, Evaluation, ModelQuantizationConfig, QuantizeReport, Sample, TextSource, Verdict,
    error::io,
    held_out::stand_in,
    report::{HeldOut, size},
};

/// File name of the report as JSON.
const REPORT: &str = "report.json";
/// File name of the report as HTML.
const PAGE: &str = "report.html";
/// File name of the plan.
const PLAN: &str = "plan.json";

/// Total size of both models in bytes above which they are not loaded without an explicit request.
const MOST_LOADED: u64 = 8_000_000_000;
/// Number of sample texts.
const SAMPLES: usize = 3;
/// Tokens of the prompt of a sample, unless its sequence is shorter than twice that.
const PROMPT: usize = 16;
/// Tokens of the continuation of a sample.
const CONTINUATION: usize = 48;

/// The dense and the ternary model.
struct Pair {
    dense: LanguageModel,
    ternary: LanguageModel,
}

impl QuantizeReport {
    /// Measures the dense and the ternary model on the text that [`hold_out`](ModelQuantizationConfig::hold_out) kept back, as
    /// [`evaluate`](Self::evaluate) does on any text. If there is no such text, or the two models take more than 8 GB, the reason
    /// is in [`not_measured`](Self::not_measured).
    ///
    /// # Errors
    ///
    /// Errors of loading and of running either model.
    pub fn evaluate_held_out(
        &mut self,
        config: &ModelQuantizationConfig,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), CalibrateError> {
        let bytes = self.input_bytes + self.output_bytes;
        match self.held {
            HeldOut::Off => return Ok(()),
            HeldOut::Missing(ref reason) => {
                self.not_measured = Some(reason.clone());
                return Ok(());
            }
            _ if bytes > MOST_LOADED => {
                self.not_measured = Some(format!(
                    "both models are loaded to be measured, and take {}, more than the {} that are loaded without being asked \
                     for; give an evaluation text to measure them anyway",
                    size(bytes),
                    size(MOST_LOADED)
                ));
                return Ok(());
            }
            HeldOut::Sequences { .. } | HeldOut::ToGenerate { .. } => (),
        }
        let pair = self.load(config)?;
        let (ids, source, searched) = match &self.held {
            HeldOut::Sequences { ids, source, searched } => (ids.clone(), *source, *searched),
            HeldOut::ToGenerate { seed } => (stand_in(&pair.dense, *seed)?, TextSource::Generated, false),
            HeldOut::Off | HeldOut::Missing(_) => return Ok(()),
        };
        if ids.is_empty() {
            self.not_measured = Some("no text is left to measure on".to_owned());
            return Ok(());
        }
        let name = match source {
            TextSource::Generated => "text that the dense model wrote itself",
            TextSource::HeldOut | TextSource::Given => "held-out calibration text",
        };
        let mut evaluation =
            pair.compare(name, &ids, Split::Stories, &mut |done, total| progress(done, total + SAMPLES))?;
        (evaluation.source, evaluation.searched) = (source, searched);
        self.measured(evaluation, &pair, &ids)?;
        progress(ids.len() + SAMPLES, ids.len() + SAMPLES);
        Ok(())
    }

    /// Measures the dense and the ternary model on a text, which is recorded under `name`, both with f32 activations
    /// and heads as stored, lets both continue the beginnings of the first sequences, and adds the results to the
    /// report. `progress` is called with the number of sequences done and in total.
    ///
    /// # Errors
    ///
    /// Errors of loading and of running either model, and [`EvalError::NothingToScore`].
    pub fn evaluate(
        &mut self,
        name: &str,
        text: &str,
        split: Split,
        limit: Option<usize>,
        config: &ModelQuantizationConfig,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), CalibrateError> {
        let pair = self.load(config)?;
        let ids = pair.sequences(text, split, limit)?;
        let evaluation = pair.compare(name, &ids, split, progress)?;
        self.measured(evaluation, &pair, &ids)
    }

    /// [`evaluate`](Self::evaluate) without sample texts.
    pub(crate) fn compare(
        &self,
        text: &str,
        split: Split,
        limit: Option<usize>,
        config: &ModelQuantizationConfig,
    ) -> Result<Evaluation, CalibrateError> {
        let pair = self.load(config)?;
        let ids = pair.sequences(text, split, limit)?;
        pair.compare("", &ids, split, &mut |_, _| ())
    }

    /// [`compare`](Self::compare) with other weights instead of the result's.
    pub(crate) fn compare_source(
        &self,
        source: &dyn WeightSource,
        text: &str,
        split: Split,
        limit: Option<usize>,
        config: &ModelQuantizationConfig,
    ) -> Result<Evaluation, CalibrateError> {
        let file = ModelFile::open(&self.input)?;
        let options = config.measured(&file)?;
        let dense = LanguageModel::load_with(&file, &options, &mut |_, _| ())?;
        let backend = CpuBackend::new(Cpu::new(config.threads)?, ActivationPrecision::F32);
        let tokenizer = dense.tokenizer()?.clone();
        let head = HeadPrecision::AsStored;
        let ternary = LanguageModel::from_source(backend, source, Some(tokenizer), head, &mut |_, _| ())?;
        let pair = Pair { dense, ternary };
        let ids = pair.sequences(text, split, limit)?;
        pair.compare("", &ids, split, &mut |_, _| ())
    }

    fn load(&self, config: &ModelQuantizationConfig) -> Result<Pair, CalibrateError> {
        let load = |path: &str| -> Result<LanguageModel, CalibrateError> {
            let file = ModelFile::open(path)?;
            Ok(LanguageModel::load_with(&file, &config.measured(&file)?, &mut |_, _| ())?)
        };
        Ok(Pair { dense: load(&self.input)?, ternary: load(&self.output)? })
    }

    /// Adds the measurement, the verdict that follows from it, and sample texts.
    fn measured(
        &mut self,
        evaluation: Evaluation,
        pair: &Pair,
        ids: &[Vec<u32>],
    ) -> Result<(), CalibrateError> {
        self.samples = pair.samples(ids)?;
        self.verdict = Some(Verdict::new(&evaluation, self.input_bytes, self.output_bytes));
        self.evaluation = Some(evaluation);
        self.not_measured = None;
        Ok(())
    }

    /// Checks before quantization that a text has at least one token for [`evaluate`](Self::evaluate) to score.
    ///
    /// # Errors
    ///
    /// [`EvalError::NothingToScore`], and errors of the tokenizer.
    pub fn check_text(
        input: &ModelFile,
        text: &str,
        split: Split,
        config: &ModelQuantizationConfig,
    ) -> Result<(), CalibrateError> {
        let tokenizer = input.tokenizer(config.tokenizer.as_deref())?;
        let ids = sequences(&tokenizer, text, split, input.config().spec.context, None)?;
        if ids.iter().all(|ids| ids.len() < 2) {
            return Err(EvalError::NothingToScore.into());
        }
        Ok(())
    }

    /// Writes `report.json` and `report.html` to the directory of the model, and `plan.json` if there is a plan.
    ///
    /// # Errors
    ///
    /// [`CalibrateError::Io`], and [`CalibrateError::Report`].
    pub fn save(&self) -> Result<(), CalibrateError> {
        let json = serde_json::to_vec_pretty(self).map_err(|e| io(Path::new(REPORT))(e.into()))?;
        let plan = self.planning.as_ref().map(|p| p.plan.to_json().into_bytes());
        let files = [(REPORT, Some(json)), (PAGE, Some(self.html()?.into_bytes())), (PLAN, plan)];
        for (name, content) in files {
            if let Some(content) = content {
                let path = Path::new(&self.output).join(name);
                OutputFile::replace(&path, content).map_err(io(&path))?;
            }
        }
        Ok(())
    }
}

/// Number of tokens of the prompt, from the beginning of a sequence to the end of a word if possible.
fn prompt_tokens(tokenizer: &Tokenizer, ids: &[u32]) -> Result<usize, LlmError> {
    let most = PROMPT.min(ids.len().div_ceil(2));
    for end in (most.div_ceil(2)..=most.min(ids.len() - 1)).rev() {
        let (prompt, longer) = (tokenizer.decode(&ids[..end])?, tokenizer.decode(&ids[..=end])?);
        if longer.strip_prefix(&prompt).is_some_and(|next| next.starts_with(char::is_whitespace)) {
            return Ok(end);
        }
    }
    Ok(most)
}

impl Pair {
    fn sequences(
        &self,
        text: &str,
        split: Split,
        limit: Option<usize>,
    ) -> Result<Vec<Vec<u32>>, CalibrateError> {
        let context = self.ternary.config().spec.context.min(self.dense.config().spec.context);
        Ok(sequences(self.ternary.tokenizer()?, text, split, context, limit)?)
    }

    fn compare(
        &self,
        name: &str,
        ids: &[Vec<u32>],
        split: Split,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Evaluation, CalibrateError> {
        let options = ScoreOptions::new(split).with_kv(KvPrecision::F32);
        let comparison = compare_ids(&self.ternary, &self.dense, ids, &options, progress)?;
        Ok(Evaluation::new(name.to_owned(), &comparison))
    }

    /// Greedy continuations of the beginnings of the first sequences.
    fn samples(&self, ids: &[Vec<u32>]) -> Result<Vec<Sample>, CalibrateError> {
        let tokenizer = self.dense.tokenizer()?;
        let options = GenerateOptions::default().with_max_tokens(CONTINUATION).with_kv(KvPrecision::F32);
        let mut samples = Vec::new();
        for ids in ids.iter().filter(|ids| ids.len() > 1).take(SAMPLES) {
            let prompt = &ids[..prompt_tokens(tokenizer, ids)?];
            let continued = |model: &LanguageModel| {
                let ends = tokenizer.eos();
                model.generate_ids(prompt.to_vec(), ends, &options, &mut |_: &str| ControlFlow::Continue(()))
            };
            let (dense, ternary) = (continued(&self.dense)?, continued(&self.ternary)?);
            let same = dense.ids.iter().zip(&ternary.ids).take_while(|(a, b)| a == b).count();
            let shown = prompt.strip_prefix(tokenizer.bos().as_slice()).unwrap_or(prompt);
            samples.push(Sample {
                prompt: tokenizer.decode(shown).map_err(LlmError::from)?,
                dense: dense.text,
                ternary: ternary.text,
                tokens: dense.ids.len().max(ternary.ids.len()),
                same_tokens: same,
            });
        }
        Ok(samples)
    }
}
