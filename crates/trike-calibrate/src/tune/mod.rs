//! Tuning: codes and scales are learned, first against what each dense block puts out, then against what the dense model predicts.
//!
//! Compensation treats one layer after the other and its error as quadratic. What is left is that layers of a block could make up for
//! each other, and that not all of an error matters to what is predicted. Both need gradients, which pass the rounding by the
//! straight-through estimator to a latent weight behind each code ([`trike_quant::Latent`]). Tuning a block against the outputs of
//! the dense one is what OmniQuant (Shao et al., 2308.13137) and EfficientQAT (Chen et al., 2407.11062) do; tuning the whole model
//! against the probabilities of the dense one is distillation, as in PV-Tuning (Malinovskii et al., 2405.14852). Embeddings, norms,
//! biases and the head stay as they are.

mod attend;
mod block;
mod math;
#[cfg(test)]
mod tests;
mod whole;

use std::{f32::consts::PI, ops::Range};

use attend::Turns;
use block::{Fixed, Ground, Matrices, backward, forward, names};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{RngCore, SeedableRng},
};
use trike_cpu::Cpu;
use trike_format::Tensor;
use trike_llm::WeightSource;
use trike_nn::{DecoderSpec, WeightName};
use trike_quant::{Latent, LatentRates, MatrixView, QuantError};
use trike_trit::{Coupling, Hadamard};
pub(crate) use whole::{Head, whole};

use crate::{CalibrateError, ConfigError, hidden::Batch, walk::rotated};

/// One of so many sequences says whether tuning helped, and is not tuned on.
const HELD_OUT: usize = 16;
/// Share of the steps over which the rate rises to its full value.
const WARM: f32 = 0.05;
/// More epochs than anybody wants: a mistyped number should not run for a year.
const MOST_EPOCHS: usize = 10_000;

/// How codes and scales are tuned after compensation, on the same calibration text.
///
/// A pass over the text takes about three times what the model takes to read it. In memory are, for the model's blocks that are
/// tuned at once (one, then all), 24 bytes a weight, the head both ways, and the activations and logits of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// Passes over the text for each block against the dense block's output; 0 for none.
    pub block_epochs: usize,
    /// Passes over the text for the whole model against the dense model's probabilities; 0 for none.
    pub model_epochs: usize,
    /// Tokens of a step, unless one sequence is longer.
    pub batch_tokens: usize,
    /// How far a latent weight goes in a step at most, in steps between levels; a third of it with every further plane.
    pub rate: f32,
    /// How far a scale goes in a step at most, as a share of it; a third of it with every further plane.
    pub scale_rate: f32,
    /// Models with more weights than this in their blocks are not tuned, and a note says so: time grows with weights times tokens.
    pub most_weights: u64,
    /// Whether weights that compensation made zero stay zero, as those of a pruned model should.
    pub keep_zeros: bool,
    /// Where chance starts: the order of the sequences.
    pub seed: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            block_epochs: 4,
            model_epochs: 8,
            batch_tokens: 1024,
            rate: 0.02,
            scale_rate: 2e-3,
            most_weights: 8 << 20,
            keep_zeros: false,
            seed: 0,
        }
    }
}

impl Tuning {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        if !(self.rate > 0.0 && self.rate <= 1.0) {
            return Err(ConfigError::TuningRate { got: self.rate });
        }
        if !(self.scale_rate >= 0.0 && self.scale_rate <= 0.5) {
            return Err(ConfigError::TuningScaleRate { got: self.scale_rate });
        }
        if self.batch_tokens == 0 {
            return Err(ConfigError::TuningTokens);
        }
        let epochs = self.block_epochs.max(self.model_epochs);
        if epochs > MOST_EPOCHS {
            return Err(ConfigError::TuningEpochs { got: epochs, most: MOST_EPOCHS });
        }
        Ok(())
    }
}

/// What tuning did to a block, or to the whole model.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TuningReport {
    /// Steps taken.
    pub steps: usize,
    /// Loss before, on text that was held out where there is enough of it: of a block the mean squared error of its output over
    /// the mean square of that of the dense block, token by token; of the model the divergence from the dense one in nats a token.
    pub before: f64,
    /// The same after; the result is kept only where it is lower.
    pub after: f64,
    /// Whether it was kept.
    pub kept: bool,
    /// Seconds that it took.
    pub seconds: f64,
}

/// Where a sequence lies: its batch, its rows there.
type Place = (usize, Range<usize>);

/// The sequences of some batches.
struct Text {
    tuned: Vec<Place>,
    held: Vec<Place>,
}

