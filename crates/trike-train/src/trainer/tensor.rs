//! Tensor parallelism: a model whose matrices are divided by rows among ranks.
//!
//! All ranks compute all units of a step in lockstep: each computes the outputs, gradients and updates of its own rows, see
//! [`TensorShard`]. Embedding, norms, head and the residual stream are replicated with the same bits on all ranks. So loss and
//! weights are bit-identical to those of a trainer without ranks.

use std::borrow::{Borrow, BorrowMut};
use std::ops::Range;

use trike_autodiff::{GradError, Operand, ProductPrecision};
use trike_comm::{CommError, Communicator, Shards, agree, exchange_floats};
use trike_cpu::Store;
use trike_nn::DecoderSpec;

use super::{Distribution, ResidentTeacher, SMALL, Trainable, Trainer, TrainerConfig, agree_on_run};
use crate::data::Batch;
use crate::model::{ByPlace, GradientSink, Prepared, ShardedModel, count};
use crate::optimizer::{Updates, orthogonal};
use crate::{
    Loss, Objective, Parameter, Parameters, StepReport, Teacher, TensorShard, TernaryPolicy, TrainEngine,
    TrainError, Trained, Weights,
};

/// The other ranks of a tensor-parallel trainer.
pub(crate) struct TensorRanks<'a> {
    pub(crate) comm: &'a dyn Communicator,
    pub(crate) shard: TensorShard,
    /// The teacher's shard; `None` for a teacher that is replicated on all ranks.
    pub(crate) of_teacher: Option<TensorShard>,
}

impl std::fmt::Debug for TensorRanks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("TensorRanks");
        debug.field("shard", &self.shard).field("of_teacher", &self.of_teacher).finish_non_exhaustive()
    }
}

impl TensorRanks<'_> {
    /// Muon's updates of this rank's rows of some matrices, at most one per rank: rank `i` gathers the whole momentum of matrix `i`
    /// and orthogonalizes it.
    fn updates<E: TrainEngine>(
        &self,
        engine: &E,
        parameters: &[&Parameter<E::Tensor>],
        ahead: Vec<E::Tensor>,
    ) -> Result<Vec<(E::Tensor, usize)>, TrainError> {
        let (comm, ranks) = (self.comm, self.comm.size());
        let elements = |matrix: usize| {
            let parameter = parameters.get(matrix)?;
            Some(self.shard.outputs(parameter.name)?.times(parameter.cols))
        };
        let len = |matrix, rank| elements(matrix).map_or(0, |elements| elements.of_rank(rank).len());
        let own = elements(comm.rank());
        let views: Vec<&E::View> = ahead.iter().map(Borrow::borrow).collect();
        let elements_of_whole = own.as_ref().map(Shards::len);
        let whole = engine.through_host(&views, elements_of_whole.as_slice(), |ahead| {
            let mut parts = vec![Vec::new(); ranks];
            for (part, ahead) in parts.iter_mut().zip(ahead) {
                part.extend_from_slice(ahead);
            }
            let lens: Vec<usize> = (0..ranks).map(|rank| len(comm.rank(), rank)).collect();
            let whole = exchange_floats(comm, &parts, &lens)?.concat();
            Ok::<_, TrainError>(if own.is_some() { vec![whole] } else { Vec::new() })
        })?;
        let update = match parameters.get(comm.rank()) {
            Some(parameter) => {
                let each = whole.into_iter().map(|whole| orthogonal(engine, whole, parameter.cols));
                each.collect::<Result<Vec<_>, _>>()?
            }
            None => Vec::new(),
        };
        let update: Vec<&E::View> = update.iter().map(Borrow::borrow).collect();
        let lens: Vec<usize> = (0..parameters.len()).map(|matrix| len(matrix, comm.rank())).collect();
        let updates = engine.through_host(&update, &lens, |update| {
            let mut parts = vec![Vec::new(); ranks];
            for (update, elements) in update.iter().zip(&own) {
                for (rank, part) in parts.iter_mut().enumerate() {
                    part.extend_from_slice(&update[elements.of_rank(rank)]);
                }
            }
            let lens: Vec<usize> = (0..ranks).map(|matrix| len(matrix, comm.rank())).collect();
            let mut own = exchange_floats(comm, &parts, &lens)?;
            // Ranks without a matrix have contributed nothing.
            own.truncate(parameters.len());
            Ok::<_, TrainError>(own)
        })?;
        let rows =
            |parameter: &Parameter<E::Tensor>| self.shard.outputs(parameter.name).map_or(0, Shards::len);
        let each = updates.into_iter().zip(parameters);
        Ok(each.map(|(update, parameter)| (update, rows(parameter))).collect())
    }
}

