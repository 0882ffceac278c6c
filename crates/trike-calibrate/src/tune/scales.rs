//! Tuning of the scales and norms of all blocks to the probabilities of the dense model.
//!
//! Codes are fixed, so that blocks need not be in memory together: each is loaded for the forward pass and again for the backward
//! pass, and only the input of its activations is kept. This is the second stage of EfficientQAT (Chen et al., 2407.11062).

use std::borrow::Cow;

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use trike_core::Tensor;
use trike_cpu::{Cpu, grad};
use trike_llm::WeightSource;
use trike_nn::WeightName;
use trike_quant::LatentScales;
use trike_trit::{Hadamard, TritTensor};

use super::{
    head::Head,
    learner::by_depth,
    norms::TunedNorms,
    stage::{self, Loss, Tuned},
    tape::{BlockGradients, BlockValues, Recording, TapeSpec, Wanted},
    text::{Span, Text, lengths, longest},
    whole::{BothEnds, ends_of},
};
use crate::{CalibrateError, Tuning, TuningReport, weights::rotated};

/// Default number of tokens of a stage: with so few scales, more tokens do not help.
const PASSED: usize = 128 * 1024;

/// Loads the changed weights of a block.
pub(crate) type LoadBlock<'a> = &'a dyn Fn(usize) -> Result<Vec<(WeightName, Tensor)>, CalibrateError>;

/// The scales and norms of a block.
#[derive(Clone)]
struct TunedBlock {
    norms: TunedNorms,
    scales: Vec<(WeightName, LatentScales)>,
}

impl TunedBlock {
    fn new(
        input: &dyn WeightSource,
        layer: usize,
        replaced: &[(WeightName, Tensor)],
    ) -> Result<Self, CalibrateError> {
        let scales = replaced.iter().filter_map(|(name, tensor)| match tensor {
            Tensor::Ternary(trits) => Some((*name, LatentScales::new(trits))),
            _ => None,
        });
        Ok(Self { norms: TunedNorms::new(input, layer, replaced)?, scales: scales.collect() })
    }

    fn all(input: &dyn WeightSource, load: LoadBlock<'_>) -> Result<Vec<Self>, CalibrateError> {
        (0..input.config().spec.layers).map(|layer| Self::new(input, layer, &load(layer)?)).collect()
    }

    fn update(
        &mut self,
        codes: &[(WeightName, Codes)],
        gradients: &BlockGradients,
        rate: f32,
    ) -> Result<(), CalibrateError> {
        let mut deepest = 1;
        for (name, codes) in codes {
            let scales = self.scales.iter_mut().find(|(other, _)| other == name);
            let (Some((_, scales)), Some(gradient)) = (scales, gradients.of(*name)) else { continue };
            let failed = |e| CalibrateError::quantize(*name, e);
            let gradient = codes.rotated(gradient).map_err(failed)?;
            deepest = deepest.max(codes.trits.depth());
            scales.update(&codes.trits, &gradient, rate * by_depth(codes.trits.depth())).map_err(failed)?;
        }
        self.norms.update(gradients, rate * by_depth(deepest))
    }
}

/// A ternary matrix, in the rotated basis of its trits.
struct Codes {
    trits: TritTensor,
    rotation: Option<Hadamard>,
}

impl Codes {
    fn new(trits: TritTensor) -> Result<Self, trike_quant::QuantError> {
        let rotation = trits.rotation();
        Ok(Self { trits: trits.with_rotation(None)?, rotation })
    }

    /// Transforms between the basis of the matrix and that of its trits, in both directions.
    fn rotated(&self, values: &[f32]) -> Result<Vec<f32>, trike_quant::QuantError> {
        rotated(self.rotation, self.trits.cols(), values)
    }
}

/// A block in memory: its matrices with the current scales, and the codes of ternary ones.
struct Loaded<'a> {
    values: BlockValues<'a>,
    codes: Vec<(WeightName, Codes)>,
}

