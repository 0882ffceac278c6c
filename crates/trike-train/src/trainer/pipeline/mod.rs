//! Pipeline parallelism: a model whose blocks are divided among ranks.
//!
//! The units of a step go through the ranks in order: each rank receives the residual stream before its blocks, and sends the one
//! after them to the next rank. After the forward passes of all units, their gradients come back in the same order (GPipe, Huang et
//! al., 1811.06965); the last rank computes those of a unit as soon as it arrives. A rank keeps only the inputs of its segments,
//! and recomputes its blocks for the gradients.
//!
//! Every rank adds the gradients of its own weights over the units in the order of a single machine, so the weights are
//! bit-identical to those of a trainer without ranks.

mod flow;
mod tied;

use std::borrow::{Borrow, BorrowMut};

use trike_autodiff::Elements;
use trike_comm::{CommError, Communicator, agree, receive_floats, send_floats};
use trike_core::{Bounds, OptionError};
use trike_nn::{DecoderSpec, WeightName};

use self::tied::TiedSum;
use super::{Distribution, Trainable, agree_on_run, all_numbers};
use crate::data::Batch;
use crate::model::shapes;
use crate::{
    Loss, Optimizer, Parameters, Stage, StepReport, Teacher, TernaryPolicy, TrainEngine, TrainError, Trainer,
    TrainerConfig,
};

pub(crate) use self::flow::losses_of;

/// The other ranks of a pipeline.
pub(crate) struct Pipeline<'a> {
    comm: &'a dyn Communicator,
    stage: Stage,
    /// The teacher's part.
    of_teacher: Option<Stage>,
}

impl<'a> Pipeline<'a> {
    pub(crate) fn new(comm: &'a dyn Communicator, stage: Stage, of_teacher: Option<Stage>) -> Self {
        Self { comm, stage, of_teacher }
    }

    pub(super) fn comm(&self) -> &'a dyn Communicator {
        self.comm
    }

    pub(super) fn stage(&self) -> &Stage {
        &self.stage
    }
}

impl std::fmt::Debug for Pipeline<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Pipeline");
        debug.field("stage", &self.stage).field("of_teacher", &self.of_teacher).finish_non_exhaustive()
    }
}

/// Refuses more ranks than blocks.
///
/// # Errors
///
/// [`OptionError::OutOfRange`].
pub(crate) fn check_ranks(spec: &DecoderSpec, comm: &dyn Communicator) -> Result<(), OptionError> {
    OptionError::check("number of ranks", Bounds::at_least(1usize).at_most(spec.layers), comm.size())
}

impl<'a, E: TrainEngine> Trainer<'a, E> {
    /// One rank of a pipeline, with the consecutive blocks of its [`Stage`], their gradients and optimizer state. All ranks have
    /// the same configuration, data and teacher. `parameters` and those of the teacher may be of this rank's stage only; anything
    /// else is dropped.
    ///
    /// On the host, loss and weights are bit-identical to those of a trainer without ranks, for any number of ranks. On a device
    /// the gradient norm is rounded in another order.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new); [`TrainError::Option`] for more ranks than blocks; [`TrainError::NoParameter`] for a missing weight
    /// of the stage; [`TrainError::Comm`] for ranks that differ.
    pub fn in_pipeline(
        engine: &'a E,
        config: TrainerConfig,
        policy: TernaryPolicy,
        parameters: Parameters,
        teacher: Option<Teacher<'a>>,
        comm: &'a dyn Communicator,
    ) -> Result<Self, TrainError> {
        config.validate()?;
        let spec = parameters.spec().clone();
        check_ranks(&spec, comm)?;
        agree_on_run(comm, "pipeline", &config, &policy, &spec)?;
        let of_teacher = teacher.as_ref().map(|teacher| teacher.parameters.spec());
        agree(comm, "teacher", &of_teacher.map_or("none".to_owned(), |spec| format!("{spec:?}")))?;
        let (rank, ranks) = (comm.rank(), comm.size());
        let of_teacher = of_teacher.map(|spec| Stage::new(spec, rank, ranks));
        let stage = Stage::new(&spec, rank, ranks);
        let parameters = parameters.into_stage(&stage)?;
        let trainer =
            Self::start(engine, config, policy, Trainable::All(parameters.upload(engine)?), teacher)?;
        let pipeline = Pipeline::new(comm, stage, of_teacher);
        trainer.check_copies(&pipeline)?;
        trainer.with_pipeline(pipeline)
    }

