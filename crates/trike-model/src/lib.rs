//! The definition of a decoder: its sizes, the names and shapes of its weights, and the block as a function over operations.
//!
//! Start from [`block`](fn@block): a mixer and an MLP over the operations of [`AttentionOps`]. Implementations of these
//! operations interpret the same block: `trike-nn` runs it on a backend with fused layers and KV caches, `trike-train` and
//! `trike-calibrate` record it on a tape.
//!
//! The decision that shaped this crate: the order of a block's operations is defined only here, and an interpreter receives weights
//! by name. The cost: an interpreter looks weights up, and can fuse only what is visible in the arguments of one operation.
//!
//! * sizes: [`DecoderSpec`], [`Biases`], [`ScaleFactors`]
//! * the parts of a layer: [`LayerSpec`], [`Mixer`], [`Mlp`], [`AttentionLayer`], [`LayerSet`]
//! * weights: [`WeightName`], [`DecoderSpec::weights`], [`DecoderSpec::shape`], [`HookPoint`]
//! * the block: [`block`](fn@block), [`attention`], [`mlp`], [`LayerOps`], [`AttentionOps`], [`LayerInput`]
//!
//! It depends on the shared types of `trike-core` only: no kernel, no backend.
#![forbid(unsafe_code)]

mod block;
mod layer;
mod name;
mod spec;

pub use block::{AttentionOps, LayerInput, LayerOps, attention, block, mlp};
pub use layer::{AttentionLayer, LayerSet, LayerSpec, Mixer, Mlp};
pub use name::{HookPoint, WeightName};
pub use spec::{Biases, DecoderSpec, ScaleFactors};
