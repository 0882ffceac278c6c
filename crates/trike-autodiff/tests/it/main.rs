//! Gradients on the host and on devices.
//!
//! One binary for all files, since every binary is linked separately.

mod count;
mod device;
mod gradients;
mod precision;
