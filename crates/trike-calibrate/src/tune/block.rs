//! Tuning of one block to the output of the dense block.

use std::time::Instant;

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use trike_core::Tensor;
use trike_cpu::{Cpu, grad::Block};
use trike_llm::WeightSource;
use trike_nn::WeightName;
use trike_quant::LatentLearningRates;

use super::{
    learner::Learner,
    shape,
    text::{Span, Text, gather, lengths, longest, schedule},
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

/// Tunes the ternary matrices `replaced` of a block, with the streams of `batches` as inputs and the output of the
/// dense block, `aims`, as target.
pub(crate) fn block(
    input: &dyn WeightSource,
    cpu: &Cpu,
    layer: usize,
    tuning: &Tuning,
    replaced: &mut [(WeightName, Tensor)],
    (batches, aims): (&[Batch], &[Batch]),
) -> Result<TuningReport, CalibrateError> {
    let start = Instant::now();
    let hidden = input.config().spec.hidden;
    let shape = shape(&input.config().spec, longest(batches))?;
    let text = Text::new(batches);
    let mut learner = Learner::new(input, layer, tuning, replaced)?;
    let parts = |step: &[Span]| {
        let rows = |streams: &[Batch]| gather(step, hidden, |i| &streams[i].x);
        (rows(batches), rows(aims), lengths(step))
    };
    let held = |learner: &Learner| -> Result<f64, CalibrateError> {
        let matrices = learner.matrices(&shape)?;
        let block = Block { cpu, shape: &shape, vectors: &learner.vectors, matrices: &matrices };
        let (mut sum, mut tokens) = (0.0, 0);
        for step in Text::steps(&text.held, tuning.batch_tokens) {
            let (x, aim, lengths) = parts(&step);
            let (mut y, _) = block.forward(x, &lengths)?;
            sum += token_errors(&mut y, &aim, hidden);
            tokens += y.len() / hidden;
        }
        Ok(sum / f64::from(tokens.max(1) as u32))
    };
    let before = held(&learner)?;
    let mut rng = ChaCha8Rng::seed_from_u64(tuning.seed ^ (layer as u64 + 1));
    let plan: Vec<Vec<Span>> = (0..tuning.block_epochs)
        .flat_map(|_| Text::steps(&text.shuffled(&mut rng), tuning.batch_tokens))
        .collect();
    for (i, step) in plan.iter().enumerate() {
        let matrices = learner.matrices(&shape)?;
        let block = Block { cpu, shape: &shape, vectors: &learner.vectors, matrices: &matrices };
        let (x, aim, lengths) = parts(step);
        let (mut y, tape) = block.forward(x, &lengths)?;
        token_errors(&mut y, &aim, hidden);
        let gradients = block.backward(&tape, y, false)?;
        let factor = schedule(i, plan.len());
        let rates = LatentLearningRates::default()
            .with_codes(factor * tuning.rate)
            .with_scales(factor * tuning.scale_rate);
        learner.update(&gradients, rates)?;
    }
    let after = held(&learner)?;
    let kept = after < before;
    if kept {
        learner.finish(replaced)?;
    }
    Ok(TuningReport { steps: plan.len(), before, after, kept, seconds: start.elapsed().as_secs_f64() })
}
