//! What benchmarks on the host (`trike-benches`) and on GPUs (`trike-gpu-test bench`) share: one catalogue, one timer, one
//! record, one report.
//!
//! Start from [`Product`]: a problem is a [`Shape`], [`Zeros`] and a number of tokens, and its name is the row of the
//! report. Both sides list the problems that they time by these names, hold operands of their own kind, and hand
//! [`Contender`]s to [`interleave`]; a device's clock is a clock like the host's. Samples become [`Figure`]s beside the
//! [`Ceiling`]s of the run, and a [`Record`], which is compared with the last one of the same machine or device.
//!
//! The decision that shaped it: it knows no kernels and no rivals, so that the bundle for a foreign machine contains this
//! crate and none of the host's rivals. What was given up: names of kernels are text.
//!
//! * what: [`Shape`], [`Zeros`], [`Product`], [`Heads`], [`Attention`], [`Model`], [`ModelRun`]
//! * the time: [`Contender`], [`interleave`], [`clock`]; [`median`], [`rounded`]
//! * what it means: [`Limit`], [`Ceiling`], [`raise`], [`Measured`], [`Bases`], [`figures`], [`Figure`], [`Target`],
//!   [`Measure`]
//! * what stays: [`Record`] of a [`Machine`], its [`DeviceFacts`] and [`Software`], with the kernels that were
//!   [`NotRun`]; [`keep`] compares it with the last one by a [`Judgement`] ([`parse_threshold`]) and says what was [`Kept`]
//! * the report: [`Table`], [`figure_table`], [`target_table`], [`ceilings_text`], [`Chart`]; [`write_pages`], [`with_part`]
#![forbid(unsafe_code)]

mod book;
mod catalogue;
mod ceiling;
mod compare;
mod figure;
mod keep;
mod machine;
mod record;
mod svg;
mod table;
mod target;
mod timing;

pub use book::{Page, with_part, write_pages};
pub use catalogue::{Attention, Heads, Model, ModelRun, Product, Shape, Zeros};
pub use ceiling::{Ceiling, Limit, ceilings_text, raise, threads_text};
pub use figure::{Bases, Figure, Measured, figure_table, figures, row_name};
pub use keep::{Judgement, Kept, keep, parse_threshold};
pub use machine::{DeviceFacts, Machine, Software, load};
pub use record::{NotRun, Record, SCHEMA, load_all, newest, now};
pub use svg::{Chart, Scale};
pub use table::{Align, Table, percent};
pub use target::{Measure, Target, target_table};
pub use timing::{Contender, clock, interleave, median, rounded};
