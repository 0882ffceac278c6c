//! The one error type of the crate.

use trike_host::HostError;
use trike_trit::TritError;

/// Why a host kernel refused; no output was written.
///
/// Callers that only distinguish bad shapes from bad values match [`CpuError::Length`] and [`CpuError::NonFinite`] first.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CpuError {
    /// A slice does not have the length that the other arguments ask for.
    #[error("{what}: expected {expected} elements, got {got}")]
    Length {
        /// Which slice.
        what: &'static str,
        /// The length asked for.
        expected: usize,
        /// The length given.
        got: usize,
    },
    /// A slice is not a whole number of rows.
    #[error("{what}: expected a multiple of {unit} elements, got {got}")]
    NotMultiple {
        /// Which slice.
        what: &'static str,
        /// The length of one row.
        unit: usize,
        /// The length given.
        got: usize,
    },
    /// A number is outside of the range that the kernels are proven for.
    #[error("{what}: expected {}, got {got}", limits(*minimum, *maximum))]
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
    /// A matrix with an empty side, or with more elements than can be counted.
    #[error("{what} of {rows} x {cols}: expected sides of at least 1 and a product that fits a usize")]
    Shape {
        /// Which matrix.
        what: &'static str,
        /// Its rows.
        rows: usize,
        /// Its columns.
        cols: usize,
    },
    /// An activation that int8 cannot stand for.
    #[error(
        "token {token}: activation {index} is {value}, expected a finite value (int8 activations cannot hold it)"
    )]
    NonFinite {
        /// Row of the activations.
        token: usize,
        /// Column of the activations.
        index: usize,
        /// The value found there.
        value: f32,
    },
    /// A parameter of the weights (a scale, a frequency) that is not finite.
    #[error("{what} {index} is {value}, expected a finite value")]
    NonFiniteParameter {
        /// Which parameter.
        what: &'static str,
        /// Its index.
        index: usize,
        /// The value found there.
        value: f32,
    },
    /// A row of an embedding table that does not exist.
    #[error("id {id} at position {position}: expected less than {rows}, the rows of the table")]
    IdOutOfRange {
        /// Index into the list of ids.
        position: usize,
        /// The id.
        id: u32,
        /// The rows of the table.
        rows: usize,
    },
    /// Query heads that do not share key/value heads evenly.
    #[error("{heads} query heads cannot share {kv_heads} key/value heads evenly, expected a multiple")]
    Heads {
        /// Query heads.
        heads: usize,
        /// Key/value heads.
        kv_heads: usize,
    },
    /// Attention over more positions than the ring of keys and values holds.
    #[error("attention needs {needed} live positions, the key/value ring holds {capacity}")]
    KvCapacity {
        /// Positions from the oldest one seen by the first query to the last query.
        needed: usize,
        /// Slots of the ring.
        capacity: usize,
    },
    /// No memory, no threads, or an instruction set that this machine does not have.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A layout that the host has no kernel for.
    #[error("layout {layout} has no kernel on the host: use two-bit, base3, sparse or blocks")]
    Layout {
        /// The layout asked for.
        layout: trike_core::Layout,
    },
    /// A trit tensor that could not be read.
    #[error(transparent)]
    Trit(#[from] TritError),
}

/// A range in words; an end of the type is no limit.
fn limits(minimum: usize, maximum: usize) -> String {
    match (minimum, maximum) {
        (minimum, usize::MAX) => format!("at least {minimum}"),
        (0, maximum) => format!("at most {maximum}"),
        (minimum, maximum) => format!("{minimum} to {maximum}"),
    }
}

/// Checks the length of a slice.
pub(crate) fn check_len(what: &'static str, expected: usize, got: usize) -> Result<(), CpuError> {
    if expected == got { Ok(()) } else { Err(CpuError::Length { what, expected, got }) }
}

/// Checks that a number is inside of a range.
pub(crate) fn check_range(
    what: &'static str,
    minimum: usize,
    maximum: usize,
    got: usize,
) -> Result<(), CpuError> {
    if (minimum..=maximum).contains(&got) {
        Ok(())
    } else {
        Err(CpuError::Range { what, minimum, maximum, got })
    }
}

/// Rows of `unit` elements in a slice of `got`.
pub(crate) fn check_rows(what: &'static str, unit: usize, got: usize) -> Result<usize, CpuError> {
    if unit != 0 && got.is_multiple_of(unit) {
        Ok(got / unit)
    } else {
        Err(CpuError::NotMultiple { what, unit, got })
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
