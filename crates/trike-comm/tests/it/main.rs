//! Sums over ranks, and codecs of messages.
//!
//! One binary for all files, since every binary is linked separately.

mod codecs;
mod sums;
