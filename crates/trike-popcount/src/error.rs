//! The error type of the crate.

use trike_host::HostError;
use trike_trit::TritError;

/// An error of an operation on trit planes; a failed operation writes nothing.
///
/// To detect mismatched shapes only, match [`PopcountError::Length`] first.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PopcountError {
    /// A slice or vector does not have the length that the other arguments require.
    #[error("{what}: expected {expected} elements, got {got}")]
    Length {
        /// Which slice or vector.
        what: &'static str,
        /// The required length.
        expected: usize,
        /// The given length.
        got: usize,
    },
    /// A number is outside its range.
    #[error("{what}: expected {}, got {got}", limits(*minimum, *maximum))]
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
    /// A matrix with a dimension of 0, or with more elements than a `usize` can count.
    #[error("{what} of {rows} x {cols}: expected sides of at least 1 and a product that fits a usize")]
    Shape {
        /// Which matrix.
        what: &'static str,
        /// Its rows.
        rows: usize,
        /// Its columns.
        cols: usize,
    },
    /// A tensor of several planes; only one plane can be searched.
    #[error("expected a tensor with 1 plane, got {planes}: search each plane separately")]
    MultiplePlanes {
        /// Number of planes of the tensor.
        planes: usize,
    },
    /// Memory or threads are not available.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Words that are not valid trit planes, or a tensor that could not be read.
    #[error(transparent)]
    Trit(#[from] TritError),
}

/// A range as text; the extremes of `usize` are omitted.
fn limits(minimum: usize, maximum: usize) -> String {
    match (minimum, maximum) {
        (minimum, usize::MAX) => format!("at least {minimum}"),
        (0, maximum) => format!("at most {maximum}"),
        (minimum, maximum) => format!("{minimum} to {maximum}"),
    }
}

/// Checks the length of a slice.
pub(crate) fn check_len(what: &'static str, expected: usize, got: usize) -> Result<(), PopcountError> {
    if expected == got { Ok(()) } else { Err(PopcountError::Length { what, expected, got }) }
}

/// Checks that a number is in a range.
pub(crate) fn check_range(
    what: &'static str,
    minimum: usize,
    maximum: usize,
    got: usize,
) -> Result<(), PopcountError> {
    if (minimum..=maximum).contains(&got) {
        Ok(())
    } else {
        Err(PopcountError::Range { what, minimum, maximum, got })
    }
}

#[cfg(test)]
mod tests {
    use super::check_range;

    #[test]
    fn messages_name_the_limits_that_there_are() {
        for ((minimum, maximum, got), said) in [
            ((1, usize::MAX, 0), "expected at least 1, got 0"),
            ((0, 7, 8), "expected at most 7, got 8"),
            ((2, 4, 5), "expected 2 to 4, got 5"),
        ] {
            let error = check_range("heads", minimum, maximum, got).expect_err("outside");
            assert_eq!(error.to_string(), format!("heads: {said}"));
            assert!(check_range("heads", minimum, maximum, minimum).is_ok());
            assert!(check_range("heads", minimum, maximum, maximum).is_ok());
        }
    }
}
