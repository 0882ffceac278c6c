//! Recovery: tuning of all blocks together on text that the dense model writes, for as long as it may take.

use std::time::{Duration, Instant};

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use trike_core::Tensor;
use trike_nn::WeightName;
use trike_quant::LatentLearningRates;

use super::{
    learner::Learner,
    shape,
    text::{Span, Text, gather, lengths, longest, schedule, shuffle},
    whole::{Head, Stack},
};
use crate::{
    CalibrateError, Tuning, TuningReport,
    streams::{Batch, Blocks, embed},
};

/// Evaluations of a recovery, the last one at its end: the best of them is kept.
const EVALUATIONS: u32 = 4;

/// Both ends of the text on which a recovery is judged: embedded tokens, and the dense model's residual streams behind all blocks.
pub(crate) type Judged<'a> = (&'a [Batch], &'a [Batch]);

/// Tunes the ternary matrices of all blocks on `texts` for as long as `most`, and leaves the best weights in `replaced`.
#[expect(clippy::too_many_arguments, reason = "a model, how it is tuned, on what, and how it is judged")]
pub(crate) fn recover(
    dense: &Blocks<'_>,
    tuning: &Tuning,
    head: &Head,
    replaced: &mut [Vec<(WeightName, Tensor)>],
    texts: &[Vec<u32>],
    (starts, ends): Judged<'_>,
    most: Duration,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<TuningReport, CalibrateError> {
    let start = Instant::now();
    let (input, cpu, spec) = (dense.source, dense.cpu(), dense.spec());
    let most_tokens = texts.iter().map(Vec::len).max().unwrap_or(0).max(longest(starts));
    let shape = shape(spec, most_tokens)?;
    let stack = |blocks| Stack { cpu, shape: &shape, vocab: spec.vocab, head, blocks };
    let learners = |replaced: &[Vec<(WeightName, Tensor)>]| -> Result<Vec<Learner>, CalibrateError> {
        let each = replaced.iter().enumerate();
        each.map(|(layer, replaced)| Learner::new(input, layer, tuning, replaced)).collect()
    };
    // The blocks of the dense model replace nothing.
    let teacher = stack(learners(&vec![Vec::new(); replaced.len()])?);
    let taught = teacher.matrices()?;
    let mut student = stack(learners(replaced)?);
    let held = Text::new(starts).held;
    let judge = |student: &Stack<'_>| -> Result<f64, CalibrateError> {
        let matrices = student.matrices()?;
        let (mut sum, mut tokens) = (0.0, 0);
        for step in Text::steps(&held, tuning.batch_tokens) {
            let lengths = lengths(&step);
            tokens += lengths.iter().sum::<usize>();
            let (x, aim) =
                (gather(&step, spec.hidden, |i| &starts[i].x), gather(&step, spec.hidden, |i| &ends[i].x));
            sum += student.pass(&matrices, x, &aim, &lengths, false)?.0;
        }
        Ok(sum / f64::from(tokens.max(1) as u32))
    };
    let before = judge(&student)?;
    let (mut best, mut kept, mut steps) = (before, false, 0);
    let table = dense.embedding()?;
    let mut rng = ChaCha8Rng::seed_from_u64(tuning.seed);
    let mut order: Vec<Vec<Span>> = Vec::new();
    let mut judged = 0;
    while judged < EVALUATIONS {
        let passed = start.elapsed();
        let in_time = passed < most && !texts.is_empty();
        if !in_time || passed >= most * (judged + 1) / EVALUATIONS {
            judged = if in_time { judged + 1 } else { EVALUATIONS };
            let loss = judge(&student)?;
            if loss < best {
                (best, kept) = (loss, true);
                for (replaced, block) in replaced.iter_mut().zip(&student.blocks) {
                    block.finish(replaced)?;
                }
            }
            continue;
        }
        progress(passed.as_secs() as usize, most.as_secs() as usize);
        if order.is_empty() {
            let mut spans: Vec<Span> = texts.iter().enumerate().map(|(i, ids)| (i, 0..ids.len())).collect();
            shuffle(&mut spans, &mut rng);
            order = Text::steps(&spans, tuning.batch_tokens);
        }
        let Some(step) = order.pop() else { continue };
        let ids: Vec<Vec<u32>> = step.iter().map(|(i, _)| texts[*i].clone()).collect();
        let x: Vec<f32> = embed(dense.backend, &table, &ids)?.into_iter().flat_map(|batch| batch.x).collect();
        let lengths = lengths(&step);
        let aim = teacher.forward(&taught, x.clone(), &lengths, false)?.0;
        let matrices = student.matrices()?;
        let (_, gradients) = student.pass(&matrices, x, &aim, &lengths, true)?;
        let factor = schedule(passed.as_millis() as usize, most.as_millis() as usize);
        let rates = LatentLearningRates::default()
            .with_codes(factor * tuning.rate)
            .with_scales(factor * tuning.scale_rate);
        for (block, gradients) in student.blocks.iter_mut().zip(&gradients) {
            block.update(gradients, rates)?;
        }
        steps += 1;
    }
    Ok(TuningReport { steps, before, after: best, kept, seconds: start.elapsed().as_secs_f64() })
}