/// The original error, if an operation failed while it waited for another rank.
fn cause(error: TrainError) -> TrainError {
    match error {
        TrainError::Grad(GradError::Operation(source)) => match source.downcast::<CommError>() {
            Ok(error) => TrainError::Comm(*error),
            Err(source) => TrainError::Grad(GradError::Operation(source)),
        },
        error => error,
    }
}

/// The total cross-entropy of some batches, computed by all ranks and returned on all of them.
pub(crate) fn losses_of_shards<E: TrainEngine>(
    comm: &dyn Communicator,
    shard: &TensorShard,
    model: &Trained<'_, E>,
    weights: Weights<'_, E::Tensor>,
    policy: &TernaryPolicy,
    batches: impl IntoIterator<Item = Batch>,
) -> Result<Loss, TrainError> {
    let model = ShardedModel { model, weights, policy, comm, shard };
    let prepared = model.prepared()?;
    let mut loss = Loss::default();
    for batch in batches {
        loss.add(model.loss(&batch, &prepared).map_err(cause)?);
    }
    Ok(loss)
}

impl<'a, E: TrainEngine> Trainer<'a, E> {
    /// One tensor-parallel rank, with some rows of every matrix of the blocks, see [`TensorShard`], their gradients and optimizer
    /// state. All ranks have the same configuration, data and teacher. `parameters` may be those of this rank's shard only;
    /// anything else is dropped. A teacher is divided in the same way if all ranks pass their shards of it, and computed by each
    /// rank if they pass all of it.
    ///
    /// On the host, loss and weights are bit-identical to those of a trainer without ranks, for any number of ranks with the same
    /// instruction set. On a device the gradient norm is rounded in another order.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new); [`TrainError::Option`] for more ranks than rows in the smallest matrix; [`TrainError::NoParameter`]
    /// and [`TrainError::Grad`] for a weight that is missing or has another length; [`TrainError::Comm`] for ranks that differ.
    pub fn in_tensor_parallel(
        engine: &'a E,
        config: TrainerConfig,
        policy: TernaryPolicy,
        parameters: Parameters,
        teacher: Option<Teacher<'a>>,
        comm: &'a dyn Communicator,
    ) -> Result<Self, TrainError> {
        config.validate()?;
        let spec = parameters.spec().clone();
        agree_on_run(comm, "tensor", &config, &policy, &spec)?;
        check_tensor_ranks(&spec, comm)?;
        let (rank, ranks) = (comm.rank(), comm.size());
        let described = teacher.as_ref().map(|Teacher { parameters, policy }| {
            let part = if TensorShard::is_whole(parameters) { "whole" } else { "some rows" };
            format!("{part}, {policy:?}, {:?}", parameters.spec())
        });
        agree(comm, "teacher", described.as_deref().unwrap_or("none"))?;
        let of_teacher = teacher.as_ref().filter(|teacher| !TensorShard::is_whole(teacher.parameters));
        let of_teacher = of_teacher.map(|teacher| TensorShard::new(teacher.parameters.spec(), rank, ranks));
        let shard = TensorShard::new(&spec, rank, ranks);
        let parameters = parameters.into_shard(&shard)?;
        // Replicated weights must have the same bits on all ranks.
        let whole = parameters.all().iter().filter(|parameter| shard.rows(parameter.name).is_none());
        let checksum = whole
            .flat_map(|parameter| &parameter.values)
            .fold(0, |sum, value| crc32c::crc32c_append(sum, &value.to_le_bytes()));
        agree(comm, "embedding, norms and head", &format!("checksum {checksum:08x}"))?;
        let trainer =
            Self::start(engine, config, policy, Trainable::All(parameters.upload(engine)?), teacher)?;
        Ok(trainer.with_tensor_ranks(TensorRanks { comm, shard, of_teacher }))
    }

