//! Tuning of all blocks together to the probabilities of the dense model.

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
    stage::{self, Loss, Tuned},
    text::{Span, Text, gather, lengths, longest},
};
use crate::{CalibrateError, Tuning, TuningReport, streams::Batch, weights::block_weights};

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

    /// The same norm with another matrix, `vocab x hidden`.
    pub(crate) fn with_matrix(&self, vocab: usize, values: Vec<f32>) -> Result<Self, CpuError> {
        let matrix = Linear::new(vocab, self.norm.len(), values)?;
        Ok(Self { norm: self.norm.clone(), matrix })
    }

    pub(crate) fn logits(&self, cpu: &Cpu, eps: f32, x: &[f32]) -> Result<Vec<f32>, CpuError> {
        let mut normed = vec![0.0; x.len()];
        cpu.rms_norm(x, &self.norm, eps, &mut normed)?;
        self.matrix.forward(cpu, &normed)
    }

    /// The gradient with respect to `x`, given the gradient with respect to the logits.
    pub(crate) fn backward(
        &self,
        cpu: &Cpu,
        eps: f32,
        x: &[f32],
        d_logits: &[f32],
    ) -> Result<Vec<f32>, CpuError> {
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
        Block { cpu: self.cpu, shape: self.shape, vectors: self.blocks[i].vectors(), matrices: &matrices[i] }
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
        self.blocks.iter().map(|b| b.matrices(self.cpu, self.shape)).collect()
    }

    /// The divergence from the dense model on each of some sequences, in nats.
    pub(super) fn losses(&self, sequences: &[Span], text: BothEnds<'_>) -> Result<Vec<Loss>, CalibrateError> {
        let matrices = self.matrices()?;
        let loss = |sequence: &Span| {
            let step = std::slice::from_ref(sequence);
            let ([x, aim], lengths) = (ends_of(step, text, self.shape.hidden), lengths(step));
            Ok(Loss { sum: self.pass(&matrices, x, &aim, &lengths, false)?.0, tokens: sequence.1.len() })
        };
        sequences.iter().map(loss).collect()
    }

    /// A step of all blocks, with a share of the full learning rates.
    pub(super) fn learn(
        &mut self,
        gradients: &[BlockGradients],
        tuning: &Tuning,
        share: f32,
    ) -> Result<(), CalibrateError> {
        let rates = LatentLearningRates::default()
            .with_codes(share * tuning.rate)
            .with_scales(share * tuning.scale_rate);
        self.blocks.iter_mut().zip(gradients).try_for_each(|(block, of)| block.update(self.cpu, of, rates))
    }

    /// Writes the trained matrices of all blocks back.
    pub(super) fn finish(&self, replaced: &mut [Vec<(WeightName, Tensor)>]) -> Result<(), CalibrateError> {
        replaced.iter_mut().zip(&self.blocks).try_for_each(|(replaced, block)| block.finish(replaced))
    }
}

/// Both ends of a text: embedded tokens, and the dense model's residual streams behind all blocks, in the same batches.
pub(crate) type BothEnds<'a> = (&'a [Batch], &'a [Batch]);

/// Both ends of the sequences of a step.
pub(super) fn ends_of(step: &[Span], (starts, ends): BothEnds<'_>, hidden: usize) -> [Vec<f32>; 2] {
    [starts, ends].map(|all| gather(step, hidden, |i| &all[i].x))
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
    let spec = &input.config().spec;
    let shape = shape(spec, longest(starts))?;
    let text = Text::new(starts);
    let mut rng = ChaCha8Rng::seed_from_u64(tuning.seed);
    let [_, epochs] = tuning.epochs(text.tokens(), block_weights(input)?);
    let plan = text.plan(epochs, tuning.batch_tokens, &mut rng);
    let blocks = Learner::all(input, tuning, replaced)?;
    let stack = Stack { cpu, shape: &shape, vocab: spec.vocab, head, blocks };
    let mut model = AllBlocks { input, tuning, stack, text, ends: (starts, ends), replaced };
    stage::run(&mut model, &plan, progress)
}

/// All blocks, tuned together.
struct AllBlocks<'a> {
    input: &'a dyn WeightSource,
    tuning: &'a Tuning,
    stack: Stack<'a>,
    text: Text,
    ends: BothEnds<'a>,
    replaced: &'a mut [Vec<(WeightName, Tensor)>],
}

impl Tuned for AllBlocks<'_> {
    const LEAST_GAIN: f64 = 0.0;

    fn held_out(&self) -> Result<Vec<Loss>, CalibrateError> {
        self.stack.losses(&self.text.held, self.ends)
    }

    fn step(&mut self, step: &[Span], share: f32) -> Result<(), CalibrateError> {
        let matrices = self.stack.matrices()?;
        let [x, aim] = ends_of(step, self.ends, self.stack.shape.hidden);
        let (_, gradients) = self.stack.pass(&matrices, x, &aim, &lengths(step), true)?;
        self.stack.learn(&gradients, self.tuning, share)
    }

    fn keep(&mut self) -> Result<(), CalibrateError> {
        self.stack.finish(self.replaced)
    }

    fn restart(&mut self) -> Result<(), CalibrateError> {
        self.stack.blocks = Learner::all(self.input, self.tuning, self.replaced)?;
        Ok(())
    }
}
