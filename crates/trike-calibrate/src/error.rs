//! Errors of quantizing and editing a model.

use std::path::{Path, PathBuf};

use trike_core::OptionError;
use trike_nn::WeightName;

/// Error of quantizing or editing a model.
///
/// [`Option`](Self::Option), [`Config`](Self::Config), [`Edit`](Self::Edit), [`OutputExists`](Self::OutputExists) and
/// [`Budget`](Self::Budget) are errors of the request. The transparent variants carry the message of the layer below,
/// which contains the file or the tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// The model could not be loaded or run.
    #[error(transparent)]
    Llm(Box<trike_llm::LlmError>),
    /// The model could not be measured.
    #[error(transparent)]
    Eval(Box<trike_eval::EvalError>),
    /// The quantization needs more memory than is free.
    #[error("the quantization needs {needed} bytes of memory, but {limit} leaves {free}")]
    Memory {
        /// Bytes at the peak.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// The limiting resource.
        limit: &'static str,
    },
    /// Tuning needs more memory than the device has.
    #[error("tuning needs {needed} bytes of memory on the device, which has {free} available")]
    DeviceMemory {
        /// Bytes at the peak.
        needed: u64,
        /// Bytes that are available.
        free: u64,
    },
    /// A model file could not be read or written.
    #[error(transparent)]
    Format(Box<trike_format::FormatError>),
    /// Error of the decoder block, of its kernels or of a tensor.
    #[error(transparent)]
    Nn(#[from] trike_nn::NnError),
    /// Error of a tape.
    #[error(transparent)]
    Grad(#[from] trike_autodiff::GradError),
    /// The page of a report could not be made.
    #[error(transparent)]
    Report(#[from] trike_report::ReportError),
    /// An option is out of range.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// Options are incompatible with each other, the model or the text.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A fold does not fit the model.
    #[error(transparent)]
    Fold(#[from] FoldError),
    /// An edit is impossible.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// A weight could not be made ternary.
    #[error("{tensor}: {source}")]
    Quantize {
        /// The weight.
        tensor: String,
        /// The cause.
        source: Box<trike_quant::QuantError>,
    },
    /// The calibration text is too short.
    #[error(
        "the calibration text has {tokens} tokens in {sequences} sequences: expected at least {needed} tokens"
    )]
    CalibrationText {
        /// Sequences of two tokens or more.
        sequences: usize,
        /// Their total number of tokens.
        tokens: usize,
        /// Tokens needed.
        needed: usize,
    },
    /// A plan's file is malformed or does not fit the model.
    #[error("{}: `{key}`: expected {expected}, got {got}", path.display())]
    PlanFile {
        /// The file.
        path: PathBuf,
        /// The key, or the layer.
        key: String,
        /// Expected value.
        expected: &'static str,
        /// Actual value.
        got: String,
    },
    /// No choice of layers meets the budget.
    #[error("{asked} is not achievable; closest achievable: {closest}")]
    Budget {
        /// The budget.
        asked: String,
        /// The closest achievable budget.
        closest: String,
    },
    /// A size budget that the dense model already meets, so that no layer would become ternary.
    #[error(
        "{asked}: the dense model already meets that with {size}, so no layer would become ternary; ask for less"
    )]
    BudgetMet {
        /// The budget.
        asked: String,
        /// The size of the model.
        size: String,
    },
    /// Every layer is already ternary.
    #[error("{}: every layer is ternary already: quantize the dense model that it was made from", path.display())]
    AlreadyTernary {
        /// The model.
        path: PathBuf,
    },
    /// The output exists.
    #[error("{} exists: remove it or choose another output", path.display())]
    OutputExists {
        /// The output.
        path: PathBuf,
    },
    /// A directory at a path derived from the output contains files that were not written by an earlier run.
    #[error(
        "{} was not written by an earlier run: move it or choose another output (its name with .partial, .plan, .text and .curve appended must be free)",
        path.display()
    )]
    NotOurs {
        /// The directory.
        path: PathBuf,
    },
    /// A file that is not a model could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
}

