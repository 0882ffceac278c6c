//! CubeCL kernels for ternary, int8 and dense weights: one source for CUDA, ROCm, Vulkan, Metal and WebGPU.
//!
//! Start from [`Device`]: open one with a [`DeviceSpec`] (`wgpu:0`, `cuda:0`, `auto`), upload into [`Buffer`]s, and call the
//! operations. Kernels run in the order of the calls; nothing waits until something is read back.
//!
//! The decision that shaped the crate: every kernel is planned on the host before it is launched. A [`Plan`] says *what* is
//! wanted, its blueprint says *how* (compiled into the kernel), [`Settings`] say *where* (cubes, units, shared memory), and
//! everything that a device could refuse is refused by the plan, with the limit and the request in the error: on a device
//! thread a refusal would leave the output as it was. What was given up: shapes travel with every call, and a plan is made
//! anew each time (it is a few comparisons).
//!
//! The second one: no runtime is linked unless a feature says so (`wgpu`, `vulkan`, `cuda`, `hip`, `metal`, `cpu`), and only
//! the module `device` talks to CubeCL's host interface, which changes with every release.
//!
//! * devices: [`Device`], [`DeviceSpec`], [`Capabilities`], [`devices`], [`is_linked`]
//! * memory: [`Buffer`], [`Element`]
//! * launches that run again with one call: [`Device::capture`], [`Graph`]
//! * plans: [`Plan`], [`Strategy`], [`Settings`], [`Cost`]
//! * weights times activations: [`linear`]
//! * other operations of a decoder: [`ops`]
//! * attention: [`attention`]
//! * trits times trits: [`TritTable`]; hypervectors: [`vsa`]
//! * what a device can do at most: [`Device::probe_copy`], [`Products`]
//! * errors: [`CubeError`]
//!
//! `trike-nn` builds its device backend on this crate. It depends on `trike-trit` and on CubeCL.

pub mod attention;
mod capabilities;
mod device;
mod error;
mod fill;
pub mod linear;
pub mod ops;
mod plan;
mod popcount;
mod probe;
#[cfg(test)]
mod testing;
pub mod vsa;

pub use capabilities::{Capabilities, Graphs, Planes};
pub use device::{
    Buffer, Device, DeviceInfo, DeviceOptions, Element, Graph, Launch, Memory, devices, is_linked,
};
pub use error::{CubeError, Result};
pub use plan::{Plan, Settings, Strategy};
pub use popcount::{TritDotBlueprint, TritDotProblem, TritTable};
pub use probe::Products;
pub use trike_core::{Cost, DeviceSpec, Runtime, TritScore};
