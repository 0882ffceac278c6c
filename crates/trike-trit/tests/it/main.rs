//! Trit tensors: encodings, edits, refusals.
//!
//! One binary for all files: each further one is linked anew.

mod bytes;
mod edits;
mod properties;
mod refusals;
