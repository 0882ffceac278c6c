//! The error type of the crate.

/// A request that the machine cannot satisfy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// An unknown instruction set name.
    #[error("unknown instruction set {name:?}, expected one of {known}")]
    UnknownIsa {
        /// The given name.
        name: String,
        /// The known names.
        known: &'static str,
    },
    /// An instruction set that this machine does not support.
    #[error("instruction set {name} is not available on this machine, available: {available}")]
    IsaUnavailable {
        /// The given name.
        name: String,
        /// The names of the available instruction sets.
        available: String,
    },
    /// A number of threads above [`MAX_THREADS`](crate::MAX_THREADS).
    #[error("{requested} threads requested, expected at most {maximum}")]
    TooManyThreads {
        /// Threads requested.
        requested: usize,
        /// The largest accepted number.
        maximum: usize,
    },
    /// The operating system could not start the threads.
    #[error("cannot start {requested} threads: {reason}")]
    Threads {
        /// Threads requested.
        requested: usize,
        /// The error of the operating system.
        reason: String,
    },
    /// A memory allocation failed.
    #[error("cannot allocate {requested} bytes")]
    Memory {
        /// Bytes requested.
        requested: usize,
    },
}
