//! Shared by the benchmarks on the host (`trike-benches`) and on GPUs (`trike-gpu-test bench`): catalogue of problems,
//! timer, records, reports.
//!
//! Start from [`Product`]: a problem is a [`Shape`], [`Zeros`] and a number of tokens, and its name identifies the row of
//! the report. Both benchmarks list their problems by these names, allocate their own operands, and pass [`Contender`]s to
//! [`interleave`], timed by the host's or the device's clock. The samples become [`Figure`]s relative to the [`Ceiling`]s
//! of the run, and a [`Record`], which is compared with the last one of the same machine or device.
//!
//! Design decision: this crate depends on no kernels and no rivals, so that the bundle for a remote GPU machine does not
//! contain the host's rivals. The cost: kernels are identified by strings.
//!
//! * problems: [`Shape`], [`Zeros`], [`Product`], [`Heads`], [`Attention`], [`Model`], [`ModelRun`]
//! * timing: [`Contender`], [`interleave`], [`clock`]; [`median`], [`rounded`]
//! * other engines with the same model file: [`LlamaBench`] runs an [`EngineJob`] and returns its [`EngineTime`]s and the
//!   [`Engine`], or an [`EngineError`]
//! * evaluation: [`Limit`], [`Ceiling`], [`raise`], [`Measured`], [`Launching`], [`Bases`], [`figures`], [`Figure`], [`Target`],
//!   [`Measure`]
//! * records: [`Record`] of a [`Machine`], its [`DeviceFacts`] and [`Software`], with the kernels that were
//!   [`NotRun`]; [`keep`] compares it with the last one by a [`Judgement`] ([`parse_threshold`]) and returns [`Kept`]
//! * reports: [`Table`], [`figure_table`], [`target_table`], [`ceilings_text`], [`Chart`]; [`write_pages`], [`with_part`];
//!   [`published_pages`] with the plots of the README
#![forbid(unsafe_code)]

mod book;
mod catalogue;
mod ceiling;
mod compare;
mod drawing;
mod engine_speeds;
mod figure;
mod keep;
mod llama_bench;
mod machine;
mod published;
mod quality;
mod record;
mod svg;
mod table;
mod target;
mod timing;

pub use book::{Page, with_part, write_pages};
pub use catalogue::{Attention, Heads, Model, ModelRun, Product, Shape, Zeros};
pub use ceiling::{Ceiling, Limit, ceilings_text, raise, threads_text};
pub use figure::{Bases, Figure, Launching, Measured, figure_table, figures, row_name};
pub use keep::{Judgement, Kept, keep, parse_threshold};
pub use llama_bench::{Engine, EngineError, EngineJob, EngineTime, LlamaBench};
pub use machine::{DeviceFacts, Machine, Software, load};
pub use published::published_pages;
pub use record::{NotRun, Record, SCHEMA, load_all, newest, now};
pub use svg::{Chart, Scale};
pub use table::{Align, Table, percent};
pub use target::{Measure, Target, target_table};
pub use timing::{Contender, clock, interleave, median, rounded};
