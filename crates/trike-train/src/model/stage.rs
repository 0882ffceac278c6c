//! Pipeline stages: the part of a decoder that a rank holds.

use std::borrow::Borrow;
use std::ops::Range;

use trike_autodiff::TapeEngine;
use trike_comm::Shards;
use trike_llm::WeightSource;
use trike_nn::{DecoderSpec, NnError, WeightName};

use super::backward::GradientSource;
use super::partition::Partition;
use super::pass::{GradientSink, Pass};
use super::{Loss, Parameters, TernaryPolicy, Trained, Weights, shapes};
use crate::TrainError;
use crate::data::Batch;

/// A pipeline stage: the consecutive blocks of a decoder on one rank. The first rank also holds the embedding, the last one the
/// final norm and the head. A tied embedding is on both, and the last rank updates it.
///
/// ```
/// use trike_nn::{DecoderSpec, WeightName};
/// use trike_train::Stage;
///
/// let spec = DecoderSpec { tied_head: true, ..DecoderSpec::llama(64, 5, 4, 300) };
/// let last = Stage::new(&spec, 1, 2);
/// assert_eq!(last.layers(), 3..5);
/// assert!(last.holds(WeightName::Query(3)) && !last.holds(WeightName::Query(2)));
/// assert!(last.holds(WeightName::Embedding) && last.owner(WeightName::Embedding) == 1);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    rank: usize,
    ranks: usize,
    layers: Shards,
    tied: bool,
}

impl Stage {
    /// Stage `rank` of `ranks`: equal numbers of blocks, with one more on the first ranks if necessary. With fewer blocks than
    /// ranks, the last stages are empty.
    #[must_use]
    pub fn new(spec: &DecoderSpec, rank: usize, ranks: usize) -> Self {
        Self { rank, ranks, layers: Shards::even(spec.layers, ranks), tied: spec.tied_head }
    }

    /// The blocks.
    #[must_use]
    pub fn layers(&self) -> Range<usize> {
        self.layers.of_rank(self.rank)
    }

    /// Whether this rank holds the weight.
    #[must_use]
    pub fn holds(&self, name: WeightName) -> bool {
        self.owner(name) == self.rank || self.copies(name) && self.rank == 0
    }

    /// The rank that updates the weight.
    #[must_use]
    pub fn owner(&self, name: WeightName) -> usize {
        let last = self.ranks.saturating_sub(1);
        match name.layer() {
            Some(layer) => {
                (0..self.ranks).find(|&rank| self.layers.of_rank(rank).contains(&layer)).unwrap_or(last)
            }
            None if name == WeightName::Embedding && !self.tied => 0,
            None => last,
        }
    }

    /// Whether the first rank holds a copy of a weight that the last one updates.
    pub(crate) fn copies(&self, name: WeightName) -> bool {
        name == WeightName::Embedding && self.tied && self.ranks > 1
    }

    pub(crate) fn is_first(&self) -> bool {
        self.rank == 0
    }

    pub(crate) fn is_last(&self) -> bool {
        self.rank + 1 == self.ranks
    }
}

impl Partition for Stage {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn part(&self, name: WeightName, (rows, cols): (usize, usize), rank: usize) -> Option<Range<usize>> {
        let has = self.owner(name) == rank || self.copies(name) && rank == 0;
        has.then_some(0..rows * cols)
    }

    fn state(&self, name: WeightName, (rows, cols): (usize, usize), rank: usize) -> Option<Range<usize>> {
        (self.owner(name) == rank).then_some(0..rows * cols)
    }

    fn sources(&self, name: WeightName, (rows, cols): (usize, usize)) -> Vec<(usize, Range<usize>)> {
        vec![(self.owner(name), 0..rows * cols)]
    }
}

impl Parameters {
    /// A rank's part of the random weights, equal to the same elements of [`random`](Self::random).
    ///
    /// # Errors
    ///
    /// [`NnError::Spec`].
    pub fn random_stage(spec: &DecoderSpec, seed: u64, stage: &Stage) -> Result<Self, NnError> {
        Self::random_part(spec, seed, stage)
    }

    /// A rank's part of the weights of a model file; other weights are not read.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub fn open_stage(source: &dyn WeightSource, stage: &Stage) -> Result<Self, NnError> {
        Self::open_part(source, stage)
    }

    /// Reduces the weights to the part of a rank.
    ///
    /// # Errors
    ///
    /// [`TrainError::NoParameter`] for a missing weight.
    pub fn into_stage(self, stage: &Stage) -> Result<Self, TrainError> {
        self.into_part(stage)
    }
}

