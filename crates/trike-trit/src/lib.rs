//! What a trit tensor *is*: ternary weights in five encodings, their scales, a sparsity index, edits in place.
//!
//! Start from [`TritTensor`]: `rows x cols` trits in one to six planes, with scales per tensor, row or group.
//! It is the only ternary tensor type of the workspace; kernels repack it, files store it, quantizers make it.
//!
//! The decision a reader would question: one logical tensor with several [`Encoding`]s instead of a type per
//! packing. What that buys is that every reader, writer and kernel meets in one place, and every pair of
//! encodings converts without loss; the price is a `match` where a tensor is decoded, which is why hot loops
//! live in the kernel crates over their own layouts and not here.
//!
//! The second one: there is no unchecked constructor. A tensor that exists has disjoint planes, clean tails,
//! codes in range and finite scales; checking that is one linear pass, and it is paid once a load.
//!
//! * symbols: [`Trit`]
//! * tensor: [`TritTensor`], [`TritRow`], [`TritData`] (its raw parts), [`Encoding`], [`Coupling`]
//! * scales: [`Scales`], [`ScaleValues`], [`Granularity`], [`GroupSize`]
//! * zeros: [`SparsityMetadata`]
//! * inputs that are rotated first: [`Hadamard`], [`TritTensor::with_rotation`]
//! * edits: [`Edit`], [`TritTensor::set`], [`TritTensor::edit`]
//! * balanced integers: [`trits_of`], [`value_of`], [`Tryte3`], [`Word6`], [`TryteVec`]
//! * errors: [`TritError`]
//!
//! Every crate of Trike depends on this one; it depends on three small crates and has no features to turn on.
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
