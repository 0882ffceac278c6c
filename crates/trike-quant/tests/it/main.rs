//! Quantizers, against their definitions.
//!
//! One binary for all files: each further one is linked anew.

mod latent;
mod quantizers;
