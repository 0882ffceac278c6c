//! Errors of quantizing and editing a model.

use std::path::{Path, PathBuf};

use trike_core::OptionError;
use trike_nn::WeightName;

/// Why a model could not be made ternary, or not be edited.
///
/// [`Option`](Self::Option), [`Config`](Self::Config), [`Edit`](Self::Edit), [`OutputExists`](Self::OutputExists) and [`Budget`](Self::Budget) are about the
/// request and can be met by another one. The transparent variants carry the message of the layer below, which names the file or the
/// tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// The model could not be loaded, run or measured.
    #[error(transparent)]
    Llm(Box<trike_llm::LlmError>),
    /// A model file could not be read or written.
    #[error(transparent)]
    Format(Box<trike_format::FormatError>),
    /// The numbers of a tensor do not make one.
    #[error(transparent)]
    Tensor(#[from] trike_format::TensorError),
    /// The decoder block refused.
    #[error(transparent)]
    Nn(#[from] trike_nn::NnError),
    /// The host kernels refused.
    #[error(transparent)]
    Cpu(#[from] trike_cpu::CpuError),
    /// No memory, no threads, or an instruction set that this machine does not have.
    #[error(transparent)]
    Host(#[from] trike_cpu::HostError),
    /// A ternary tensor refused.
    #[error(transparent)]
    Trit(#[from] trike_trit::TritError),
    /// An option is out of range.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// Options do not go together, or not with the model or the text.
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
        /// Why not.
        source: Box<trike_quant::QuantError>,
    },
    /// The calibration text is too short.
    #[error(
        "the calibration text has {tokens} tokens in {sequences} sequences: expected at least {needed} tokens"
    )]
    CalibrationText {
        /// Sequences of two tokens or more.
        sequences: usize,
        /// Their tokens.
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
        /// What was expected.
        expected: &'static str,
        /// What is there.
        got: String,
    },
    /// No choice of layers meets the budget.
    #[error("{asked} is not achievable; closest achievable: {closest}")]
    Budget {
        /// The budget.
        asked: String,
        /// The closest one that can be met.
        closest: String,
    },
    /// The output exists.
    #[error("{} exists: remove it or name another output", path.display())]
    OutputExists {
        /// The output.
        path: PathBuf,
    },
    /// A directory beside the output holds something that was not written by an earlier run.
    #[error(
        "{} was not written by an earlier run: move it away or name another output (names with .partial, .plan and .curve added to the output's must be free)",
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
        /// What the system said.
        source: std::io::Error,
    },
}

/// Options of [`ModelQuantizationConfig`](crate::ModelQuantizationConfig) or [`PlanOptions`](crate::PlanOptions) that do not go
/// together, or not with the model or the text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Pruning and a rotation of inputs.
    #[error(
        "prune with input_rotation: a zero of a rotated weight is not a zero weight; leave one of them out"
    )]
    PruneRotated,
    /// One scale per tensor with error compensation.
    #[error("granularity: error compensation needs one scale per row or group, got one per tensor; or round")]
    TensorScale,
    /// A skip pattern that is empty or only stars.
    #[error("skip pattern `{pattern}`: expected part of a layer's name; this one would skip every layer")]
    SkipsAll {
        /// The pattern.
        pattern: String,
    },
    /// The fraction of weights to prune.
    #[error("fraction to prune: expected at least 0 and below 1, got {got}")]
    PruneFraction {
        /// The fraction given.
        got: f64,
    },
    /// An N:M pattern that keeps nothing or everything.
    #[error("pattern to prune: expected at least one of several weights kept, got {keep}:{of}")]
    PrunePattern {
        /// Weights kept.
        keep: usize,
        /// Weights of which they are kept.
        of: usize,
    },
    /// Pruning with rounding.
    #[error("pruning is part of error compensation, and the method is rounding: compensate, or do not prune")]
    PruneRounded,
    /// Pruning with means.
    #[error("pruning needs groups with no mean: a zero trit would not be a zero weight")]
    PruneMeans,
    /// A budget with pruning.
    #[error("a budget does not go together with pruning: what pruning costs is not part of the plan")]
    BudgetPruned,
    /// A budget with rounding.
    #[error("a budget needs error compensation, and the method is rounding: the plan is measured with it")]
    BudgetRounded,
    /// A plan without any granularity to choose from.
    #[error("a plan needs at least one group size to choose from, got none")]
    PlanGroups,
    /// A perplexity ratio that no ternary model has.
    #[error("perplexity ratio: expected a number above 1, got {got}; closest achievable: 1, the dense model")]
    PerplexityRatio {
        /// The ratio given.
        got: f64,
    },
    /// A text of one sequence, none of which can be held out.
    #[error(
        "calibration text: expected at least two sequences, one of them held out to check the budget, got {got}"
    )]
    NothingHeldOut {
        /// Sequences.
        got: usize,
    },
    /// A budget for a model without a layer that becomes ternary.
    #[error("a budget needs a model with dense layers to plan for, and none of this one becomes ternary")]
    NothingToPlan,
}

