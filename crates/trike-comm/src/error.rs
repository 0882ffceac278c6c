//! The error type of the crate.

/// A failure of a message or of a collective operation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// A rank that does not exist.
    #[error("rank {rank} of {size}")]
    Rank {
        /// The number given.
        rank: usize,
        /// Ranks of the run.
        size: usize,
    },
    /// A rank that has exited, or whose connection is lost.
    #[error("rank {rank} is gone")]
    Gone {
        /// The rank.
        rank: usize,
    },
    /// A receive timeout.
    #[error("rank {rank} sent nothing for {seconds} s")]
    Deadline {
        /// The rank.
        rank: usize,
        /// Seconds that were waited.
        seconds: u64,
    },
    /// A message that exceeds the receiver's limit.
    #[error("message of {got} bytes from rank {rank}, expected at most {most}")]
    TooLong {
        /// The sender.
        rank: usize,
        /// The receiver's limit in bytes.
        most: usize,
        /// Bytes that arrived.
        got: usize,
    },
    /// A message shorter than its header or content requires.
    #[error("message of {got} bytes from rank {rank}, expected {expected}")]
    Cut {
        /// The sender.
        rank: usize,
        /// Bytes expected.
        expected: usize,
        /// Bytes that arrived.
        got: usize,
    },
    /// A message whose content was corrupted.
    #[error("damaged message from rank {rank}: {problem}")]
    Damaged {
        /// The sender.
        rank: usize,
        /// The problem found.
        problem: &'static str,
    },
    /// A message out of order: the ranks are at different points of the program.
    #[error("message {got} from rank {rank}, expected message {expected}")]
    Order {
        /// The sender.
        rank: usize,
        /// The receiver's message number.
        expected: u32,
        /// The sender's message number.
        got: u32,
    },
    /// Ranks that were started with different settings.
    #[error("ranks {rank} and 0 differ in {what}: {theirs} and {first}")]
    Differs {
        /// The setting that differs.
        what: String,
        /// The first rank that differs from rank 0.
        rank: usize,
        /// The value on rank 0.
        first: String,
        /// The value on the other rank.
        theirs: String,
    },
    /// A slice of a wrong length.
    #[error("{what} of {got} elements, expected {expected}")]
    Length {
        /// Name of the slice.
        what: &'static str,
        /// Elements expected.
        expected: usize,
        /// Elements given.
        got: usize,
    },
    /// Tensors that do not fit in memory.
    #[error("tensor {tensor} of {rows} x {cols} elements after {before} others does not fit in memory")]
    Shape {
        /// Index of the tensor.
        tensor: usize,
        /// Its rows.
        rows: usize,
        /// Its columns.
        cols: usize,
        /// Total elements of the preceding tensors.
        before: usize,
    },
    /// A codec with more message rounds than the operation supports.
    #[error("codec {codec} takes {got} rounds of messages, expected {expected}")]
    Rounds {
        /// Name of the codec.
        codec: &'static str,
        /// Rounds expected.
        expected: usize,
        /// Rounds of the codec.
        got: usize,
    },
    /// A number out of range.
    #[error("{what} is {got}, expected {expected}")]
    Range {
        /// Name of the setting or number.
        what: &'static str,
        /// The accepted values.
        expected: &'static str,
        /// The value given.
        got: f64,
    },
    /// A finite gradient whose sums would overflow.
    #[error("{what} of rank {rank} has an element of magnitude {got:e}, expected at most {most:e}")]
    TooLarge {
        /// The gradient, or its sum with the residual.
        what: &'static str,
        /// The rank.
        rank: usize,
        /// The largest magnitude.
        got: f32,
        /// The largest accepted one.
        most: f32,
    },
    /// A loss or gradient that is not finite.
    #[error("a loss or gradient of rank {rank} is not finite")]
    NonFinite {
        /// The rank.
        rank: usize,
    },
}

impl CommError {
    /// The same error for another rank; for checks that do not know the rank of a gradient.
    pub(crate) fn of_rank(self, rank: usize) -> Self {
        match self {
            Self::NonFinite { .. } => Self::NonFinite { rank },
            Self::TooLarge { what, got, most, .. } => Self::TooLarge { what, rank, got, most },
            other => other,
        }
    }
}