/// Number of elements of all weights.
pub(crate) fn count(spec: &DecoderSpec) -> usize {
    shapes(spec).into_iter().map(|(_, (rows, cols))| rows * cols).sum()
}

/// The stage of a decoder on a rank.
pub(crate) struct StageModel<'w, E: TapeEngine> {
    pub(crate) model: &'w Trained<'w, E>,
    /// The weights of the stage.
    pub(crate) weights: Weights<'w, E::Tensor>,
    pub(crate) policy: &'w TernaryPolicy,
    pub(crate) stage: &'w Stage,
}

impl<E: TapeEngine> Clone for StageModel<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: TapeEngine> Copy for StageModel<'_, E> {}

impl<'w, E: TapeEngine> StageModel<'w, E> {
    fn pass(self, batch: &'w Batch) -> Result<Pass<'w, E>, TrainError> {
        self.model.pass(self.model.engine, self.weights, batch, self.policy)
    }

    /// A pass with the product precision of training.
    fn training(self, batch: &'w Batch) -> Result<Pass<'w, E>, TrainError> {
        Ok(Pass { precision: self.model.precision, ..self.pass(batch)? })
    }

    /// The input of the stage's blocks: received from the previous rank, or the embedded tokens.
    fn input(pass: &Pass<'w, E>, x: Option<E::Tensor>) -> Result<E::Tensor, TrainError> {
        x.map_or_else(|| pass.embedded(), Ok)
    }

    /// The residual stream after the stage's blocks, without gradients.
    pub(crate) fn through(self, batch: &'w Batch, x: Option<E::Tensor>) -> Result<E::Tensor, TrainError> {
        let pass = self.pass(batch)?;
        let mut x = Self::input(&pass, x)?;
        for layer in self.stage.layers() {
            x = pass.through(x.borrow(), layer..layer + 1)?;
        }
        Ok(x)
    }

    /// The cross-entropy for the residual stream after all blocks, on the last rank.
    pub(crate) fn loss(self, batch: &'w Batch, x: &E::View) -> Result<Loss, TrainError> {
        self.pass(batch)?.loss(x)
    }

    /// The normed residual stream after all blocks and the rounded head, on the last rank.
    pub(crate) fn outputs(self, batch: &'w Batch, x: &E::View) -> Result<[E::Tensor; 2], TrainError> {
        self.pass(batch)?.outputs(x)
    }

    /// The inputs of the stage's segments, from which [`backward`](Self::backward) recomputes the segments.
    pub(crate) fn inputs(self, batch: &'w Batch, x: Option<E::Tensor>) -> Result<Vec<E::Tensor>, TrainError> {
        self.model.expect_tokens(batch);
        let pass = self.training(batch)?;
        let x = Self::input(&pass, x)?;
        pass.inputs(x, &self.model.segments(self.stage.layers()))
    }

    /// The residual stream after the stage's blocks, from the inputs of its segments.
    pub(crate) fn output(self, batch: &'w Batch, inputs: &[E::Tensor]) -> Result<E::Tensor, TrainError> {
        let (pass, segments) = (self.training(batch)?, self.model.segments(self.stage.layers()));
        let segment = segments.last().cloned().unwrap_or_default();
        pass.through(inputs[inputs.len() - 1].borrow(), segment)
    }

    /// The loss on the last rank, and the gradient with respect to the input received from the previous rank.
    pub(crate) fn backward(
        self,
        batch: &'w Batch,
        inputs: &[E::Tensor],
        source: GradientSource<'_, '_, E>,
        gradients: &mut GradientSink<'_, E::Tensor>,
    ) -> Result<(Loss, E::Tensor), TrainError> {
        let pass = self.training(batch)?;
        pass.backward(&self.model.segments(self.stage.layers()), inputs, source, true, gradients)
    }

    /// Adds the gradient of the embedding on the first rank.
    pub(crate) fn embedding_backward(
        self,
        batch: &'w Batch,
        dx: E::Tensor,
        gradients: &mut GradientSink<'_, E::Tensor>,
    ) -> Result<(), TrainError> {
        self.training(batch)?.embedding_backward(dx, gradients)
    }

    /// Elements of the residual stream of a batch.
    pub(crate) fn seam(self, batch: &Batch) -> usize {
        batch.ids.len() * self.weights.all.spec().hidden
    }
}
