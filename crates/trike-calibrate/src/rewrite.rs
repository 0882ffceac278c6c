//! Rewriting before quantization: rotation of the residual stream, scales of inputs.

use trike_cpu::Cpu;
use trike_llm::{ModelFile, WeightSource};
use trike_nn::{ActivationPrecision, CpuBackend};

use crate::{
    CalibrateError, Fold, Folded, ModelQuantizationConfig, QuantizeMethod, SalienceReport, ScaledInputs,
    scaling::Search, streams::Blocks,
};

/// A model to be quantized, with the rewriting that was applied to it.
pub(crate) struct Prepared<'a> {
    /// The model that was read.
    pub(crate) original: &'a ModelFile,
    folded: Option<Folded<'a>>,
    pub(crate) salience: Vec<SalienceReport>,
    pub(crate) notes: Vec<String>,
}

impl<'a> Prepared<'a> {
    /// The model to be quantized.
    pub(crate) fn source(&self) -> &dyn WeightSource {
        match &self.folded {
            Some(folded) => folded,
            None => self.original,
        }
    }

    /// Applies the rewriting that `config` requests. `progress` is called with the number of linear layers done and in
    /// total.
    pub(crate) fn new(
        original: &'a ModelFile,
        config: &ModelQuantizationConfig,
        ids: &[Vec<u32>],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, CalibrateError> {
        let mut prepared = Self { original, folded: None, salience: Vec::new(), notes: Vec::new() };
        if config.rotation.is_none() && !searches(config) {
            return Ok(prepared);
        }
        let mut fold = Fold::default();
        if let Some(seed) = config.rotation {
            fold = fold.with_rotation(seed);
            let rotated = Folded::new(original, fold.clone())?;
            prepared.notes.push(rotation_note(&rotated, original));
            prepared.folded = Some(rotated);
        }
        if searches(config) {
            let backend = CpuBackend::new(Cpu::new(config.threads)?, ActivationPrecision::F32);
            let search = Search::new(config, Blocks::new(prepared.source(), &backend)?);
            let found = search.run(ids, progress)?;
            prepared.notes.extend(foreign_note(found.loss, original.config().spec.vocab));
            if !found.scales.is_empty() {
                for (layer, point, scales) in found.scales {
                    fold = fold.with_scales(layer, point, scales);
                }
                prepared.notes.push(salience_note(&found.reports));
                prepared.folded = Some(Folded::new(original, fold)?);
            }
            prepared.salience = found.reports;
        }
        Ok(prepared)
    }
}

/// Note on a rotation.
fn rotation_note(rotated: &dyn WeightSource, original: &dyn WeightSource) -> String {
    let hidden = rotated.config().spec.hidden;
    let block = 1usize << hidden.trailing_zeros();
    let apart = if rotated.config().spec.tied_head != original.config().spec.tied_head {
        "; the output head is no longer the embedding"
    } else {
        ""
    };
    format!("rotated the residual stream (width {hidden}) in blocks of {block}{apart}")
}

fn salience_note(reports: &[SalienceReport]) -> String {
    let scaled: Vec<_> = reports.iter().filter(|r| r.alpha > 0.0).collect();
    let ratios: f64 = scaled.iter().filter(|r| r.before > 0.0).map(|r| (r.after / r.before).ln()).sum();
    let mean = (ratios / scaled.len().max(1) as f64).exp();
    format!(
        "scaled the layer inputs at {} of {} places that were searched; output error changed there by a factor of {mean:.3}",
        scaled.len(),
        reports.len()
    )
}

/// Warning for calibration text with a loss above half of `ln(vocab)`: probably the wrong language or domain. For stories260K that
/// applies to German text (7.0 of 6.2 nats) and Shakespeare (4.3), but not to stories (1.6).
fn foreign_note(loss: f64, vocab: usize) -> Option<String> {
    let guess = (vocab as f64).ln();
    (loss > 0.5 * guess).then(|| {
        format!(
            "the dense model predicts the calibration text badly, at {loss:.1} nats per token (uniform guessing among its {vocab} \
             tokens: {guess:.1}): calibrate with text in the language and domain that the model was trained on"
        )
    })
}

/// Whether to search for scales of inputs. Rounding alone needs no text, so it requires an explicit request.
fn searches(config: &ModelQuantizationConfig) -> bool {
    match config.salience {
        ScaledInputs::None => false,
        ScaledInputs::Outliers => config.compensation().is_some(),
        ScaledInputs::All => true,
    }
}

/// Whether a configuration requires a calibration text.
pub(crate) fn needs_text(config: &ModelQuantizationConfig) -> bool {
    config.salience == ScaledInputs::All || matches!(config.method, QuantizeMethod::Compensate(_))
}
