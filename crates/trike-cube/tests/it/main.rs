//! Plans, layouts and kernels: on the host, and on the software Vulkan driver.
//!
//! These are unit tests, too: the internals that they need are in `trike_cube::internals`. One binary for all files, since every
//! binary is linked separately.

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
