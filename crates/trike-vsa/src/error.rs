//! The error type of the crate.

use trike_host::HostError;
use trike_popcount::PopcountError;

use crate::algebra::AlgebraKind;

/// An error of an operation on hypervectors; a failed operation changes nothing.
///
/// The variants to match first are [`Dimension`](Self::Dimension), a caller error, and
/// [`Capacity`](Self::Capacity), a full structure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VsaError {
    /// Vectors with different numbers of dimensions.
    #[error("{what}: expected {expected} dimensions, got {got}")]
    Dimension {
        /// Which vector.
        what: &'static str,
        /// The required number of dimensions.
        expected: usize,
        /// The given number of dimensions.
        got: usize,
    },
    /// A zero trit in an algebra without zeros.
    #[error("dimension {index} is 0: the bipolar algebra has only -1 and +1")]
    Zero {
        /// The first such dimension.
        index: usize,
    },
    /// A vector or a file of another algebra.
    #[error("expected the algebra {expected}, got {got}")]
    Algebra {
        /// The expected algebra.
        expected: AlgebraKind,
        /// The given algebra.
        got: AlgebraKind,
    },
    /// An integer outside its range.
    #[error("{what}: expected {minimum}..={maximum}, got {got}")]
    Range {
        /// Which number.
        what: &'static str,
        /// The smallest accepted value.
        minimum: usize,
        /// The largest accepted value.
        maximum: usize,
        /// The given value.
        got: usize,
    },
    /// A real number outside its range, or NaN.
    #[error("{what}: expected a number from {minimum} to {maximum}, got {got}")]
    Real {
        /// Which number.
        what: &'static str,
        /// The smallest accepted value.
        minimum: f64,
        /// The largest accepted value.
        maximum: f64,
        /// The given value.
        got: f64,
    },
    /// An operation that needs at least one element was given an empty collection.
    #[error("{what} is empty")]
    Empty {
        /// Which collection.
        what: &'static str,
    },
    /// A vector cannot be removed or replaced, because the counts show that it is not in the bundle.
    #[error("the bundle does not contain this vector with weight {weight}, according to its counts")]
    NotInBundle {
        /// The given weight.
        weight: u32,
    },
    /// One more item would reduce the retrieval probability below its minimum.
    #[error(
        "{items} items and {candidates} candidates in {dimensions} dimensions: \
         expected a retrieval probability of at least {minimum}, got {probability:.4}"
    )]
    Capacity {
        /// Number of items, including the new one.
        items: usize,
        /// Number of vectors that retrieval chooses from.
        candidates: usize,
        /// Number of dimensions of a vector.
        dimensions: usize,
        /// Predicted retrieval probability, see [`capacity`](crate::capacity).
        probability: f64,
        /// The required probability.
        minimum: f64,
    },
    /// A file that is not in Trike's hypervector format, is truncated, or is inconsistent.
    #[error("invalid hypervector file: {what}: expected {expected}, got {got}")]
    File {
        /// The invalid part.
        what: &'static str,
        /// The expected value.
        expected: String,
        /// The actual value.
        got: String,
    },
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// An error of the host kernels.
    #[error(transparent)]
    Popcount(#[from] PopcountError),
    /// Memory or threads are not available.
    #[error(transparent)]
    Host(#[from] HostError),
    /// An error of the device.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Cube(#[from] trike_cube::CubeError),
}

/// Checks the number of dimensions of a vector.
pub(crate) fn check_dim(what: &'static str, expected: usize, got: usize) -> Result<(), VsaError> {
    if expected == got { Ok(()) } else { Err(VsaError::Dimension { what, expected, got }) }
}

/// Checks that an integer is in a range.
pub(crate) fn check_range(
    what: &'static str,
    minimum: usize,
    maximum: usize,
    got: usize,
) -> Result<(), VsaError> {
    if (minimum..=maximum).contains(&got) {
        Ok(())
    } else {
        Err(VsaError::Range { what, minimum, maximum, got })
    }
}

/// Checks that a real number is in a range and not NaN.
pub(crate) fn check_real(what: &'static str, minimum: f64, maximum: f64, got: f64) -> Result<(), VsaError> {
    if (minimum..=maximum).contains(&got) {
        Ok(())
    } else {
        Err(VsaError::Real { what, minimum, maximum, got })
    }
}
