//! Host kernels for ternary, int8 and dense weights.
//!
//! Start from [`Cpu`]: an instruction set and a number of threads, whose methods are the operations of a decoder
//! ([`Cpu::linear`], [`Cpu::rms_norm`], [`Cpu::rope`], [`Cpu::attention`], [`Cpu::gated`]). Slices go in, slices come
//! out; weights are packed once into a [`Matrix`].
//!
//! The decision that shaped the crate: instructions are chosen at run time by a value that only detection can make
//! ([`Isa`]), and every instruction set computes the ternary kernels to the same bits, from one source over a small set of
//! vector operations. What was given up: multiplications and additions of floats are rounded apart, since not every
//! processor can fuse them. The second one: ternary weights are *copied* into tiles of sixteen rows, in one of the
//! [`Layout`]s, whatever encoding their tensor has.
//!
//! * executor: [`Cpu`], [`Isa`]
//! * weights: [`Matrix`], [`TernaryMatrix`] with [`Layout`], [`Int8Matrix`], [`DenseMatrix`] with [`DenseData`]
//! * activations: [`ActivationPrecision`]
//! * positions: [`RopeTable`], [`RopePairing`]
//! * attention: [`AttentionSpec`], [`KvView`], [`KvData`]
//! * gated MLP: [`GatedActivation`]
//! * trits times trits: [`TritPlanes`], [`PlaneVector`], [`PlaneMatrix`], [`TritScore`], [`BitCounter`]
//! * backward passes: [`grad`], [`transpose`]
//! * figures: [`LinearProblem`] and its [`Cost`], [`probe`] for what the machine can do at most
//! * errors: [`CpuError`]
//!
//! `trike-nn` builds its host backend on this crate, and the command line its `doctor` and `bench`. It depends on
//! `trike-trit`, has its own threads, and has no features to turn on.

mod activations;
mod attention;
mod cost;
mod dense_pieces;
mod error;
mod gated;
pub mod grad;
mod isa;
mod kernels;
mod line;
mod linear;
mod math;
mod matrix;
mod memory;
mod norm;
mod pool;
mod popcount;
pub mod probe;
mod rope;
mod rotate;
mod simd;
mod ternary;
mod transpose;

pub use attention::{KvData, KvView};
pub use error::{CpuError, Result};
pub use isa::Isa;
pub use matrix::{DenseMatrix, Int8Matrix, Layout, MAX_COLS, Matrix, TernaryMatrix};
pub use pool::{Cpu, MAX_THREADS};
pub use popcount::{
    BitCounter, MAX_TRITS, MAX_WEIGHT, PlaneMatrix, PlaneVector, TritHit, TritPlanes, TritPlanesMut,
};
pub use rope::RopeTable;
pub use transpose::transpose;
pub use trike_core::{
    ActivationPrecision, AttentionSpec, Cost, DenseData, GatedActivation, LinearProblem, RopePairing,
    TritScore,
};
