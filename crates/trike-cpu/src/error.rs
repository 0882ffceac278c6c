//! Error type of the crate.

use trike_host::HostError;
use trike_trit::TritError;

/// Error of a host kernel; no output was written.
///
/// Callers that only distinguish bad shapes from bad values match [`CpuError::Length`] and [`CpuError::NonFinite`] first.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CpuError {
    /// A slice does not have the length that the other arguments require.
    #[error("{what}: expected {expected} elements, got {got}")]
    Length {
        /// Name of the slice.
        what: &'static str,
        /// The required length.
        expected: usize,
        /// The actual length.
        got: usize,
    },
    /// A slice is not a whole number of rows.
    #[error("{what}: expected a multiple of {unit} elements, got {got}")]
    NotMultiple {
        /// Name of the slice.
        what: &'static str,
        /// The length of one row.
        unit: usize,
        /// The actual length.
        got: usize,
    },
    /// A number is outside the range that the kernels are proven for.
    #[error("{what}: expected {}, got {got}", limits(*minimum, *maximum))]
    Range {
        /// Name of the number.
        what: &'static str,
        /// The smallest accepted value.
        minimum: usize,
        /// The largest accepted value.
        maximum: usize,
        /// The actual value.
        got: usize,
    },
    /// A matrix with an empty dimension, or with more elements than fit a usize.
    #[error("{what} of {rows} x {cols}: expected sides of at least 1 and a product that fits a usize")]
    Shape {
        /// Name of the matrix.
        what: &'static str,
        /// Number of rows.
        rows: usize,
        /// Number of columns.
        cols: usize,
    },
    /// An activation that int8 cannot represent.
    #[error(
        "token {token}: activation {index} is {value}, expected a finite value (int8 activations cannot hold it)"
    )]
    NonFinite {
        /// Row of the activations.
        token: usize,
        /// Column of the activations.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A non-finite parameter of the weights (a scale, a frequency).
    #[error("{what} {index} is {value}, expected a finite value")]
    NonFiniteParameter {
        /// Name of the parameter.
        what: &'static str,
        /// Its index.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A row index that is outside the embedding table.
    #[error("id {id} at position {position}: expected less than {rows}, the rows of the table")]
    IdOutOfRange {
        /// Index into the list of ids.
        position: usize,
        /// The id.
        id: u32,
        /// Number of rows of the table.
        rows: usize,
    },
    /// The query heads are not a multiple of the key/value heads.
    #[error("{heads} query heads cannot share {kv_heads} key/value heads evenly, expected a multiple")]
    Heads {
        /// Query heads.
        heads: usize,
        /// Key/value heads.
        kv_heads: usize,
    },
    /// Attention over more positions than the key/value ring holds.
    #[error("attention needs {needed} live positions, the key/value ring holds {capacity}")]
    KvCapacity {
        /// Positions from the oldest one visible to the first query up to the last query.
        needed: usize,
        /// Slots of the ring.
        capacity: usize,
    },
    /// A key index whose shape is not that of the cache.
    #[error("{what} of a key index: expected {expected}, got {got}")]
    KeyIndex {
        /// The side that differs.
        what: &'static str,
        /// The shape of the cache.
        expected: usize,
        /// The shape of the index.
        got: usize,
    },
    /// A key-block mask that does not match the attention.
    #[error(transparent)]
    Blocks(#[from] trike_core::BlockError),
    /// Out of memory or threads, or an instruction set that this machine does not support.
    #[error(transparent)]
    Host(#[from] HostError),
    /// A layout without a kernel on the host.
    #[error("layout {layout} has no kernel on the host: use two-bit, base3, sparse or blocks")]
    Layout {
        /// The requested layout.
        layout: trike_core::Layout,
    },
    /// A byte of the weights that is not a code of their layout.
    #[error("byte {index} of the weights is {byte:#04x}, which is not a code of {layout}")]
    Code {
        /// Index of the byte.
        index: usize,
        /// The byte.
        byte: u8,
        /// The layout.
        layout: trike_core::Layout,
    },
    /// A tensor with an invalid shape or contents.
    #[error(transparent)]
    Tensor(#[from] trike_core::TensorError),
    /// A trit tensor that could not be read.
    #[error(transparent)]
    Trit(#[from] TritError),
}

/// Text of a range; a bound at the end of the type is omitted.
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

/// Checks that a number is within a range.
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

/// Number of rows of `unit` elements in a slice of `got` elements.
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
