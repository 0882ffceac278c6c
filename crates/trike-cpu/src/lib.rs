//! Host kernels for ternary, int8 and dense weights.
//!
//! Start from [`CpuOps`], which adds the operations of a decoder to [`Cpu`]: linear layers, norms, rotary embedding,
//! attention, gated activations. All operations work on slices; weights are packed once into a [`Matrix`].
//!
//! Main design decisions: instruction sets are selected at run time by a value that only detection can create
//! ([`Isa`]), and the ternary kernels are bit-identical on every instruction set, from one source over a small set of
//! vector operations. The cost: float multiplications and additions are rounded separately, since not every CPU has
//! FMA. Ternary weights are *copied* into tiles of sixteen rows, in one of the [`Layout`]s, independent of the
//! encoding of their tensor.
//!
//! * operations: [`CpuOps`], on a [`Cpu`] with an [`Isa`] (both of `trike-host`)
//! * weights: [`Matrix`], [`TernaryMatrix`] with [`Layout`] and in-place [edits](TernaryMatrix::edit), [`Int8Matrix`],
//!   [`DenseMatrix`] with [`DenseData`]
//! * activations: [`ActivationPrecision`]
//! * positions: [`RopeTable`], [`RopePairing`]
//! * attention: [`AttentionSpec`], [`KvView`], pages of [`KV_PAGE`], [`PROMPT_ROWS`], [`KvData`], [`KvBuffer`], [`quantize_head`], [`quantize_head_int4`]; top-k:
//!   [`KeySelection`] of a [`KeySelector`], [`KeyIndex`], [`KeyScratch`]; block-sparse: [`BlockBitmap`], chosen for [`PromptKeys`]
//! * gated MLP: [`GatedActivation`]
//! * backward passes: [`grad`], [`transpose`]
//! * matrix products without packed weights, for training: [`matmul`] of [`MatrixRef`]s, and [`matmul_rounded`] of operands in bf16
//!   or f16
//! * loops of other crates, compiled for the CPU's instruction set: [`vectorized`]
//! * cost model: [`LinearProblem`] and its [`Cost`]; [`probe`] measures the peak rates of the machine
//! * errors: [`CpuError`]
//!
//! Used by the host backend of `trike-nn` and by `doctor` and `bench` of the command line. It depends on `trike-trit`
//! and `trike-host` and has no features. Products of trits with trits are in `trike-popcount`.

mod activations;
mod attention;
mod cost;
mod dense_pieces;
mod error;
mod gated;
pub mod grad;
mod int8;
mod kernels;
mod line;
mod linear;
mod math;
mod matmul;
mod matrix;
mod norm;
mod ops;
mod piece;
mod rope;
mod rotate;
mod simd;
mod ternary;
mod transpose;
mod vectorized;

pub use attention::{
    KV_PAGE, KeyIndex, KeyScratch, KeySelection, KvBuffer, KvData, KvView, PROMPT_ROWS, quantize_head,
    quantize_head_int4,
};
pub use error::CpuError;
pub use matmul::{MatrixRef, Store, matmul, matmul_rounded};
pub use matrix::{DenseMatrix, EditOutcome, Int8Matrix, MAX_COLS, Matrix, TernaryMatrix, choose_layout};
pub use ops::CpuOps;
pub use rope::RopeTable;
pub use transpose::transpose;
pub use trike_core::{
    ActivationPrecision, AttentionSpec, BlockBitmap, BlockError, Cost, DenseData, GatedActivation,
    KeySelector, Layout, LinearProblem, PromptKeys, RopePairing, SelectedKeys, Tiles,
};
pub use trike_host::{
    Cpu, FileRange, HostError, Isa, Lines, Loop, MAX_THREADS, MemoryLimit, free_memory, probe,
};
pub use vectorized::vectorized;
