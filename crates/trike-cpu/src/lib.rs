//! Host kernels for ternary, int8 and dense weights.
//!
//! Start from [`CpuOps`], which adds the operations of a decoder to [`Cpu`]: linear layers, norms, rotary embedding, attention,
//! gated activations. Slices go in, slices come out; weights are packed once into a [`Matrix`].
//!
//! The decision that shaped the crate: instructions are chosen at run time by a value that only detection can make
//! ([`Isa`]), and every instruction set computes the ternary kernels to the same bits, from one source over a small set of
//! vector operations. What was given up: multiplications and additions of floats are rounded apart, since not every
//! processor can fuse them. The second one: ternary weights are *copied* into tiles of sixteen rows, in one of the
//! [`Layout`]s, whatever encoding their tensor has.
//!
//! * operations: [`CpuOps`], on a [`Cpu`] with an [`Isa`] (both of `trike-host`)
//! * weights: [`Matrix`], [`TernaryMatrix`] with [`Layout`] and in-place [edits](TernaryMatrix::edit), [`Int8Matrix`], [`DenseMatrix`] with [`DenseData`]
//! * activations: [`ActivationPrecision`]
//! * positions: [`RopeTable`], [`RopePairing`]
//! * attention: [`AttentionSpec`], [`KvView`], [`KvData`]
//! * gated MLP: [`GatedActivation`]
//! * backward passes: [`grad`], [`transpose`]
//! * figures: [`LinearProblem`] and its [`Cost`]; [`probe`] measures the peak rates of the machine
//! * errors: [`CpuError`]
//!
//! `trike-nn` builds its host backend on this crate, and the command line its `doctor` and `bench`. It depends on
//! `trike-trit` and `trike-host` and has no features. Products of trits with trits are in `trike-popcount`.

mod activations;
mod attention;
mod cost;
mod dense_pieces;
mod error;
mod gated;
pub mod grad;
mod kernels;
mod line;
mod linear;
mod math;
mod matrix;
mod norm;
mod ops;
mod piece;
mod rope;
mod rotate;
mod simd;
mod ternary;
mod transpose;

pub use attention::{KvData, KvView};
pub use error::CpuError;
pub use matrix::{DenseMatrix, EditOutcome, Int8Matrix, MAX_COLS, Matrix, TernaryMatrix, choose_layout};
pub use ops::CpuOps;
pub use rope::RopeTable;
pub use transpose::transpose;
pub use trike_core::{
    ActivationPrecision, AttentionSpec, Cost, DenseData, GatedActivation, Layout, LinearProblem, RopePairing,
};
pub use trike_host::{Cpu, HostError, Isa, MAX_THREADS, probe};
