//! Local steps of each rank, and the synchronization of the weights (DiLoCo, Douillard et al., 2311.08105).

use trike_comm::{Codec, CommError, Communicator, Shards, mean};

use super::{OuterConfig, all_numbers};
use crate::data::Batch;
use crate::{StepReport, TrainEngine, TrainError, Trainer};

/// Sent instead of a sum of squares by a rank whose codec refuses its change; never a valid sum.
const REFUSED: f64 = -1.0;

/// State between two synchronizations.
#[derive(Debug)]
pub(super) struct Local {
    /// Weights after the last synchronization, the same on all ranks.
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
    /// A step on the rows of this rank.
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

    /// Replaces the weights of all ranks by the result of the outer optimizer.
    pub(super) fn bring_together(
        &mut self,
        comm: &dyn Communicator,
        local: &mut Local,
        outer: OuterConfig,
    ) -> Result<(), TrainError> {
        let Local { start, momentum, codec } = local;
        // Points from the new weights to the start, as a gradient does.
        let mut change = self.flat_weights()?;
        change.iter_mut().zip(&*start).for_each(|(change, start)| *change = start - *change);
        // Checked before averaging, since the mean would not tell which rank is at fault.
        let squares: f64 = change.iter().map(|x| f64::from(*x).powi(2)).sum();
        // A codec must refuse before any rank sends or changes its state.
        let taken = match codec {
            Some(codec) if squares.is_finite() => codec.check(comm.rank(), &change),
            _ => Ok(()),
        };
        let all = all_numbers(comm, &[if taken.is_ok() { squares } else { REFUSED }])?;
        taken?;
        for (rank, of_rank) in all.iter().enumerate() {
            if of_rank.contains(&REFUSED) {
                let problem = "its change of the weights is too large for the codec".to_owned();
                return Err(TrainError::OfRank { rank, problem });
            }
            if !of_rank.iter().all(|x| x.is_finite()) {
                return Err(CommError::NonFinite { rank }.into());
            }
        }
        match codec {
            Some(codec) => codec.exchange(comm, &mut change)?,
            None => mean(comm, &mut change)?,
        }
        let stepped = |start: f32, momentum: f32, change: f32| {
            let momentum = outer.momentum * momentum + change;
            (start - outer.learning_rate * (change + outer.momentum * momentum), momentum)
        };
        let mut all = start.iter().zip(&*momentum).zip(&change);
        let is_finite = |(start, momentum): (f32, f32)| start.is_finite() && momentum.is_finite();
        if !all.all(|((start, momentum), change)| is_finite(stepped(*start, *momentum, *change))) {
            return Err(TrainError::NonFinite { what: "outer change", step: self.optimizer.steps() });
        }
        for ((start, momentum), change) in start.iter_mut().zip(momentum).zip(&change) {
            (*start, *momentum) = stepped(*start, *momentum, *change);
        }
        let weights = self.unflatten(start)?;
        for (parameter, weights) in self.trainable.trained_mut().all_mut().iter_mut().zip(weights) {
            parameter.values = weights;
        }
        Ok(())
    }
}
