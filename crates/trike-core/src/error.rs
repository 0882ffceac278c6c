//! Errors of tensors and of the constants of operations.

/// Error of creating or reading a dense or int8 tensor.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// A shape with no axes, more than [`MAX_DIMS`](crate::MAX_DIMS) axes, an empty axis, or too many elements.
    #[error(
        "shape {shape:?} is invalid: expected 1 to 4 nonempty axes and an addressable number of elements"
    )]
    Shape {
        /// The shape given.
        shape: Vec<usize>,
    },
    /// A buffer has the wrong number of elements.
    #[error("{what}: expected {expected} elements, got {got}")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// Elements required by the shape.
        expected: usize,
        /// Elements given.
        got: usize,
    },
    /// A value is infinite or NaN.
    #[error("{what} {index} is {value}: expected a finite value")]
    NonFinite {
        /// `weight` or `scale`.
        what: &'static str,
        /// Index in row-major order.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A group size of 0.
    #[error("group size: expected at least 1, got {got}")]
    Group {
        /// The group size given.
        got: usize,
    },
    /// A row index is out of range.
    #[error("row {row} is out of range: expected less than {rows}")]
    Row {
        /// The requested row.
        row: usize,
        /// Rows of the tensor.
        rows: usize,
    },
}

/// A field of a spec that violates a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {rule}, got {got}")]
pub struct SpecError {
    /// The field.
    pub field: &'static str,
    /// The rule.
    pub rule: &'static str,
    /// The value.
    pub got: String,
}
