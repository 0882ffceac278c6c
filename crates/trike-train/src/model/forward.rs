//! Loss and gradients of a batch.

use std::borrow::Borrow;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use trike_autodiff::{
    Buffers, Elements, GradError, MixedPrecision, Tape, TapeEngine, TernarizeSpec, TernaryScale,
};
use trike_cpu::Cpu;
use trike_nn::DecoderSpec;

use super::backward::GradientSource;
use super::pass::{ByPlace, GradientSink, Pass};
use super::{Loss, Objective, Parameter, Parameters, TernaryPolicy, Weights};
use crate::TrainError;
use crate::data::Batch;

/// Number of positions with precomputed sines and cosines.
const ROPE_POSITIONS: usize = 1 << 13;

/// A decoder for training, on the host or on a device.
#[derive(Debug)]
pub struct Trained<'c, E: TapeEngine = Cpu> {
    pub(super) engine: &'c E,
    buffers: Buffers<E::Tensor>,
    /// Number of tokens of the last batch with gradients.
    tokens: AtomicUsize,
    spec: DecoderSpec,
    rope: E::RopeTable,
    /// Blocks per segment of gradient checkpointing: only the inputs of segments are kept, and a segment is recomputed for its
    /// gradient.
    segment: usize,
    pub(super) precision: MixedPrecision,
}

impl<'c, E: TapeEngine> Trained<'c, E> {
    /// A decoder of this architecture. Gradient checkpointing keeps only the input of every `segment`-th block and recomputes the
    /// blocks in the backward pass; `None` keeps everything.
    ///
    /// # Errors
    ///
    /// [`TrainError::Nn`] for an inconsistent spec.
    pub fn new(engine: &'c E, spec: &DecoderSpec, segment: Option<usize>) -> Result<Self, TrainError> {
        spec.validate()?;
        let frequencies = spec.rope.frequencies(spec.head_dim);
        // Further positions are computed when they are used.
        let rope = engine.rope_table(frequencies, spec.rope.pairing, spec.context.min(ROPE_POSITIONS))?;
        let segment = segment.unwrap_or(spec.layers).clamp(1, spec.layers);
        let (buffers, tokens) = (Buffers::default(), AtomicUsize::new(0));
        let precision = MixedPrecision::default();
        Ok(Self { engine, buffers, tokens, spec: spec.clone(), rope, segment, precision })
    }

    /// Sets the precision of products in passes with gradients.
    #[must_use]
    pub fn with_precision(self, precision: MixedPrecision) -> Self {
        Self { precision, ..self }
    }

