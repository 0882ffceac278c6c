//! Loss and gradients of a batch.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use trike_cpu::{Cpu, RopeTable};
use trike_grad::{Buffers, GradError, Rotary, Tape};
use trike_nn::DecoderSpec;

use super::pass::{Leaves, Pass};
use super::{Loss, Objective, Parameters, TernaryPolicy, Weights};
use crate::TrainError;
use crate::data::Batch;

/// Positions whose sines and cosines are kept.
const ROPE_POSITIONS: usize = 1 << 13;

/// A decoder that is trained on the host.
#[derive(Debug)]
pub struct Trained<'c> {
    cpu: &'c Cpu,
    buffers: Buffers,
    /// Tokens of the last batch with gradients.
    tokens: AtomicUsize,
    spec: DecoderSpec,
    rope: Arc<RopeTable>,
    /// Blocks of a segment: only the inputs of segments are kept, and a segment is computed again for its gradient.
    segment: usize,
}

impl<'c> Trained<'c> {
    /// A decoder of this architecture. Gradient checkpointing keeps the inputs of every `segment`-th block only and computes the
    /// blocks again in the backward pass; `None` keeps everything.
    ///
    /// # Errors
    ///
    /// [`TrainError::Nn`] for an inconsistent spec.
    pub fn new(cpu: &'c Cpu, spec: &DecoderSpec, segment: Option<usize>) -> Result<Self, TrainError> {
        spec.validate()?;
        let table = RopeTable::from_frequencies(spec.rope.frequencies(spec.head_dim))?;
        // Positions beyond are computed when they are used.
        let rope = Arc::new(table.precompute(spec.context.min(ROPE_POSITIONS) as u32));
        let segment = segment.unwrap_or(spec.layers).clamp(1, spec.layers);
        let (buffers, tokens) = (Buffers::default(), AtomicUsize::new(0));
        Ok(Self { cpu, buffers, tokens, spec: spec.clone(), rope, segment })
    }

