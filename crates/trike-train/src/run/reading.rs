//! Reading of a rank's part of the models.

use trike_comm::Communicator;
use trike_core::OptionError;
use trike_llm::WeightSource;
use trike_nn::{DecoderSpec, NnError};

use super::config::RunConfig;
use super::names::Parallel;
use crate::memory::{RunShape, TrainingMemory, estimate_shard_memory, estimate_stage_memory};
use crate::trainer::{check_ranks, check_tensor_ranks};
use crate::{Parameters, Stage, TensorShard, TrainError, estimate_training_memory};

/// The parts of the models that a rank reads.
#[derive(Clone, Copy)]
pub(super) struct Reading<'c>(Option<(Parallel, &'c dyn Communicator)>);

/// A rank's part of a model.
enum Held {
    All,
    Stage(Stage),
    Shard(TensorShard),
}

impl<'c> Reading<'c> {
    /// Whole models.
    pub(super) const ALL: Self = Self(None);

    /// The parts for a rank of this run.
    pub(super) fn of(config: &RunConfig, comm: &'c dyn Communicator) -> Self {
        Self(Some((config.parallel, comm)))
    }

    /// Refuses more ranks than the model can be divided among.
    pub(super) fn check(self, spec: &DecoderSpec) -> Result<(), OptionError> {
        match self.0 {
            Some((Parallel::Pipeline, comm)) => check_ranks(spec, comm),
            Some((Parallel::Tensor, comm)) => check_tensor_ranks(spec, comm),
            Some((Parallel::Data, _)) | None => Ok(()),
        }
    }

    fn held(self, spec: &DecoderSpec) -> Held {
        match self.0 {
            Some((Parallel::Pipeline, comm)) => Held::Stage(Stage::new(spec, comm.rank(), comm.size())),
            Some((Parallel::Tensor, comm)) => Held::Shard(TensorShard::new(spec, comm.rank(), comm.size())),
            Some((Parallel::Data, _)) | None => Held::All,
        }
    }

    /// The weights of a model file.
    pub(super) fn open(self, spec: &DecoderSpec, file: &dyn WeightSource) -> Result<Parameters, NnError> {
        match self.held(spec) {
            Held::All => Parameters::open(file),
            Held::Stage(stage) => Parameters::open_stage(file, &stage),
            Held::Shard(shard) => Parameters::open_shard(file, &shard),
        }
    }

    /// Random weights.
    pub(super) fn random(self, spec: &DecoderSpec, seed: u64) -> Result<Parameters, NnError> {
        match self.held(spec) {
            Held::All => Parameters::random(spec, seed),
            Held::Stage(stage) => Parameters::random_stage(spec, seed, &stage),
            Held::Shard(shard) => Parameters::random_shard(spec, seed, &shard),
        }
    }

    /// The memory of a run.
    pub(super) fn memory(self, run: &RunShape<'_>) -> Result<TrainingMemory, TrainError> {
        let of_teacher = run.teacher.map(|(spec, _)| self.held(spec));
        match (self.held(run.spec), of_teacher) {
            (Held::All, _) => estimate_training_memory(run),
            (Held::Stage(stage), Some(Held::Stage(of_teacher))) => {
                estimate_stage_memory(run, &stage, Some(&of_teacher))
            }
            (Held::Stage(stage), _) => estimate_stage_memory(run, &stage, None),
            (Held::Shard(shard), Some(Held::Shard(of_teacher))) => {
                estimate_shard_memory(run, &shard, Some(&of_teacher))
            }
            (Held::Shard(shard), _) => estimate_shard_memory(run, &shard, None),
        }
    }
}
