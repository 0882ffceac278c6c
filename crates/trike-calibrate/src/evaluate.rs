//! What a model lost by becoming ternary, and the report's files.

use std::path::Path;

use trike_llm::{LanguageModel, LlmError, Model, ModelFile, ScoreOptions, Split, sequences};
use trike_nn::KvPrecision;

use crate::{CalibrateError, Evaluation, ModelQuantizationConfig, QuantizeReport, error::io};

/// The report's file in a directory.
const REPORT: &str = "report.json";
/// The same for readers.
const PAGE: &str = "report.html";
/// The plan's file in a directory.
const PLAN: &str = "plan.json";

impl QuantizeReport {
    /// Measures the dense and the ternary model on a text, which `name` describes, both with f32 activations and heads as stored,
    /// and keeps the result in the report. `progress` is called with the number of sequences done and to do.
    ///
    /// # Errors
    ///
    /// What loading either model and [`Model::compare`] say.
    pub fn evaluate(
        &mut self,
        name: &str,
        text: &str,
        split: Split,
        limit: Option<usize>,
        config: &ModelQuantizationConfig,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), CalibrateError> {
        let load = |path: &str| -> Result<LanguageModel, CalibrateError> {
            let file = ModelFile::open(path)?;
            Ok(LanguageModel::load_with(&file, &config.measured(&file)?, &mut |_, _| ())?)
        };
        let dense = load(&self.input)?;
        let ternary = load(&self.output)?;
        let options = ScoreOptions::new(split).with_limit(limit).with_kv(KvPrecision::F32);
        let comparison = ternary.compare(&dense, text, &options, progress)?;
        self.evaluation = Some(Evaluation::new(name.to_owned(), &comparison));
        Ok(())
    }

    /// Checks that [`evaluate`](Self::evaluate) will find something to measure in a text, before a model is made for it.
    ///
    /// # Errors
    ///
    /// [`LlmError::NothingToScore`], and what the tokenizer says.
    pub fn check_text(
        input: &ModelFile,
        text: &str,
        split: Split,
        config: &ModelQuantizationConfig,
    ) -> Result<(), CalibrateError> {
        let tokenizer = input.tokenizer(config.tokenizer.as_deref())?;
        let ids = sequences(&tokenizer, text, split, input.config().spec.context, None)?;
        if ids.iter().all(|ids| ids.len() < 2) {
            return Err(LlmError::NothingToScore.into());
        }
        Ok(())
    }

    /// Writes `report.json` and `report.html` into the model's directory, and `plan.json` where there is a plan.
    ///
    /// # Errors
    ///
    /// [`CalibrateError::Io`].
    pub fn save(&self) -> Result<(), CalibrateError> {
        let json = serde_json::to_vec_pretty(self).map_err(|e| io(Path::new(REPORT))(e.into()))?;
        let plan = self.planning.as_ref().map(|p| p.plan.to_json().into_bytes());
        let files = [(REPORT, Some(json)), (PAGE, Some(self.html().into_bytes())), (PLAN, plan)];
        for (name, content) in files {
            if let Some(content) = content {
                let path = Path::new(&self.output).join(name);
                std::fs::write(&path, content).map_err(io(&path))?;
            }
        }
        Ok(())
    }
}