    /// The same trainer as one rank of a pipeline.
    pub(crate) fn with_pipeline(mut self, pipeline: Pipeline<'a>) -> Result<Self, TrainError> {
        let rank = pipeline.comm.rank();
        // Frees the moments of all weights before those of the stage are allocated.
        self.optimizer.restore(0, Vec::new(), Vec::new());
        let owns = |place: usize| pipeline.stage.owner(self.parameters().all()[place].name) == rank;
        self.optimizer = Optimizer::of(self.engine, self.config.optimizer, self.parameters(), &owns)?;
        self.distribution = Distribution::Pipeline(pipeline);
        Ok(self)
    }

    /// The stage of this rank; `None` if it holds all blocks.
    #[must_use]
    pub fn stage(&self) -> Option<&Stage> {
        match &self.distribution {
            Distribution::Pipeline(pipeline) => Some(&pipeline.stage),
            _ => None,
        }
    }

    /// Refuses ranks whose copies of a tied weight differ.
    fn check_copies(&self, pipeline: &Pipeline<'_>) -> Result<(), TrainError> {
        let comm = pipeline.comm;
        let copied = self.parameters().all().iter().find(|parameter| pipeline.stage.copies(parameter.name));
        let checksum = copied.map(|parameter| -> Result<u32, TrainError> {
            let values = self.engine.download(parameter.values.borrow())?;
            Ok(values.iter().fold(0, |sum, v| crc32c::crc32c_append(sum, &v.to_le_bytes())))
        });
        let own: Vec<f64> = checksum.transpose()?.into_iter().map(f64::from).collect();
        let all = all_numbers(comm, &own)?;
        let mut have =
            all.iter().enumerate().filter_map(|(rank, numbers)| Some((rank, *numbers.first()? as u32)));
        let Some((_, first)) = have.next() else { return Ok(()) };
        match have.find(|(_, checksum)| *checksum != first) {
            None => Ok(()),
            Some((rank, theirs)) => Err(CommError::Differs {
                what: "embedding".to_owned(),
                rank,
                first: format!("checksum {first:08x}"),
                theirs: format!("checksum {theirs:08x}"),
            }
            .into()),
        }
    }

    /// A step of all ranks.
    pub(super) fn step_in_pipeline(
        &mut self,
        pipeline: &Pipeline<'_>,
        units: &[Batch],
    ) -> Result<StepReport, TrainError> {
        let mut sums = std::mem::take(&mut self.gradients);
        let report = self.step_along(pipeline, units, &mut sums);
        self.gradients = sums;
        report
    }

    fn step_along(
        &mut self,
        pipeline: &Pipeline<'_>,
        units: &[Batch],
        sums: &mut [E::Tensor],
    ) -> Result<StepReport, TrainError> {
        let Pipeline { comm, stage, .. } = pipeline;
        for sum in &mut *sums {
            self.engine.fill(sum.borrow_mut(), 0.0)?;
        }
        let mut tied = TiedSum::new(self, pipeline, units)?;
        let losses = self.flow(pipeline, units, sums, &mut tied)?;
        tied.finish(self.engine, *comm, stage, units, sums)?;
        let loss = loss_of_last(*comm, &losses)?;
        self.unscale(sums)?;
        self.check_loss(loss)?;
        self.update_by(loss, loss.tokens, |trainer, factors| {
            let owns = |place: usize| trainer.optimizer.first[place].is_some();
            let gradients: Vec<Option<&E::View>> =
                sums.iter().enumerate().map(|(place, sum)| owns(place).then_some((*sum).borrow())).collect();
            let squares = trainer.squares_of_all(pipeline, &gradients)?;
            let parameters = trainer.trainable.trained_mut();
            let norm = trainer.optimizer.step_by(trainer.engine, parameters, &gradients, squares, factors)?;
            trainer.copy_tied(pipeline)?;
            Ok(norm)
        })
    }

