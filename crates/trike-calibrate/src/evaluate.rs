//! What a model lost by becoming ternary, and the report's files.

use std::path::Path;

use trike_cpu::Cpu;
use trike_llm::{
    HeadPrecision, LanguageModel, LlmError, LoadOptions, Model, ModelFile, ScoreOptions, Split, sequences,
};
use trike_nn::{ActivationPrecision, KvPrecision};

use crate::{CalibrateError, Evaluation, ModelQuantizationConfig, QuantizeReport, quantize::io};

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
        let cpu = Cpu::new(config.threads)?;
        let load = |path: &str| {
            let file = ModelFile::open(path)?;
            LanguageModel::load_with(&file, &measured_options(&file, config, &cpu)?, &mut |_, _| ())
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

/// How a model is loaded that is measured: with f32 activations and the head as stored, so that only its weights count.
pub(crate) fn measured_options(
    file: &ModelFile,
    config: &ModelQuantizationConfig,
    cpu: &Cpu,
) -> Result<LoadOptions, LlmError> {
    Ok(LoadOptions::default()
        .with_tokenizer(file.tokenizer(config.tokenizer.as_deref())?)
        .with_cpu(cpu.clone())
        .with_activations(ActivationPrecision::F32)
        .with_head(HeadPrecision::AsStored))
}
