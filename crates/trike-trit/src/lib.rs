//! Ternary weight tensors: five encodings, scales, a sparsity index and in-place edits.
//!
//! Start from [`TritTensor`]: `rows x cols` trits in one to six planes, with scales per tensor, row or group.
//! It is the only ternary tensor type of the workspace: quantizers create it, files store it, kernels repack it.
//!
//! The decision that shaped the crate: one logical tensor type with several [`Encoding`]s instead of one type per
//! packing. All readers, writers and kernels share the type, and any two encodings convert without loss; the price
//! is a `match` wherever a tensor is decoded, so hot loops are in the kernel crates, over their own layouts.
//!
//! The second decision: there is no unchecked constructor. Every tensor has disjoint planes, zero padding, valid
//! codes and finite scales; the check is one linear pass per load.
//!
//! * symbols: [`Trit`]
//! * tensor: [`TritTensor`], [`TritRow`], [`TritData`] (its raw buffers), [`Encoding`], [`Coupling`]
//! * scales: [`Scales`], [`ScaleValues`], [`Granularity`], [`GroupSize`]
//! * sparsity: [`SparsityMetadata`]
//! * rotation of the inputs: [`Hadamard`], [`TritTensor::with_rotation`]
//! * edits: [`Edit`], [`TritTensor::set`], [`TritTensor::edit`]
//! * balanced integers: [`trits_of`], [`value_of`], [`Tryte3`], [`Word6`], [`TryteVec`]
//! * errors: [`TritError`]
//!
//! Every crate of Trike depends on this one; it depends on three small crates and has no Cargo features.
#![forbid(unsafe_code)]

mod balanced;
mod data;
mod edit;
mod error;
mod hadamard;
mod kinds;
mod plane;
mod row;
mod scales;
mod sparsity;
mod tensor;
mod trit;
mod trytes;

pub use balanced::{I64_TRITS, Tryte3, Word6, trits_of, value_of};
pub use data::TritData;
pub use edit::Edit;
pub use error::TritError;
pub use hadamard::Hadamard;
pub use kinds::{Coupling, Encoding, Granularity, GroupSize, MAX_DEPTH, ParseKindError};
pub use row::{TritRow, Trits};
pub use scales::{ScaleValues, Scales};
pub use sparsity::{BLOCK_TRITS, CHUNK_TRITS, SparsityMetadata};
pub use tensor::TritTensor;
pub use trit::Trit;
pub use trytes::TryteVec;
