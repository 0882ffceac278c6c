//! Errors of quantization.

use trike_core::OptionError;

/// Error of quantizing a matrix.
///
/// [`Option`](Self::Option), [`Shape`](Self::Shape), [`Length`](Self::Length), [`Partial`](Self::Partial) and
/// [`NoChoices`](Self::NoChoices) indicate a mistake in the calling code; the others, such as [`NonFinite`](Self::NonFinite)
/// and [`Indefinite`](Self::Indefinite), indicate unusable data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// A buffer has the wrong number of elements.
    #[error("{what}: expected {expected} elements, got {got}")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// Elements required by the shapes.
        expected: usize,
        /// Elements given.
        got: usize,
    },
    /// A buffer that ends within a row, a token or a block.
    #[error("{what} are {got} elements: expected a multiple of {unit}")]
    Partial {
        /// Which buffer.
        what: &'static str,
        /// Elements per row, token or block.
        unit: usize,
        /// Elements given.
        got: usize,
    },
    /// A matrix or a block without elements, or one too large for memory.
    #[error("{what} is {rows} x {cols}: expected at least 1 x 1, and few enough elements for memory")]
    Shape {
        /// Which matrix.
        what: &'static str,
        /// Its rows.
        rows: usize,
        /// Its columns.
        cols: usize,
    },
    /// A buffer without elements.
    #[error("{what} are empty: expected at least one element")]
    Empty {
        /// Which buffer.
        what: &'static str,
    },
    /// A number is infinite or NaN.
    #[error("{what}: element {index} is {value}: expected a finite number")]
    NonFinite {
        /// Which buffer.
        what: &'static str,
        /// Index in it.
        index: usize,
        /// The value.
        value: f64,
    },
    /// A number is below zero.
    #[error("{what}: element {index} is {value}: expected at least 0")]
    Negative {
        /// Which buffer.
        what: &'static str,
        /// Index in it.
        index: usize,
        /// The value.
        value: f32,
    },
    /// An option is out of range, or two cannot be combined.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// A layer without choices.
    #[error("layer {layer} has no choices: expected at least one")]
    NoChoices {
        /// Index of the layer.
        layer: usize,
    },
    /// A Hessian is not positive definite even with the largest damping.
    #[error(
        "the Hessian is not positive definite: the pivot of column {column} is {pivot:e} with damping {damping}"
    )]
    Indefinite {
        /// Column of the first pivot that is not positive.
        column: usize,
        /// The pivot.
        pivot: f64,
        /// Damping added to the diagonal, as a fraction of the mean diagonal.
        damping: f64,
    },
    /// A sum of products overflowed: the activations are too large for f32.
    #[error("statistics of input {index} overflowed: {value}")]
    Overflow {
        /// The input (column).
        index: usize,
        /// The sum.
        value: f64,
    },
    /// A byte budget below the minimum.
    #[error("a budget of {requested} bytes is not achievable; the minimum is {smallest} bytes")]
    Budget {
        /// The budget given, in bytes.
        requested: u64,
        /// The smallest achievable budget, in bytes.
        smallest: u64,
    },
    /// The result is not a valid tensor.
    #[error(transparent)]
    Trit(#[from] trike_trit::TritError),
    /// An error of the CPU kernels.
    #[error(transparent)]
    Cpu(#[from] trike_cpu::CpuError),
}

pub(crate) fn check_len(what: &'static str, expected: usize, got: usize) -> Result<(), QuantError> {
    if expected == got { Ok(()) } else { Err(QuantError::Length { what, expected, got }) }
}

/// Checks that a length is a multiple of `unit`, the elements per row, token or block.
pub(crate) fn check_whole(what: &'static str, unit: usize, got: usize) -> Result<(), QuantError> {
    // A row of zero elements cannot hold any.
    if got.checked_rem(unit) == Some(0) { Ok(()) } else { Err(QuantError::Partial { what, unit, got }) }
}

pub(crate) fn check_finite(what: &'static str, values: &[f32]) -> Result<(), QuantError> {
    match values.iter().enumerate().find(|(_, v)| !v.is_finite()) {
        Some((index, &value)) => Err(QuantError::NonFinite { what, index, value: value.into() }),
        None => Ok(()),
    }
}