    /// The same trainer as one tensor-parallel rank.
    pub(crate) fn with_tensor_ranks(self, tensor: TensorRanks<'a>) -> Self {
        Self { distribution: Distribution::Tensor(tensor), ..self }
    }

    /// The shard of this rank; `None` if it holds whole matrices.
    #[must_use]
    pub fn shard(&self) -> Option<&TensorShard> {
        match &self.distribution {
            Distribution::Tensor(tensor) => Some(&tensor.shard),
            _ => None,
        }
    }

    /// A step of all ranks.
    pub(super) fn step_in_tensor(
        &mut self,
        tensor: &TensorRanks<'_>,
        units: &[Batch],
    ) -> Result<StepReport, TrainError> {
        let mut sums = std::mem::take(&mut self.gradients);
        let report = self.step_of_shards(tensor, units, &mut sums);
        self.gradients = sums;
        report.map_err(cause)
    }

    fn step_of_shards(
        &mut self,
        tensor: &TensorRanks<'_>,
        units: &[Batch],
        sums: &mut [E::Tensor],
    ) -> Result<StepReport, TrainError> {
        for sum in &mut *sums {
            self.engine.fill(sum.borrow_mut(), 0.0)?;
        }
        let loss = self.add_units_of_shards(tensor, units, sums)?;
        self.unscale(sums)?;
        self.check_loss(loss)?;
        self.update_by(loss, loss.tokens, |trainer, factors| {
            let squares = trainer.squares_of_shards(tensor, sums)?;
            let gradients: Vec<Option<&E::View>> = sums.iter().map(|sum| Some((*sum).borrow())).collect();
            let (engine, parameters) = (trainer.engine, trainer.trainable.trained_mut());
            let orthogonal =
                |parameters: &[&Parameter<E::Tensor>], ahead| tensor.updates(engine, parameters, ahead);
            let updates = Updates { together: tensor.comm.size(), orthogonal: &orthogonal };
            trainer.optimizer.step_as(engine, parameters, &gradients, squares, factors, &updates)
        })
    }

    /// The loss of all units; their gradients are added to `sums` in the order of a single machine.
    fn add_units_of_shards(
        &self,
        tensor: &TensorRanks<'_>,
        units: &[Batch],
        sums: &mut [E::Tensor],
    ) -> Result<Loss, TrainError> {
        let Self { engine, model, config, .. } = self;
        let TensorRanks { comm, shard, .. } = tensor;
        let (weights, scale) = (self.trainable.weights(), self.scale_of(units));
        let policy = &self.policy.clone().with_lambda(config.lambda_of(self.step));
        let student = ShardedModel { model, weights, policy, comm: *comm, shard };
        let is_small = count(weights.all.spec()) <= SMALL;
        let prepared = student.prepared_step(is_small)?;
        let taught_by = match &self.teacher {
            Some(teacher) => Some(Taught::new(tensor, teacher)?),
            None => None,
        };
        // A single machine would first add the gradients of each unit to each other.
        let adds_units = E::SIDE_BY_SIDE && units.len() > 1 && is_small;
        let mut loss = Loss::default();
        for batch in units {
            let taught = taught_by.as_ref().map(|taught| taught.outputs(batch)).transpose()?;
            let width = self.teacher.as_ref().map_or(0, |teacher| teacher.parameters.get().spec().hidden);
            let mut logits = |rows: Range<usize>, out: &mut E::View| -> Result<(), GradError> {
                let Some([hidden, head]) = &taught else { return Ok(()) };
                let (x, head) = (Operand::new(hidden.borrow(), width)?, Operand::new(head.borrow(), width)?);
                engine.matmul(x.rows(rows), head.t(), out, 0, Store::Overwrite, ProductPrecision::F32)
            };
            let objective = match taught.is_some() {
                true => Objective::Distill { text: config.text, teacher: &mut logits },
                false => Objective::Text,
            };
            if !adds_units {
                loss.add(student.gradients(
                    batch,
                    &prepared,
                    objective,
                    scale,
                    &mut GradientSink::Accumulate(sums),
                )?);
                continue;
            }
            let mut found: ByPlace<E::Tensor> = Vec::new();
            found.resize_with(sums.len(), || None);
            loss.add(student.gradients(
                batch,
                &prepared,
                objective,
                scale,
                &mut GradientSink::Collect(&mut found),
            )?);
            for (sum, gradient) in sums.iter_mut().zip(&found) {
                if let Some(gradient) = gradient {
                    engine.add(sum.borrow_mut(), gradient.borrow())?;
                }
            }
            model.reuse(found);
        }
        model.reuse(prepared.ternary);
        Ok(loss)
    }

