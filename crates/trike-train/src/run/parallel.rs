//! Pipeline- and tensor-parallel runs.

use trike_comm::{Communicator, agree};
use trike_core::{Bounds, OptionError};
use trike_cpu::Cpu;

use super::Run;
use super::names::Parallel;
use crate::trainer::{losses_of, losses_of_shards, sum_of_losses};
use crate::{
    Loss, Parameters, RanksConfig, TensorShard, TernaryPolicy, TrainEngine, TrainError, Trained, Trainer,
    TrainerConfig,
};

impl Run {
    /// A trainer of this run, on one of its ranks if there are several.
    pub(super) fn trainer<'t, E: TrainEngine>(
        &'t self,
        engine: &'t E,
        config: TrainerConfig,
        comm: Option<&'t dyn Communicator>,
    ) -> Result<Trainer<'t, E>, TrainError> {
        let (policy, start, teacher) = (self.policy()?, self.start.clone(), self.teacher());
        let Some(comm) = comm else { return Trainer::new(engine, config, policy, start, teacher) };
        match self.config.parallel {
            Parallel::Data => {
                Trainer::new(engine, config, policy, start, teacher)?.with_ranks(comm, self.config.ranks())
            }
            Parallel::Pipeline => Trainer::in_pipeline(engine, config, policy, start, teacher, comm),
            Parallel::Tensor => Trainer::in_tensor_parallel(engine, config, policy, start, teacher, comm),
        }
    }

    /// Checks that ranks with replicated computations get the same bits.
    pub(super) fn check_alike(&self, cpu: &Cpu, comm: &dyn Communicator) -> Result<(), TrainError> {
        let ranks = self.config.ranks();
        let changes_all = ranks != RanksConfig { outer: ranks.outer, ..RanksConfig::default() };
        if changes_all || self.config.parallel == Parallel::Tensor {
            agree(comm, "device", &self.config.device)?;
            agree(comm, "instruction set", &cpu.isa().to_string())?;
        }
        Ok(())
    }

    /// Refuses generated documents if no rank holds the whole teacher.
    pub(super) fn check_written(
        &self,
        written: usize,
        comm: Option<&dyn Communicator>,
    ) -> Result<(), OptionError> {
        let is_divided = |comm: &&dyn Communicator| self.config.parallel != Parallel::Data && comm.size() > 1;
        match comm.filter(is_divided) {
            Some(_) => {
                OptionError::check("teacher_documents", Bounds::at_least(0usize).at_most(0usize), written)
            }
            None => Ok(()),
        }
    }

    /// The loss of the held-out text, divided among ranks.
    pub(super) fn held_out_loss<E: TrainEngine>(
        &self,
        engine: &E,
        comm: Option<&dyn Communicator>,
        parameters: &Parameters,
        policy: &TernaryPolicy,
    ) -> Result<Loss, TrainError> {
        let (model, weights) = (Trained::new(engine, parameters.spec(), None)?, engine.resident(parameters)?);
        let batches = self.text.batches.iter().cloned();
        match (comm, self.config.parallel) {
            (Some(comm), Parallel::Pipeline) => {
                return losses_of(comm, engine, &model, weights.get().into(), policy, batches);
            }
            (Some(comm), Parallel::Tensor) if !TensorShard::is_whole(parameters) => {
                let shard = &TensorShard::new(parameters.spec(), comm.rank(), comm.size());
                return losses_of_shards(comm, shard, &model, weights.get().into(), policy, batches);
            }
            _ => {}
        }
        sum_of_losses(comm, batches, |batch| model.loss(weights.get(), batch, policy))
    }
}
