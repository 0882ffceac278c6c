//! The words that every other crate of Trike shares, each defined once.
//!
//! Start from [`Tensor`]: a weight matrix (ternary, int8 or dense) on its way from a file to a backend. Kernels for the host
//! and for GPUs, file formats and models all name the same types, so nothing is converted where crates meet.
//!
//! The decision that shaped the crate: it holds values and their rules, no algorithm and no hardware. A precision says which
//! numbers are meant, not how a kernel computes them; what was given up is that a backend that lacks a precision has to refuse
//! it at run time.
//!
//! * weights: [`Tensor`], [`DenseTensor`] with [`DenseData`], [`Int8Tensor`]; resident ternary ones: [`Layout`]
//! * dense weights as trits, by definitions that several crates share: [`exact_trits`], [`absmean_trits`], [`absmean`]
//! * precisions: [`ActivationPrecision`], [`KvPrecision`]
//! * operations: [`GatedActivation`], [`AttentionSpec`], [`RopeSpec`] with [`RopePairing`] and [`RopeScaling`], [`TritScore`]
//! * costs: [`Cost`], [`LinearProblem`]
//! * names of devices: [`DeviceSpec`], [`Runtime`], [`UnknownDevice`]
//! * options: [`OptionError`] with [`Bounds`]
//! * errors: [`TensorError`], [`SpecError`]
//!
//! It depends on `trike-trit` alone and has no features to turn on.
#![forbid(unsafe_code)]

mod attention;
mod cost;
mod dense;
mod device;
mod error;
mod int8;
mod layout;
mod operation;
mod option;
mod precision;
mod rope;
mod tensor;
mod ternary;

pub use attention::AttentionSpec;
pub use cost::{Cost, LinearProblem};
pub use dense::{DenseData, DenseTensor, MAX_DIMS, elements};
pub use device::{DeviceSpec, Runtime, UnknownDevice};
pub use error::{SpecError, TensorError};
pub use int8::Int8Tensor;
pub use layout::Layout;
pub use operation::{GatedActivation, TritScore};
pub use option::{Bounds, Number, OptionError};
pub use precision::{ActivationPrecision, KvPrecision};
pub use rope::{RopePairing, RopeScaling, RopeSpec};
pub use tensor::Tensor;
pub use ternary::{absmean, absmean_trits, exact_trits};
