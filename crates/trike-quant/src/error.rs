//! Errors of quantization.

/// Error of quantizing a matrix.
///
/// [`Option`](Self::Option) and [`Length`](Self::Length) indicate a mistake in the calling code;
/// [`NonFinite`](Self::NonFinite) and [`Indefinite`](Self::Indefinite) indicate unusable data.
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
    /// A number is infinite or NaN.
    #[error("{what}: element {index} is {value}: expected a finite value")]
    NonFinite {
        /// Which buffer.
        what: &'static str,
        /// Index in it.
        index: usize,
        /// The value.
        value: f32,
    },
    /// An option is out of range, or two options are incompatible.
    #[error("{option}: expected {expected}, got {got}")]
    Option {
        /// The option.
        option: &'static str,
        /// The accepted values.
        expected: &'static str,
        /// The value given.
        got: String,
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

pub(crate) fn check_finite(what: &'static str, values: &[f32]) -> Result<(), QuantError> {
    match values.iter().enumerate().find(|(_, v)| !v.is_finite()) {
        Some((index, &value)) => Err(QuantError::NonFinite { what, index, value }),
        None => Ok(()),
    }
}
