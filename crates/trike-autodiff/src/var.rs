//! Handles of values.

/// A value on a [`Tape`](crate::Tape): an index, valid on that tape only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Var {
    /// The number of the tape.
    pub(crate) tape: u64,
    pub(crate) index: usize,
}
