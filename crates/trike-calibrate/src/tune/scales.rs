//! Tuning of the scales and norms of all blocks to the probabilities of the dense model.
//!
//! Codes are fixed, so that blocks need not be in memory together: each is loaded for the forward pass and again for the backward
//! pass, and only the input of its activations is kept. This is the second stage of EfficientQAT (Chen et al., 2407.11062).

use std::borrow::Borrow;

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use trike_autodiff::{EngineValues, TapeEngine};
use trike_core::Tensor;
use trike_llm::WeightSource;
use trike_nn::WeightName;
use trike_quant::LatentScales;
use trike_trit::{Hadamard, TritTensor};

use super::{
    executors::Executors,
    head::Head,
    learner::by_depth,
    norms::TunedNorms,
    stage::{self, Loss, Tuned},
    tape::{BlockGradients, BlockValues, Recording, TapeSpec, VectorValues, Wanted},
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

    fn update<E: TapeEngine>(
        &mut self,
        engine: &E,
        codes: &[(WeightName, Codes)],
        gradients: &BlockGradients<E>,
        rate: f32,
    ) -> Result<(), CalibrateError> {
        let mut deepest = 1;
        for (name, codes) in codes {
            let scales = self.scales.iter_mut().find(|(other, _)| other == name);
            let (Some((_, scales)), Some(gradient)) = (scales, gradients.of(engine, *name)?) else {
                continue;
            };
            let failed = |e| CalibrateError::quantize(*name, e);
            let gradient = codes.rotated(&gradient).map_err(failed)?;
            deepest = deepest.max(codes.trits.depth());
            scales.update(&codes.trits, &gradient, rate * by_depth(codes.trits.depth())).map_err(failed)?;
        }
        self.norms.update(engine, gradients, rate * by_depth(deepest))
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
struct Loaded<'a, E: TapeEngine> {
    values: BlockValues<'a, E>,
    codes: Vec<(WeightName, Codes)>,
}

/// All blocks, whose scales and norms are tuned.
struct AllScales<'a, E: TapeEngine> {
    input: &'a dyn WeightSource,
    on: Executors<'a, E>,
    tuning: &'a Tuning,
    head: &'a Head<E>,
    load: LoadBlock<'a>,
    shared: TapeSpec<E>,
    text: Text,
    ends: BothEnds<'a>,
    blocks: Vec<TunedBlock>,
    kept: Option<Vec<TunedBlock>>,
}

impl<E: TapeEngine> AllScales<'_, E> {
    fn loaded(&self, layer: usize) -> Result<Loaded<'_, E>, CalibrateError> {
        let engine = self.on.engine;
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
        let [q, k, v, o, g, u, d] = WeightName::matrices(layer).map(|name| {
            let (values, is_trained) = value(name)?;
            Ok::<_, CalibrateError>((EngineValues::Owned(engine.upload(values)?), is_trained))
        });
        let all = [q?, k?, v?, o?, g?, u?, d?];
        let trained = all.each_ref().map(|(_, is_trained)| *is_trained);
        let matrices = all.map(|(values, _)| values);
        let vectors = VectorValues::new(engine, self.blocks[layer].norms.vectors())?;
        Ok(Loaded { values: BlockValues { matrices, trained, vectors }, codes })
    }

    /// The stream `x` after a block.
    fn through(
        &self,
        layer: usize,
        loaded: &Loaded<'_, E>,
        x: &E::View,
        lengths: &[usize],
    ) -> Result<E::Tensor, CalibrateError> {
        let mut recording = Recording::new(self.on.engine, &self.shared, x, lengths, Wanted::default())?;
        recording.block(layer, &loaded.values)?;
        Ok(recording.into_output()?)
    }
}

impl<E: TapeEngine> Tuned for AllScales<'_, E> {
    const LEAST_GAIN: f64 = 0.0;

    fn held_out(&self) -> Result<Vec<Loss>, CalibrateError> {
        let (hidden, engine) = (self.shared.spec.hidden, self.on.engine);
        let steps = Text::steps(&self.text.held, self.tuning.batch_tokens);
        let ends = |step: &Vec<Span>| {
            let [x, aim] = ends_of(step, self.ends, hidden);
            Ok((engine.upload(x)?, aim))
        };
        let mut streams = steps.iter().map(ends).collect::<Result<Vec<_>, CalibrateError>>()?;
        for layer in 0..self.blocks.len() {
            let loaded = self.loaded(layer)?;
            for ((x, _), step) in streams.iter_mut().zip(&steps) {
                *x = self.through(layer, &loaded, (*x).borrow(), &lengths(step))?;
            }
        }
        let mut losses = Vec::with_capacity(self.text.held.len());
        for ((x, aim), step) in streams.iter().zip(&steps) {
            let x = engine.download(x.borrow())?;
            let mut at = 0;
            for tokens in lengths(step) {
                let rows = at * hidden..(at + tokens) * hidden;
                let x = engine.borrow_or_upload(&x[rows.clone()])?;
                let aim = engine.borrow_or_upload(&aim[rows])?;
                losses.push(Loss { sum: self.head.divergence(engine, x.view(), aim.view())?, tokens });
                at += tokens;
            }
        }
        Ok(losses)
    }

    fn step(&mut self, step: &[Span], share: f32) -> Result<(), CalibrateError> {
        let engine = self.on.engine;
        let [x, aim] = ends_of(step, self.ends, self.shared.spec.hidden);
        let (mut x, aim) = (engine.upload(x)?, engine.upload(aim)?);
        let lengths = lengths(step);
        let mut inputs = Vec::with_capacity(self.blocks.len());
        for layer in 0..self.blocks.len() {
            let loaded = self.loaded(layer)?;
            let y = self.through(layer, &loaded, x.borrow(), &lengths)?;
            inputs.push(std::mem::replace(&mut x, y));
        }
        let (_, mut dy) = self.head.divergence_gradient(engine, x.borrow(), aim.borrow())?;
        for (layer, x) in inputs.into_iter().enumerate().rev() {
            let loaded = self.loaded(layer)?;
            let wanted = Wanted { weights: true, input: layer > 0, outputs: false };
            let mut recording = Recording::new(engine, &self.shared, x.borrow(), &lengths, wanted)?;
            recording.block(layer, &loaded.values)?;
            let mut gradients = recording.backward(dy)?;
            let before = gradients.take_input();
            let codes = loaded.codes;
            let rate = share * self.tuning.scale_rate;
            self.blocks[layer].update(engine, &codes, &gradients, rate)?;
            // `None` for the first block.
            let Some(before) = before else { break };
            dy = before;
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
pub(crate) fn scales<E: TapeEngine>(
    input: &dyn WeightSource,
    on: Executors<'_, E>,
    tuning: &Tuning,
    head: &Head<E>,
    load: LoadBlock<'_>,
    (starts, ends): BothEnds<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(TuningReport, Option<TunedScales>), CalibrateError> {
    let shared = TapeSpec::new(on.engine, &input.config().spec, longest(starts))?;
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
    let mut model = AllScales { input, on, tuning, head, load, shared, text, ends, blocks, kept: None };
    let report = stage::run(&mut model, &plan, progress)?;
    Ok((report, model.kept.map(TunedScales)))
}
