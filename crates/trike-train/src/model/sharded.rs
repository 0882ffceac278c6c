//! A decoder with tensor-parallel matrices, of which a rank holds some rows.

use std::borrow::Borrow;

use trike_autodiff::{TapeEngine, TernaryScale};
use trike_comm::Communicator;
use trike_nn::DecoderSpec;
use trike_trit::Granularity;

use super::backward::GradientSource;
use super::pass::{GradientSink, Pass};
use super::tensor::{Divided, Prepared, TensorShard, columns_of, scales_of};
use super::{Loss, Objective, TernaryPolicy, Trained, Weights};
use crate::TrainError;
use crate::data::Batch;

/// A tensor-parallel decoder: a rank holds some rows of each matrix. All ranks call the same functions, with the same batches.
pub(crate) struct ShardedModel<'w, E: TapeEngine> {
    pub(crate) model: &'w Trained<'w, E>,
    /// The weights of this rank.
    pub(crate) weights: Weights<'w, E::Tensor>,
    pub(crate) policy: &'w TernaryPolicy,
    pub(crate) comm: &'w dyn Communicator,
    pub(crate) shard: &'w TensorShard,
}

impl<E: TapeEngine> Clone for ShardedModel<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: TapeEngine> Copy for ShardedModel<'_, E> {}

impl<'w, E: TapeEngine> ShardedModel<'w, E> {
    /// Values shared by passes without gradients.
    pub(crate) fn prepared(self) -> Result<Prepared<E::Tensor>, TrainError> {
        let Some(how) = &self.policy.blocks else { return Ok(Prepared::default()) };
        let is_whole = how.weights.granularity == Granularity::Tensor;
        if !is_whole || matches!(how.weights.scale, TernaryScale::Learned(_)) {
            return Ok(Prepared::default());
        }
        let scales =
            scales_of(self.model.engine, self.comm, self.shard, self.weights.all, how.weights.scale)?;
        Ok(Prepared { scales, ..Prepared::default() })
    }

    /// Values shared by the passes of a step with gradients; with `keeps_ternary`, also the ternarized rows.
    pub(crate) fn prepared_step(self, keeps_ternary: bool) -> Result<Prepared<E::Tensor>, TrainError> {
        let (engine, how) = (self.model.engine, self.policy.blocks.as_ref().map(|how| how.weights));
        let mut prepared = self.prepared()?;
        let keeps_ternary = keeps_ternary && how.is_some_and(|how| !how.needs_scales());
        for (place, parameter) in self.weights.all.all().iter().enumerate() {
            let name = parameter.name;
            let outputs = self.shard.outputs(name).filter(|_| name.is_block_matrix());
            let Some(outputs) = outputs else {
                prepared.columns.push(None);
                prepared.ternary.push(None);
                continue;
            };
            let scale = prepared.scales.get(place).and_then(Option::as_ref);
            let ternary = how.map(|how| self.model.ternarized_matrix(parameter, &how, scale)).transpose()?;
            let rows: &E::View = ternary.as_ref().unwrap_or(&parameter.values).borrow();
            prepared.columns.push(Some(columns_of(
                engine,
                self.comm,
                outputs,
                self.shard.inputs(name),
                rows,
            )?));
            if keeps_ternary {
                prepared.ternary.push(ternary);
            } else {
                self.model.reuse(vec![ternary]);
            }
        }
        if !keeps_ternary {
            prepared.ternary.clear();
        }
        Ok(prepared)
    }

    fn pass(
        self,
        batch: &'w Batch,
        prepared: &'w Prepared<E::Tensor>,
        is_training: bool,
    ) -> Result<Pass<'w, E>, TrainError> {
        let weights = self.weights.with_ternary(&prepared.ternary);
        let pass = self.model.pass(self.model.engine, weights, batch, self.policy)?;
        let precision = if is_training { self.model.precision } else { pass.precision };
        let divided = Some(Divided { comm: self.comm, shard: self.shard, prepared });
        Ok(Pass { precision, divided, ..pass })
    }

    /// The loss of a batch.
    pub(crate) fn loss(
        self,
        batch: &'w Batch,
        prepared: &'w Prepared<E::Tensor>,
    ) -> Result<Loss, TrainError> {
        let pass = self.pass(batch, prepared, false)?;
        pass.loss(pass.after_blocks()?.borrow())
    }

    /// As [`Trained::hidden`].
    pub(crate) fn hidden(
        self,
        batch: &'w Batch,
        prepared: &'w Prepared<E::Tensor>,
    ) -> Result<[E::Tensor; 2], TrainError> {
        let pass = self.pass(batch, prepared, false)?;
        pass.outputs(pass.after_blocks()?.borrow())
    }

    /// Computes the loss of a batch and adds the gradients of this rank's weights, times `scale`, to `gradients`.
    pub(crate) fn gradients(
        self,
        batch: &'w Batch,
        prepared: &'w Prepared<E::Tensor>,
        mut objective: Objective<'_, E::View>,
        scale: f32,
        gradients: &mut GradientSink<'_, E::Tensor>,
    ) -> Result<Loss, TrainError> {
        self.model.expect_tokens(batch);
        let pass = self.pass(batch, prepared, true)?;
        let segments = self.model.segments(0..self.spec().layers);
        let source = GradientSource::Loss { objective: &mut objective, scale };
        pass.gradients(&segments, source, true, gradients)
    }

    fn spec(self) -> &'w DecoderSpec {
        self.weights.all.spec()
    }
}
