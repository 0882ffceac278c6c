//! The modules compared with plain Candle.
//!
//! All files are in one binary, since each further one would be linked separately.

mod latent;
mod modules;
mod on_device;
