//! Oracles, input tables, tolerances and outcomes for the tests of every Trike crate.
//!
//! Start from [`shared`], which finds public test data or says why a test is skipped, and [`Rng`], the one
//! source of seeded inputs. Nothing here depends on a crate under test: an oracle that shares code with
//! what it checks proves nothing.
//!
//! * data: [`shared`], [`python`], [`npz`], [`NpyArray`]
//! * inputs: [`Rng`]
//! * comparison: [`max_rel`], [`assert_close`]
#![forbid(unsafe_code)]

mod compare;
mod npz;
mod rng;
mod shared;

pub use compare::{assert_close, max_rel};
pub use npz::{NpyArray, NpyData, npz};
pub use rng::Rng;
pub use shared::{python, shared};
