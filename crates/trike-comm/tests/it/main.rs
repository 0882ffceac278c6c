//! Sums over ranks, and codecs of messages.
//!
//! One binary for all files: each further one is linked anew.

mod codecs;
mod sums;