    /// Computes the loss of a batch and adds its gradient, times `scale`, to `gradients`, which has the shapes of
    /// [`Weights::trained`].
    ///
    /// # Errors
    ///
    /// [`TrainError::Grad`].
    pub fn gradients<'p>(
        &self,
        weights: impl Into<Weights<'p, E::Tensor>>,
        batch: &Batch,
        policy: &TernaryPolicy,
        objective: Objective<'_, E::View>,
        scale: f32,
        gradients: &mut [E::Tensor],
    ) -> Result<Loss, TrainError> {
        let weights = weights.into();
        check_gradients(weights.trained(), gradients)?;
        let sums = &mut GradientSink::Accumulate(gradients);
        self.gradients_on(self.engine, weights, batch, policy, objective, scale, sums)
    }

    /// [`gradients`](Self::gradients) on another executor, such as a single thread for one of several concurrent batches. There is
    /// one slot per trained parameter.
    #[expect(clippy::too_many_arguments, reason = "those of the public method, and the executor")]
    pub(crate) fn gradients_on(
        &self,
        engine: &E,
        weights: Weights<'_, E::Tensor>,
        batch: &Batch,
        policy: &TernaryPolicy,
        mut objective: Objective<'_, E::View>,
        scale: f32,
        gradients: &mut GradientSink<'_, E::Tensor>,
    ) -> Result<Loss, TrainError> {
        self.expect_tokens(batch);
        let pass = Pass { precision: self.precision, ..self.pass(engine, weights, batch, policy)? };
        let segments = self.segments(0..self.spec.layers);
        let source = GradientSource::Loss { objective: &mut objective, scale };
        pass.gradients(&segments, source, weights.trains_embedding(), gradients)
    }

    /// Ternarizes the matrices once for several passes with the same weights; empty if the gradients need the scales.
    pub(crate) fn ternarized(
        &self,
        weights: Weights<'_, E::Tensor>,
        policy: &TernaryPolicy,
    ) -> Result<ByPlace<E::Tensor>, TrainError> {
        let Some(how) = &policy.blocks else { return Ok(Vec::new()) };
        if how.weights.needs_scales() || weights.adapter.is_some() {
            return Ok(Vec::new());
        }
        let ternarize = |parameter: &Parameter<E::Tensor>| {
            let is_ternary = parameter.name.is_block_matrix();
            is_ternary.then(|| self.ternarized_matrix(parameter, &how.weights, None)).transpose()
        };
        weights.all.all().iter().map(ternarize).collect()
    }

    /// A matrix ternarized for a pass; `scale` is that of the whole matrix if only some of its rows are here.
    pub(super) fn ternarized_matrix(
        &self,
        parameter: &Parameter<E::Tensor>,
        how: &TernarizeSpec,
        scale: Option<&E::Tensor>,
    ) -> Result<E::Tensor, TrainError> {
        let mut tape = Tape::new(self.engine, &self.buffers);
        let matrix = tape.constant(parameter.values.borrow(), parameter.cols)?;
        let how = match scale {
            Some(scale) => how.with_scale(TernaryScale::Learned(tape.constant(scale.borrow(), 1)?)),
            None => *how,
        };
        let ternary = tape.ternarize(matrix, &how)?;
        Ok(tape.into_tensor(ternary)?)
    }

    /// Returns the memory of [`ternarized`](Self::ternarized) to the pool.
    pub(crate) fn reuse(&self, tensors: ByPlace<E::Tensor>) {
        tensors.into_iter().flatten().for_each(|tensor| self.buffers.give(tensor));
    }

    /// The loss of a batch.
    ///
    /// # Errors
    ///
    /// [`TrainError::Grad`].
    pub fn loss<'p>(
        &self,
        weights: impl Into<Weights<'p, E::Tensor>>,
        batch: &Batch,
        policy: &TernaryPolicy,
    ) -> Result<Loss, TrainError> {
        let pass = self.pass(self.engine, weights.into(), batch, policy)?;
        pass.loss(pass.after_blocks()?.borrow())
    }

    /// The hidden states after the final norm, `tokens x hidden`, and the rounded head, `vocab x hidden`; the logits of a teacher
    /// are computed from them in chunks of tokens.
    ///
    /// # Errors
    ///
    /// [`TrainError::Grad`].
    pub fn hidden<'p>(
        &self,
        weights: impl Into<Weights<'p, E::Tensor>>,
        batch: &Batch,
        policy: &TernaryPolicy,
    ) -> Result<[E::Tensor; 2], TrainError> {
        self.hidden_on(self.engine, weights.into(), batch, policy)
    }

    /// [`hidden`](Self::hidden) on another executor.
    pub(crate) fn hidden_on(
        &self,
        engine: &E,
        weights: Weights<'_, E::Tensor>,
        batch: &Batch,
        policy: &TernaryPolicy,
    ) -> Result<[E::Tensor; 2], TrainError> {
        let pass = self.pass(engine, weights, batch, policy)?;
        pass.outputs(pass.after_blocks()?.borrow())
    }

    /// The logits of all tokens of a batch, `tokens x vocab`.
    ///
    /// # Errors
    ///
    /// [`TrainError::Grad`].
    pub fn logits<'p>(
        &self,
        weights: impl Into<Weights<'p, E::Tensor>>,
        batch: &Batch,
        policy: &TernaryPolicy,
    ) -> Result<E::Tensor, TrainError> {
        let pass = self.pass(self.engine, weights.into(), batch, policy)?;
        let x = pass.after_blocks()?;
        let mut tape = Tape::new(self.engine, &self.buffers);
        let (hidden, head) = pass.hidden(&mut tape, x.borrow())?;
        let logits = tape.linear(hidden, head, None)?;
        Ok(tape.to_tensor(logits)?)
    }

    /// Drops the pooled buffers when the number of tokens changes: buffers of other sizes would stay unused.
    pub(super) fn expect_tokens(&self, batch: &Batch) {
        if self.tokens.swap(batch.ids.len(), Ordering::Relaxed) != batch.ids.len() {
            self.buffers.clear();
        }
    }

    /// Ranges of blocks whose gradients are computed together.
    pub(super) fn segments(&self, layers: Range<usize>) -> Vec<Range<usize>> {
        let end = layers.end;
        layers.step_by(self.segment).map(|first| first..(first + self.segment).min(end)).collect()
    }

    pub(super) fn pass<'p>(
        &'p self,
        engine: &'p E,
        weights: Weights<'p, E::Tensor>,
        batch: &'p Batch,
        policy: &'p TernaryPolicy,
    ) -> Result<Pass<'p, E>, TrainError> {
        let positions: Vec<u32> = batch.segments.iter().flat_map(|s| 0..s.len() as u32).collect();
        Ok(Pass {
            engine,
            buffers: &self.buffers,
            spec: &self.spec,
            parameters: weights.all,
            adapter: weights.adapter,
            ternary: weights.ternary,
            policy,
            batch,
            precision: MixedPrecision::default(),
            rotary: engine.rotary(&self.rope, positions)?,
            segments: engine.segments(batch.segments.iter().map(ExactSizeIterator::len).collect())?,
            divided: None,
        })
    }
}

pub(crate) fn check_gradients<T: Elements>(
    trained: &Parameters<T>,
    gradients: &[T],
) -> Result<(), GradError> {
    let check = |what, expected, got| match expected == got {
        true => Ok(()),
        false => Err(GradError::Length { what, expected, got }),
    };
    check("list of gradients", trained.all().len(), gradients.len())?;
    let mut each = trained.all().iter().zip(gradients);
    each.try_for_each(|(parameter, gradient)| {
        check("gradient", parameter.values.elements(), gradient.elements())
    })
}
