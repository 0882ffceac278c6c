//! CubeCL kernels for ternary, int8 and dense weights: one source for CUDA, ROCm, Vulkan, Metal and WebGPU.
//!
//! Start from [`CubeDevice`]: open one with a [`DeviceSpec`] (`wgpu:0`, `cuda:0`, `auto`), upload into [`Buffer`]s, and call the
//! operations. Kernels run in call order and asynchronously; only reading data back waits.
//!
//! Main design decision: every kernel is planned on the host before it is launched. A [`KernelProblem`] describes the operation,
//! its blueprint the kernel variant (compiled into the kernel), [`Settings`] the launch (cubes, units, shared memory). Everything
//! that a device could reject is rejected by the plan, with the limit and the requested value in the error: a failure on a device
//! thread would leave the output silently unchanged. The cost: shapes are passed with every call, and every call is planned again
//! (a few comparisons).
//!
//! Second decision: no runtime is linked unless its feature is enabled (`wgpu`, `vulkan`, `cuda`, `hip`, `metal`, `cpu`), and
//! only the module `device` uses CubeCL's host API, which changes with every release.
//!
//! * devices: [`CubeDevice`], [`DeviceSpec`], [`Capabilities`], [`devices`], [`is_linked`]
//! * memory: [`Buffer`], [`Element`]
//! * recorded launches, replayed with one call: [`CubeDevice::capture`], [`LaunchGraph`]
//! * plans: [`KernelProblem`], [`Strategy`], [`Settings`], [`Cost`]
//! * linear layers: [`linear`]
//! * other decoder operations: [`ops`]; with a linear layer in one launch: [`fused`]
//! * attention: [`attention`]
//! * training: [`grad`]
//! * dot products of trits with trits: [`TritTable`]; hypervectors: [`vsa`]
//! * measured ceilings of a device: [`CubeDevice::probe_copy`], [`Products`]
//! * errors: [`CubeError`]
//!
//! `trike-nn` builds its device backend on this crate, which depends on `trike-trit` and CubeCL.

pub mod attention;
mod capabilities;
mod device;
mod error;
mod fill;
pub mod fused;
pub mod grad;
#[doc(hidden)]
pub mod internals;
pub mod linear;
mod math;
pub mod ops;
mod plan;
mod popcount;
mod probe;
mod rates;
mod reduce;
mod tuning;
pub mod vsa;

pub use capabilities::{Capabilities, Graphs, Planes};
pub use device::{
    Buffer, CubeDevice, DeviceInfo, DeviceOptions, Element, Launch, LaunchGraph, MemoryUsage, devices,
    is_linked,
};
pub use error::{CubeError, Result};
pub use plan::{KernelProblem, Settings, Strategy};
pub use popcount::{TritDotBlueprint, TritDotProblem, TritTable};
pub use probe::Products;
pub use rates::DeviceFamily;
pub use trike_core::{Cost, DeviceSpec, Runtime, TritScore};
