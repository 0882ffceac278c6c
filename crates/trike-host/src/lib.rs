//! Runtime of the host kernels: instruction sets, threads, memory, and measured peak rates.
//!
//! Start from [`Cpu`]: an instruction set and a pool of threads. Kernel crates add their operations to it as traits
//! (`CpuOps` of `trike-cpu`, `TritOps` of `trike-popcount`).
//!
//! Main design decision: an instruction set is a value that only detection creates ([`Isa`], and the tokens in
//! [`isa`]), so entering a kernel needs no `unsafe` call and tests can force each available set. The cost:
//! a kernel is compiled for a fixed list of sets, not for the exact CPU.
//!
//! * executor: [`Cpu`], [`Isa`], [`Pool`], [`ranges`]
//! * kernels: [`isa::IsaToken`], [`Loop`]
//! * memory: [`CacheLine`] (one aligned cache line), [`Lines`] (a zeroed buffer, in huge pages if it is large, or a part of a
//!   mapped file), [`FileMap`] and [`exit_on_unreadable_map`], [`free_memory`]
//! * peak rates: [`probe`]
//! * errors: [`HostError`]
//!
//! Applications usually reach this crate through `trike-cpu` or `trike`, which re-export [`Cpu`] and [`Isa`].

mod bus;
mod cpu;
mod error;
mod free;
pub mod isa;
mod map;
mod memory;
mod pool;
pub mod probe;
mod topology;

pub use bus::exit_on_unreadable_map;
pub use cpu::Cpu;
pub use error::HostError;
pub use free::{MemoryLimit, free_memory};
pub use isa::{Isa, Loop};
pub use map::{FileMap, FileRange};
pub use memory::{CacheLine, Lines};
pub use pool::{MAX_THREADS, Pool, ranges};
