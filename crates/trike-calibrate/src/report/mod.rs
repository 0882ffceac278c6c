//! Report on a quantized model.

pub(crate) mod alternatives;
mod html;
mod planning;
mod text;
mod verdict;

use serde::{Deserialize, Serialize};

use trike_eval::{Comparison, Score};

pub use alternatives::Alternative;
pub use planning::{Measured, Planning, Sensitivity, Trial};
pub use text::TextSource;
pub(crate) use text::{HeldOut, LONGEST_HELD};
pub(crate) use verdict::size;
pub use verdict::{Rating, Verdict};

/// Report on a quantized model. The field names are the schema of `report.json` and of `trike quantize --json`.
#[derive(Clone, Debug, Serialize)]
pub struct QuantizeReport {
    /// Version of Trike.
    pub version: &'static str,
    /// The command line, if the caller gave it with [`with_command`](Self::with_command).
    pub command: Option<String>,
    /// Date, if the caller gave it with [`with_date`](Self::with_date).
    pub date: Option<String>,
    /// Name of the model: `input`, or what the caller gave with [`with_model_name`](Self::with_model_name).
    pub model: String,
    /// Interpretation of the measured figures, if there are any.
    pub verdict: Option<Verdict>,
    /// Path of the input.
    pub input: String,
    /// Path of the output.
    pub output: String,
    /// Number of planes and their coupling.
    pub planes: String,
    /// Weights that share a scale.
    pub granularity: String,
    /// Quantization method.
    pub method: String,
    /// Number of sequences of the calibration text; 0 if none was needed.
    pub calibration_sequences: usize,
    /// Number of tokens of the calibration text.
    pub calibration_tokens: usize,
    /// Scales applied to inputs, in model order.
    pub salience: Vec<SalienceReport>,
    /// All linear layers of the blocks, in model order.
    pub layers: Vec<LayerReport>,
    /// Tuning results of blocks, with the index of the block.
    pub tuned_blocks: Vec<(usize, TuningReport)>,
    /// Tuning result of the whole model, if all blocks were tuned together.
    pub tuned_model: Option<TuningReport>,
    /// Recovery of the whole model on text of the dense model.
    #[serde(default)]
    pub recovered: Option<TuningReport>,
    /// Sums over all quantized layers.
    pub ternary: TernaryTotals,
    /// Bytes of the tensors read.
    pub input_bytes: u64,
    /// Bytes of the tensors written.
    pub output_bytes: u64,
    /// Bits per weight over all tensors written, including embeddings and norms.
    pub bits_per_weight: f64,
    /// Quality before and after, on held-out text or on the given one.
    pub evaluation: Option<Evaluation>,
    /// The reason why [`evaluate_held_out`](Self::evaluate_held_out) measured nothing.
    pub not_measured: Option<String>,
    /// The same prompts continued by both models.
    pub samples: Vec<Sample>,
    /// The nearest other settings and their sizes, by size; includes the model itself, unless layers differ.
    pub alternatives: Vec<Alternative>,
    /// How the precision of the layers was allocated, if a budget was given.
    pub planning: Option<Planning>,
    /// Other settings of the same model on the text of `evaluation`, if a curve was requested; includes the model
    /// itself.
    pub curve: Vec<CurvePoint>,
    /// Duration in seconds.
    pub seconds: f64,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// The options named on the page, if the caller set them with [`with_option_names`](Self::with_option_names).
    #[serde(skip)]
    pub(crate) options: Option<OptionNames>,
    /// Text held out from calibration.
    #[serde(skip)]
    pub(crate) held: HeldOut,
}

/// Command-line options for other models, named on the page: this crate has no options of its own.
#[derive(Clone, Copy, Debug)]
pub struct OptionNames {
    /// The options for these planes and this group size, `row` or the number of weights.
    pub setting: fn(planes: usize, group: &str) -> String,
    /// The options for a plan of the layers.
    pub plan: &'static str,
    /// The option that measures a curve, if there is one.
    pub curve: Option<&'static str>,
}

/// A prompt continued by both models with greedy decoding.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// The beginning of a sequence of the text of `evaluation`.
    pub prompt: String,
    /// Continuation by the dense model.
    pub dense: String,
    /// Continuation by the ternary model.
    pub ternary: String,
    /// Tokens of the longer continuation.
    pub tokens: usize,
    /// Number of tokens before the continuations differ.
    pub same_tokens: usize,
}

/// One point of the curve of quality over size.
#[derive(Clone, Debug, Serialize)]
pub struct CurvePoint {
    /// Name of the setting.
    pub setting: String,
    /// Bits per weight over the linear layers of the blocks.
    pub bits_per_weight: f64,
    /// Bytes of the model.
    pub bytes: u64,
    /// Ratio of the perplexity to that of the dense model.
    pub ratio: f64,
    /// Standard error of the ratio.
    pub ratio_error: f64,
    /// Kullback-Leibler divergence from the dense model, in nats per token.
    pub kl: f64,
}

/// Scales of the inputs shared by some layers.
#[derive(Clone, Debug, Serialize)]
pub struct SalienceReport {
    /// Index of the block.
    pub layer: usize,
    /// Name of the first of the layers.
    pub inputs_of: String,
    /// Inequality of the inputs: `n sum(m^2) / sum(m)^2` of the mean squares `m` of `n` inputs, 1 if all are equal.
    pub spread: f64,
    /// Exponent: an input's scale is its mean magnitude to this power; 0 if inputs are not scaled.
    pub alpha: f32,
    /// Ratio of the squared error of the layers' outputs to the squared outputs, summed over the layers, without
    /// scales.
    pub before: f64,
    /// [`before`](Self::before) with the best scales found.
    pub after: f64,
}

