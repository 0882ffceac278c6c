//! What can go wrong between weights and logits.

use std::error::Error;

/// Why a decoder could not be made or a step could not be taken.
///
/// Match [`ContextFull`](Self::ContextFull) first: it is the one a correct program meets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NnError {
    /// A sequence has no room for the tokens.
    #[error(
        "{requested} positions asked for, the sequence holds {capacity}: shorten the prompt, generate less, or use a rolling window"
    )]
    ContextFull {
        /// Positions that the step would reach.
        requested: usize,
        /// Positions that the cache holds.
        capacity: usize,
    },
    /// More tokens in one step than a rolling cache can take without losing what they attend to.
    #[error("a step of {requested} tokens, a rolling cache takes at most {limit} at once")]
    StepTooLong {
        /// Tokens of the step.
        requested: usize,
        /// Most that fit.
        limit: usize,
    },
    /// A rolling cache no longer has the positions that a truncated sequence would attend to.
    #[error("cannot truncate to {requested} tokens: the rolling cache holds positions from {oldest} on")]
    Truncate {
        /// Length asked for.
        requested: usize,
        /// Oldest position that is still held.
        oldest: usize,
    },
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab}")]
    Token {
        /// The id.
        id: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A step without tokens.
    #[error("a step needs at least one token for each sequence")]
    EmptyStep,
    /// A field of the specification breaks a rule.
    #[error("{field} {rule}, got {got}")]
    Spec {
        /// The field.
        field: &'static str,
        /// What must hold.
        rule: &'static str,
        /// The value.
        got: String,
    },
    /// A weight has another shape than the specification asks for.
    #[error("{name}: expected {expected_rows} x {expected_cols}, got {got_rows} x {got_cols}")]
    WeightShape {
        /// The weight's name.
        name: String,
        /// Rows that the specification asks for.
        expected_rows: usize,
        /// Columns that the specification asks for.
        expected_cols: usize,
        /// Rows found.
        got_rows: usize,
        /// Columns found.
        got_cols: usize,
    },
    /// A weight could not be read; what the source says names it.
    #[error("{source}")]
    Load {
        /// The weight's name.
        name: String,
        /// What the source of weights said.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A kernel refused its input.
    #[error(transparent)]
    Cpu(#[from] trike_cpu::CpuError),
    /// No memory, no threads, or an instruction set that this machine does not have.
    #[error(transparent)]
    Host(#[from] trike_cpu::HostError),
    /// A tensor refused a request.
    #[error(transparent)]
    Tensor(#[from] trike_core::TensorError),
    /// A ternary tensor refused a request.
    #[error(transparent)]
    Trit(#[from] trike_trit::TritError),
    /// A backend outside of this crate failed, in its own way.
    #[error(transparent)]
    Backend(Box<dyn Error + Send + Sync>),
    /// A device refused or failed.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Cube(#[from] trike_cube::CubeError),
    /// A device does not have the memory that a model is going to need. Nothing was loaded.
    #[error(
        "{device}: the model needs {needed} bytes ({plan}), {available} are free: generate less, use a rolling window, or run it on the processor"
    )]
    Memory {
        /// The device.
        device: String,
        /// What the bytes are for.
        plan: crate::MemoryPlan,
        /// Bytes in all.
        needed: u64,
        /// Bytes that the device has left.
        available: u64,
    },
    /// A width that is not made of whole heads.
    #[error("width {width} is not a multiple of head_dim {head_dim}")]
    Heads {
        /// Width of the tensor.
        width: usize,
        /// Elements per head.
        head_dim: usize,
    },
    /// A slice that is not made of whole rows.
    #[error("{values} values are not whole rows of {width}")]
    Rows {
        /// Values given.
        values: usize,
        /// Width of a row.
        width: usize,
    },
    /// A row past the last one.
    #[error("row {row} is out of range: the tensor has {rows} rows")]
    Row {
        /// The row asked for.
        row: usize,
        /// Rows there are.
        rows: usize,
    },
    /// A matrix that was not loaded with `load_table` was asked for single rows.
    #[error("ids are looked up in a matrix that was loaded for products only: load it as a table")]
    NotATable,
    /// A caller and a backend disagree on a shape.
    #[error("{what}: expected {expected}, got {got}")]
    Shape {
        /// What has the shape.
        what: &'static str,
        /// What was expected.
        expected: usize,
        /// What came.
        got: usize,
    },
}

impl From<trike_core::SpecError> for NnError {
    fn from(error: trike_core::SpecError) -> Self {
        Self::Spec { field: error.field, rule: error.rule, got: error.got }
    }
}

#[cfg(test)]
impl PartialEq for NnError {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}
