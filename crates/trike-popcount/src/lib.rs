//! Ternary-by-ternary kernels for the host: dot products and matches by population count, element-wise operations, top-k search,
//! and counters for bundles.
//!
//! Start from [`TritPlanes`], a view of a vector of trits, and [`TritOps`], the operations of [`Cpu`] on such views. A vector is
//! two rows of u64 words, one with a bit for every `+1` and one for every `-1`: element `j` is bit `j % 64` of word `j / 64`; no
//! position is set in both, and the bits past the end are zero. A view guarantees these two invariants, so no operation checks
//! them again.
//!
//! Main design decision: every algorithm is written once, over a small set of word operations, and compiled for each
//! instruction set; it is exact integer arithmetic, so every instruction set gives the same bits. The cost:
//! scores are counts, so a weighted similarity needs one plane per bit of the weights ([`BitCounter`]).
//!
//! * vectors: [`TritPlanes`], [`TritPlanesMut`], [`PlaneVector`], [`PlaneMatrix`]
//! * operations: [`TritOps`], [`TritScore`], [`TritHit`]
//! * bundles: [`BitCounter`]
//! * errors: [`PopcountError`]
//!
//! `trike-vsa` builds hypervector algebra on this crate. It depends on `trike-trit`, `trike-core` and `trike-host` only.

mod algebra;
mod counted;
mod counter;
mod decide;
mod element;
mod error;
mod lanes;
mod matrix;
mod ops;
mod pair;
mod planes;
mod project;
mod rotate;
mod scores;
mod top;

pub use counter::{BitCounter, MAX_WEIGHT};
pub use error::PopcountError;
pub use matrix::PlaneMatrix;
pub use ops::TritOps;
pub use planes::{MAX_TRITS, PlaneVector, TritPlanes, TritPlanesMut};
pub use trike_core::{TritHit, TritScore};
pub use trike_host::Cpu;
