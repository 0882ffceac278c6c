//! Operations and decoders on the host and on devices.
//!
//! All files are in one binary, since each further one would be linked separately.

mod common;
mod device;
mod evict;
mod keys;
mod mixed;
mod operations;
mod pages;
