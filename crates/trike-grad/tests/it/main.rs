//! Gradients on the host and on devices.
//!
//! One binary for all files: each further one is linked anew.

mod count;
mod device;
mod gradients;
mod precision;