    /// The sum of the squares of all gradients, in the order of a single machine: each rank adds its rows of a matrix to the sum of
    /// the previous rank, and the last one has the sums of all tensors.
    fn squares_of_shards(&self, tensor: &TensorRanks<'_>, sums: &[E::Tensor]) -> Result<f64, TrainError> {
        let TensorRanks { comm, shard, .. } = tensor;
        let (rank, last) = (comm.rank(), comm.size() - 1);
        let mut squares = Vec::with_capacity(sums.len());
        for (parameter, sum) in self.parameters().all().iter().zip(sums) {
            let is_divided = shard.rows(parameter.name).is_some();
            let before = if is_divided && rank > 0 { number_from(*comm, rank - 1)? } else { 0.0 };
            let square = self.engine.add_squares(before, sum.borrow())?;
            if is_divided && rank < last {
                comm.send(rank + 1, &square.to_le_bytes())?;
            }
            squares.push(square);
        }
        let own: Option<Vec<u8>> =
            (rank == last).then(|| squares.iter().flat_map(|square| square.to_le_bytes()).collect());
        let expected = 8 * sums.len();
        let message = comm.broadcast(last, own.as_deref(), expected)?;
        if message.len() != expected {
            return Err(CommError::Cut { rank: last, expected, got: message.len() }.into());
        }
        Ok(message.as_chunks().0.iter().fold(0.0, |sum, word| sum + f64::from_le_bytes(*word)))
    }
}

/// Refuses more ranks than rows in the smallest matrix.
///
/// # Errors
///
/// [`OptionError::OutOfRange`](trike_core::OptionError::OutOfRange).
pub(crate) fn check_tensor_ranks(
    spec: &DecoderSpec,
    comm: &dyn Communicator,
) -> Result<(), trike_core::OptionError> {
    TensorShard::check_ranks(spec, comm)
}

/// Receives a number from another rank.
fn number_from(comm: &dyn Communicator, rank: usize) -> Result<f64, CommError> {
    let message = comm.receive(rank, 8)?;
    match message.as_chunks().0 {
        [word] => Ok(f64::from_le_bytes(*word)),
        _ => Err(CommError::Cut { rank, expected: 8, got: message.len() }),
    }
}

/// The teacher of a step.
enum Taught<'t, 'a, E: TrainEngine> {
    Whole(&'t ResidentTeacher<'a, E>),
    Shards(ShardedModel<'t, E>, Prepared<E::Tensor>),
}

impl<'t, 'a, E: TrainEngine> Taught<'t, 'a, E> {
    fn new(tensor: &'t TensorRanks<'_>, teacher: &'t ResidentTeacher<'a, E>) -> Result<Self, TrainError> {
        let Some(shard) = &tensor.of_teacher else { return Ok(Self::Whole(teacher)) };
        let ResidentTeacher { parameters, policy, model } = teacher;
        let weights = parameters.get().into();
        let model = ShardedModel { model, weights, policy, comm: tensor.comm, shard };
        Ok(Self::Shards(model, model.prepared()?))
    }

    /// The normed residual stream of a batch and the head.
    fn outputs(&self, batch: &Batch) -> Result<[E::Tensor; 2], TrainError> {
        match self {
            Self::Whole(ResidentTeacher { parameters, policy, model }) => {
                model.hidden(parameters.get(), batch, policy)
            }
            Self::Shards(model, prepared) => model.hidden(batch, prepared),
        }
    }
}
