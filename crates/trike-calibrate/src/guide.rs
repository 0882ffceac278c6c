//! How much the outputs of a layer count at each token: the squared gradient of the loss of the dense model, the cross-entropy of the
//! calibration text, with respect to them (GuidedQuant, Kim et al., 2505.07004, with one group of outputs).
//!
//! An error `e` of a layer's output changes the loss by about `sum_t (g_t . e_t)^2 / 2`, where `g_t` is that gradient at token `t`.
//! With the mean square of `g_t` in place of its elements, token `t` of `X^T X` has that weight.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};
use trike_cpu::grad::{self, Block, BlockMatrices};
use trike_nn::{HookPoint, WeightName};

use crate::{
    CalibrateError, Tuning,
    streams::{Batch, Blocks},
    tune::{self, Head, Learner},
};

/// The token whose cross-entropy is the loss at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Labels {
    /// The next one of the text; there is none behind the last.
    Text,
    /// One that the dense model draws: the mean square of the gradient is then the curvature of the divergence from the dense model
    /// (its Fisher information), whatever the text.
    Drawn,
}

/// Weights of the tokens of a text, of mean 1 at each place, and the mean squares of gradients.
pub(crate) struct TokenWeights {
    /// Square roots, `[layer][point][batch][token]`.
    roots: Vec<[Vec<Vec<f32>>; 4]>,
    /// Over tokens and the outputs of each matrix of [`BlockMatrices`].
    outputs: Vec<[f64; BlockMatrices::COUNT]>,
    /// Over tokens and the elements of their embeddings.
    embedding: f64,
}

/// Seed of the tokens that the model draws.
const SEED: u64 = 1;

/// The places, and which matrices of [`BlockMatrices`] are there.
const POINTS: [(HookPoint, &[usize]); 4] = [
    (HookPoint::Attention, &[0, 1, 2]),
    (HookPoint::Output, &[3]),
    (HookPoint::Mlp, &[4, 5]),
    (HookPoint::Down, &[6]),
];

