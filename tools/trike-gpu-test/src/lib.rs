//! Tests Trike's GPU kernels in three ways: compiled for every target without a GPU, emulated if no driver can run
//! them, and run on every device found.
//!
//! Start from the command (run by `cargo xtask gpu-test`): its phases are [`compile::run`], [`emulate::run`] and
//! [`run::run`]. The cases are [`suites`], written once as functions over a [`Session`]: `cargo test` runs them on the
//! software Vulkan driver, the bundle on the devices of the machine, and the compile phase on devices that
//! [record](mod@record) instead of computing.
//!
//! Main design decision: there is no list of kernels. A recording device has the properties of an H200, an RX 7900 or
//! a phone's Vulkan driver, and the kernels that Trike's host code launches on it are the ones that are compiled. The
//! cost is a copy of the properties that CubeCL's runtimes report for such devices ([`target`]), to be checked at each
//! upgrade of CubeCL.
//!
//! * cases and outcomes: [`Session`], [`Oracle`], [`Tally`], [`suites`]
//! * without a GPU: [`compile`], [`mod@record`], [`mod@emulate`], [`target`]
//! * the machine code of CUDA kernels, counted: `counts`
//! * on devices: [`run`], [`mod@bench`]
//!
//! A development tool, never published. `unsafe` is limited to the launch function that CubeCL declares unsafe, which
//! runs nothing or another process here, and, with the feature `rivals`, to calls of cuBLAS.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod bench;
pub mod compile;
mod counts;
pub mod emulate;
pub mod record;
pub mod run;
pub mod session;
pub mod share;
mod stand_in;
pub mod suites;
pub mod tally;
pub mod target;

pub use session::{Failure, Oracle, Session, Verdict};
pub use share::Share;
pub use tally::{Outcome, Tally};
