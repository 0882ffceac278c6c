//! Trit tensors: encodings, edits, invalid input.
//!
//! One binary for all files, since every binary is linked separately.

mod bytes;
mod edits;
mod properties;
mod refusals;
