//! Tuning of all blocks together to the probabilities of the dense model.

use std::borrow::Borrow;

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use trike_autodiff::TapeEngine;
use trike_core::Tensor;
use trike_llm::WeightSource;
use trike_nn::WeightName;
use trike_quant::LatentLearningRates;

use super::{
    executors::Executors,
    head::Head,
    learner::Learner,
    stage::{self, Loss, Tuned},
    tape::{BlockGradients, BlockValues, Recording, TapeSpec, Wanted},
    text::{Span, Text, gather, lengths, longest},
};
use crate::{CalibrateError, Tuning, TuningReport, streams::Batch, weights::block_weights};

/// All blocks of the model during a step.
pub(super) struct Stack<'a, E: TapeEngine> {
    pub(super) on: Executors<'a, E>,
    pub(super) shared: &'a TapeSpec<E>,
    pub(super) head: &'a Head<E>,
    pub(super) blocks: Vec<Learner<E>>,
}

impl<E: TapeEngine> Stack<'_, E> {
    /// The output of the last block for the input `x` of the first block.
    pub(super) fn forward(
        &self,
        values: &[BlockValues<'_, E>],
        mut x: E::Tensor,
        lengths: &[usize],
    ) -> Result<E::Tensor, CalibrateError> {
        for (layer, values) in values.iter().enumerate() {
            let mut recording =
                Recording::new(self.on.engine, self.shared, x.borrow(), lengths, Wanted::default())?;
            recording.block(layer, values)?;
            x = recording.into_output()?;
        }
        Ok(x)
    }

    /// The divergence from the dense model over the tokens of a step, and the gradients of all blocks. `x` is the input of the
    /// first block, `aim` the output of the last block of the dense model.
    pub(super) fn gradients(
        &self,
        values: &[BlockValues<'_, E>],
        x: &E::View,
        aim: &E::View,
        lengths: &[usize],
    ) -> Result<(f64, BlockGradients<E>), CalibrateError> {
        let engine = self.on.engine;
        let wanted = Wanted { weights: true, ..Wanted::default() };
        let mut recording = Recording::new(engine, self.shared, x, lengths, wanted)?;
        for (layer, values) in values.iter().enumerate() {
            recording.block(layer, values)?;
        }
        let (loss, dy) = self.head.divergence_gradient(engine, recording.output()?, aim)?;
        Ok((loss, recording.backward(dy)?))
    }

    pub(super) fn values(&self) -> Result<Vec<BlockValues<'_, E>>, CalibrateError> {
        self.blocks.iter().map(|block| block.values(self.on)).collect()
    }

    /// The divergence from the dense model on each of the given sequences, in nats.
    pub(super) fn losses(&self, sequences: &[Span], text: BothEnds<'_>) -> Result<Vec<Loss>, CalibrateError> {
        let (values, spec, engine) = (self.values()?, &self.shared.spec, self.on.engine);
        let loss = |sequence: &Span| {
            let step = std::slice::from_ref(sequence);
            let [x, aim] = ends_of(step, text, spec.hidden);
            let x = self.forward(&values, engine.upload(x)?, &lengths(step))?;
            let sum = self.head.divergence(engine, x.borrow(), engine.upload(aim)?.borrow())?;
            Ok(Loss { sum, tokens: sequence.1.len() })
        };
        sequences.iter().map(loss).collect()
    }

    /// A step of all blocks, with a fraction of the full learning rates.
    pub(super) fn learn(
        &mut self,
        gradients: &BlockGradients<E>,
        tuning: &Tuning,
        share: f32,
    ) -> Result<(), CalibrateError> {
        let rates = LatentLearningRates::default()
            .with_codes(share * tuning.rate)
            .with_scales(share * tuning.scale_rate);
        self.blocks.iter_mut().try_for_each(|block| block.update(self.on, gradients, rates))
    }

    /// Writes the trained matrices of all blocks back.
    pub(super) fn finish(&self, replaced: &mut [Vec<(WeightName, Tensor)>]) -> Result<(), CalibrateError> {
        replaced.iter_mut().zip(&self.blocks).try_for_each(|(replaced, block)| block.finish(replaced))
    }
}

/// Both ends of a text: embedded tokens, and the dense model's residual streams after all blocks, in the same batches.
pub(crate) type BothEnds<'a> = (&'a [Batch], &'a [Batch]);

/// Both ends of the sequences of a step.
pub(super) fn ends_of(step: &[Span], (starts, ends): BothEnds<'_>, hidden: usize) -> [Vec<f32>; 2] {
    [starts, ends].map(|all| gather(step, hidden, |i| &all[i].x))
}

/// Tunes the ternary matrices of all blocks. `starts` are the embedded tokens, `ends` the residual streams after the
/// last block of the dense model, in the same batches.
pub(crate) fn whole<E: TapeEngine>(
    input: &dyn WeightSource,
    on: Executors<'_, E>,
    tuning: &Tuning,
    head: &Head<E>,
    replaced: &mut [Vec<(WeightName, Tensor)>],
    (starts, ends): BothEnds<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<TuningReport, CalibrateError> {
    let spec = &input.config().spec;
    let shared = TapeSpec::new(on.engine, spec, longest(starts))?;
    let text = Text::new(starts);
    let mut rng = ChaCha8Rng::seed_from_u64(tuning.seed);
    let [_, epochs] = tuning.epochs(text.tokens(), block_weights(input)?);
    let plan = text.plan(epochs, tuning.batch_tokens, &mut rng);
    let blocks = Learner::all(on.engine, input, tuning, replaced)?;
    let stack = Stack { on, shared: &shared, head, blocks };
    let mut model = AllBlocks { input, tuning, stack, text, ends: (starts, ends), replaced };
    stage::run(&mut model, &plan, progress)
}

/// All blocks, tuned together.
struct AllBlocks<'a, E: TapeEngine> {
    input: &'a dyn WeightSource,
    tuning: &'a Tuning,
    stack: Stack<'a, E>,
    text: Text,
    ends: BothEnds<'a>,
    replaced: &'a mut [Vec<(WeightName, Tensor)>],
}

impl<E: TapeEngine> Tuned for AllBlocks<'_, E> {
    const LEAST_GAIN: f64 = 0.0;

    fn held_out(&self) -> Result<Vec<Loss>, CalibrateError> {
        self.stack.losses(&self.text.held, self.ends)
    }

    fn step(&mut self, step: &[Span], share: f32) -> Result<(), CalibrateError> {
        let values = self.stack.values()?;
        let [x, aim] = ends_of(step, self.ends, self.stack.shared.spec.hidden);
        let [x, aim] = [self.stack.on.engine.upload(x)?, self.stack.on.engine.upload(aim)?];
        let (_, gradients) = self.stack.gradients(&values, x.borrow(), aim.borrow(), &lengths(step))?;
        drop(values);
        self.stack.learn(&gradients, self.tuning, share)
    }

    fn keep(&mut self) -> Result<(), CalibrateError> {
        self.stack.finish(self.replaced)
    }

    fn restart(&mut self) -> Result<(), CalibrateError> {
        self.stack.blocks = Learner::all(self.stack.on.engine, self.input, self.tuning, self.replaced)?;
        Ok(())
    }
}
