//! The report on a quantized model.

mod html;
mod planning;

use serde::{Deserialize, Serialize};

use trike_llm::{Comparison, Score};

pub use planning::{Measured, Planning, Sensitivity, Trial};

/// A model made ternary. The field names are the schema of `report.json` and of `trike quantize --json`.
#[derive(Clone, Debug, Serialize)]
pub struct QuantizeReport {
    /// Path of the input.
    pub input: String,
    /// Path of the output.
    pub output: String,
    /// Number of planes and their coupling.
    pub planes: String,
    /// The weights that share a scale.
    pub granularity: String,
    /// The method of quantization.
    pub method: String,
    /// Sequences of the calibration text, 0 where none was needed.
    pub calibration_sequences: usize,
    /// Their tokens.
    pub calibration_tokens: usize,
    /// What inputs were scaled by before, in the order of the model.
    pub salience: Vec<SalienceReport>,
    /// Every linear layer of the blocks, in the order of the model.
    pub layers: Vec<LayerReport>,
    /// Of each block that was tuned, by its number.
    pub tuned_blocks: Vec<(usize, TuningReport)>,
    /// Of the model, where all blocks were tuned together.
    pub tuned_model: Option<TuningReport>,
    /// Sums over all of them that were made ternary.
    pub ternary: TernaryTotals,
    /// Bytes of the tensors read.
    pub input_bytes: u64,
    /// Bytes of the tensors written.
    pub output_bytes: u64,
    /// Bits per weight over all tensors written, embeddings and norms included.
    pub bits_per_weight: f64,
    /// Before and after, when a text to measure on was given.
    pub evaluation: Option<Evaluation>,
    /// How the layers' precision was allotted, where a budget was given.
    pub planning: Option<Planning>,
    /// Other settings of the same model on the text of `evaluation`, where a curve was asked for; the model itself is one of them.
    pub curve: Vec<CurvePoint>,
    /// Duration in seconds.
    pub seconds: f64,
    /// Notes for the user.
    pub notes: Vec<String>,
}

/// One point of the curve of size against quality.
#[derive(Clone, Debug, Serialize)]
pub struct CurvePoint {
    /// The setting.
    pub setting: String,
    /// Bits per weight over the linear layers of the blocks.
    pub bits_per_weight: f64,
    /// Bytes of the model.
    pub bytes: u64,
    /// Perplexity over the dense model's.
    pub ratio: f64,
    /// Divergence from the dense model, in nats per token.
    pub kl: f64,
}

/// The scales of the inputs that some layers share.
#[derive(Clone, Debug, Serialize)]
pub struct SalienceReport {
    /// The block.
    pub layer: usize,
    /// The first of the layers.
    pub inputs_of: String,
    /// An input's scale is its mean magnitude to this power; 0 where scales gained nothing.
    pub alpha: f32,
    /// The squared error of the layers' outputs over these outputs, summed over the layers, without scales.
    pub before: f64,
    /// The same with them.
    pub after: f64,
}

/// The effect of tuning on a block, or on the whole model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuningReport {
    /// Steps taken.
    pub steps: usize,
    /// Loss before, on text that was held out where there is enough of it: of a block the mean squared error of its output over
    /// the mean square of that of the dense block, token by token; of the model the divergence from the dense one in nats per token.
    pub before: f64,
    /// The same after; the result is kept only where it is lower.
    pub after: f64,
    /// Whether it was kept.
    pub kept: bool,
    /// Duration in seconds.
    pub seconds: f64,
}

/// One linear layer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LayerReport {
    /// Name.
    pub name: String,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Why it was not quantized; all further fields then describe the input.
    pub kept: Option<String>,
    /// How it is stored: planes, what shares a scale and packing; `int8`; or the type of floats.
    pub stored: String,
    /// Bytes, scales included.
    pub bytes: u64,
    /// Bits per weight.
    pub bits_per_weight: f64,
    /// `||w - w_ternary|| / ||w||`.
    pub weight_error: Option<f64>,
    /// The same for the layer's outputs on the calibration text, against what it aimed at; `None` for rounding, which has none.
    pub output_error: Option<f64>,
    /// Fraction of trits that are zero.
    pub zeros: Option<f64>,
    /// Hessian damping that was needed, as a fraction of the mean diagonal.
    pub damping: Option<f64>,
    /// Inputs that were zero for every token.
    pub dead_inputs: Option<usize>,
    /// Fraction of the inputs with outliers: their largest magnitude is over ten times their root mean square.
    pub outlier_inputs: Option<f64>,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Sums over the ternary layers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TernaryTotals {
    /// Layers.
    pub layers: usize,
    /// Their weights.
    pub parameters: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bits per weight.
    pub bits_per_weight: f64,
    /// Fraction of trits that are zero.
    pub zeros: f64,
}

/// The dense model and the ternary one on the same text, with f32 activations.
#[derive(Clone, Debug, Serialize)]
pub struct Evaluation {
    /// What the text was.
    pub text: String,
    /// Tokens scored.
    pub tokens: usize,
    /// Perplexity of the dense model.
    pub perplexity_before: f64,
    /// Perplexity of the ternary one.
    pub perplexity_after: f64,
    /// The second over the first.
    pub ratio: f64,
    /// Standard error of the ratio; both models see the same tokens.
    pub ratio_error: f64,
    /// Standard error of the mean negative log-likelihood of the ternary model, in nats, as if tokens were independent.
    pub nats_error: f64,
    /// Mean Kullback-Leibler divergence from the dense model, in nats per token.
    pub kl: f64,
    /// Its standard error.
    pub kl_error: f64,
    /// Fraction of tokens for which both models have the same best token.
    pub top1_agreement: f64,
}

impl Evaluation {
    pub(crate) fn new(text: String, comparison: &Comparison) -> Self {
        let Comparison { score: Score { perplexity, nats_error, tokens, .. }, base, .. } = comparison;
        let ratio = perplexity / base.perplexity;
        Self {
            text,
            tokens: *tokens,
            perplexity_before: base.perplexity,
            perplexity_after: *perplexity,
            ratio,
            ratio_error: ratio * comparison.gap_error,
            nats_error: *nats_error,
            kl: comparison.kl,
            kl_error: comparison.kl_error,
            top1_agreement: comparison.top1_agreement,
        }
    }
}

impl TernaryTotals {
    pub(crate) fn of(layers: &[LayerReport]) -> Self {
        let mut totals = Self::default();
        let mut zeros = 0.0;
        for layer in layers.iter().filter(|l| l.zeros.is_some()) {
            let weights = (layer.rows * layer.cols) as u64;
            totals.layers += 1;
            totals.parameters += weights;
            totals.bytes += layer.bytes;
            zeros += layer.zeros.unwrap_or(0.0) * weights as f64;
        }
        let parameters = totals.parameters.max(1) as f64;
        totals.bits_per_weight = 8.0 * totals.bytes as f64 / parameters;
        totals.zeros = zeros / parameters;
        totals
    }
}
