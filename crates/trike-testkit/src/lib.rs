//! Oracles, seeded inputs, tolerances and test data for the tests of all Trike crates.
//!
//! Start from [`shared`], which finds public test data or reports a skip, and [`Rng`], the only source of seeded
//! inputs. Nothing here depends on a crate under test: an oracle that shares code with the tested crate proves
//! nothing.
//!
//! * data: [`shared`], [`python`], [`skip`] where they are missing, [`npz`], [`NpyArray`]
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
pub use shared::{python, shared, skip};