/// Incompatible options of [`ModelQuantizationConfig`](crate::ModelQuantizationConfig) or
/// [`PlanOptions`](crate::PlanOptions), or options incompatible with the model or the text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Pruning and a rotation of inputs.
    #[error("prune with input_rotation: a zero of a rotated weight is not a zero weight; omit one of them")]
    PruneRotated,
    /// One scale per tensor with error compensation.
    #[error(
        "granularity: error compensation requires one scale per row or group, got one per tensor; or use rounding"
    )]
    TensorScale,
    /// A recovery of rounded weights.
    #[error("recover: rounding is not tuned, and so not recovered; use error compensation")]
    RecoverRounded,
    /// A recovery of a model whose codes do not fit in memory together.
    #[error("recover: expected at most {most} weights in the blocks, got {got}")]
    RecoverLarge {
        /// Number of weights.
        got: u64,
        /// Limit, [`Tuning::max_weights`](crate::Tuning::max_weights).
        most: u64,
    },
    /// A device for tuning where nothing is tuned: tuning off or without epochs, rounding, free planes, or only a plan.
    #[error("device {device}: it only tunes, and nothing is tuned; omit the device, or tune")]
    DeviceUntuned {
        /// The device.
        device: String,
    },
    /// Several devices for tuning.
    #[error("device: expected a single device, got {got}")]
    SeveralDevices {
        /// Number of devices.
        got: usize,
    },
    /// A skip pattern that is empty or only stars.
    #[error("skip pattern `{pattern}`: expected part of a layer's name; this one would skip every layer")]
    SkipsAll {
        /// The pattern.
        pattern: String,
    },
    /// The fraction of weights to prune.
    #[error("fraction to prune: expected at least 0 and below 1, got {got}")]
    PruneFraction {
        /// The given fraction.
        got: f64,
    },
    /// An N:M pattern that keeps nothing or everything.
    #[error("pattern to prune: expected at least one of several weights kept, got {keep}:{of}")]
    PrunePattern {
        /// Weights kept.
        keep: usize,
        /// Size of the group.
        of: usize,
    },
    /// Pruning with rounding.
    #[error("pruning requires error compensation, got rounding")]
    PruneRounded,
    /// Pruning with means.
    #[error("pruning needs groups with no mean: a zero trit would not be a zero weight")]
    PruneMeans,
    /// A budget with pruning.
    #[error("a budget cannot be combined with pruning: the plan does not measure the loss from pruning")]
    BudgetPruned,
    /// A budget with rounding.
    #[error("a budget requires error compensation, got rounding")]
    BudgetRounded,
    /// A plan without any granularity to choose from.
    #[error("a plan needs at least one group size to choose from, got none")]
    PlanGroups,
    /// A perplexity ratio that no quantized model achieves.
    #[error("perplexity ratio: expected a number above 1, got {got}; closest achievable: 1, the dense model")]
    PerplexityRatio {
        /// The given ratio.
        got: f64,
    },
    /// A text with a single sequence, so that none can be held out.
    #[error(
        "calibration text: expected at least two different sequences, one of them held out to check the budget, got {got}"
    )]
    NothingHeldOut {
        /// Number of sequences.
        got: usize,
    },
    /// A budget for a model without layers to quantize.
    #[error("a budget requires at least one dense layer that becomes ternary, got none")]
    NothingToPlan,
}

/// Error of a [`Fold`](crate::Fold) that does not fit a model.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FoldError {
    /// A ternary weight would have to be scaled or rotated.
    #[error(
        "{}: {tensor} is ternary: it can be neither scaled nor rotated; omit salience and rotation, or start from the dense model",
        path.display()
    )]
    Ternary {
        /// The model.
        path: PathBuf,
        /// The weight.
        tensor: WeightName,
    },
    /// Scales for a layer that the model does not have.
    #[error("scales of inputs for layer {layer}: the model has {layers} layers")]
    Layer {
        /// The layer, from 0.
        layer: usize,
        /// Number of layers of the model.
        layers: usize,
    },
    /// Too few or too many scales.
    #[error("scales of the inputs of {reader}: expected {expected}, got {got}")]
    Count {
        /// The first matrix with these inputs.
        reader: WeightName,
        /// Number of inputs.
        expected: usize,
        /// Number of scales.
        got: usize,
    },
    /// A scale that is not a positive finite number.
    #[error("scales of the inputs of {reader}: expected finite numbers above 0, got {got}")]
    Value {
        /// The first matrix with these inputs.
        reader: WeightName,
        /// The scale.
        got: f32,
    },
    /// Different scales for query heads that share a value head.
    #[error(
        "scales of the inputs of {reader}: heads that share a value head need the same scales, got different ones"
    )]
    Heads {
        /// The output projection.
        reader: WeightName,
    },
}

