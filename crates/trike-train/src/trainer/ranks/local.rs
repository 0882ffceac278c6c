//! Steps that each rank takes by itself, and how the weights come together again (DiLoCo, Douillard et al., 2311.08105).

use trike_comm::{Codec, CommError, Communicator, Shards, mean};

use super::{OuterConfig, all_numbers};
use crate::data::Batch;
use crate::{StepReport, TrainEngine, TrainError, Trainer};

/// What is kept between two exchanges.
#[derive(Debug)]
pub(super) struct Local {
    /// Weights after the last exchange, the same on all ranks.
    pub(super) start: Vec<f32>,
    /// The outer optimizer's momentum, the same on all ranks.
    pub(super) momentum: Vec<f32>,
    pub(super) codec: Option<Box<dyn Codec>>,
}

impl Local {
    pub(super) fn new(start: Vec<f32>, codec: Option<Box<dyn Codec>>) -> Self {
        Self { momentum: vec![0.0; start.len()], start, codec }
    }
}

impl<E: TrainEngine> Trainer<'_, E> {
    /// A step with the rows of this rank.
    pub(super) fn step_alone(
        &mut self,
        comm: &dyn Communicator,
        units: &[Batch],
        tokens: usize,
    ) -> Result<StepReport, TrainError> {
        if units.len() < comm.size() {
            let (units, ranks) = (units.len(), comm.size());
            let problem = format!(
                "a step is {units} units of at least 512 tokens: with a codec or local steps, expected one for each of {ranks} ranks"
            );
            return Err(TrainError::Config { problem });
        }
        let units = &units[Shards::even(units.len(), comm.size()).of_rank(comm.rank())];
        let mut sums = self.parameters().zeros_on(self.engine)?;
        let loss = self.add_units(units, self.scale_of(units), &mut sums)?;
        self.check_loss(loss)?;
        self.update(loss, &sums, tokens)
    }

    /// Replaces the weights of all ranks by those of the outer optimizer.
    pub(super) fn bring_together(
        &mut self,
        comm: &dyn Communicator,
        local: &mut Local,
        outer: OuterConfig,
    ) -> Result<(), TrainError> {
        let Local { start, momentum, codec } = local;
        // Towards the weights at the start, as a gradient points.
        let mut change = self.flat_weights()?;
        change.iter_mut().zip(&*start).for_each(|(change, start)| *change = start - *change);
        // The mean of all would not say whose it is.
        let squares: f64 = change.iter().map(|x| f64::from(*x).powi(2)).sum();
        let wrong =
            all_numbers(comm, &[squares])?.iter().position(|of_rank| !of_rank.iter().all(|x| x.is_finite()));
        if let Some(rank) = wrong {
            return Err(CommError::NonFinite { rank }.into());
        }
        match codec {
            Some(codec) => codec.exchange(comm, &mut change)?,
            None => mean(comm, &mut change)?,
        }
        for ((start, momentum), change) in start.iter_mut().zip(momentum).zip(&change) {
            *momentum = outer.momentum * *momentum + change;
            *start -= outer.learning_rate * (change + outer.momentum * *momentum);
        }
        let weights = self.unflatten(start)?;
        for (parameter, weights) in self.trainable.trained_mut().all_mut().iter_mut().zip(weights) {
            parameter.values = weights;
        }
        Ok(())
    }
}
