//! The backend trait, the layers and the one decoder block of Trike.
//!
//! Start from [`Decoder`]: a language model made from a [`DecoderSpec`] and weights, on any [`Backend`].
//!
//! The decision that shaped this crate: no model is written twice. There is one decoder block, driven by a spec
//! that is read from the checkpoint, and a backend is fused operations on tensors that stay where it
//! keeps them. The price is that an architecture whose block does not fit the spec cannot be added beside it; the
//! spec has to grow.
//!
//! The second one: a batch is ragged. Tokens of all sequences lie one after the other in one tensor and only
//! attention knows which rows belong to which sequence, so nothing is padded and a result does not depend on
//! what else is in the batch.
//!
//! * model: [`Decoder`], [`DecoderSpec`], [`Biases`], [`RopeSpec`], [`RopeScaling`], [`Sequence`], [`KvSpec`], [`KvPrecision`], [`Logits`]
//! * memory: [`MemoryPlan`]
//! * one block alone: [`DecoderBlock`], [`BlockContext`], [`HookPoint`], [`Hook`]
//! * weights: [`Tensor`], [`WeightName`], [`DecoderWeights`]
//! * steps: [`Step`], [`StepInputs`], [`Segment`], [`StepLogits`], [`TokenStep`], [`RunStep`]
//! * backends: [`Backend`], [`check`], [`CpuBackend`], with the feature `gpu` `CubeBackend`
//! * devices, with the feature `gpu`: `cube`, which is `trike-cube`
//! * errors: [`NnError`]
//!
//! `trike-llm` reads models from files into this, and `trike-candle` has the reference backend. The feature `gpu` brings
//! the device backend without a runtime, and `wgpu`, `vulkan`, `cuda`, `hip` and `metal` bring one each; these are the
//! only heavy dependencies.
#![forbid(unsafe_code)]

mod backend;
mod block;
mod cache;
pub mod check;
mod cpu;
mod decoder;
#[cfg(feature = "gpu")]
mod device;
mod error;
mod memory;
mod sequence;
mod spec;
mod step;
mod weights;

pub use backend::{Backend, Input, MatrixEdit, Norm, RunStep, TokenStep};
pub use block::{BlockContext, DecoderBlock, Hook, HookPoint};
pub use cache::{CacheSpec, KvSpec};
pub use cpu::{CpuBackend, CpuCache, CpuRope, CpuTensor};
pub use decoder::{Decoder, Logits, Step};
#[cfg(feature = "gpu")]
pub use device::{CubeBackend, CubeInputs, CubeMatrix, CubeRecorded, CubeRope, CubeTensor};
pub use error::NnError;
pub use memory::{DeviceUse, MemoryPlan};
pub use sequence::Sequence;
pub use spec::{Biases, DecoderSpec};
pub use step::{Largest, Segment, StepInputs, StepLogits};
pub use trike_core::{
    ActivationPrecision, AttentionSpec, DenseData, DenseTensor, GatedActivation, Int8Tensor, KvPrecision,
    Layout, RopePairing, RopeScaling, RopeSpec, SpecError, Tensor,
};
#[cfg(feature = "gpu")]
pub use trike_cube as cube;
pub use weights::{DecoderWeights, WeightName};
