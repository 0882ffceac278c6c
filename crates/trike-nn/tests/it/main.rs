//! Operations and decoders on the host and on devices.
//!
//! One binary for all files: each further one is linked anew.

mod common;
mod device;
mod evict;
mod keys;
mod mixed;
mod operations;
