//! Quantizers, against their definitions.
//!
//! One binary for all files, since every binary is linked separately.

mod latent;
mod quantizers;
