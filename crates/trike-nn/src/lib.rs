//! The backend trait, the layers and the decoder block of Trike.
//!
//! Start from [`Decoder`]: a language model made from a [`DecoderSpec`] and weights, on any [`Backend`].
//!
//! The decision that shaped this crate: it interprets the one decoder block, that of `trike-model`, and a backend implements fused
//! operations on tensors in its own memory. The cost: an architecture whose block does not fit the spec requires an arm of that
//! block, not an implementation of its own.
//!
//! The second decision: a batch is ragged. The tokens of all sequences are concatenated in one tensor, and only
//! attention distinguishes which rows belong to which sequence, so there is no padding and the output is independent of
//! the rest of the batch.
//!
//! * model: [`Decoder`], [`DecoderSpec`], [`Biases`], [`ScaleFactors`], [`RopeSpec`], [`RopeScaling`], [`DecoderSequence`], [`KvSpec`],
//!   [`KvOptions`] with [`KvLimit`], [`KvPrecision`], [`KvPrecisions`],
//!   [`KeySelector`], [`PromptKeys`], [`Eviction`], [`Logits`]; keys and values that sequences share: [`KvPage`] of [`KV_PAGE`] positions, [`PROMPT_ROWS`],
//!   [`SharedPage`]
//! * memory: [`MemoryPlan`], [`DeviceUse`]; of layers on several devices: [`LayerWeights`], [`StageDevice`], [`StagePlan`]
//! * a model on several ranks: [`RankBackend`], [`Division`], [`StepNotice`], [`Decoder::follow`]; its types [`RankTensor`],
//!   [`RankMatrix`], [`RankInputs`]
//! * one block alone: [`DecoderBlock`], [`BlockContext`], [`HookPoint`], [`Hook`]
//! * weights: [`Tensor`], [`WeightName`], [`DecoderWeights`]
//! * steps: [`Step`], [`StepInputs`], [`Segment`], [`StepLogits`], [`TokenStep`], [`StepCaches`], [`RunStep`]
//! * backends: [`Backend`], which is [`BackendOps`], [`BackendWeights`], [`BackendCaches`], [`BackendTransfers`], [`BackendSteps`] and
//!   [`BackendPlacement`] over the types of a [`BackendBase`]; [`CacheCapabilities`], [`check`], [`CpuBackend`], with the feature `gpu` `CubeBackend`
//! * kernels chosen by measurement: [`KernelTuning`], [`TunedProduct`], [`TunedTable`]
//! * devices, with the feature `gpu`: `cube`, which is `trike-cube`
//! * errors: [`NnError`]
//!
//! `trike-llm` loads models from files. The feature `gpu` enables
//! the device backend without a runtime; `wgpu`, `vulkan`, `cuda`, `hip` and `metal` enable one runtime each and are the
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
#[cfg(test)]
mod fixtures;
mod memory;
mod pages;
mod ranks;
mod sequence;
mod split;
mod step;
mod tune;
mod weights;

pub use backend::{
    Backend, BackendBase, BackendCaches, BackendOps, BackendPlacement, BackendSteps, BackendTransfers,
    BackendWeights, CacheCapabilities, Input, MatrixEdit, Norm, RunStep, StepCaches, TokenStep,
};
pub use block::{BlockContext, DecoderBlock, Hook};
pub use cache::{CacheSpec, KvSpec};
pub use cpu::{CpuBackend, CpuCache, CpuRope, CpuTensor};
pub use decoder::{Decoder, Logits, Step};
#[cfg(feature = "gpu")]
pub use device::{CubeBackend, CubeInputs, CubeMatrix, CubeRecorded, CubeRope, CubeTensor};
pub use error::NnError;
pub use memory::{DeviceUse, MemoryPlan};
pub use pages::{KvPage, SharedPage};
pub use ranks::{Division, RankBackend, RankInputs, RankMatrix, RankTensor};
pub use sequence::DecoderSequence;
pub use split::{LayerWeights, StageDevice, StagePlan};
pub use step::{Largest, Segment, StepInputs, StepLogits, StepNotice};
pub use trike_core::{
    ActivationPolicy, ActivationPrecision, AttentionSpec, DenseData, DenseTensor, Eviction, GatedActivation,
    Int8Tensor, KeySelector, KvLimit, KvOptions, KvPrecision, KvPrecisions, Layout, PromptKeys, RopePairing,
    RopeScaling, RopeSpec, SelectedKeys, SpecError, Tensor,
};
pub use trike_cpu::{KV_PAGE, PROMPT_ROWS};
#[cfg(feature = "gpu")]
pub use trike_cube as cube;
pub use trike_model::{
    AttentionLayer, Biases, DecoderSpec, HookPoint, LayerSet, LayerSpec, Mixer, Mlp, ScaleFactors, WeightName,
};
pub use tune::{KernelTuning, TunedProduct, TunedTable};
pub use weights::DecoderWeights;