impl Text {
    fn new(batches: &[Batch]) -> Self {
        let mut all = Vec::new();
        for (i, batch) in batches.iter().enumerate() {
            let mut row = 0;
            for length in batch.lengths() {
                all.push((i, row..row + length));
                row += length;
            }
        }
        let enough = all.len() >= HELD_OUT;
        let (held, tuned): (Vec<_>, Vec<_>) =
            all.into_iter().enumerate().partition(|(i, _)| enough && i % HELD_OUT == HELD_OUT - 1);
        let places = |v: Vec<(usize, Place)>| v.into_iter().map(|(_, p)| p).collect::<Vec<_>>();
        let tuned = places(tuned);
        Self { held: if enough { places(held) } else { tuned.clone() }, tuned }
    }

    /// Sequences put together to steps of about so many tokens.
    fn steps(places: &[Place], tokens: usize) -> Vec<Vec<Place>> {
        let mut steps: Vec<Vec<Place>> = Vec::new();
        let mut room = 0;
        for place in places {
            let length = place.1.len();
            match steps.last_mut() {
                Some(step) if length <= room => {
                    step.push(place.clone());
                    room -= length;
                }
                _ => {
                    steps.push(vec![place.clone()]);
                    room = tokens.saturating_sub(length);
                }
            }
        }
        steps
    }

    fn shuffled(&self, chance: &mut ChaCha8Rng) -> Vec<Place> {
        let mut places = self.tuned.clone();
        for i in (1..places.len()).rev() {
            places.swap(i, (chance.next_u64() % (i as u64 + 1)) as usize);
        }
        places
    }
}

/// The rows of some sequences, `width` wide, one after the other.
fn gather<'a>(step: &[Place], width: usize, rows: impl Fn(usize) -> &'a [f32]) -> Vec<f32> {
    let part = |(batch, span): &Place| &rows(*batch)[span.start * width..span.end * width];
    step.iter().flat_map(part).copied().collect()
}

fn lengths(step: &[Place]) -> Vec<usize> {
    step.iter().map(|(_, span)| span.len()).collect()
}

/// The rate of step `i` of `n`, as a share of the full one: up in a line, down in a cosine.
fn schedule(i: usize, n: usize) -> f32 {
    let at = (i as f32 + 0.5) / n.max(1) as f32;
    if at < WARM { at / WARM } else { 0.5 * (1.0 + (PI * (at - WARM) / (1.0 - WARM)).cos()) }
}

/// The matrices of a block: those that are tuned as latent weights, the others as they are.
struct Learner {
    fixed: Fixed,
    matrices: Vec<(WeightName, Result<Learned, Vec<f32>>)>,
}

/// A matrix that is tuned.
struct Learned {
    /// As the trits meet its inputs.
    latent: Latent,
    rotation: Option<Hadamard>,
}

impl Learned {
    /// Values of the matrix as those of the latent one, and the other way round: the transform is its own inverse, and its own
    /// transpose for gradients.
    fn turned(&self, values: &[f32]) -> Result<Vec<f32>, QuantError> {
        rotated(self.rotation, self.latent.cols(), values)
    }
}

impl Learner {
    fn new(
        input: &dyn WeightSource,
        layer: usize,
        tuning: &Tuning,
        replaced: &[(WeightName, Tensor)],
    ) -> Result<Self, CalibrateError> {
        let mut reader = crate::walk::BlockWeights(input);
        let fixed = Fixed::load(&input.config().spec, layer, |name| {
            trike_nn::DecoderWeights::vector(&mut reader, name)
        })?;
        let matrix = |name: WeightName| {
            let tensor = input.load(name)?;
            let (rows, cols) = (tensor.rows(), tensor.cols());
            let values = tensor.into_f32();
            let trits = match replaced.iter().find(|(other, _)| *other == name) {
                None => return Ok((name, Err(values))),
                Some((_, Tensor::Ternary(t))) if t.coupling() == Coupling::Tied || t.depth() == 1 => t,
                Some((_, other)) => return Ok((name, Err(other.clone().into_f32()))),
            };
            let failed = |e| CalibrateError::quantize(name, e);
            let rotation = trits.rotation();
            let trits = trits.clone().with_rotation(None).map_err(|e| failed(e.into()))?;
            let values = rotated(rotation, cols, &values).map_err(failed)?;
            let view = MatrixView::new(rows, cols, &values).map_err(failed)?;
            let keep: Option<Vec<bool>> =
                tuning.keep_zeros.then(|| trits.dequantize().iter().map(|v| *v != 0.0).collect());
            let latent = Latent::new(view, &trits, keep.as_deref()).map_err(failed)?;
            Ok((name, Ok(Learned { latent, rotation })))
        };
        let matrices = names(layer).into_iter().map(matrix).collect::<Result<_, CalibrateError>>()?;
        Ok(Self { fixed, matrices })
    }

    fn now(&self, spec: &DecoderSpec) -> Result<Matrices, CalibrateError> {
        let each = self.matrices.iter().map(|(name, m)| match m {
            Ok(learned) => {
                learned.turned(&learned.latent.values()).map_err(|e| CalibrateError::quantize(*name, e))
            }
            Err(values) => Ok(values.clone()),
        });
        Ok(Matrices::new(spec, each.collect::<Result<_, CalibrateError>>()?)?)
    }

