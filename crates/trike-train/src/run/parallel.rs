//! Runs in which each rank holds a part of the model.

use trike_comm::Communicator;
use trike_core::{Bounds, OptionError};

use super::Run;
use super::names::Parallel;
use crate::trainer::{losses_of, sum_of_losses};
use crate::{Loss, Parameters, TernaryPolicy, TrainEngine, TrainError, Trained};

impl Run {
    /// The ranks of a pipeline; `None` where each rank holds the whole model.
    pub(super) fn pipeline<'c>(&self, comm: Option<&'c dyn Communicator>) -> Option<&'c dyn Communicator> {
        comm.filter(|_| self.config.parallel == Parallel::Pipeline)
    }

    /// Refuses documents of a teacher of which no rank has all weights.
    pub(super) fn check_written(
        &self,
        written: usize,
        comm: Option<&dyn Communicator>,
    ) -> Result<(), OptionError> {
        match self.pipeline(comm).filter(|comm| comm.size() > 1) {
            Some(_) => {
                OptionError::check("teacher_documents", Bounds::at_least(0usize).at_most(0usize), written)
            }
            None => Ok(()),
        }
    }

    /// The loss of the held-out text, which ranks divide between them.
    pub(super) fn held_out_loss<E: TrainEngine>(
        &self,
        engine: &E,
        comm: Option<&dyn Communicator>,
        parameters: &Parameters,
        policy: &TernaryPolicy,
    ) -> Result<Loss, TrainError> {
        let (model, weights) = (Trained::new(engine, parameters.spec(), None)?, engine.resident(parameters)?);
        let batches = self.text.batches.iter().cloned();
        if let Some(comm) = self.pipeline(comm) {
            return losses_of(comm, engine, &model, weights.get().into(), policy, batches);
        }
        sum_of_losses(comm, batches, |batch| model.loss(weights.get(), batch, policy))
    }
}
