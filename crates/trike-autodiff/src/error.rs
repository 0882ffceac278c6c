//! Error type of the crate.

use trike_core::ProductPrecision;
use trike_cpu::CpuError;
use trike_trit::TritError;

/// Error of an operation or of a backward pass.
///
/// A failed operation adds nothing to its tape. A failed backward pass yields no gradients.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GradError {
    /// A value does not have the shape that the other arguments require.
    #[error("{what}: expected {} x {}, got {} x {}", expected.0, expected.1, got.0, got.1)]
    Shape {
        /// Name of the value.
        what: &'static str,
        /// The required rows and columns.
        expected: (usize, usize),
        /// The actual rows and columns.
        got: (usize, usize),
    },
    /// A list without exactly one element per row, or a slice whose length does not match its shape.
    #[error("{what}: expected {expected} elements, got {got}")]
    Length {
        /// Name of the list.
        what: &'static str,
        /// The required length.
        expected: usize,
        /// The actual length.
        got: usize,
    },
    /// A variable of another tape.
    #[error("the variable belongs to another tape: expected one that this tape returned")]
    ForeignVariable,
    /// A value that an operation reads after the backward pass freed it, because the operation was recorded without this input.
    #[error("the value was freed: expected an input that the operation was recorded with")]
    Freed,
    /// A number outside its bounds.
    #[error("{what} is {got}: expected {minimum} to {maximum}")]
    Range {
        /// Name of the number.
        what: &'static str,
        /// The smallest accepted value.
        minimum: f32,
        /// The largest accepted value.
        maximum: f32,
        /// The actual value.
        got: f32,
    },
    /// A target id outside the vocabulary.
    #[error("target {target} of row {row}: expected less than {vocabulary}, the rows of the output head")]
    Target {
        /// Row of the hidden states.
        row: usize,
        /// The target id.
        target: u32,
        /// Rows of the head.
        vocabulary: usize,
    },
    /// A precision of matrix products that an executor does not support.
    #[error("{executor} has no products in {precision:?}: expected F32")]
    Precision {
        /// The executor.
        executor: &'static str,
        /// The precision.
        precision: ProductPrecision,
    },
    /// Allocation of an activation or a gradient failed.
    #[error(
        "no memory for {elements} elements of an activation or a gradient: use fewer or shorter sequences"
    )]
    Memory {
        /// Number of f32 elements.
        elements: usize,
    },
    /// The error of a kernel.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// The error of a device.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Cube(#[from] trike_cube::CubeError),
    /// The error of an [`Operation`](crate::Operation) of another crate.
    #[error(transparent)]
    Operation(Box<dyn std::error::Error + Send + Sync>),
    /// Weights that cannot be stored as int8.
    #[error(transparent)]
    Tensor(#[from] trike_core::TensorError),
    /// Weights that cannot be stored as trits.
    #[error(transparent)]
    Trit(#[from] TritError),
}

pub(crate) fn check_len(what: &'static str, expected: usize, got: usize) -> Result<(), GradError> {
    if expected == got { Ok(()) } else { Err(GradError::Length { what, expected, got }) }
}

pub(crate) fn check_range(what: &'static str, minimum: f32, maximum: f32, got: f32) -> Result<(), GradError> {
    // NaN is in no range.
    if (minimum..=maximum).contains(&got) {
        Ok(())
    } else {
        Err(GradError::Range { what, minimum, maximum, got })
    }
}
