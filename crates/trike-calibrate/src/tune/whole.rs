//! Tuning of all blocks together to the probabilities of the dense model.

use std::time::Instant;

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use trike_core::Tensor;
use trike_cpu::{
    Cpu, CpuError, CpuOps,
    grad::{self, Block, BlockGradients, BlockMatrices, BlockShape, Linear, Tape},
};
use trike_llm::WeightSource;
use trike_nn::WeightName;
use trike_quant::LatentLearningRates;

use super::{
    learner::Learner,
    shape,
    text::{Span, Text, gather, lengths, longest, schedule},
};
use crate::{CalibrateError, Tuning, TuningReport, streams::Batch};

/// The final norm and the output head.
pub(crate) struct Head {
    norm: Vec<f32>,
    matrix: Linear,
}

impl Head {
    pub(crate) fn load(input: &dyn WeightSource) -> Result<Self, CalibrateError> {
        let spec = &input.config().spec;
        let name = if spec.tied_head { WeightName::Embedding } else { WeightName::Head };
        let matrix = Linear::new(spec.vocab, spec.hidden, input.load(name)?.into_f32())?;
        Ok(Self { norm: input.load(WeightName::FinalNorm)?.into_f32(), matrix })
    }

    fn logits(&self, cpu: &Cpu, eps: f32, x: &[f32]) -> Result<Vec<f32>, CpuError> {
        let mut normed = vec![0.0; x.len()];
        cpu.rms_norm(x, &self.norm, eps, &mut normed)?;
        self.matrix.forward(cpu, &normed)
    }

    /// The gradient with respect to `x`, given the gradient with respect to the logits.
    fn backward(&self, cpu: &Cpu, eps: f32, x: &[f32], d_logits: &[f32]) -> Result<Vec<f32>, CpuError> {
        let d_normed = self.matrix.input(cpu, d_logits)?;
        let mut dx = vec![0.0; x.len()];
        grad::rms_norm(cpu, x, &self.norm, eps, &d_normed, &mut dx)?;
        Ok(dx)
    }
}

/// All blocks of the model during a step.
pub(super) struct Stack<'a> {
    pub(super) cpu: &'a Cpu,
    pub(super) shape: &'a BlockShape,
    pub(super) vocab: usize,
    pub(super) head: &'a Head,
    pub(super) blocks: Vec<Learner>,
}

impl Stack<'_> {
    /// The output of the last block for the input `x` of the first block, and the tapes of all blocks if `wanted`.
    pub(super) fn forward(
        &self,
        matrices: &[BlockMatrices],
        mut x: Vec<f32>,
        lengths: &[usize],
        wanted: bool,
    ) -> Result<(Vec<f32>, Vec<Tape>), CpuError> {
        let mut tapes = Vec::new();
        for i in 0..matrices.len() {
            let (y, tape) = self.block(matrices, i).forward(x, lengths)?;
            x = y;
            if wanted {
                tapes.push(tape);
            }
        }
        Ok((x, tapes))
    }

    fn block<'a>(&'a self, matrices: &'a [BlockMatrices], i: usize) -> Block<'a> {
        Block { cpu: self.cpu, shape: self.shape, vectors: &self.blocks[i].vectors, matrices: &matrices[i] }
    }

    /// The divergence from the dense model over the tokens of a step, and the gradients of all blocks if `wanted`. `x`
    /// is the input of the first block, `aim` the output of the last block of the dense model.
    pub(super) fn pass(
        &self,
        matrices: &[BlockMatrices],
        x: Vec<f32>,
        aim: &[f32],
        lengths: &[usize],
        wanted: bool,
    ) -> Result<(f64, Vec<BlockGradients>), CpuError> {
        let (cpu, eps) = (self.cpu, self.shape.rms_eps);
        let (x, tapes) = self.forward(matrices, x, lengths, wanted)?;
        let mut aim = self.head.logits(cpu, eps, aim)?;
        let mut logits = self.head.logits(cpu, eps, &x)?;
        let loss = grad::divergence(cpu, &mut logits, &mut aim, self.vocab)?;
        drop(aim);
        let mut all = Vec::new();
        if wanted {
            let mut dy = self.head.backward(cpu, eps, &x, &logits)?;
            for (i, tape) in tapes.iter().enumerate().rev() {
                let mut gradients = self.block(matrices, i).backward(tape, dy, i > 0)?;
                dy = std::mem::take(&mut gradients.input);
                all.push(gradients);
            }
            all.reverse();
        }
        Ok((loss, all))
    }

    pub(super) fn matrices(&self) -> Result<Vec<BlockMatrices>, CalibrateError> {
        self.blocks.iter().map(|b| b.matrices(self.shape)).collect()
    }
}

/// Tunes the ternary matrices of all blocks. `starts` are the embedded tokens, `ends` the residual streams after the
/// last block of the dense model, in the same batches.
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
    let shape = shape(spec, longest(starts))?;
    let text = Text::new(starts);
    let each =
        replaced.iter().enumerate().map(|(layer, replaced)| Learner::new(input, layer, tuning, replaced));
    let blocks = each.collect::<Result<_, _>>()?;
    let mut stack = Stack { cpu, shape: &shape, vocab: spec.vocab, head, blocks };
    let parts = |step: &[Span]| {
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
    let mut rng = ChaCha8Rng::seed_from_u64(tuning.seed);
    let plan: Vec<Vec<Span>> = (0..tuning.model_epochs)
        .flat_map(|_| Text::steps(&text.shuffled(&mut rng), tuning.batch_tokens))
        .collect();
    for (i, step) in plan.iter().enumerate() {
        progress(i, plan.len());
        let matrices = stack.matrices()?;
        let (x, aim, lengths) = parts(step);
        let (_, gradients) = stack.pass(&matrices, x, &aim, &lengths, true)?;
        let factor = schedule(i, plan.len());
        let rates = LatentLearningRates::default()
            .with_codes(factor * tuning.rate)
            .with_scales(factor * tuning.scale_rate);
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