    fn update(&mut self, gradients: &[Vec<f32>], rates: LatentRates) -> Result<(), CalibrateError> {
        for ((name, matrix), gradient) in self.matrices.iter_mut().zip(gradients) {
            if let Ok(learned) = matrix {
                let failed = |e| CalibrateError::quantize(*name, e);
                let gradient = learned.turned(gradient).map_err(failed)?;
                let latent = &mut learned.latent;
                // Levels lie three times as near with every plane, and less is left to be gained by each.
                let share = 3f32.powi(1 - latent.depth() as i32);
                let rates = LatentRates { codes: rates.codes * share, scales: rates.scales * share };
                latent.update(&gradient, rates).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Puts what was tuned in its place.
    fn finish(&self, replaced: &mut [(WeightName, Tensor)]) -> Result<(), CalibrateError> {
        for (name, matrix) in &self.matrices {
            if let Ok(Learned { latent, rotation }) = matrix
                && let Some((_, tensor)) = replaced.iter_mut().find(|(other, _)| other == name)
            {
                let failed = |e| CalibrateError::quantize(*name, e);
                let trits = latent.tensor().map_err(failed)?;
                *tensor = trits.with_rotation(*rotation).map_err(|e| failed(e.into()))?.into();
            }
        }
        Ok(())
    }
}

/// Sums the squared error of each token over the mean square of what it should be, and turns `out` into the gradient.
fn token_errors(out: &mut [f32], aim: &[f32], width: usize) -> f64 {
    let mut total = 0f64;
    for (out, aim) in out.chunks_exact_mut(width).zip(aim.chunks_exact(width)) {
        let weight = 1.0 / (math::dot(aim, aim) / width as f32).max(1e-20);
        let mut sum = 0f32;
        for (out, aim) in out.iter_mut().zip(aim) {
            *out -= aim;
            sum += *out * *out;
            *out *= weight;
        }
        total += f64::from(sum * weight) / width as f64;
    }
    total
}

/// Tunes the ternary matrices of `replaced`, those of a block that are no longer as they were, whose inputs are the streams of
/// `batches`, against what the dense block puts out, `aims`.
pub(crate) fn block(
    input: &dyn WeightSource,
    cpu: &Cpu,
    layer: usize,
    tuning: &Tuning,
    replaced: &mut [(WeightName, Tensor)],
    (batches, aims): (&[Batch], &[Batch]),
) -> Result<TuningReport, CalibrateError> {
    let start = std::time::Instant::now();
    let spec = &input.config().spec;
    let longest = batches.iter().flat_map(|b| b.lengths()).max().unwrap_or(0);
    let turns = Turns::new(spec, longest);
    let ground = Ground { cpu, spec, turns: &turns };
    let text = Text::new(batches);
    let mut learner = Learner::new(input, layer, tuning, replaced)?;
    let held = |learner: &Learner| -> Result<f64, CalibrateError> {
        let matrices = learner.now(spec)?;
        let (mut sum, mut tokens) = (0.0, 0);
        for step in Text::steps(&text.held, tuning.batch_tokens) {
            let x = gather(&step, spec.hidden, |i| &batches[i].x);
            let aim = gather(&step, spec.hidden, |i| &aims[i].x);
            let (mut y, _) = forward(&ground, &learner.fixed, &matrices, x, &lengths(&step))?;
            sum += token_errors(&mut y, &aim, spec.hidden);
            tokens += y.len() / spec.hidden;
        }
        Ok(sum / f64::from(tokens.max(1) as u32))
    };
    let before = held(&learner)?;
    let mut chance = ChaCha8Rng::seed_from_u64(tuning.seed ^ (layer as u64 + 1));
    let plan: Vec<Vec<Place>> = (0..tuning.block_epochs)
        .flat_map(|_| Text::steps(&text.shuffled(&mut chance), tuning.batch_tokens))
        .collect();
    for (i, step) in plan.iter().enumerate() {
        let matrices = learner.now(spec)?;
        let x = gather(step, spec.hidden, |i| &batches[i].x);
        let aim = gather(step, spec.hidden, |i| &aims[i].x);
        let (mut y, tape) = forward(&ground, &learner.fixed, &matrices, x, &lengths(step))?;
        token_errors(&mut y, &aim, spec.hidden);
        let (gradients, _) = backward(&ground, &learner.fixed, &matrices, &tape, y, false)?;
        let share = schedule(i, plan.len());
        let rates = LatentRates { codes: share * tuning.rate, scales: share * tuning.scale_rate };
        learner.update(&gradients, rates)?;
    }
    let after = held(&learner)?;
    let kept = after < before;
    if kept {
        learner.finish(replaced)?;
    }
    Ok(TuningReport { steps: plan.len(), before, after, kept, seconds: start.elapsed().as_secs_f64() })
}
