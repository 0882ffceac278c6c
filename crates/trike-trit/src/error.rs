//! Errors of trit tensors.

/// Error of creating, reading or editing a trit tensor.
///
/// [`Length`](Self::Length) and [`OutOfRange`](Self::OutOfRange) usually indicate a mistake in the calling code; most other
/// variants indicate invalid tensor data.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TritError {
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
    /// An index is out of range.
    #[error("{what} {index} is out of range: expected less than {limit}")]
    OutOfRange {
        /// Which index.
        what: &'static str,
        /// The index given.
        index: usize,
        /// The exclusive upper bound.
        limit: usize,
    },
    /// A dimension is 0 or above `u32::MAX`, or the element count overflows.
    #[error(
        "shape {rows} x {cols} is invalid: expected sides of 1 to 4294967295 and an addressable number of weights"
    )]
    Shape {
        /// Rows given.
        rows: usize,
        /// Columns given.
        cols: usize,
    },
    /// The number of planes is not 1 to 6.
    #[error("expected 1 to 6 planes, got {got}")]
    Depth {
        /// Planes given.
        got: usize,
    },
    /// The planes of a tensor have different encodings.
    #[error("plane {plane}: expected encoding {expected} as in plane 0, got {got}")]
    MixedEncodings {
        /// The plane that differs.
        plane: usize,
        /// Encoding of plane 0.
        expected: crate::Encoding,
        /// Encoding of that plane.
        got: crate::Encoding,
    },
    /// A trit is both positive and negative.
    #[error("plane {plane}, row {row}, word {word}: positive and negative bits overlap")]
    BothBits {
        /// Plane of the word.
        plane: usize,
        /// Row of the word.
        row: usize,
        /// Word within the row.
        word: usize,
    },
    /// An invalid code.
    #[error("plane {plane}, row {row}, column {col}: {code} is not a code of {encoding}")]
    Code {
        /// Plane of the code.
        plane: usize,
        /// Row of the code.
        row: usize,
        /// First column that the code covers.
        col: usize,
        /// The code: two bits for 2-bit, a byte for base-3 and row-compressed.
        code: u8,
        /// The encoding of the data.
        encoding: crate::Encoding,
    },
    /// The padding after the last column of a row is not all zero trits.
    #[error("plane {plane}, row {row}: expected only zero trits after the last column")]
    NonzeroPadding {
        /// Plane of the row.
        plane: usize,
        /// The row.
        row: usize,
    },
    /// The row offsets of a compressed encoding do not ascend from 0 to the length of the data, or a row has the wrong
    /// number of sign words.
    #[error("plane {plane}, row {row}: expected offset {expected}, got {got}")]
    Offset {
        /// Plane of the offset.
        plane: usize,
        /// Row whose offset is wrong.
        row: usize,
        /// The expected value.
        expected: usize,
        /// The value given.
        got: usize,
    },
    /// More data than 32-bit row offsets can address.
    #[error(
        "a plane in encoding {encoding} needs {needed} entries: expected at most 4294967295 (32-bit row offsets)"
    )]
    TooLarge {
        /// The requested encoding.
        encoding: crate::Encoding,
        /// Entries needed.
        needed: usize,
    },
    /// A scale or mean is infinite or NaN.
    #[error("{what} {index} is {value}: expected a finite value")]
    NonFinite {
        /// `scale` or `mean`.
        what: &'static str,
        /// Index in its list.
        index: usize,
        /// The value.
        value: f32,
    },
    /// An element is not -1, 0 or 1.
    #[error("element {index} is {value}: expected -1, 0 or 1")]
    Value {
        /// Index in the slice.
        index: usize,
        /// The element.
        value: i8,
    },
    /// A rotation block size that is not a power of two or does not divide the row length.
    #[error("{what}: expected a power of two from 2 to 1024 that divides the columns, got {got}")]
    Rotation {
        /// Which length.
        what: &'static str,
        /// The length given.
        got: usize,
    },
    /// An integer out of the range of a number of balanced trits.
    #[error("{value} does not fit in {trits} balanced trits: expected -{limit} to {limit}")]
    Balanced {
        /// Number of trits.
        trits: usize,
        /// The largest integer of that many trits.
        limit: i64,
        /// The integer given.
        value: i64,
    },
}