/// All blocks, whose scales and norms are tuned.
struct AllScales<'a> {
    input: &'a dyn WeightSource,
    cpu: &'a Cpu,
    tuning: &'a Tuning,
    head: &'a Head,
    load: LoadBlock<'a>,
    shared: TapeSpec,
    text: Text,
    ends: BothEnds<'a>,
    blocks: Vec<TunedBlock>,
    kept: Option<Vec<TunedBlock>>,
}

impl AllScales<'_> {
    fn loaded(&self, layer: usize) -> Result<Loaded<'_>, CalibrateError> {
        let mut replaced = (self.load)(layer)?;
        let mut codes = Vec::new();
        let mut value = |name: WeightName| -> Result<(Vec<f32>, bool), CalibrateError> {
            let place = replaced.iter().position(|(other, _)| *other == name);
            let tensor = match place.map(|place| replaced.swap_remove(place).1) {
                None => return Ok((self.input.load(name)?.into_f32(), false)),
                Some(tensor) => tensor,
            };
            let scales = self.blocks[layer].scales.iter().find(|(other, _)| *other == name);
            let (Tensor::Ternary(trits), Some((_, scales))) = (&tensor, scales) else {
                return Ok((tensor.into_f32(), false));
            };
            let failed = |e| CalibrateError::quantize(name, e);
            let of = Codes::new(trits.clone()).map_err(failed)?;
            let values = scales.values(&of.trits).map_err(failed)?;
            let values = of.rotated(&values).map_err(failed)?;
            codes.push((name, of));
            Ok((values, true))
        };
        let (mut matrices, mut trained) = ([const { Cow::Borrowed(&[] as &[f32]) }; 7], [false; 7]);
        for (i, name) in WeightName::matrices(layer).into_iter().enumerate() {
            let (values, is_trained) = value(name)?;
            (matrices[i], trained[i]) = (Cow::Owned(values), is_trained);
        }
        let vectors = self.blocks[layer].norms.vectors();
        Ok(Loaded { values: BlockValues { matrices, trained, vectors }, codes })
    }

    /// The stream `x` after a block.
    fn through(
        &self,
        layer: usize,
        loaded: &Loaded<'_>,
        x: &[f32],
        lengths: &[usize],
    ) -> Result<Vec<f32>, CalibrateError> {
        let mut recording = Recording::new(self.cpu, &self.shared, x, lengths, Wanted::default())?;
        recording.block(layer, &loaded.values)?;
        Ok(recording.into_output()?)
    }

    /// The divergence of a sequence from the dense model, and its gradient with respect to `x`, the output of the last block, if
    /// `wanted`.
    fn divergence(&self, x: &[f32], aim: &[f32], wanted: bool) -> Result<(f64, Vec<f32>), CalibrateError> {
        let (cpu, spec) = (self.cpu, &self.shared.spec);
        let mut aim = self.head.logits(cpu, aim)?;
        if !wanted {
            let mut logits = self.head.logits(cpu, x)?;
            return Ok((grad::divergence(cpu, &mut logits, &mut aim, spec.vocab)?, Vec::new()));
        }
        self.head.gradient(cpu, x, |logits| Ok(grad::divergence(cpu, logits, &mut aim, spec.vocab)?))
    }
}