/// Error of an edit of a packed model.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// A weight value that is infinite or NaN.
    #[error("value {got}: expected a finite number")]
    Value {
        /// The given value.
        got: f32,
    },
    /// A file where the directory of a packed model is expected.
    #[error("{}: a file; edits change the directory of a packed model", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// A value for a weight of a matrix whose inputs are rotated.
    #[error(
        "a weight of a matrix with inputs rotated in blocks of {block} is a sum over its block: set trits instead of a value"
    )]
    Rotated {
        /// The block size.
        block: usize,
    },
    /// Wrong number of trits for a weight.
    #[error("expected {planes} trits, one per plane of the tensor, got {got}")]
    Trits {
        /// Number of planes of the tensor.
        planes: usize,
        /// Number of trits.
        got: usize,
    },
    /// An edit of a whole row of a tensor with means.
    #[error("a row of a tensor with means cannot be zeroed or negated: a zero trit is not a zero weight")]
    Means,
    /// The edit journal contains a value that is not a trit.
    #[error("edit journal: expected -1, 0 or 1, got {got}")]
    Journal {
        /// The value.
        got: i8,
    },
    /// More edits to undo than the journal has.
    #[error("cannot undo {asked} of {made} edits: expected at least 1 and at most the number of edits made")]
    Undo {
        /// Number of edits to undo.
        asked: usize,
        /// Number of edits in the journal.
        made: usize,
    },
    /// An edit that cannot be undone because the tensor has changed since.
    #[error("`{tensor}` was changed since by something else: the edit cannot be undone")]
    Changed {
        /// The tensor.
        tensor: String,
    },
    /// A tensor that is not ternary.
    #[error("`{tensor}` is {kind}: expected a ternary tensor")]
    NotTernary {
        /// The tensor.
        tensor: String,
        /// Its storage type.
        kind: String,
    },
    /// A weight that is not a ternary linear layer of a block.
    #[error("{weight}: expected a ternary linear layer of a block")]
    NotLinear {
        /// The weight.
        weight: WeightName,
    },
}

impl CalibrateError {
    /// Adds the tensor, or another context, to an error of quantization.
    pub(crate) fn quantize(tensor: impl ToString, source: trike_quant::QuantError) -> Self {
        Self::Quantize { tensor: tensor.to_string(), source: Box::new(source) }
    }
}

/// Adds the file to an I/O error.
pub(crate) fn io(path: &Path) -> impl Fn(std::io::Error) -> CalibrateError + '_ {
    move |source| CalibrateError::Io { path: path.to_owned(), source }
}

trike_nn::from_kernel_errors!(
    CalibrateError: trike_cpu::CpuError, trike_cpu::HostError, trike_format::TensorError, trike_trit::TritError
);

impl From<trike_llm::LlmError> for CalibrateError {
    fn from(error: trike_llm::LlmError) -> Self {
        // Boxed: several times larger than the other variants.
        Self::Llm(Box::new(error))
    }
}

impl From<trike_eval::EvalError> for CalibrateError {
    fn from(error: trike_eval::EvalError) -> Self {
        use trike_eval::EvalError;
        match error {
            EvalError::Llm(error) => error.into(),
            EvalError::Option(error) => error.into(),
            error => Self::Eval(Box::new(error)),
        }
    }
}

impl From<trike_format::FormatError> for CalibrateError {
    fn from(error: trike_format::FormatError) -> Self {
        Self::Format(Box::new(error))
    }
}
