//! Quantization of a dense language model to ternary, one block at a time, and edits of single weights of a packed
//! model.
//!
//! Start from [`quantize()`]: it reads a [`ModelFile`](trike_llm::ModelFile), runs a calibration text through it and writes a
//! directory with ternary linear layers and a [`QuantizeReport`].
//!
//! Design decision: the dense model and the partially quantized model run side by side, so that each layer is fitted
//! to the inputs that it gets at inference. Only one block and the residual streams of the text are in memory, so a
//! model larger than memory can be quantized. The cost is two passes of the text through every block, and a block
//! cannot take the errors of later blocks into account. Tuning all blocks together afterwards requires all of them in
//! memory.
//!
//! * quantizing: [`quantize()`], [`ModelQuantizationConfig`], [`QuantizeMethod`], [`Compensation`], [`Calibration`], [`Tuning`],
//!   [`Pruning`]
//! * within a budget: [`quantize_to()`], [`plan_for()`], [`Budget`], [`PlanOptions`], [`Plan`], [`Sensitivity`]
//! * results: [`QuantizeReport`] and its parts: [`Verdict`], [`Evaluation`], [`Sample`], [`Alternative`], [`LayerReport`]
//! * interruptions: [`is_resumable`]
//! * rewriting weights without changing the function of the model: [`Fold`], [`Folded`]
//! * changing a packed model: [`edit_tensor`], [`edit_file`], [`undo_edits`], [`edit_layer`], [`undo_layer`],
//!   [`Change`]
//! * errors: [`CalibrateError`] with [`ConfigError`], [`FoldError`] and [`EditError`]
//!
//! Tuning runs on the host or, with the feature `gpu`, on a device; the features `wgpu`, `vulkan`, `cuda`, `hip` and `metal` also
//! link a runtime. Everything else runs on the host.
//!
//! `trike` re-exports the application API. Algorithms on single matrices are in `trike-quant`; backward passes in
//! `trike-cpu`.
#![forbid(unsafe_code)]

mod assemble;
mod budget;
mod config;
mod curve;
mod device;
mod edit;
mod error;
mod evaluate;
mod factors;
mod fold;
mod guide;
mod held_out;
mod memory;
mod own_text;
mod packing;
mod plan;
mod quantize;
mod report;
mod rewrite;
mod rounded;
mod scaling;
mod store;
mod stored;
mod streams;
#[cfg(test)]
mod tests;
mod tune;
mod walk;
mod weights;

pub use budget::{Budget, PlanOptions, plan_for, quantize_to};
pub use config::{
    Calibration, Compensation, Importance, LayerChoice, ModelQuantizationConfig, Pruning, QuantizeMethod,
    ScaledInputs, Tuning,
};
pub use edit::{Change, EditReport, edit_file, edit_layer, edit_tensor, undo_edits, undo_layer};
pub use error::{CalibrateError, ConfigError, EditError, FoldError};
pub use fold::{Fold, Folded};
pub use memory::estimate_memory;
pub use plan::{Plan, PlannedLayer};
pub use quantize::quantize;
pub use report::{
    Alternative, CurvePoint, Evaluation, LayerReport, Measured, OptionNames, Planning, QuantizeReport,
    Rating, SalienceReport, Sample, Sensitivity, TernaryTotals, TextSource, Trial, TuningReport, Verdict,
};
pub use store::is_resumable;
pub use stored::{Stored, StoredKind};