    /// The sum of the squares of all ranks' gradients, tensor by tensor in the order of a single machine.
    fn squares_of_all(
        &self,
        pipeline: &Pipeline<'_>,
        gradients: &[Option<&E::View>],
    ) -> Result<f64, TrainError> {
        let mut own = Vec::new();
        for gradient in gradients.iter().copied().flatten() {
            own.push(self.engine.sum_of_squares(&[gradient])?);
        }
        let all = all_numbers(pipeline.comm, &own)?;
        let mut next: Vec<usize> = vec![0; all.len()];
        let mut sum = 0.0;
        for (name, _) in shapes(self.parameters().spec()) {
            let rank = pipeline.stage.owner(name);
            let Some(square) = all[rank].get(next[rank]) else {
                let (expected, got) = (8 * (next[rank] + 1), 8 * all[rank].len());
                return Err(CommError::Cut { rank, expected, got }.into());
            };
            sum += square;
            next[rank] += 1;
        }
        Ok(sum)
    }

    /// Copies a tied embedding from the last rank to the first.
    fn copy_tied(&mut self, pipeline: &Pipeline<'_>) -> Result<(), TrainError> {
        let Pipeline { comm, stage, .. } = pipeline;
        let place = self.parameters().place(WeightName::Embedding);
        let Some(place) = place.filter(|_| stage.copies(WeightName::Embedding)) else { return Ok(()) };
        let values = &self.parameters().all()[place].values;
        if stage.is_last() {
            return send(self.engine, *comm, 0, values);
        }
        let values = receive(self.engine, *comm, comm.size() - 1, values.elements())?;
        self.trainable.trained_mut().all_mut()[place].values = values;
        Ok(())
    }
}

/// Sends a tensor to another rank, which calls [`receive`].
fn send<E: TrainEngine>(
    engine: &E,
    comm: &dyn Communicator,
    to: usize,
    x: &E::Tensor,
) -> Result<(), TrainError> {
    let sent = engine.through_host(&[x.borrow()], &[], |values| {
        send_floats(comm, to, &values[0])?;
        Ok::<_, TrainError>(Vec::new())
    });
    sent.map(drop)
}

/// The next tensor of another rank.
fn receive<E: TrainEngine>(
    engine: &E,
    comm: &dyn Communicator,
    from: usize,
    len: usize,
) -> Result<E::Tensor, TrainError> {
    let received =
        engine.through_host(&[], &[len], |_| Ok::<_, TrainError>(vec![receive_floats(comm, from, len)?]));
    Ok(received?.swap_remove(0))
}

/// The total loss of the last rank, on all ranks.
fn loss_of_last(comm: &dyn Communicator, losses: &[Loss]) -> Result<Loss, TrainError> {
    let mut all = Loss::default();
    losses.iter().for_each(|loss| all.add(*loss));
    let last = comm.size() - 1;
    let own: Option<Vec<u8>> = (comm.rank() == last)
        .then(|| [all.sum, all.divergence, all.tokens as f64].iter().flat_map(|v| v.to_le_bytes()).collect());
    let message = comm.broadcast(last, own.as_deref(), 24)?;
    let words = message.as_chunks().0;
    let [sum, divergence, tokens] = words else {
        return Err(CommError::Cut { rank: last, expected: 24, got: message.len() }.into());
    };
    let [sum, divergence, tokens] = [sum, divergence, tokens].map(|word| f64::from_le_bytes(*word));
    Ok(Loss { sum, divergence, tokens: tokens as usize })
}
