//! What can be wrong with a tensor or with the constants of an operation.

/// Why a dense or int8 tensor could not be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// A shape with no axis, more than [`MAX_DIMS`](crate::MAX_DIMS), an empty axis, or too many elements.
    #[error(
        "shape {shape:?} is not usable: 1 to 4 axes of at least 1, and an addressable number of elements"
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
        /// Elements that the shape asks for.
        expected: usize,
        /// Elements given.
        got: usize,
    },
    /// A value is infinite or not a number.
    #[error("{what} {index} is {value}: it must be finite")]
    NonFinite {
        /// `weight` or `scale`.
        what: &'static str,
        /// Index in row-major order.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A group of no weights.
    #[error("a group must have at least 1 weight, got {got}")]
    Group {
        /// The group size given.
        got: usize,
    },
    /// A row is past the last one.
    #[error("row {row} is out of range: there are {rows}")]
    Row {
        /// The row asked for.
        row: usize,
        /// Rows there are.
        rows: usize,
    },
}

/// A field of a specification that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {rule}, got {got}")]
pub struct SpecError {
    /// The field.
    pub field: &'static str,
    /// What must hold.
    pub rule: &'static str,
    /// The value.
    pub got: String,
}
