//! The catalogue of problems: what Trike is timed on, what the answer must be, and how a time is judged.
//!
//! Start from [`SHAPES`]: the matrices of a real decoder layer, a square and an ugly one, each with the numbers of
//! tokens that it meets and the [`Kernel`]s that are timed. `cargo xtask bench-report` times all of them beside rivals,
//! in turns ([`interleave`]), with whole models ([`MODELS`]), and keeps the result as a [`Record`]; `cargo bench -p
//! trike-benches` is for development. `cargo test -p trike-benches` runs every kernel on every instruction set once at
//! the same shapes and compares with [`Expected`], because fast and wrong is worthless.
//!
//! The decision that shaped it: definitions are data and every kernel of a problem holds small integers that all forms
//! of weights represent exactly, so one oracle judges ours and the rivals. What was given up: real scales are no
//! integers, so the figures say nothing about rounding; the tests of `trike-cpu` do.
//!
//! * what: [`Shape`], [`SHAPES`], [`Problem`], [`Model`], [`MODELS`], chosen by a [`Plan`]
//! * what else: [`OPERATIONS`], the kernels that multiply no weights, with their [`Operands`]
//! * with which numbers: [`Weights`], [`Kernel`] with [`Form`] and [`Planes`]; [`LAYER`], [`EVERY`], [`SPARSE`],
//!   [`BLOCKS`]
//! * beside whom: [`Rival`], [`RivalKind`]
//! * the answer: [`Expected`], [`as_quantized`]
//! * the time: [`Contender`], [`interleave`], [`products`], [`operations`], [`models`]
//! * the judgement: [`Ceilings`], [`Measured`] with its [`Limits`], [`Figure`], [`table`], [`Target`], [`compare`]
//! * what stays: [`Record`] of a [`Machine`] and its [`Software`]; [`pages`] of the book with [`Chart`]s
// The rival's only interface takes pointers; one file calls it.
#![deny(unsafe_code)]

mod catalogue;
mod ceilings;
mod compare;
mod expected;
mod figure;
mod gemm;
mod kernel;
mod machine;
mod measure;
mod models;
mod operands;
mod operations;
mod page;
mod plan;
mod record;
mod rival;
mod svg;
mod targets;
mod timing;
mod weights;

pub use catalogue::{PORTABLE_MACS, Problem, SHAPES, Shape};
pub use ceilings::{Ceilings, raise_all, void_reasons};
pub use compare::{Comparison, Regression, compare};
pub use expected::{BOUND, Expected, F16_BOUND, as_quantized};
pub use figure::{BASE, Figure, Limits, Measured, ceilings_text, figures, row_name, table};
pub use kernel::{BLOCKS, DENSE, EVERY, Form, Kernel, LAYER, Planes, SPARSE, TERNARY};
pub use machine::{Machine, Software, load};
pub use measure::{RIVAL_ISA, products};
pub use models::{MODEL_KERNEL, MODELS, Model, models};
pub use operands::Operands;
pub use operations::{OPERATIONS, Operation, Work, operations};
pub use page::{CHAPTER, Page, pages, write_pages};
pub use plan::Plan;
pub use record::{Record, SCHEMA, baseline, load_all, newest, now};
pub use rival::{Input, Output, Rival, RivalKind};
pub use svg::{Chart, Scale};
pub use targets::{Measure, TARGETS, Target};
pub use timing::{Contender, clock, interleave, median, paired_ratio, spread};
pub use weights::Weights;