/// Why a [`Fold`](crate::Fold) does not fit a model.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FoldError {
    /// A weight that would have to be scaled or rotated is ternary.
    #[error(
        "{}: {tensor} is ternary: it can be neither scaled nor rotated; leave out salience and rotation, or start from the dense model",
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
        /// Layers of the model.
        layers: usize,
    },
    /// Too few or too many scales.
    #[error("scales of the inputs of {reader}: expected {expected}, got {got}")]
    Count {
        /// The first matrix that reads the inputs.
        reader: WeightName,
        /// Inputs.
        expected: usize,
        /// Scales given.
        got: usize,
    },
    /// A scale that cannot be divided by.
    #[error("scales of the inputs of {reader}: expected finite numbers above 0, got {got}")]
    Value {
        /// The first matrix that reads the inputs.
        reader: WeightName,
        /// The scale.
        got: f32,
    },
    /// Scales that differ between query heads that share a value head.
    #[error(
        "scales of the inputs of {reader}: heads that share a value head need the same scales, got different ones"
    )]
    Heads {
        /// The output projection.
        reader: WeightName,
    },
}

/// Why a packed model cannot be edited as asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EditError {
    /// The value of a weight is infinite or not a number.
    #[error("value {got}: expected a finite number")]
    Value {
        /// The value given.
        got: f32,
    },
    /// A value for a weight of a matrix whose inputs are rotated.
    #[error(
        "a weight of a matrix with inputs rotated in blocks of {block} is a sum over its block: set trits instead of a value"
    )]
    Rotated {
        /// The block.
        block: usize,
    },
    /// Too few or too many trits for one weight.
    #[error("expected {planes} trits, one per plane of the tensor, got {got}")]
    Trits {
        /// Planes of the tensor.
        planes: usize,
        /// Trits given.
        got: usize,
    },
    /// A whole row of a tensor with means.
    #[error("a row of a tensor with means cannot be zeroed or negated: a zero trit is not a zero weight")]
    Means,
    /// The journal of edits holds a number that is not a trit.
    #[error("the journal of edits holds {got}: expected -1, 0 or 1")]
    Journal {
        /// The number.
        got: i8,
    },
    /// More edits to take back than were made.
    #[error("cannot take back {asked} of {made} edits: expected at least 1 and at most as many as were made")]
    Undo {
        /// Edits to take back.
        asked: usize,
        /// Edits in the journal.
        made: usize,
    },
    /// A tensor that is not ternary.
    #[error("`{tensor}` is {kind}: expected a ternary tensor")]
    NotTernary {
        /// The tensor.
        tensor: String,
        /// How it is stored.
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
    /// Names the tensor that could not be quantized, or what else an algorithm worked on.
    pub(crate) fn quantize(tensor: impl ToString, source: trike_quant::QuantError) -> Self {
        Self::Quantize { tensor: tensor.to_string(), source: Box::new(source) }
    }
}

/// Names the file that could not be read or written.
pub(crate) fn io(path: &Path) -> impl Fn(std::io::Error) -> CalibrateError + '_ {
    move |source| CalibrateError::Io { path: path.to_owned(), source }
}

impl From<trike_llm::LlmError> for CalibrateError {
    fn from(error: trike_llm::LlmError) -> Self {
        // It is several times as large as the others.
        Self::Llm(Box::new(error))
    }
}

impl From<trike_format::FormatError> for CalibrateError {
    fn from(error: trike_format::FormatError) -> Self {
        Self::Format(Box::new(error))
    }
}
