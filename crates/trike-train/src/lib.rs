//! Training of ternary language models.
//!
//! * [`run`]: whole runs from a configuration: data to model, with logs, evaluation and checkpoints.
//! * [`data`]: text, JSONL and chats as token sequences, in an order that a seed fixes, packed into batches with document masks;
//!   [`Sampler`]: text that a teacher writes.
//! * [`Parameters`] of a decoder; [`Trained`], which computes its loss and gradients under a [`TernaryPolicy`] and an [`Objective`].
//! * [`Trainer`]: the loop, with a [`Teacher`] or without.
//! * [`Adapter`]: matrices of low rank that are trained on a frozen model, in peft's layout, with a [`LoraConfig`].
//! * [`checkpoint`]: runs that continue with the same bits; [`write_packed`]: the trained model as Trike stores it.
//! * [`estimate_training_memory`]: the memory of a run, before it starts.
//! * [`Optimizer`]: AdamW, Muon for the matrices of the blocks, or gradient descent; [`DeterministicPhaseTrainer`]: steps along
//!   predicted gradients.
//! * [`PrecisionPolicy`]: products in bf16 or f16, with a [`LossScaler`].
//! * [`Trainer::with_ranks`]: one model on several machines, with a [`RanksConfig`]; [`Trainer::in_pipeline`]: each of them holds a
//!   [`Stage`] of it; [`Trainer::in_tensor_parallel`]: a [`TensorShard`].
//! * [`Schedule`]: learning rate and weight decay over a run.

#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod data;
mod error;
mod export;
mod memory;
mod model;
mod optimizer;
mod phases;
mod precision;
pub mod run;
mod sampler;
mod schedule;
mod trainer;

pub use error::TrainError;
pub use export::{as_packed, packed, write_packed};
pub use memory::{
    RunShape, TrainingMemory, estimate_shard_memory, estimate_stage_memory, estimate_training_memory,
};
pub use model::{
    Adapter, AdapterError, EMBEDDING_GROUP, LoraConfig, LoraTarget, Loss, MergeReport, MergedMatrix,
    Objective, Parameter, Parameters, Part, Resident, Stage, TeacherLogits, TensorShard, TernaryPolicy,
    TrainEngine, Trained, Weights,
};
pub use optimizer::{Optimizer, OptimizerConfig, OptimizerKind};

pub use phases::{DeterministicPhaseTrainer, Phase, PhaseConfig};
pub use precision::{LossScale, LossScaler, Precision, PrecisionPolicy};
pub use sampler::{SampleConfig, Sampler};
pub use schedule::{Factors, Schedule, Shape};
pub use trainer::{OuterConfig, RanksConfig, StepReport, Teacher, Trainer, TrainerConfig};
