//! Tests Trike's GPU kernels three times: compiled for every target without a GPU, emulated where no driver could run them, and
//! run on every device found.
//!
//! Start from the command (`cargo xtask gpu-test` runs it): its phases are [`compile::run`], [`emulate::run`] and [`run::run`].
//! The cases are [`suites`], written once as functions over a [`Session`]: `cargo test` runs them on the software Vulkan driver,
//! the bundle on whatever the machine has, and the compile phase on devices that [record](mod@record) instead of computing.
//!
//! The decision that shaped the crate: nothing lists the kernels. A recording device has the properties of an H200, an RX
//! 7900 or a phone's Vulkan driver, and what Trike's host code launches on it is what there is to compile. The price is a
//! copy of what CubeCL's runtimes say about such devices ([`target`]), to be checked at each upgrade of CubeCL.
//!
//! * cases and outcomes: [`Session`], [`Oracle`], [`Tally`], [`suites`]
//! * without a GPU: [`compile`], [`mod@record`], [`mod@emulate`], [`target`]
//! * on devices: [`run`], [`mod@bench`]
//!
//! A development tool, never published; unsafe is the launch that CubeCL declares so, which here runs nothing or another process,
//! and, with the feature `rivals`, the call of cuBLAS.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod bench;
pub mod compile;
pub mod emulate;
pub mod record;
pub mod run;
pub mod session;
mod stand_in;
pub mod suites;
pub mod tally;
pub mod target;

pub use session::{Failure, Oracle, Session, Verdict};
pub use tally::{Outcome, Tally};
