//! Ternary-by-ternary kernels, against oracles.
//!
//! One binary for all files, since every binary is linked separately.

mod bundles;
mod common;
mod popcount;
