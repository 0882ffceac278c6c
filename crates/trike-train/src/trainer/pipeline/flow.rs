//! Forward and backward passes of units through the ranks.

use std::borrow::Borrow;
use std::ops::Range;

use trike_autodiff::{GradError, Operand, ProductPrecision};
use trike_comm::Communicator;
use trike_cpu::Store;

use super::tied::TiedSum;
use super::{Pipeline, loss_of_last, receive, send};
use crate::data::Batch;
use crate::model::{GradientSink, GradientSource, StageModel};
use crate::trainer::SMALL;
use crate::{Loss, Objective, Stage, TernaryPolicy, TrainEngine, TrainError, Trained, Trainer, Weights};

/// Communication of a rank with its neighbours.
struct Seams<'s, E: TrainEngine> {
    engine: &'s E,
    comm: &'s dyn Communicator,
    stage: &'s Stage,
}

impl<E: TrainEngine> Seams<'_, E> {
    fn send(&self, to: usize, x: &E::Tensor) -> Result<(), TrainError> {
        send(self.engine, self.comm, to, x)
    }

    fn receive(&self, from: usize, len: usize) -> Result<E::Tensor, TrainError> {
        receive(self.engine, self.comm, from, len)
    }

    /// Receives the residual stream before this rank's blocks; `None` on the first rank.
    fn before(&self, len: usize) -> Result<Option<E::Tensor>, TrainError> {
        if self.stage.is_first() {
            return Ok(None);
        }
        self.receive(self.comm.rank() - 1, len).map(Some)
    }

    /// The residual stream after all blocks on the last rank; the other ranks send theirs to the next one.
    fn through(&self, model: StageModel<'_, E>, batch: &Batch) -> Result<Option<E::Tensor>, TrainError> {
        let x = model.through(batch, self.before(model.seam(batch))?)?;
        if self.stage.is_last() {
            return Ok(Some(x));
        }
        self.send(self.comm.rank() + 1, &x)?;
        Ok(None)
    }
}

/// The total cross-entropy of some batches, computed by all ranks and returned on all of them.
pub(crate) fn losses_of<E: TrainEngine>(
    comm: &dyn Communicator,
    engine: &E,
    model: &Trained<'_, E>,
    weights: Weights<'_, E::Tensor>,
    policy: &TernaryPolicy,
    batches: impl IntoIterator<Item = Batch>,
) -> Result<Loss, TrainError> {
    let stage = &Stage::new(weights.all.spec(), comm.rank(), comm.size());
    let (seams, model) = (Seams { engine, comm, stage }, StageModel { model, weights, policy, stage });
    let mut losses = Vec::new();
    for batch in batches {
        if let Some(x) = seams.through(model, &batch)? {
            losses.push(model.loss(&batch, x.borrow())?);
        }
    }
    loss_of_last(comm, &losses)
}

impl<E: TrainEngine> Trainer<'_, E> {
    /// The losses of all units on the last rank; the gradients of this rank's weights are added to `sums`.
    pub(super) fn flow(
        &self,
        pipeline: &Pipeline<'_>,
        units: &[Batch],
        sums: &mut [E::Tensor],
        tied: &mut TiedSum<E>,
    ) -> Result<Vec<Loss>, TrainError> {
        let Pipeline { comm, stage, of_teacher } = pipeline;
        let (engine, scale) = (self.engine, self.scale_of(units));
        let policy = &self.policy.clone().with_lambda(self.config.lambda_of(self.step));
        let weights = self.trainable.weights();
        // Large matrices are ternarized again for each unit, as on a single machine, so that only one copy is held at a time.
        let is_small = weights.all.count() <= SMALL;
        let ternary = if is_small { self.model.ternarized(weights, policy)? } else { Vec::new() };
        let model = StageModel { model: &self.model, weights: weights.with_ternary(&ternary), policy, stage };
        let seams = Seams { engine, comm: *comm, stage };
        let (rank, mut losses, mut waiting) = (comm.rank(), Vec::new(), Vec::new());
        for batch in units {
            let inputs = model.inputs(batch, seams.before(model.seam(batch))?)?;
            if !stage.is_last() {
                seams.send(rank + 1, &model.output(batch, &inputs)?)?;
            }
            let taught = match (&self.teacher, of_teacher) {
                (Some(teacher), Some(stage)) => {
                    let weights = teacher.parameters.get().into();
                    let model = StageModel { model: &teacher.model, weights, policy: &teacher.policy, stage };
                    let x = Seams { engine, comm: *comm, stage }.through(model, batch)?;
                    x.map(|x| model.outputs(batch, x.borrow())).transpose()?
                }
                _ => None,
            };
            if !stage.is_last() {
                waiting.push(inputs);
                continue;
            }
            let width = self.teacher.as_ref().map_or(0, |teacher| teacher.parameters.get().spec().hidden);
            let mut logits = |rows: Range<usize>, out: &mut E::View| -> Result<(), GradError> {
                let Some([hidden, head]) = &taught else { return Ok(()) };
                let (x, head) = (Operand::new(hidden.borrow(), width)?, Operand::new(head.borrow(), width)?);
                let precision = ProductPrecision::F32;
                engine.matmul(x.rows(rows), head.t(), out, 0, Store::Overwrite, precision)
            };
            let mut objective = match taught.is_some() {
                true => Objective::Distill { text: self.config.text, teacher: &mut logits },
                false => Objective::Text,
            };
            let source = GradientSource::Loss { objective: &mut objective, scale };
            tied.before_head(engine, sums)?;
            losses.push(self.back(&seams, model, batch, &inputs, source, sums, tied)?);
            tied.after_head(engine, sums)?;
        }
        for (batch, inputs) in units.iter().zip(waiting) {
            let dy = seams.receive(rank + 1, model.seam(batch))?;
            self.back(&seams, model, batch, &inputs, GradientSource::Blocks(dy), sums, tied)?;
        }
        self.model.reuse(ternary);
        Ok(losses)
    }

    /// The backward pass of a unit; sends the gradient of the residual stream to the previous rank.
    #[expect(clippy::too_many_arguments, reason = "a unit, and what its gradients are added to")]
    fn back(
        &self,
        seams: &Seams<'_, E>,
        model: StageModel<'_, E>,
        batch: &Batch,
        inputs: &[E::Tensor],
        source: GradientSource<'_, '_, E>,
        sums: &mut [E::Tensor],
        tied: &mut TiedSum<E>,
    ) -> Result<Loss, TrainError> {
        let (loss, dx) = model.backward(batch, inputs, source, &mut GradientSink::Accumulate(sums))?;
        if !seams.stage.is_first() {
            seams.send(seams.comm.rank() - 1, &dx)?;
            return Ok(loss);
        }
        model.embedding_backward(batch, dx, &mut GradientSink::Accumulate(sums))?;
        tied.after_embedding(self.engine, seams.comm, batch, sums)?;
        Ok(loss)
    }
}
