//! The error type of the crate.

/// A failure of a message or of what ranks do together.
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
    /// A rank that has ended, or whose connection is lost.
    #[error("rank {rank} is gone")]
    Gone {
        /// The rank.
        rank: usize,
    },
    /// A rank that sent nothing in time.
    #[error("rank {rank} sent nothing for {seconds} s")]
    Deadline {
        /// The rank.
        rank: usize,
        /// Seconds that were waited.
        seconds: u64,
    },
    /// A message that is larger than what was asked for can be.
    #[error("message of {got} bytes from rank {rank}, expected at most {most}")]
    TooLong {
        /// The sender.
        rank: usize,
        /// The most bytes that the receiver takes.
        most: usize,
        /// Bytes that arrived.
        got: usize,
    },
    /// A message that is shorter than it says, or than its content needs.
    #[error("message of {got} bytes from rank {rank}, expected {expected}")]
    Cut {
        /// The sender.
        rank: usize,
        /// Bytes expected.
        expected: usize,
        /// Bytes that arrived.
        got: usize,
    },
    /// A message whose content is not what was sent.
    #[error("damaged message from rank {rank}: {problem}")]
    Damaged {
        /// The sender.
        rank: usize,
        /// What is wrong.
        problem: &'static str,
    },
    /// A message that was sent for another purpose: the ranks are not at the same place of the program.
    #[error("message {got} from rank {rank}, expected message {expected}")]
    Order {
        /// The sender.
        rank: usize,
        /// Its number, as the receiver counts.
        expected: u32,
        /// Its number, as the sender counted.
        got: u32,
    },
    /// Ranks that were started with different settings.
    #[error("ranks {rank} and 0 differ in {what}: {theirs} and {first}")]
    Differs {
        /// What differs.
        what: String,
        /// The first rank that differs from rank 0.
        rank: usize,
        /// That of rank 0.
        first: String,
        /// That of the other.
        theirs: String,
    },
    /// A slice of a wrong length.
    #[error("{what} of {got} elements, expected {expected}")]
    Length {
        /// Which one.
        what: &'static str,
        /// Elements expected.
        expected: usize,
        /// Elements given.
        got: usize,
    },
    /// Tensors with more elements than memory can hold.
    #[error("tensor {tensor} of {rows} x {cols} elements after {before} others does not fit in memory")]
    Shape {
        /// Its number.
        tensor: usize,
        /// Its rows.
        rows: usize,
        /// Its columns.
        cols: usize,
        /// Elements of the tensors before it.
        before: usize,
    },
    /// A codec that exchanges in more rounds than are possible.
    #[error("codec {codec} takes {got} rounds of messages, expected {expected}")]
    Rounds {
        /// Its name.
        codec: &'static str,
        /// Rounds expected.
        expected: usize,
        /// Its rounds.
        got: usize,
    },
    /// A number out of range.
    #[error("{what} is {got}, expected {expected}")]
    Range {
        /// Which one.
        what: &'static str,
        /// The accepted values.
        expected: &'static str,
        /// The value given.
        got: f64,
    },
    /// A finite gradient with which sums would not be finite.
    #[error("{what} of rank {rank} has an element of magnitude {got:e}, expected at most {most:e}")]
    TooLarge {
        /// Which one: the gradient, or what it becomes with what has waited.
        what: &'static str,
        /// The rank.
        rank: usize,
        /// The largest magnitude.
        got: f32,
        /// The largest accepted one.
        most: f32,
    },
    /// A loss or a gradient that is not finite.
    #[error("a loss or gradient of rank {rank} is not finite")]
    NonFinite {
        /// The rank.
        rank: usize,
    },
}

impl CommError {
    /// The same error of a gradient as that of another rank, for checks that do not know whose it is.
    pub(crate) fn of_rank(self, rank: usize) -> Self {
        match self {
            Self::NonFinite { .. } => Self::NonFinite { rank },
            Self::TooLarge { what, got, most, .. } => Self::TooLarge { what, rank, got, most },
            other => other,
        }
    }
}
