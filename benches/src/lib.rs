//! Benchmarks on the host: problems, rivals, and expected results.
//!
//! Start from [`CASES`]: the matrices of a real decoder layer, a square and a small odd-sized one, each with its numbers of
//! tokens and [`Kernel`]s. `cargo xtask bench-report` times all of them interleaved with rivals
//! ([`trike_bench::interleave`]), times whole models ([`MODELS`]), and writes a [`trike_bench::Record`]; `cargo bench -p
//! trike-benches` is for development. `cargo test -p trike-benches` runs every kernel once on every instruction set at the
//! same shapes and compares it with [`Expected`], because wrong results make times worthless. Problem names, timer, records
//! and tables come from [`trike_bench`], which the GPU benchmarks share.
//!
//! Design decision: definitions are data, and all kernels of a problem hold the same small integers, which every weight
//! format represents exactly, so that one oracle checks kernels and rivals. The cost: real scales are not integers, so the
//! benchmarks do not test rounding; the tests of `trike-cpu` do.
//!
//! * products and models: [`Case`], [`CASES`], [`Problem`], [`TimedModel`], [`MODELS`], selected by a [`Plan`]
//! * kernels without weights: [`OPERATIONS`] with their [`Operands`]
//! * weights: [`Weights`], [`Kernel`] with [`Form`] and [`Planes`]; [`LAYER`], [`EVERY`], [`SPARSE`], [`BLOCKS`]
//! * rivals: [`Rival`], [`RivalKind`], [`BASES`]
//! * other engines with a model file: [`EngineSetup`] of the [options](engine_setup), [`EngineRun`]; rows [`TRIKE`], [`ENGINE_ISA`]
//! * correctness: [`Expected`], [`as_quantized`]
//! * timing: [`products`], [`operations`], [`models`], [`engines()`]
//! * evaluation: [`raise_all`], [`void_reasons`], [`TARGETS`]; [`chapter`] of the book
//! * training on several ranks: [`scaling`]
// The `gemm` crate's only interface takes pointers; only `gemm.rs` calls it.
#![deny(unsafe_code)]

mod catalogue;
mod ceilings;
mod charts;
mod engines;
mod expected;
mod gemm;
mod kernel;
mod measure;
mod models;
mod operands;
mod operation;
mod operations;
mod page;
mod plan;
mod rival;
pub mod scaling;
mod targets;
mod weights;

pub use catalogue::{CASES, Case, PORTABLE_MACS, Problem};
pub use ceilings::{raise_all, void_reasons};
pub use engines::{ENGINE_ISA, EngineRun, EngineSetup, TRIKE, engine_setup, engines};
pub use expected::{BOUND, Expected, F16_BOUND, INT16_BOUND, as_quantized};
pub use kernel::{BLOCKS, DENSE, EVERY, Form, Kernel, LAYER, Planes, SPARSE, TERNARY};
pub use measure::{LIMITS, RIVAL_ISA, products};
pub use models::{MODEL_KERNEL, MODELS, TimedModel, models};
pub use operands::Operands;
pub use operation::{OPERATIONS, Operation, Work};
pub use operations::operations;
pub use page::{CHAPTER, chapter, write_chapter};
pub use plan::Plan;
pub use rival::{BASES, Input, Output, Rival, RivalKind};
pub use targets::TARGETS;
pub use weights::Weights;
