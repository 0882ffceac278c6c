//! All blocks at once, against the probabilities of the dense model.

use std::time::Instant;

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use trike_cpu::{Cpu, CpuError};
use trike_format::Tensor;
use trike_llm::WeightSource;
use trike_nn::{DecoderSpec, WeightName};
use trike_quant::LatentRates;

use super::{
    Learner, Place, Text, Tuning, TuningReport,
    attend::Turns,
    block::{Ground, Matrices, Tape, backward, forward},
    gather, lengths,
    math::{Dense, exp, norm, norm_back},
    schedule,
};
use crate::{CalibrateError, hidden::Batch};

/// The final norm and the output head.
pub(crate) struct Head {
    norm: Vec<f32>,
    matrix: Dense,
}

impl Head {
    pub(crate) fn load(input: &dyn WeightSource) -> Result<Self, CalibrateError> {
        let spec = &input.config().spec;
        let name = if spec.tied_head { WeightName::Embedding } else { WeightName::Head };
        let matrix = Dense::new(spec.vocab, spec.hidden, input.load(name)?.into_f32())?;
        Ok(Self { norm: input.load(WeightName::FinalNorm)?.into_f32(), matrix })
    }

    fn logits(&self, cpu: &Cpu, spec: &DecoderSpec, x: &[f32]) -> Result<Vec<f32>, CpuError> {
        self.matrix.ahead(cpu, &norm(x, &self.norm, spec.rms_eps))
    }
}

/// Makes logits probabilities.
fn softmax(row: &mut [f32]) {
    let largest = row.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
    for v in row.iter_mut() {
        *v = exp(*v - largest);
    }
    let share = 1.0 / row.iter().sum::<f32>();
    for v in row.iter_mut() {
        *v *= share;
    }
}

/// The sum over tokens of `sum p ln(p / q)`, `p` from the logits `aim` and `q` from `out`, which becomes the gradient by the logits.
pub(super) fn divergence(out: &mut [f32], aim: &mut [f32], vocab: usize) -> f64 {
    let mut total = 0f64;
    for (q, p) in out.chunks_exact_mut(vocab).zip(aim.chunks_exact_mut(vocab)) {
        softmax(q);
        softmax(p);
        let mut sum = 0f64;
        for (q, p) in q.iter_mut().zip(p) {
            if *p > 1e-12 {
                sum += f64::from(*p) * f64::from(*p / q.max(1e-30)).ln();
            }
            *q -= *p;
        }
        total += sum;
    }
    total
}

/// By the matrices of a block.
type Gradients = Vec<Vec<f32>>;

/// The model's blocks in a step.
struct Stack<'a> {
    ground: Ground<'a>,
    head: &'a Head,
    blocks: Vec<Learner>,
}

impl Stack<'_> {
    /// The divergence over the tokens of a step, and the gradients by all matrices where they are `wanted`.
    fn pass(
        &self,
        matrices: &[Matrices],
        x: Vec<f32>,
        aim: &[f32],
        lengths: &[usize],
        wanted: bool,
    ) -> Result<(f64, Vec<Gradients>), CalibrateError> {
        let Ground { cpu, spec, .. } = &self.ground;
        let mut x = x;
        let mut tapes: Vec<Tape> = Vec::new();
        for (block, matrices) in self.blocks.iter().zip(matrices) {
            let (y, tape) = forward(&self.ground, &block.fixed, matrices, x, lengths)?;
            x = y;
            if wanted {
                tapes.push(tape);
            }
        }
        let mut aim = self.head.logits(cpu, spec, aim)?;
        let mut logits = self.head.logits(cpu, spec, &x)?;
        let loss = divergence(&mut logits, &mut aim, spec.vocab);
        drop(aim);
        let mut all = Vec::new();
        if wanted {
            let d_normed = self.head.matrix.back(cpu, &logits)?;
            let mut dy = norm_back(&x, &self.head.norm, spec.rms_eps, &d_normed);
            for (i, tape) in tapes.iter().enumerate().rev() {
                let (gradients, dx) =
                    backward(&self.ground, &self.blocks[i].fixed, &matrices[i], tape, dy, i > 0)?;
                all.push(gradients);
                dy = dx;
            }
            all.reverse();
        }
        Ok((loss, all))
    }

    fn matrices(&self) -> Result<Vec<Matrices>, CalibrateError> {
        self.blocks.iter().map(|b| b.now(self.ground.spec)).collect()
    }
}

/// Tunes the ternary matrices of all blocks. `starts` are the embedded tokens, `ends` the residual streams that leave the dense
/// model's last block, in the same batches.
#[expect(clippy::too_many_arguments, reason = "a model, how it is tuned, and both ends of its text")]
pub(crate) fn whole(
    input: &dyn WeightSource,
    cpu: &Cpu,
    tuning: &Tuning,
    head: &Head,
    replaced: &mut [Vec<(WeightName, Tensor)>],
    starts: &[Batch],
    ends: &[Batch],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<TuningReport, CalibrateError> {
    let start = Instant::now();
    let spec = &input.config().spec;
    let longest = starts.iter().flat_map(|b| b.lengths()).max().unwrap_or(0);
    let turns = Turns::new(spec, longest);
    let text = Text::new(starts);
    let each =
        replaced.iter().enumerate().map(|(layer, replaced)| Learner::new(input, layer, tuning, replaced));
    let blocks = each.collect::<Result<_, _>>()?;
    let mut stack = Stack { ground: Ground { cpu, spec, turns: &turns }, head, blocks };
    let parts = |step: &[Place]| {
        let x = gather(step, spec.hidden, |i| &starts[i].x);
        (x, gather(step, spec.hidden, |i| &ends[i].x), lengths(step))
    };
    let held = |stack: &Stack<'_>| -> Result<f64, CalibrateError> {
        let matrices = stack.matrices()?;
        let (mut sum, mut tokens) = (0.0, 0);
        for step in Text::steps(&text.held, tuning.batch_tokens) {
            let (x, aim, lengths) = parts(&step);
            tokens += lengths.iter().sum::<usize>();
            sum += stack.pass(&matrices, x, &aim, &lengths, false)?.0;
        }
        Ok(sum / f64::from(tokens.max(1) as u32))
    };
    let before = held(&stack)?;
    let mut chance = ChaCha8Rng::seed_from_u64(tuning.seed);
    let plan: Vec<Vec<Place>> = (0..tuning.model_epochs)
        .flat_map(|_| Text::steps(&text.shuffled(&mut chance), tuning.batch_tokens))
        .collect();
    for (i, step) in plan.iter().enumerate() {
        progress(i, plan.len());
        let matrices = stack.matrices()?;
        let (x, aim, lengths) = parts(step);
        let (_, gradients) = stack.pass(&matrices, x, &aim, &lengths, true)?;
        let share = schedule(i, plan.len());
        let rates = LatentRates { codes: share * tuning.rate, scales: share * tuning.scale_rate };
        for (block, gradients) in stack.blocks.iter_mut().zip(&gradients) {
            block.update(gradients, rates)?;
        }
    }
    let after = held(&stack)?;
    let kept = after < before;
    if kept {
        for (replaced, block) in replaced.iter_mut().zip(&stack.blocks) {
            block.finish(replaced)?;
        }
    }
    Ok(TuningReport { steps: plan.len(), before, after, kept, seconds: start.elapsed().as_secs_f64() })
}