impl Tuned for AllScales<'_> {
    const LEAST_GAIN: f64 = 0.0;

    fn held_out(&self) -> Result<Vec<Loss>, CalibrateError> {
        let hidden = self.shared.spec.hidden;
        let steps = Text::steps(&self.text.held, self.tuning.batch_tokens);
        let mut streams: Vec<[Vec<f32>; 2]> =
            steps.iter().map(|step| ends_of(step, self.ends, hidden)).collect();
        for layer in 0..self.blocks.len() {
            let loaded = self.loaded(layer)?;
            for ([x, _], step) in streams.iter_mut().zip(&steps) {
                *x = self.through(layer, &loaded, x, &lengths(step))?;
            }
        }
        let mut losses = Vec::with_capacity(self.text.held.len());
        for ([x, aim], step) in streams.iter().zip(&steps) {
            let mut at = 0;
            for tokens in lengths(step) {
                let rows = at * hidden..(at + tokens) * hidden;
                losses.push(Loss { sum: self.divergence(&x[rows.clone()], &aim[rows], false)?.0, tokens });
                at += tokens;
            }
        }
        Ok(losses)
    }

    fn step(&mut self, step: &[Span], share: f32) -> Result<(), CalibrateError> {
        let [mut x, aim] = ends_of(step, self.ends, self.shared.spec.hidden);
        let lengths = lengths(step);
        let mut inputs = Vec::with_capacity(self.blocks.len());
        for layer in 0..self.blocks.len() {
            let loaded = self.loaded(layer)?;
            let y = self.through(layer, &loaded, &x, &lengths)?;
            inputs.push(std::mem::replace(&mut x, y));
        }
        let (_, mut dy) = self.divergence(&x, &aim, true)?;
        for (layer, x) in inputs.into_iter().enumerate().rev() {
            let loaded = self.loaded(layer)?;
            let wanted = Wanted { weights: true, input: layer > 0, outputs: false };
            let mut recording = Recording::new(self.cpu, &self.shared, &x, &lengths, wanted)?;
            recording.block(layer, &loaded.values)?;
            let mut gradients = recording.backward(dy)?;
            dy = gradients.take_input();
            let codes = loaded.codes;
            let rate = share * self.tuning.scale_rate;
            self.blocks[layer].update(&codes, &gradients, rate)?;
        }
        Ok(())
    }

    fn keep(&mut self) -> Result<(), CalibrateError> {
        self.kept = Some(self.blocks.clone());
        Ok(())
    }

    fn restart(&mut self) -> Result<(), CalibrateError> {
        self.blocks = TunedBlock::all(self.input, self.load)?;
        Ok(())
    }
}

/// The final scales and norms.
pub(crate) struct TunedScales(Vec<TunedBlock>);

impl TunedScales {
    /// Applies the scales to the changed weights of a block, and adds its norms.
    pub(crate) fn apply(
        &self,
        layer: usize,
        replaced: &mut Vec<(WeightName, Tensor)>,
    ) -> Result<(), CalibrateError> {
        let TunedBlock { norms, scales } = &self.0[layer];
        for (name, scales) in scales {
            let Some((_, tensor)) = replaced.iter_mut().find(|(other, _)| other == name) else { continue };
            if let Tensor::Ternary(trits) = tensor {
                *tensor = scales.tensor(trits).map_err(|e| CalibrateError::quantize(*name, e))?.into();
            }
        }
        norms.finish(replaced)
    }
}

/// Tunes the scales and norms of all blocks, whose changed weights are loaded by `load`; `None` without a gain. `starts` are the
/// embedded tokens, `ends` the residual streams after the last block of the dense model, in the same batches.
pub(crate) fn scales(
    input: &dyn WeightSource,
    cpu: &Cpu,
    tuning: &Tuning,
    head: &Head,
    load: LoadBlock<'_>,
    (starts, ends): BothEnds<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(TuningReport, Option<TunedScales>), CalibrateError> {
    let shared = TapeSpec::new(cpu, &input.config().spec, longest(starts))?;
    let text = Text::new(starts);
    let mut rng = ChaCha8Rng::seed_from_u64(tuning.seed);
    let mut plan = text.plan(tuning.model_epochs.unwrap_or(1), tuning.batch_tokens, &mut rng);
    if tuning.model_epochs.is_none() {
        let mut passed = 0;
        plan.retain(|step| {
            let fits = passed < PASSED;
            passed += lengths(step).iter().sum::<usize>();
            fits
        });
    }
    let blocks = TunedBlock::all(input, load)?;
    let ends = (starts, ends);
    let mut model = AllScales { input, cpu, tuning, head, load, shared, text, ends, blocks, kept: None };
    let report = stage::run(&mut model, &plan, progress)?;
    Ok((report, model.kept.map(TunedScales)))
}
