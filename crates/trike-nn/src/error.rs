//! Errors of building and running a decoder.

use std::error::Error;

/// Error of building a decoder or running a step.
///
/// [`ContextFull`](Self::ContextFull) is the only one expected in a correct program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NnError {
    /// The KV cache of a sequence is too small for the tokens.
    #[error(
        "the step needs {requested} positions, the KV cache holds {capacity}: \
         shorten the prompt, generate less, or use a rolling window"
    )]
    ContextFull {
        /// Length of the sequence after the step.
        requested: usize,
        /// Capacity of the cache, in positions.
        capacity: usize,
    },
    /// A step too long for a rolling cache: it would overwrite positions that its own tokens attend to.
    #[error("a step of {requested} tokens is too long: the rolling KV cache allows at most {limit} per step")]
    StepTooLong {
        /// Tokens of the step.
        requested: usize,
        /// Maximum number of tokens per step.
        limit: usize,
    },
    /// A rolling cache no longer has the positions that a truncated sequence would attend to.
    #[error("cannot truncate to {requested} tokens: the rolling KV cache holds positions from {oldest} on")]
    Truncate {
        /// Requested length.
        requested: usize,
        /// Oldest position still in the cache.
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
    /// Something that this backend cannot do.
    #[error("{what}: not supported by {backend}; {remedy}")]
    Unsupported {
        /// What was requested.
        what: String,
        /// Name of the backend.
        backend: String,
        /// What to do instead.
        remedy: &'static str,
    },
    /// A step without tokens.
    #[error("a step needs at least one token per sequence")]
    EmptyStep,
    /// A field of the specification violates a rule.
    #[error("{field} {rule}, got {got}")]
    Spec {
        /// The field.
        field: &'static str,
        /// The rule.
        rule: &'static str,
        /// The value.
        got: String,
    },
    /// The shape of a weight differs from the specification.
    #[error("{name}: expected {expected_rows} x {expected_cols}, got {got_rows} x {got_cols}")]
    WeightShape {
        /// The weight's name.
        name: String,
        /// Rows in the specification.
        expected_rows: usize,
        /// Columns in the specification.
        expected_cols: usize,
        /// Rows found.
        got_rows: usize,
        /// Columns found.
        got_cols: usize,
    },
    /// A weight could not be read; the message of the source names it.
    #[error("{source}")]
    Load {
        /// The weight's name.
        name: String,
        /// The error of the weight source.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A matrix of a mapped file with invalid contents.
    #[error("weight `{name}`: {source}")]
    Tiles {
        /// The weight's name.
        name: String,
        /// The error of the backend.
        source: Box<NnError>,
    },
    /// Invalid input of a host kernel.
    #[error(transparent)]
    Cpu(#[from] trike_cpu::CpuError),
    /// Memory or threads could not be allocated, or this machine lacks an instruction set.
    #[error(transparent)]
    Host(#[from] trike_cpu::HostError),
    /// An invalid tensor or an invalid operation on one.
    #[error(transparent)]
    Tensor(#[from] trike_core::TensorError),
    /// An invalid ternary tensor or an invalid operation on one.
    #[error(transparent)]
    Trit(#[from] trike_trit::TritError),
    /// An error of a backend outside this crate.
    #[error(transparent)]
    Backend(Box<dyn Error + Send + Sync>),
    /// An error of a device.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Cube(#[from] trike_cube::CubeError),
    /// A device has too little free memory for a model. Nothing was loaded.
    #[error(
        "{device}: the model needs {needed} bytes ({plan}), {available} are free: \
         generate less, use a rolling window, or run it on the CPU"
    )]
    Memory {
        /// The device.
        device: String,
        /// The parts of the sum.
        plan: crate::MemoryPlan,
        /// Bytes in total.
        needed: u64,
        /// Free bytes of the device.
        available: u64,
    },
    /// Devices have too little free memory for the layers of a model, in any division or in the requested one. Nothing was loaded.
    #[error(
        "the model does not fit on its devices: {}: \
         generate less, use a rolling window, add a device, or run it on the CPU",
        joined(stages)
    )]
    SplitMemory {
        /// Required and free memory of each device, in the division with the smallest deficit.
        stages: Vec<crate::StagePlan>,
    },
    /// A width that is not a multiple of `head_dim`.
    #[error("width {width} is not a multiple of head_dim {head_dim}")]
    Heads {
        /// Width of the tensor.
        width: usize,
        /// Elements per head.
        head_dim: usize,
    },
    /// A slice whose length is not a nonzero multiple of the row width.
    #[error("expected one or more rows of {width} values, got {values} values")]
    Rows {
        /// Values given.
        values: usize,
        /// Width of a row.
        width: usize,
    },
    /// A row past the last one.
    #[error("row {row} is out of range: the tensor has {rows} rows")]
    Row {
        /// The requested row.
        row: usize,
        /// Rows of the tensor.
        rows: usize,
    },
    /// A message between ranks.
    #[error(transparent)]
    Comm(#[from] trike_comm::CommError),
    /// A non-finite activation of a model on several ranks.
    #[error("rank {rank} produced a non-finite value ({value}): corrupt weights or faulty hardware")]
    RankValue {
        /// The rank.
        rank: usize,
        /// The value.
        value: f32,
    },
    /// A step announced by rank 0 at another position than this rank's sequence.
    #[error("ranks out of sync: the step starts at position {got}, this rank's KV cache ends at {expected}")]
    Behind {
        /// Positions of the sequence.
        expected: usize,
        /// Position of the step.
        got: usize,
    },
    /// A message of rank 0 that is not a valid step.
    #[error("invalid step message from rank 0 ({got} bytes)")]
    Notice {
        /// Bytes of the message.
        got: usize,
    },
    /// A weight required by the specification that the block was loaded without.
    #[error("{name}: the block was loaded without it")]
    NoWeight {
        /// The weight's name.
        name: String,
    },
    /// A shape mismatch between a caller and a backend.
    #[error("{what}: expected {expected}, got {got}")]
    Shape {
        /// Name of the dimension.
        what: &'static str,
        /// Expected value.
        expected: usize,
        /// Actual value.
        got: usize,
    },
}

/// Implements `From` for an error with a variant `Nn`, of the errors of kernels and tensors that [`NnError`] contains.
#[doc(hidden)]
#[macro_export]
macro_rules! from_kernel_errors {
    ($outer:ty: $($error:ty),*) => {$(
        impl From<$error> for $outer {
            fn from(error: $error) -> Self {
                Self::Nn(error.into())
            }
        }
    )*};
}

/// The plans of all devices in one message.
fn joined(stages: &[crate::StagePlan]) -> String {
    stages.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
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
