//! Quality loss of a ternary model, and the files of the report.

use std::path::Path;

use trike_llm::{LanguageModel, LlmError, Model, ModelFile, ScoreOptions, Split, sequences};
use trike_nn::KvPrecision;

use crate::{CalibrateError, Evaluation, ModelQuantizationConfig, QuantizeReport, error::io};

/// File name of the report as JSON.
const REPORT: &str = "report.json";
/// File name of the report as HTML.
const PAGE: &str = "report.html";
/// File name of the plan.
const PLAN: &str = "plan.json";

impl QuantizeReport {
    /// Measures the dense and the ternary model on a text, which is recorded under `name`, both with f32 activations
    /// and heads as stored, and adds the result to the report. `progress` is called with the number of sequences done
    /// and in total.
    ///
    /// # Errors
    ///
    /// Errors of loading either model and of [`Model::compare`].
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

    /// Checks that a text has something for [`evaluate`](Self::evaluate) to score, before quantization.
    ///
    /// # Errors
    ///
    /// [`LlmError::NothingToScore`], and errors of the tokenizer.
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

    /// Writes `report.json` and `report.html` to the directory of the model, and `plan.json` if there is a plan.
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