    /// The loss of a batch; its gradient, times `scale`, is added to `gradients`, which has the shapes of
    /// [`Weights::trained`].
    ///
    /// # Errors
    ///
    /// [`TrainError::Grad`].
    pub fn gradients<'p>(
        &self,
        weights: impl Into<Weights<'p>>,
        batch: &Batch,
        policy: &TernaryPolicy,
        objective: Objective<'_>,
        scale: f32,
        gradients: &mut [Vec<f32>],
    ) -> Result<Loss, TrainError> {
        self.gradients_on(self.cpu, weights.into(), batch, policy, objective, scale, gradients)
    }

    /// [`gradients`](Self::gradients) on another executor, such as the single thread of one of several batches.
    #[expect(clippy::too_many_arguments, reason = "those of the public method, and the executor")]
    pub(crate) fn gradients_on(
        &self,
        cpu: &Cpu,
        weights: Weights<'_>,
        batch: &Batch,
        policy: &TernaryPolicy,
        mut objective: Objective<'_>,
        scale: f32,
        gradients: &mut [Vec<f32>],
    ) -> Result<Loss, TrainError> {
        check_gradients(weights.trained(), gradients)?;
        if self.tokens.swap(batch.ids.len(), Ordering::Relaxed) != batch.ids.len() {
            // Activations of another size would stay in the pool unused.
            self.buffers.clear();
        }
        let pass = self.pass(cpu, weights, batch, policy);
        let layers = self.spec.layers;
        let segments: Vec<Range<usize>> = (0..layers)
            .step_by(self.segment)
            .map(|first| first..(first + self.segment).min(layers))
            .collect();
        // The inputs of all segments; the tape of the last one is kept.
        let mut inputs = vec![pass.embedded()?];
        for segment in &segments[..segments.len() - 1] {
            let x = inputs.last().map_or(&[][..], Vec::as_slice);
            inputs.push(pass.through(x, segment.clone())?);
        }
        let mut loss = Loss::default();
        let mut dy = None;
        for (segment, x) in segments.into_iter().zip(&inputs).rev() {
            let mut tape = Tape::new(cpu, &self.buffers);
            let mut leaves = Leaves::new(true);
            // Below the first block, an adapter trains nothing.
            let from = match segment.start == 0 && !weights.trains_embedding() {
                true => tape.constant(x, self.spec.hidden)?,
                false => tape.parameter(x, self.spec.hidden)?,
            };
            let y = pass.blocks(&mut tape, &mut leaves, from, segment)?;
            let d = match dy.take() {
                Some(dy) => dy,
                None => {
                    let (found, d) = pass.head_gradient(tape.value(y)?, &mut objective, scale, gradients)?;
                    loss = found;
                    d
                }
            };
            let mut found = tape.backward_from(y, d)?;
            leaves.add(&mut found, &self.buffers, gradients);
            dy = Some(found.take(from).unwrap_or_else(|| vec![0.0; x.len()]));
        }
        if !weights.trains_embedding() {
            return Ok(loss);
        }
        let mut tape = Tape::new(cpu, &self.buffers);
        let mut leaves = Leaves::new(true);
        let x = pass.embed(&mut tape, &mut leaves)?;
        let dy = dy.unwrap_or_else(|| vec![0.0; inputs[0].len()]);
        let mut found = tape.backward_from(x, dy)?;
        leaves.add(&mut found, &self.buffers, gradients);
        Ok(loss)
    }

    /// The loss of a batch.
    ///
    /// # Errors
    ///
    /// [`TrainError::Grad`].
    pub fn loss<'p>(
        &self,
        weights: impl Into<Weights<'p>>,
        batch: &Batch,
        policy: &TernaryPolicy,
    ) -> Result<Loss, TrainError> {
        let pass = self.pass(self.cpu, weights.into(), batch, policy);
        let x = pass.behind_blocks()?;
        let mut tape = Tape::new(self.cpu, &self.buffers);
        let (hidden, head) = pass.hidden(&mut tape, &x)?;
        let loss = tape.cross_entropy(hidden, head, &batch.targets, 1.0)?;
        Ok(Loss { sum: loss.sum, divergence: 0.0, tokens: loss.rows })
    }

    /// The hidden states behind the final norm, `tokens x hidden`, and the head as it is multiplied, `vocab x hidden`: what the
    /// logits of a teacher are computed from, some tokens at a time.
    ///
    /// # Errors
    ///
    /// [`TrainError::Grad`].
    pub fn hidden<'p>(
        &self,
        weights: impl Into<Weights<'p>>,
        batch: &Batch,
        policy: &TernaryPolicy,
    ) -> Result<[Vec<f32>; 2], TrainError> {
        self.hidden_on(self.cpu, weights.into(), batch, policy)
    }

    /// [`hidden`](Self::hidden) on another executor.
    pub(crate) fn hidden_on(
        &self,
        cpu: &Cpu,
        weights: Weights<'_>,
        batch: &Batch,
        policy: &TernaryPolicy,
    ) -> Result<[Vec<f32>; 2], TrainError> {
        let pass = self.pass(cpu, weights, batch, policy);
        let x = pass.behind_blocks()?;
        let mut tape = Tape::new(cpu, &self.buffers);
        let (hidden, head) = pass.hidden(&mut tape, &x)?;
        Ok([tape.value(hidden)?.to_vec(), tape.value(head)?.to_vec()])
    }

    /// The logits of all tokens of a batch, `tokens x vocab`.
    ///
    /// # Errors
    ///
    /// [`TrainError::Grad`].
    pub fn logits<'p>(
        &self,
        weights: impl Into<Weights<'p>>,
        batch: &Batch,
        policy: &TernaryPolicy,
    ) -> Result<Vec<f32>, TrainError> {
        let pass = self.pass(self.cpu, weights.into(), batch, policy);
        let x = pass.behind_blocks()?;
        let mut tape = Tape::new(self.cpu, &self.buffers);
        let (hidden, head) = pass.hidden(&mut tape, &x)?;
        let logits = tape.linear(hidden, head, None)?;
        Ok(tape.value(logits)?.to_vec())
    }

    fn pass<'p>(
        &'p self,
        cpu: &'p Cpu,
        weights: Weights<'p>,
        batch: &'p Batch,
        policy: &'p TernaryPolicy,
    ) -> Pass<'p> {
        let positions: Vec<u32> = batch.segments.iter().flat_map(|s| 0..s.len() as u32).collect();
        let table = Arc::clone(&self.rope);
        let rotary = Rotary { table, pairing: self.spec.rope.pairing, positions: positions.into() };
        Pass {
            cpu,
            buffers: &self.buffers,
            spec: &self.spec,
            parameters: weights.all,
            adapter: weights.adapter,
            policy,
            batch,
            rotary,
            lengths: batch.segments.iter().map(ExactSizeIterator::len).collect(),
        }
    }
}

pub(crate) fn check_gradients(trained: &Parameters, gradients: &[Vec<f32>]) -> Result<(), GradError> {
    let check = |what, expected, got| match expected == got {
        true => Ok(()),
        false => Err(GradError::Length { what, expected, got }),
    };
    check("list of gradients", trained.all().len(), gradients.len())?;
    let mut each = trained.all().iter().zip(gradients);
    each.try_for_each(|(parameter, gradient)| check("gradient", parameter.values.len(), gradient.len()))
}