/// Effect of tuning on a block, or on the whole model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuningReport {
    /// Number of steps.
    pub steps: usize,
    /// Loss before, on held-out text if there is enough of it. For a block: the mean squared error of its output
    /// relative to the mean square of the output of the dense block, per token. For the whole model: the divergence
    /// from the dense model in nats per token.
    pub before: f64,
    /// Loss after: the smallest measured one if it is lower by more than two standard errors, else the loss before.
    pub after: f64,
    /// Standard error of the gain, `before - after`, over the held-out sequences; 0 if nothing was gained.
    pub gain_error: f64,
    /// Whether there was a gain. Otherwise the weights are unchanged.
    pub kept: bool,
    /// Learning rates, as a fraction of the configured ones: they are lowered when there is no gain, and a stage still without a
    /// gain ends early.
    pub rate: f64,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Report on one linear layer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LayerReport {
    /// Name of the layer.
    pub name: String,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// The reason why the layer was not quantized; all other fields then describe the input.
    pub kept: Option<String>,
    /// Storage: planes, granularity of scales and packing; `int8`; or the float type.
    pub stored: String,
    /// Bytes, including scales.
    pub bytes: u64,
    /// Bits per weight.
    pub bits_per_weight: f64,
    /// `||w - w_ternary|| / ||w||`.
    pub weight_error: Option<f64>,
    /// Relative error of the layer's outputs on the calibration text, with respect to its target; `None` for rounding,
    /// which has no target.
    pub output_error: Option<f64>,
    /// Fraction of zero trits.
    pub zeros: Option<f64>,
    /// Hessian damping used, as a fraction of the mean diagonal.
    pub damping: Option<f64>,
    /// Number of inputs that were zero for every token.
    pub dead_inputs: Option<usize>,
    /// Fraction of the inputs with outliers: the largest magnitude exceeds ten times the root mean square.
    pub outlier_inputs: Option<f64>,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Sums over the ternary layers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TernaryTotals {
    /// Number of layers.
    pub layers: usize,
    /// Number of weights.
    pub parameters: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Bits per weight.
    pub bits_per_weight: f64,
    /// Fraction of zero trits.
    pub zeros: f64,
}

/// The dense model and the ternary one on the same text, with f32 activations.
#[derive(Clone, Debug, Serialize)]
pub struct Evaluation {
    /// Name of the text.
    pub text: String,
    /// Source of the text.
    pub source: TextSource,
    /// Whether the precision of layers was chosen on this text, so that other text may lose more.
    pub searched: bool,
    /// Number of sequences scored.
    pub sequences: usize,
    /// Number of tokens scored.
    pub tokens: usize,
    /// Perplexity of the dense model.
    pub perplexity_before: f64,
    /// Perplexity of the ternary model.
    pub perplexity_after: f64,
    /// Ratio of the perplexity after to the perplexity before.
    pub ratio: f64,
    /// Standard error of the ratio; both models are evaluated on the same tokens.
    pub ratio_error: f64,
    /// Standard error of the mean negative log-likelihood of the ternary model, in nats, assuming independent tokens.
    pub nats_error: f64,
    /// Mean Kullback-Leibler divergence from the dense model, in nats per token.
    pub kl: f64,
    /// Standard error of `kl`.
    pub kl_error: f64,
    /// Fraction of tokens for which both models have the same most probable token.
    pub top1_agreement: f64,
}

impl QuantizeReport {
    /// Adds the command line that made the model.
    #[must_use]
    pub fn with_command(self, command: impl Into<String>) -> Self {
        Self { command: Some(command.into()), ..self }
    }

    /// Adds the date.
    #[must_use]
    pub fn with_date(self, date: impl Into<String>) -> Self {
        Self { date: Some(date.into()), ..self }
    }

    /// Adds the options named on the page.
    #[must_use]
    pub fn with_option_names(self, options: OptionNames) -> Self {
        Self { options: Some(options), ..self }
    }

    /// Sets the name of the model.
    #[must_use]
    pub fn with_model_name(self, model: impl Into<String>) -> Self {
        Self { model: model.into(), ..self }
    }

    /// One sentence per part that tuning left unchanged, because it gained nothing on the held-out text; also included in the
    /// [`notes`](Self::notes).
    #[must_use]
    pub fn rejected(&self) -> Vec<String> {
        let lost: Vec<String> =
            self.tuned_blocks.iter().filter(|(_, of)| !of.kept).map(|(block, _)| block.to_string()).collect();
        let mut all = Vec::new();
        if !lost.is_empty() {
            all.push(format!(
                "tuning gained nothing in {} of {} blocks, which stay as they were: {}",
                lost.len(),
                self.tuned_blocks.len(),
                lost.join(", ")
            ));
        }
        let whole = [("tuning of the whole model", &self.tuned_model), ("the recovery", &self.recovered)];
        for (what, _) in whole.iter().filter(|(_, of)| of.is_some_and(|of| !of.kept)) {
            all.push(format!("{what} gained nothing on held-out text: the weights stay as they were"));
        }
        all
    }
}

impl Evaluation {
    pub(crate) fn new(text: String, comparison: &Comparison) -> Self {
        let Comparison { score: Score { perplexity, nats_error, tokens, sequences, .. }, base, .. } =
            comparison;
        let ratio = perplexity / base.perplexity;
        Self {
            text,
            source: TextSource::Given,
            searched: false,
            sequences: *sequences,
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
