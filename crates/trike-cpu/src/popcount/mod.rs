//! Ternary times ternary on bit planes: dot products and matches by population count, element-wise operations, nearest
//! rows, and counters for bundles.
//!
//! A vector of trits is two rows of u64 words, one with a bit for every `+1` and one for every `-1`, element `j` in bit
//! `j % 64` of word `j / 64`; no position is in both and the bits past the end are zero. [`TritPlanes`] is a view of
//! such rows and the proof of those two rules, so nothing behind it checks again.
//!
//! Every algorithm is written once, over the handful of operations in [`lanes::Lanes`], and compiled for each
//! instruction set; all of it is integer and exact, so every instruction set gives the same bits.

mod algebra;
mod counted;
mod counter;
mod decide;
mod element;
mod lanes;
mod matrix;
mod pair;
mod planes;
mod rotate;
mod scores;
mod top;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use counter::{BitCounter, MAX_WEIGHT};
pub use matrix::PlaneMatrix;
pub use planes::{MAX_TRITS, PlaneVector, TritPlanes, TritPlanesMut};
pub use top::TritHit;
