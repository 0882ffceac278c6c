//! Gradients of blocks, segment by segment.

use std::borrow::Borrow;
use std::ops::Range;

use trike_autodiff::{Elements, Tape, TapeEngine};

use super::parameters::zeros;
use super::pass::{GradientSink, Leaves, Pass};
use super::{Loss, Objective};
use crate::TrainError;

/// Where the gradient of the last block's output comes from.
pub(crate) enum GradientSource<'o, 't, E: TapeEngine> {
    /// The loss, times `scale`.
    Loss { objective: &'o mut Objective<'t, E::View>, scale: f32 },
    /// The blocks of another rank.
    Blocks(E::Tensor),
}

impl<E: TapeEngine> Pass<'_, E> {
    /// Computes the loss and adds its gradients to `gradients`.
    pub(super) fn gradients(
        &self,
        segments: &[Range<usize>],
        source: GradientSource<'_, '_, E>,
        trains_embedding: bool,
        gradients: &mut GradientSink<'_, E::Tensor>,
    ) -> Result<Loss, TrainError> {
        let inputs = self.inputs(self.embedded()?, segments)?;
        let (loss, dx) = self.backward(segments, &inputs, source, trains_embedding, gradients)?;
        if trains_embedding {
            self.embedding_backward(dx, gradients)?;
        }
        Ok(loss)
    }

    /// The inputs of all segments; `x` is the first.
    pub(super) fn inputs(
        &self,
        x: E::Tensor,
        segments: &[Range<usize>],
    ) -> Result<Vec<E::Tensor>, TrainError> {
        let mut inputs = vec![x];
        for segment in &segments[..segments.len().saturating_sub(1)] {
            let Some(x) = inputs.last() else { break };
            inputs.push(self.through(x.borrow(), segment.clone())?);
        }
        Ok(inputs)
    }

    /// The loss, if it is computed here, and the gradient with respect to the first input, zeros unless `tracks_input`; parameter
    /// gradients are added to `gradients`.
    pub(super) fn backward(
        &self,
        segments: &[Range<usize>],
        inputs: &[E::Tensor],
        source: GradientSource<'_, '_, E>,
        tracks_input: bool,
        gradients: &mut GradientSink<'_, E::Tensor>,
    ) -> Result<(Loss, E::Tensor), TrainError> {
        let mut loss = Loss::default();
        let mut source = Some(source);
        let mut dy = None;
        for (index, (segment, x)) in segments.iter().zip(inputs).enumerate().rev() {
            let mut tape = self.tape();
            let mut leaves = Leaves::new(true);
            let from = match index == 0 && !tracks_input {
                true => tape.constant(x.borrow(), self.spec.hidden)?,
                false => tape.parameter(x.borrow(), self.spec.hidden)?,
            };
            let y = self.blocks(&mut tape, &mut leaves, from, segment.clone())?;
            let d = match (dy.take(), source.take()) {
                (Some(dy), _) | (None, Some(GradientSource::Blocks(dy))) => dy,
                (None, Some(GradientSource::Loss { objective, scale })) => {
                    let (found, d) = self.head_gradient(tape.value(y)?, objective, scale, gradients)?;
                    loss = found;
                    d
                }
                (None, None) => zeros(self.engine, x.elements())?,
            };
            let mut found = tape.backward_from(y, d)?;
            leaves.add(self.engine, &mut found, self.buffers, gradients)?;
            dy = Some(found.take(from).map_or_else(|| zeros(self.engine, x.elements()), Ok)?);
        }
        let dx = dy.map_or_else(|| zeros(self.engine, inputs.first().map_or(0, Elements::elements)), Ok)?;
        Ok((loss, dx))
    }

    /// Adds the gradient of the embedding, given that of the residual stream before the first block.
    pub(super) fn embedding_backward(
        &self,
        dx: E::Tensor,
        gradients: &mut GradientSink<'_, E::Tensor>,
    ) -> Result<(), TrainError> {
        let mut tape = Tape::new(self.engine, self.buffers);
        let mut leaves = Leaves::new(true);
        let x = self.embed(&mut tape, &mut leaves)?;
        let mut found = tape.backward_from(x, dx)?;
        Ok(leaves.add(self.engine, &mut found, self.buffers, gradients)?)
    }
}
