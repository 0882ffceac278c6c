//! Hypervectors: algebra, structures, files, devices.
//!
//! One binary for all files: each further one is linked anew.

mod capacity;
mod demonstration;
mod device;
mod files;
mod laws;
mod structures;
