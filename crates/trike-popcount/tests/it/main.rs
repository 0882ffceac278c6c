//! Products of trits with trits, against oracles.
//!
//! One binary for all files: each further one is linked anew.

mod bundles;
mod common;
mod popcount;
