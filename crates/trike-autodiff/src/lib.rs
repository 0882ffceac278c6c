//! Automatic differentiation for the operations of a decoder, for training and for adapting ternary models on the host or on a
//! device.
//!
//! Start from [`Tape`]: its methods are the operations, and [`Tape::backward`] returns the gradients of all
//! parameters.
//!
//! Main design decisions: values are matrices (`tokens x width`), operations are as coarse as the kernels of `trike-cpu`, and their
//! backward passes are written by hand. A tape is an array of operations, without reference counts, locks or panics: every failure
//! is a [`GradError`]. The cost: a new operation must be written with its gradient ([`Operation`]); elementwise expressions are not
//! composed.
//!
//! Every reduction has a fixed order, so values and gradients are bit-identical for any number of threads.
//!
//! A tape runs on a [`TapeEngine`]: the host is [`Cpu`](trike_cpu::Cpu), the default of all type parameters; with the feature
//! `gpu`, `CubeEngine` is a device on which tensors stay resident. The cost: values are [`EngineMemory::View`], a slice on the host
//! only. [`Count`] stores no values: it runs the same tape and counts the memory that it would use on the host.
//!
//! * tape: [`Tape`], [`Var`], [`Gradients`], [`Buffers`]
//! * ternary layers: [`Tape::bit_linear`] with [`BitLinearSpec`], [`Tape::ternarize`] with [`TernarizeSpec`] and
//!   [`TernaryScale`], [`Tape::int8_activations`]
//! * other layers: [`Tape::linear`], [`Tape::rms_norm`], [`Tape::rope`] with [`Rotary`], [`Tape::attention`],
//!   [`Tape::gated`], [`Tape::embed`], [`Tape::add`], [`Tape::scale`]; [`Tape::int8_weights`] for embeddings and heads
//! * losses, fused with the output head: [`Tape::cross_entropy`], [`Tape::divergence`], both at once with
//!   [`Tape::distill`]; [`TapeLoss`], [`Distillation`]
//! * reduced-precision products: [`MixedPrecision`], [`ProductPrecision`]
//! * operations of other crates: [`Operation`], [`Backward`], [`Tape::record`]
//! * executors: [`TapeEngine`], the sum of [`EngineMemory`], [`EngineOps`], [`EngineQuantization`], [`EngineLosses`] and
//!   [`EngineOptimization`]; [`Elements`], [`EngineValues`], [`Operand`], [`ScaleGroups`], [`AdamW`];
//!   `CubeEngine`, `CubeEngineTensor`, `Transfers`
//! * memory: [`Count`], [`Counted`], [`CountTensor`], [`CountList`]
//! * errors: [`GradError`]
//!
//! It depends on the kernels (`trike-cpu`) and on the trit tensors that [`TernarizeSpec::tensor`] exports (`trike-trit`), and with
//! the feature `gpu` on `trike-cube`; the features `wgpu`, `vulkan`, `cuda`, `hip` and `metal` also link a runtime.
#![forbid(unsafe_code)]

mod buffers;
mod engine;
mod error;
mod gradients;
mod ops;
mod tape;
mod var;

pub use buffers::Buffers;
pub use engine::{
    AdamW, Count, CountList, CountTensor, Counted, Elements, EngineLosses, EngineMemory, EngineOps,
    EngineOptimization, EngineQuantization, EngineValues, Operand, Rotary, ScaleGroups, TapeEngine,
};
#[cfg(feature = "gpu")]
pub use engine::{CubeEngine, CubeEngineRopeTable, CubeEngineTensor, CubeRotary, Transfers};
pub use error::GradError;
pub use gradients::Gradients;
pub use ops::{BitLinearSpec, Distillation, TapeLoss, TernarizeSpec, TernaryScale};
pub use tape::{Backward, MixedPrecision, Operation, Tape};
pub use trike_core::ProductPrecision;
pub use var::Var;
