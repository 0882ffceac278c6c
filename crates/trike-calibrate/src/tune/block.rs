//! Tuning of one block to the output of the dense block.

use std::borrow::Borrow;

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use trike_autodiff::TapeEngine;
use trike_core::Tensor;
use trike_llm::WeightSource;
use trike_nn::WeightName;
use trike_quant::LatentLearningRates;

use super::{
    executors::Executors,
    learner::Learner,
    stage::{self, Loss, Tuned},
    tape::{Recording, TapeSpec, Wanted},
    text::{Span, Text, gather, lengths, longest},
};
use crate::{CalibrateError, Tuning, TuningReport, streams::Batch};

/// Sums the squared error of each token, relative to the mean square of its target, and turns `out` into the gradient.
fn token_errors(out: &mut [f32], aim: &[f32], width: usize) -> f64 {
    let squares = |row: &[f32]| row.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>();
    let mut total = 0f64;
    for (out, aim) in out.chunks_exact_mut(width).zip(aim.chunks_exact(width)) {
        let weight = 1.0 / (squares(aim) / width as f64).max(1e-20);
        out.iter_mut().zip(aim).for_each(|(out, aim)| *out -= aim);
        total += squares(out) * weight / width as f64;
        out.iter_mut().for_each(|out| *out *= weight as f32);
    }
    total
}

/// A block that is tuned, with the streams of `batches` as inputs and the output of the dense block, `aims`, as target.
struct OneBlock<'a, E: TapeEngine> {
    input: &'a dyn WeightSource,
    on: Executors<'a, E>,
    layer: usize,
    tuning: &'a Tuning,
    shared: TapeSpec<E>,
    text: Text,
    batches: &'a [Batch],
    aims: &'a [Batch],
    learner: Learner<E>,
    replaced: &'a mut Vec<(WeightName, Tensor)>,
}

impl<E: TapeEngine> OneBlock<'_, E> {
    /// Inputs and targets of a step, and the lengths of its sequences.
    fn parts(&self, step: &[Span]) -> (Vec<f32>, Vec<f32>, Vec<usize>) {
        let rows = |streams: &[Batch]| gather(step, self.shared.spec.hidden, |i| &streams[i].x);
        (rows(self.batches), rows(self.aims), lengths(step))
    }
}

impl<E: TapeEngine> Tuned for OneBlock<'_, E> {
    // Reducing the error of a block by tiny amounts with other codes does not reduce the model's loss.
    const LEAST_GAIN: f64 = 0.01;

    fn held_out(&self) -> Result<Vec<Loss>, CalibrateError> {
        let hidden = self.shared.spec.hidden;
        let engine = self.on.engine;
        let values = self.learner.values(self.on)?;
        let mut losses = Vec::with_capacity(self.text.held.len());
        for step in Text::steps(&self.text.held, self.tuning.batch_tokens) {
            let (x, aim, lengths) = self.parts(&step);
            let x = engine.upload(x)?;
            let mut recording =
                Recording::new(engine, &self.shared, x.borrow(), &lengths, Wanted::default())?;
            recording.block(self.layer, &values)?;
            let mut y = engine.download(recording.output()?)?.into_owned();
            let mut at = 0;
            for tokens in lengths {
                let rows = at * hidden..(at + tokens) * hidden;
                losses.push(Loss { sum: token_errors(&mut y[rows.clone()], &aim[rows], hidden), tokens });
                at += tokens;
            }
        }
        Ok(losses)
    }

    fn step(&mut self, step: &[Span], share: f32) -> Result<(), CalibrateError> {
        let engine = self.on.engine;
        let values = self.learner.values(self.on)?;
        let (x, aim, lengths) = self.parts(step);
        let x = engine.upload(x)?;
        let wanted = Wanted { weights: true, ..Wanted::default() };
        let mut recording = Recording::new(engine, &self.shared, x.borrow(), &lengths, wanted)?;
        recording.block(self.layer, &values)?;
        let mut y = engine.download(recording.output()?)?.into_owned();
        token_errors(&mut y, &aim, self.shared.spec.hidden);
        let gradients = recording.backward(engine.upload(y)?)?;
        drop(values);
        let rates = LatentLearningRates::default()
            .with_codes(share * self.tuning.rate)
            .with_scales(share * self.tuning.scale_rate);
        self.learner.update(self.on, &gradients, rates)
    }

    fn keep(&mut self) -> Result<(), CalibrateError> {
        self.learner.finish(self.replaced)
    }

    fn restart(&mut self) -> Result<(), CalibrateError> {
        self.learner = Learner::new(self.on.engine, self.input, self.layer, self.tuning, self.replaced)?;
        Ok(())
    }
}

/// Tunes the ternary matrices `replaced` of a block, with the streams of `batches` as inputs and the output of the
/// dense block, `aims`, as target.
pub(crate) fn block<E: TapeEngine>(
    input: &dyn WeightSource,
    on: Executors<'_, E>,
    layer: usize,
    tuning: &Tuning,
    replaced: &mut Vec<(WeightName, Tensor)>,
    (batches, aims): (&[Batch], &[Batch]),
    progress: &mut dyn FnMut(usize, usize),
) -> Result<TuningReport, CalibrateError> {
    let shared = TapeSpec::new(on.engine, &input.config().spec, longest(batches))?;
    let text = Text::new(batches);
    let learner = Learner::new(on.engine, input, layer, tuning, replaced)?;
    let mut rng = ChaCha8Rng::seed_from_u64(tuning.seed ^ (layer as u64 + 1));
    let [epochs, _] = tuning.epochs(text.tokens(), 0);
    let plan = text.plan(epochs, tuning.batch_tokens, &mut rng);
    let mut block = OneBlock { input, on, layer, tuning, shared, text, batches, aims, learner, replaced };
    stage::run(&mut block, &plan, progress)
}