impl TokenWeights {
    /// Runs the text through the dense model and back. `starts` are its embedded tokens, `ids`.
    pub(crate) fn new(
        dense: &Blocks<'_>,
        labels: Labels,
        ids: &[Vec<u32>],
        starts: &[Batch],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, CalibrateError> {
        let (spec, cpu, input) = (dense.spec(), dense.cpu(), dense.source);
        let head = Head::load(input)?;
        let longest = ids.iter().map(Vec::len).max().unwrap_or(0);
        let shape = tune::shape(spec, longest)?;
        let widths = shape.matrices().map(|(rows, _)| rows as f32);
        let load = |layer| -> Result<(Learner, BlockMatrices), CalibrateError> {
            let block = Learner::new(input, layer, &Tuning::default(), &[])?;
            let matrices = block.matrices(cpu, &shape)?;
            Ok((block, matrices))
        };
        let mut squares = vec![[const { Vec::new() }; 4]; spec.layers];
        let (mut outputs, mut embedding) = (vec![[0f64; BlockMatrices::COUNT]; spec.layers], 0f64);
        let mut rest = ids.iter();
        let mut rng = ChaCha8Rng::seed_from_u64(SEED);
        for (done, batch) in starts.iter().enumerate() {
            progress(done, starts.len());
            let lengths: Vec<usize> = batch.lengths().collect();
            let (mut x, mut inputs) = (batch.x.clone(), Vec::with_capacity(spec.layers));
            for layer in 0..spec.layers {
                let (block, matrices) = load(layer)?;
                inputs.push(x.clone());
                let block = Block { cpu, shape: &shape, vectors: block.vectors(), matrices: &matrices };
                x = block.forward(x, &lengths)?.0;
            }
            let mut logits = head.logits(cpu, shape.rms_eps, &x)?;
            let next =
                |ids: &Vec<u32>| ids.iter().skip(1).map(|id| Some(*id)).chain([None]).collect::<Vec<_>>();
            let targets: Vec<Option<u32>> = match labels {
                Labels::Text => rest.by_ref().take(lengths.len()).flat_map(next).collect(),
                Labels::Drawn => {
                    let rows = logits.chunks_exact(spec.vocab);
                    rows.map(|row| Some(drawn(row, f64::from(rng.next_u32()) / 2f64.powi(32)))).collect()
                }
            };
            grad::cross_entropy(cpu, &mut logits, &targets, spec.vocab, 1.0)?;
            let mut dy = head.backward(cpu, shape.rms_eps, &x, &logits)?;
            drop(logits);
            for (layer, x) in inputs.into_iter().enumerate().rev() {
                let (block, matrices) = load(layer)?;
                let block = Block { cpu, shape: &shape, vectors: block.vectors(), matrices: &matrices };
                let (_, tape) = block.forward(x, &lengths)?;
                let gradients = block.outputs(&tape, dy)?;
                for (sum, squares) in outputs[layer].iter_mut().zip(&gradients.outputs) {
                    *sum += squares.iter().map(|square| f64::from(*square)).sum::<f64>();
                }
                for ((_, of), batches) in POINTS.iter().zip(&mut squares[layer]) {
                    let all: f32 = of.iter().map(|i| widths[*i]).sum();
                    let mut sums = vec![0f32; batch.x.len() / shape.hidden];
                    for &i in *of {
                        let share = widths[i] / all;
                        sums.iter_mut()
                            .zip(&gradients.outputs[i])
                            .for_each(|(sum, mean)| *sum += share * mean);
                    }
                    batches.push(sums);
                }
                dy = gradients.input;
            }
            embedding += dy.iter().map(|d| f64::from(*d).powi(2)).sum::<f64>();
        }
        let tokens = ids.iter().map(Vec::len).sum::<usize>().max(1) as f64;
        outputs.iter_mut().flatten().for_each(|sum| *sum /= tokens);
        embedding /= tokens * spec.hidden as f64;
        squares.iter_mut().flatten().for_each(|batches: &mut Vec<Vec<f32>>| to_roots(batches));
        Ok(Self { roots: squares, outputs, embedding })
    }

    /// The mean square of the gradient with respect to an output of a matrix of a block.
    pub(crate) fn of_output(&self, layer: usize, name: WeightName) -> f64 {
        let place = tune::names(layer).iter().position(|other| *other == name);
        place.map_or(0.0, |place| self.outputs[layer][place])
    }

    /// The mean square of the gradient with respect to an element of the embedding of a token.
    pub(crate) fn of_embedding(&self) -> f64 {
        self.embedding
    }

    /// Multiplies the activations of a batch, rows of `width`, with the square roots of the weights of their tokens.
    pub(crate) fn scale(&self, layer: usize, point: HookPoint, batch: usize, x: &mut [f32], width: usize) {
        let place = POINTS.iter().position(|(other, _)| *other == point);
        let Some(place) = place else { return };
        for (row, root) in x.chunks_exact_mut(width).zip(&self.roots[layer][place][batch]) {
            row.iter_mut().for_each(|x| *x *= root);
        }
    }
}

/// A token drawn from the probabilities of a row of logits by a number between 0 and 1.
fn drawn(logits: &[f32], number: f64) -> u32 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: &f32| f64::from(logit - most).exp();
    let mut rest = number * logits.iter().map(weight).sum::<f64>();
    let found = logits.iter().position(|logit| {
        rest -= weight(logit);
        rest < 0.0
    });
    found.unwrap_or(logits.len().saturating_sub(1)) as u32
}

/// Square roots of weights that are divided by their mean. Where no token has a gradient, all count alike.
fn to_roots(batches: &mut [Vec<f32>]) {
    let count: usize = batches.iter().map(Vec::len).sum();
    let sum: f64 = batches.iter().flatten().map(|square| f64::from(*square)).sum();
    let mean = sum / count.max(1) as f64;
    let root = |square: f32| if mean > 0.0 { (f64::from(square) / mean).sqrt() as f32 } else { 1.0 };
    batches.iter_mut().flatten().for_each(|square| *square = root(*square));
}
