//! What can be wrong with a trit tensor.

/// Why a tensor could not be made or a request could not be answered.
///
/// The first to match are [`Length`](Self::Length) and [`OutOfRange`](Self::OutOfRange), which a caller's
/// mistake produces; the rest say that the data itself is not a valid tensor.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TritError {
    /// A buffer has the wrong number of elements.
    #[error("{what}: expected {expected} elements, got {got}")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// Number of elements of the shape.
        expected: usize,
        /// Elements given.
        got: usize,
    },
    /// An index is past its limit.
    #[error("{what} {index} is out of range: there are {limit}")]
    OutOfRange {
        /// Which index.
        what: &'static str,
        /// The index given.
        index: usize,
        /// How many there are.
        limit: usize,
    },
    /// A dimension is zero, over `u32::MAX`, or the element count overflows.
    #[error(
        "shape {rows} x {cols} is not usable: each side must be 1 to 4294967295 and the tensor addressable"
    )]
    Shape {
        /// Rows given.
        rows: usize,
        /// Columns given.
        cols: usize,
    },
    /// The number of planes is not 1 to 6.
    #[error("a tensor has 1 to 6 planes, got {got}")]
    Depth {
        /// Planes given.
        got: usize,
    },
    /// Planes of one tensor are encoded differently.
    #[error("plane {plane} is encoded as {got}, plane 0 as {expected}: one tensor has one encoding")]
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
    /// A code that is no trit.
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
        /// The encoding that was read.
        encoding: crate::Encoding,
    },
    /// Something is stored past the last column of a row, where only zero trits may be.
    #[error("plane {plane}, row {row}: the tail after the last column is not zero trits")]
    DirtyTail {
        /// Plane of the row.
        plane: usize,
        /// The row.
        row: usize,
    },
    /// Row offsets of a compressed encoding do not rise from 0 to the length of the data.
    #[error("plane {plane}, row {row}: offset {got} is not {expected}")]
    Offset {
        /// Plane of the offset.
        plane: usize,
        /// Row whose offset is wrong.
        row: usize,
        /// Required value.
        expected: usize,
        /// Given value.
        got: usize,
    },
    /// More data than 32-bit row offsets can address.
    #[error("a plane of {encoding} needs {needed} entries; row offsets reach 4294967295")]
    TooLarge {
        /// The encoding asked for.
        encoding: crate::Encoding,
        /// Entries needed.
        needed: usize,
    },
    /// A scale or mean is infinite or not a number.
    #[error("{what} {index} is {value}: it must be finite")]
    NonFinite {
        /// `scale` or `mean`.
        what: &'static str,
        /// Index in its list.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A number that should be -1, 0 or 1 is not.
    #[error("element {index} is {value}: a trit is -1, 0 or 1")]
    Value {
        /// Index in the slice given.
        index: usize,
        /// The number given.
        value: i8,
    },
    /// A rotation whose blocks are no power of two, or of which rows are no whole number.
    #[error("{what}: expected a power of two from 2 to 1024 that divides the columns, got {got}")]
    Rotation {
        /// Which length.
        what: &'static str,
        /// The length given.
        got: usize,
    },
    /// An integer that so many balanced trits do not reach.
    #[error("{value} is not a number of {trits} trits: expected {limit} at most, either side of zero")]
    Balanced {
        /// Trits of the number.
        trits: usize,
        /// The largest integer they reach.
        limit: i64,
        /// The integer given.
        value: i64,
    },
}
