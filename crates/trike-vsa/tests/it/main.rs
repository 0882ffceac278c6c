//! Hypervectors: algebra, structures, files, devices.
//!
//! One binary for all files, since every binary is linked separately.

mod capacity;
mod demonstration;
mod device;
mod files;
mod laws;
mod structures;
