//! Token weights for calibration: the squared gradient of the dense model's loss, the cross-entropy of the calibration text, with
//! respect to the outputs of a layer (GuidedQuant, Kim et al., 2505.07004, with one group of outputs).
//!
//! An error `e` of a layer's output changes the loss by about `sum_t (g_t . e_t)^2 / 2`, where `g_t` is that gradient at token `t`.
//! With all elements of `g_t` replaced by their mean square, it becomes the weight of token `t` in `X^T X`.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};
use trike_cpu::grad;
use trike_nn::{HookPoint, WeightName};

use crate::{
    CalibrateError, Tuning,
    streams::{Batch, Blocks},
    tune::{Executors, Head, Learner, Recording, TapeSpec, Wanted},
};

/// The label of the cross-entropy at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Labels {
    /// The next token of the text; none for the last.
    Text,
    /// A token sampled from the dense model: the mean square of the gradient is then the curvature of the divergence from the dense
    /// model (its Fisher information), for any text.
    Drawn,
}

/// Weights of the tokens of a text, with mean 1 at each hook point, and the mean squares of gradients.
pub(crate) struct TokenWeights {
    /// Square roots, `[layer][point][batch][token]`.
    roots: Vec<[Vec<Vec<f32>>; 4]>,
    /// Means over tokens and the outputs of each matrix, in the order of [`WeightName::matrices`].
    outputs: Vec<[f64; 7]>,
    /// Mean over tokens and the elements of their embeddings.
    embedding: f64,
}

/// Seed of the sampled tokens.
const SEED: u64 = 1;

impl TokenWeights {
    /// Runs a forward and a backward pass of the dense model over the text. `starts` are the embedded tokens of `ids`.
    pub(crate) fn new(
        dense: &Blocks<'_>,
        labels: Labels,
        ids: &[Vec<u32>],
        starts: &[Batch],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, CalibrateError> {
        let (spec, cpu, input) = (dense.spec(), dense.cpu(), dense.source);
        let head = Head::load(input, cpu)?;
        let longest = ids.iter().map(Vec::len).max().unwrap_or(0);
        let shared = TapeSpec::new(cpu, spec, longest)?;
        let load = |layer| Learner::new(cpu, input, layer, &Tuning::default(), &[]);
        let mut squares = vec![[const { Vec::new() }; 4]; spec.layers];
        let (mut outputs, mut embedding) = (vec![[0f64; 7]; spec.layers], 0f64);
        let mut rest = ids.iter();
        let mut rng = ChaCha8Rng::seed_from_u64(SEED);
        for (done, batch) in starts.iter().enumerate() {
            progress(done, starts.len());
            let lengths: Vec<usize> = batch.lengths().collect();
            let (mut x, mut inputs) = (batch.x.clone(), Vec::with_capacity(spec.layers));
            for layer in 0..spec.layers {
                let block = load(layer)?;
                let values = block.values(Executors::host(cpu))?;
                let mut recording = Recording::new(cpu, &shared, &x, &lengths, Wanted::default())?;
                recording.block(layer, &values)?;
                let y = recording.into_output()?;
                inputs.push(std::mem::replace(&mut x, y));
            }
            let next =
                |ids: &Vec<u32>| ids.iter().skip(1).map(|id| Some(*id)).chain([None]).collect::<Vec<_>>();
            let (_, mut dy) = head.gradient(cpu, &x, |logits| {
                let targets: Vec<Option<u32>> = match labels {
                    Labels::Text => rest.by_ref().take(lengths.len()).flat_map(next).collect(),
                    Labels::Drawn => {
                        let rows = logits.chunks_exact(spec.vocab);
                        rows.map(|row| Some(drawn(row, f64::from(rng.next_u32()) / 2f64.powi(32)))).collect()
                    }
                };
                Ok(grad::cross_entropy(cpu, logits, &targets, spec.vocab, 1.0)?)
            })?;
            for (layer, x) in inputs.into_iter().enumerate().rev() {
                let block = load(layer)?;
                let values = block.values(Executors::host(cpu))?;
                let wanted = Wanted { weights: false, input: true, outputs: true };
                let mut recording = Recording::new(cpu, &shared, &x, &lengths, wanted)?;
                recording.block(layer, &values)?;
                let mut gradients = recording.backward(dy)?;
                for (sum, name) in outputs[layer].iter_mut().zip(WeightName::matrices(layer)) {
                    *sum += gradients.of_outputs(name).iter().map(|square| f64::from(*square)).sum::<f64>();
                }
                for (point, batches) in HookPoint::ALL.into_iter().zip(&mut squares[layer]) {
                    let names = point.matrices(layer);
                    let width = |name| spec.shape(name).0 as f32;
                    let all: f32 = names.iter().map(|name| width(*name)).sum();
                    let mut sums = vec![0f32; batch.x.len() / spec.hidden];
                    for name in names {
                        let share = width(name) / all;
                        sums.iter_mut()
                            .zip(gradients.of_outputs(name))
                            .for_each(|(sum, mean)| *sum += share * mean);
                    }
                    batches.push(sums);
                }
                dy = gradients.take_input().unwrap_or_default();
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
        name.matrix_index().map_or(0.0, |place| self.outputs[layer][place])
    }

    /// The mean square of the gradient with respect to an element of the embedding of a token.
    pub(crate) fn of_embedding(&self) -> f64 {
        self.embedding
    }

    /// Multiplies the activations of a batch, rows of `width`, by the square roots of their token weights.
    pub(crate) fn scale(&self, layer: usize, point: HookPoint, batch: usize, x: &mut [f32], width: usize) {
        for (row, root) in x.chunks_exact_mut(width).zip(&self.roots[layer][point as usize][batch]) {
            row.iter_mut().for_each(|x| *x *= root);
        }
    }
}

/// Samples a token from the probabilities of a row of logits, given a uniform number in 0 to 1.
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

/// Square roots of the weights divided by their mean. If no token has a gradient, all have equal weight.
fn to_roots(batches: &mut [Vec<f32>]) {
    let count: usize = batches.iter().map(Vec::len).sum();
    let sum: f64 = batches.iter().flatten().map(|square| f64::from(*square)).sum();
    let mean = sum / count.max(1) as f64;
    let root = |square: f32| if mean > 0.0 { (f64::from(square) / mean).sqrt() as f32 } else { 1.0 };
    batches.iter_mut().flatten().for_each(|square| *square = root(*square));
}
