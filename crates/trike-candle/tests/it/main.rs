//! Modules for Candle users, against plain Candle.
//!
//! One binary for all files: each further one is linked anew.

mod latent;
mod modules;
mod on_device;
