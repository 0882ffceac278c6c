//! Types that all other crates of Trike share, each defined once.
//!
//! Start from [`Tensor`]: a weight matrix (ternary, int8 or dense), as read from a file and passed to a backend. CPU kernels,
//! GPU kernels, file formats and models use the same types, so nothing is converted at crate boundaries.
//!
//! The decision that shaped the crate: it holds data types and their invariants, no algorithms and no hardware code. A precision
//! names a number format, not how a kernel computes with it; the cost is that a backend without a precision can reject it only
//! at run time.
//!
//! * weights: [`Tensor`], [`DenseTensor`] with [`DenseData`], [`Int8Tensor`]; layouts of resident ternary weights: [`Layout`]
//! * tiled matrices, the order of weights for host kernels in memory and in files: [`Tiles`], [`TritTiles`] with [`TritShape`],
//!   [`Int8Tiles`] with [`Int8Shape`]
//! * ternarization of dense weights, with definitions that several crates share: [`exact_trits`], [`absmean_trits`], [`absmean`]
//! * precisions: [`ActivationPrecision`], [`ActivationPolicy`], [`KvPrecision`], layer by layer [`KvPrecisions`] with [`InvalidKvPrecisions`]; settings of KV caches: [`KvOptions`] with [`KvLimit`]; of products in training: [`ProductPrecision`]
//! * operations: [`GatedActivation`], [`AttentionSpec`], [`KeySelector`] with [`SelectedKeys`], [`PromptKeys`] with [`BlockBitmap`], [`Eviction`], [`RopeSpec`] with [`RopePairing`] and
//!   [`RopeScaling`], [`TritScore`] with [`TritHit`]
//! * costs: [`Cost`], [`LinearProblem`]
//! * device names: [`DeviceSpec`], [`Runtime`], [`UnknownDevice`]
//! * options: [`OptionError`] with [`Bounds`]; misspelt names: [`edit_distance`]
//! * errors: [`TensorError`], [`SpecError`], [`BlockError`]
//!
//! The only Trike crate that it depends on is `trike-trit`; it has no Cargo features.
#![forbid(unsafe_code)]

mod attention;
mod blocks;
mod cost;
mod dense;
mod device;
mod error;
mod eviction;
mod int8;
mod keys;
mod kv;
mod kv_options;
mod layout;
mod names;
mod operation;
mod option;
mod precision;
mod product;
mod prompt;
mod rope;
mod tensor;
mod ternary;
mod tiles;

pub use attention::AttentionSpec;
pub use blocks::{BlockBitmap, BlockError, MaskedWork};
pub use cost::{Cost, LinearProblem};
pub use dense::{DenseData, DenseTensor, MAX_DIMS, elements};
pub use device::{DeviceSpec, Runtime, UnknownDevice};
pub use error::{SpecError, TensorError};
pub use eviction::Eviction;
pub use int8::Int8Tensor;
pub use keys::{KeySelector, SelectedKeys};
pub use kv::{InvalidKvPrecisions, KvPrecisions};
pub use kv_options::{KvLimit, KvOptions};
pub use layout::Layout;
pub use names::edit_distance;
pub use operation::{GatedActivation, TritHit, TritScore};
pub use option::{Bounds, Number, OptionError};
pub use precision::{ActivationPolicy, ActivationPrecision, KvPrecision};
pub use product::ProductPrecision;
pub use prompt::PromptKeys;
pub use rope::{RopePairing, RopeScaling, RopeSpec};
pub use tensor::Tensor;
pub use ternary::{absmean, absmean_trits, exact_trits};
pub use tiles::{
    Int8Shape, Int8Tiles, LINE_BYTES, Spread, TILE_ROWS, TileLayout, Tiles, TritShape, TritTiles,
    put_two_bits,
};
