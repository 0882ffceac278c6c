//! Oracles, input tables, tolerances and outcomes for the tests of every Trike crate.
//!
//! Start from [`shared`], which finds public test data or says why a test is skipped, and [`Rng`], the one
//! source of seeded inputs. Nothing here depends on a crate under test: an oracle that shares code with
//! what it checks proves nothing.
//!
//! * data: [`shared`], [`python`], [`npz`], [`NpyArray`]
//! * inputs: [`Rng`]
//! * comparison, with the tolerances of `approx`: [`assert_near!`], [`is_near`] and [`Tolerance`]; [`assert_all_near!`], [`assert_close`]
//!   and [`max_rel`] for vectors
#![forbid(unsafe_code)]

mod compare;
mod npz;
mod rng;
mod shared;

pub use compare::{Real, Tolerance, assert_close, is_near, max_rel};
#[doc(hidden)]
pub use compare::{check_all_near, check_near};
pub use npz::{NpyArray, NpyData, npz};
pub use rng::Rng;
pub use shared::{python, shared};
