//! What Trike is timed on, on the host: which problems, beside whom, what the answer must be.
//!
//! Start from [`CASES`]: the matrices of a real decoder layer, a square and an ugly one, each with the numbers of tokens
//! that it meets and the [`Kernel`]s that are timed. `cargo xtask bench-report` times all of them beside rivals, in turns
//! ([`trike_bench::interleave`]), with whole models ([`MODELS`]), and keeps the result as a [`trike_bench::Record`]; `cargo
//! bench -p trike-benches` is for development. `cargo test -p trike-benches` runs every kernel on every instruction set once
//! at the same shapes and compares with [`Expected`], because fast and wrong is worthless. Names of problems, timer, records
//! and tables are those of [`trike_bench`], which the benchmarks on GPUs share.
//!
//! The decision that shaped it: definitions are data and every kernel of a problem holds small integers that all forms
//! of weights represent exactly, so one oracle judges ours and the rivals. What was given up: real scales are no
//! integers, so the figures say nothing about rounding; the tests of `trike-cpu` do.
//!
//! * what: [`Case`], [`CASES`], [`Problem`], [`TimedModel`], [`MODELS`], chosen by a [`Plan`]
//! * what else: [`OPERATIONS`], the kernels that multiply no weights, with their [`Operands`]
//! * with which numbers: [`Weights`], [`Kernel`] with [`Form`] and [`Planes`]; [`LAYER`], [`EVERY`], [`SPARSE`],
//!   [`BLOCKS`]
//! * beside whom: [`Rival`], [`RivalKind`], [`BASES`]
//! * the answer: [`Expected`], [`as_quantized`]
//! * the time: [`products`], [`operations`], [`models`]
//! * the judgement: [`raise_all`], [`void_reasons`], [`TARGETS`]; [`chapter`] of the book
// The rival's only interface takes pointers; one file calls it.
#![deny(unsafe_code)]

mod catalogue;
mod ceilings;
mod charts;
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
mod targets;
mod weights;

pub use catalogue::{CASES, Case, PORTABLE_MACS, Problem};
pub use ceilings::{raise_all, void_reasons};
pub use expected::{BOUND, Expected, F16_BOUND, as_quantized};
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
