//! Plans, layouts and kernels: on the host, and on the software Vulkan driver.
//!
//! These are unit tests, too: what they need of the inside is in `trike_cube::internals`. One binary for all files: each further
//! one is linked anew.

mod attention;
mod device;
mod error;
mod grad;
mod linear;
mod ops;
mod plan;
mod popcount;
mod probe;
mod rates;
mod testing;
mod tuning;
