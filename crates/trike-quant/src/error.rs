//! What can be wrong with a request to quantize.

/// Why a matrix could not be quantized.
///
/// [`Option`](Self::Option) and [`Length`](Self::Length) are a caller's mistakes; [`NonFinite`](Self::NonFinite) and
/// [`Indefinite`](Self::Indefinite) say that the numbers themselves cannot be worked with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// A buffer has the wrong number of elements.
    #[error("{what}: expected {expected} elements, got {got}")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// Elements that the shapes ask for.
        expected: usize,
        /// Elements given.
        got: usize,
    },
    /// A number is infinite or none.
    #[error("{what}: element {index} is {value}: it must be finite")]
    NonFinite {
        /// Which buffer.
        what: &'static str,
        /// Index in it.
        index: usize,
        /// The value.
        value: f32,
    },
    /// An option is out of range, or two do not go together.
    #[error("{option}: expected {expected}, got {got}")]
    Option {
        /// The option.
        option: &'static str,
        /// What is accepted.
        expected: &'static str,
        /// What was given.
        got: String,
    },
    /// A Hessian stays indefinite under the largest damping that is tried.
    #[error(
        "the Hessian is not positive definite: the pivot of column {column} is {pivot:e} with damping {damping}"
    )]
    Indefinite {
        /// Column of the first pivot that is not positive.
        column: usize,
        /// The pivot.
        pivot: f64,
        /// Share of the mean diagonal that was added to the diagonal.
        damping: f64,
    },
    /// Sums of products overflowed: the activations are too large for f32.
    #[error("statistics of input {index} overflowed: {value}")]
    Overflow {
        /// Column.
        index: usize,
        /// The sum.
        value: f64,
    },
    /// A budget that no choice of layers meets.
    #[error("{requested} bytes are not enough: the smallest choice of every layer takes {smallest}")]
    Budget {
        /// Bytes asked for.
        requested: u64,
        /// The fewest that are possible.
        smallest: u64,
    },
    /// The result is no tensor.
    #[error(transparent)]
    Trit(#[from] trike_trit::TritError),
    /// The host kernels refused.
    #[error(transparent)]
    Cpu(#[from] trike_cpu::CpuError),
}

pub(crate) fn check_len(what: &'static str, expected: usize, got: usize) -> Result<(), QuantError> {
    if expected == got { Ok(()) } else { Err(QuantError::Length { what, expected, got }) }
}

pub(crate) fn check_finite(what: &'static str, values: &[f32]) -> Result<(), QuantError> {
    match values.iter().enumerate().find(|(_, v)| !v.is_finite()) {
        Some((index, &value)) => Err(QuantError::NonFinite { what, index, value }),
        None => Ok(()),
    }
}
