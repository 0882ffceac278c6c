//! The catalogue of problems: what Trike is timed on, what the answer must be, and how a time is judged.
//!
//! Start from [`SHAPES`]: the matrices of a real decoder layer, a square and an ugly one, each with the numbers of
//! tokens that it meets. `cargo bench -p trike-benches` times them; `cargo test -p trike-benches` runs every kernel on
//! every instruction set once at the same shapes and compares with [`Expected`], because fast and wrong is worthless.
//!
//! The decision that shaped it: definitions are data and every [`Kernel`] of a problem holds *the same* weights, small
//! integers that ternary times scale, int8 and both floats represent exactly, so one oracle judges ours and the rivals.
//! What was given up: real scales are no integers, so the figures say nothing about rounding; the tests of `trike-cpu` do.
//!
//! * what: [`Shape`], [`SHAPES`], [`Problem`]
//! * with which numbers: [`Weights`], [`Kernel`]
//! * the answer: [`Expected`], [`as_quantized`]
//! * the judgement: [`Ceilings`], [`Row`], [`table`]
#![forbid(unsafe_code)]

mod catalogue;
mod expected;
mod report;
mod weights;

pub use catalogue::{PORTABLE_MACS, Problem, SHAPES, Shape};
pub use expected::{Expected, as_quantized};
pub use report::{Ceilings, Row, table};
pub use weights::{Kernel, Weights};
