//! Recovery: tuning of all blocks together on text that the dense model writes, for as long as it may take.

use std::time::{Duration, Instant};

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use trike_core::Tensor;
use trike_nn::WeightName;

use super::{
    head::Head,
    learner::Learner,
    stage::{ERRORS, gained, mean},
    tape::TapeSpec,
    text::{Span, Text, lengths, longest, schedule, shuffle},
    whole::{BothEnds, Stack},
};
use crate::{
    CalibrateError, Tuning, TuningReport,
    streams::{Blocks, embed},
};

/// Evaluations of a recovery, the last one at its end: the best of them is kept.
const EVALUATIONS: u32 = 4;

/// Tunes the ternary matrices of all blocks on `texts` for as long as `most`, and leaves the best weights in `replaced`: those of the
/// smallest loss on the held-out sequences of `judged_on`.
#[expect(clippy::too_many_arguments, reason = "a model, how it is tuned, on what, and how it is judged")]
pub(crate) fn recover(
    dense: &Blocks<'_>,
    tuning: &Tuning,
    head: &Head,
    replaced: &mut [Vec<(WeightName, Tensor)>],
    texts: &[Vec<u32>],
    judged_on: BothEnds<'_>,
    most: Duration,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<TuningReport, CalibrateError> {
    let start = Instant::now();
    let (input, cpu, spec) = (dense.source, dense.cpu(), dense.spec());
    let most_tokens = texts.iter().map(Vec::len).max().unwrap_or(0).max(longest(judged_on.0));
    let shared = TapeSpec::new(cpu, spec, most_tokens)?;
    let stack = |blocks| Stack { cpu, shared: &shared, head, blocks };
    // The blocks of the dense model replace nothing.
    let teacher = stack(Learner::all(input, tuning, &vec![Vec::new(); replaced.len()])?);
    let taught = teacher.values()?;
    let mut student = stack(Learner::all(input, tuning, replaced)?);
    let held = Text::new(judged_on.0).held;
    let judge = |student: &Stack<'_>| student.losses(&held, judged_on);
    let before = judge(&student)?;
    let (mut best, mut gain_error, mut kept, mut steps) = (mean(&before), 0.0, false, 0);
    let table = dense.embedding()?;
    let mut rng = ChaCha8Rng::seed_from_u64(tuning.seed);
    let mut order: Vec<Vec<Span>> = Vec::new();
    let mut judged = 0;
    while judged < EVALUATIONS {
        let passed = start.elapsed();
        let in_time = passed < most && !texts.is_empty();
        if !in_time || passed >= most * (judged + 1) / EVALUATIONS {
            judged = if in_time { judged + 1 } else { EVALUATIONS };
            let now = judge(&student)?;
            let (gain, error) = gained(&before, &now);
            if mean(&now) < best && gain > ERRORS * error {
                (best, gain_error, kept) = (mean(&now), error, true);
                student.finish(replaced)?;
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
        let aim = teacher.forward(&taught, x.clone(), &lengths)?;
        let values = student.values()?;
        let (_, gradients) = student.gradients(&values, &x, &aim, &lengths)?;
        drop(values);
        let share = schedule(passed.as_millis() as usize, most.as_millis() as usize);
        student.learn(&gradients, tuning, share)?;
        steps += 1;
    }
    Ok(TuningReport {
        steps,
        before: mean(&before),
        after: best,
        gain_error,
        kept,
        rate: 1.0,
        seconds: start.elapsed().as_secs_f64(),
    })
}
