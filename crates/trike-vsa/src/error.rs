//! The one error type of the crate.

use trike_host::HostError;
use trike_popcount::PopcountError;

use crate::algebra::AlgebraKind;

/// Why an operation on hypervectors was refused; nothing was changed then.
///
/// The first to match are [`Dimension`](Self::Dimension), which a caller's mistake produces, and
/// [`Capacity`](Self::Capacity), which says that a structure is full.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VsaError {
    /// Vectors of different dimensions.
    #[error("{what}: expected {expected} dimensions, got {got}")]
    Dimension {
        /// Which vector.
        what: &'static str,
        /// Dimensions of what it met.
        expected: usize,
        /// Its own.
        got: usize,
    },
    /// A zero where the algebra has only two values.
    #[error("dimension {index} is 0: the bipolar algebra has only -1 and +1")]
    Zero {
        /// The first such dimension.
        index: usize,
    },
    /// A vector or a file of another algebra.
    #[error("expected the algebra {expected}, got {got}")]
    Algebra {
        /// The algebra asked for.
        expected: AlgebraKind,
        /// The algebra found.
        got: AlgebraKind,
    },
    /// A whole number outside of its range.
    #[error("{what}: expected {minimum}..={maximum}, got {got}")]
    Range {
        /// Which number.
        what: &'static str,
        /// The smallest accepted value.
        minimum: usize,
        /// The largest accepted value.
        maximum: usize,
        /// The value given.
        got: usize,
    },
    /// A real number outside of its range, or no number.
    #[error("{what}: expected a number from {minimum} to {maximum}, got {got}")]
    Real {
        /// Which number.
        what: &'static str,
        /// The smallest accepted value.
        minimum: f64,
        /// The largest accepted value.
        maximum: f64,
        /// The value given.
        got: f64,
    },
    /// Something was asked of a collection without anything in it.
    #[error("{what} is empty")]
    Empty {
        /// Which collection.
        what: &'static str,
    },
    /// Something that is not in the bundle cannot be taken out or replaced.
    #[error("the counts say that this vector, with a weight of {weight}, is not in the bundle")]
    NotInBundle {
        /// The weight asked for.
        weight: u32,
    },
    /// One more item would make retrieval too uncertain.
    #[error(
        "{items} items among {candidates} candidates in {dimensions} dimensions: \
         the right one is found with probability {probability:.4}, expected at least {minimum}"
    )]
    Capacity {
        /// Items with the new one.
        items: usize,
        /// Vectors that retrieval chooses from.
        candidates: usize,
        /// Dimensions of a vector.
        dimensions: usize,
        /// Probability of finding the right one, by the theory in [`capacity`](crate::capacity).
        probability: f64,
        /// The probability asked for.
        minimum: f64,
    },
    /// A file that is none of Trike's hypervectors, is cut off, or lies about itself.
    #[error("not a readable file of hypervectors: {what}: expected {expected}, got {got}")]
    File {
        /// Which part.
        what: &'static str,
        /// What it should be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// The operating system could not read or write.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The host kernels refused.
    #[error(transparent)]
    Popcount(#[from] PopcountError),
    /// No memory or no threads.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A device refused or failed.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Cube(#[from] trike_cube::CubeError),
}

/// Checks the dimensions of a vector against what it meets.
pub(crate) fn check_dim(what: &'static str, expected: usize, got: usize) -> Result<(), VsaError> {
    if expected == got { Ok(()) } else { Err(VsaError::Dimension { what, expected, got }) }
}

/// Checks that a whole number is inside of a range.
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

/// Checks that a real number is one, and inside of a range.
pub(crate) fn check_real(what: &'static str, minimum: f64, maximum: f64, got: f64) -> Result<(), VsaError> {
    if (minimum..=maximum).contains(&got) {
        Ok(())
    } else {
        Err(VsaError::Real { what, minimum, maximum, got })
    }
}
