//! What each layer's precision costs the whole model, measured.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};
use trike_core::{DenseData, DenseTensor, Int8Tensor};
use trike_cpu::Matrix;
use trike_llm::{WeightSource, divergence};
use trike_nn::{
    Backend, BlockContext, CpuBackend, CpuRope, DecoderBlock, HookPoint, Input, NnError, Norm, Tensor,
    WeightName,
};
use trike_quant::{CompensateConfig, Hessian, HessianFactor, MatrixView, QuantError, TritLayout, compensate};
use trike_trit::{Granularity, Hadamard, TritTensor};

use crate::{
    CalibrateError, Compensation, LayerChoice, ModelQuantizationConfig,
    assemble::HEAD_GROUP,
    fold::site_width,
    hidden::{self, Batch},
    plan::{self, Stored},
    walk::{BlockWeights, rotated, rotated_hessian},
};

/// Rows whose logits are in memory at a time.
const LOGIT_ROWS: usize = 256;

/// A linear layer, and what each way to store it costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sensitivity {
    /// Its name.
    pub layer: String,
    /// Its weights.
    pub weights: u64,
    /// Every way that was tried, and what it costs while the rest of the model is dense.
    pub choices: Vec<Measured>,
}

/// One way to store a layer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The way.
    #[serde(flatten)]
    pub stored: Stored,
    /// Bytes that the layer takes.
    pub bytes: u64,
    /// Kullback-Leibler divergence from the dense model that it causes, in nats a token.
    pub kl: f64,
}

/// Measures what `options` cost each layer, one at a time in a model that is dense otherwise.
/// The text of `calibration` gives the Hessians, that of `held` the divergences. All blocks are in memory, in f32.
pub(crate) fn measure(
    input: &dyn WeightSource,
    config: &ModelQuantizationConfig,
    backend: &CpuBackend,
    [calibration, held]: [&[Vec<u32>]; 2],
    options: &[LayerChoice],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Sensitivity>, CalibrateError> {
    let spec = &input.config().spec;
    let rope = backend.load_rope(&spec.rope, spec.head_dim, spec.context)?;
    let table = backend.load_matrix(input.load(WeightName::Embedding)?)?;
    let mut seen = hidden::embed(backend, &table, calibration)?;
    let mut streams = hidden::embed(backend, &table, held)?;
    let blocks: Vec<DecoderBlock<CpuBackend>> = (0..spec.layers)
        .map(|layer| DecoderBlock::load(backend, spec, layer, &mut BlockWeights(input)))
        .collect::<Result<_, _>>()?;
    let head = match spec.tied_head {
        true => table,
        false => backend.load_matrix(input.load(WeightName::Head)?)?,
    };
    let norm = backend.load_vector(input.load(WeightName::FinalNorm)?.into_f32())?;
    let model = Model { input, config, backend, rope, blocks, norm, head };
    let dense = model.finish(&streams)?;

    let total =
        (0..spec.layers).flat_map(|layer| HookPoint::ALL.map(|site| site.matrices(layer).len())).sum();
    let (mut all, mut done) = (Vec::new(), 0);
    for layer in 0..spec.layers {
        for site in HookPoint::ALL {
            let names = site.matrices(layer);
            let planned: Vec<WeightName> =
                names.iter().copied().filter(|&n| model.becomes_ternary(n)).collect();
            if !planned.is_empty() {
                let failed = |e| CalibrateError::quantize(planned[0], e);
                let hessian = model.hessian(layer, site, &seen)?;
                let cols = hessian.width();
                // The layers of a site read the same inputs; where these are rotated, there is one.
                let rotation = config.rotation_of(planned[0], cols);
                let hessian = hessian.matrix().map_err(failed)?;
                let hessian = rotated_hessian(rotation, cols, &hessian).map_err(failed)?;
                let mut solver = Factors { hessian, rotation, factors: Vec::new() };
                for name in planned {
                    all.push(model.layer(layer, name, &mut solver, options, &streams, &dense)?);
                }
            }
            done += names.len();
            progress(done, total);
        }
        for batches in [&mut seen, &mut streams] {
            for batch in batches.iter_mut() {
                batch.x = model.through(&model.blocks[layer], batch)?;
            }
        }
    }
    Ok(all)
}

struct Model<'a> {
    input: &'a dyn WeightSource,
    config: &'a ModelQuantizationConfig,
    backend: &'a CpuBackend,
    rope: CpuRope,
    blocks: Vec<DecoderBlock<CpuBackend>>,
    norm: <CpuBackend as Backend>::Vector,
    head: Matrix,
}

impl Model<'_> {
    /// Whether a layer is one that a plan has a say in.
    fn becomes_ternary(&self, name: WeightName) -> bool {
        let Ok(info) = self.input.info(name) else { return false };
        let text = name.to_string();
        let small = (info.elements() as u128) < self.config.min_layer_size as u128;
        !(info.kind.is_ternary() || self.input.ternarizes(name) || self.config.skips(&text) || small)
    }

    fn through(&self, block: &DecoderBlock<CpuBackend>, batch: &Batch) -> Result<Vec<f32>, NnError> {
        let place = BlockContext { backend: self.backend, spec: &self.input.config().spec, rope: &self.rope };
        batch.through(place, block, |_, _, _| ControlFlow::Continue(()), None)
    }

    /// The streams behind the last block, from those before the first.
    fn finish(&self, streams: &[Batch]) -> Result<Vec<Vec<f32>>, NnError> {
        let one = |batch: &Batch| {
            let mut batch = batch.with(batch.x.clone());
            for block in &self.blocks {
                batch.x = self.through(block, &batch)?;
            }
            Ok(batch.x)
        };
        streams.iter().map(one).collect()
    }

    fn hessian(&self, layer: usize, site: HookPoint, seen: &[Batch]) -> Result<Hessian, CalibrateError> {
        let spec = &self.input.config().spec;
        let failed = |e| CalibrateError::quantize(format!("the inputs of {}", site.matrices(layer)[0]), e);
        let width = site_width(spec, site);
        let mut hessian = Hessian::new(width).map_err(failed)?;
        let place = BlockContext { backend: self.backend, spec, rope: &self.rope };
        for batch in seen {
            let mut inputs = Vec::new();
            let keep = |_, input, _| {
                inputs = input;
                ControlFlow::Break(())
            };
            batch.through(place, &self.blocks[layer], keep, Some(site))?;
            hessian.add(self.backend.cpu(), &inputs).map_err(failed)?;
        }
        Ok(hessian)
    }

    /// Every option for a layer of a block.
    fn layer(
        &self,
        layer: usize,
        name: WeightName,
        solver: &mut Factors,
        options: &[LayerChoice],
        streams: &[Batch],
        dense: &[Vec<f32>],
    ) -> Result<Sensitivity, CalibrateError> {
        let spec = &self.input.config().spec;
        let tensor = self.input.load(name)?;
        let (rows, cols) = (tensor.rows(), tensor.cols());
        let stored = self.input.load_stored(name)?.bytes() as u64;
        let weights = DenseTensor::new(vec![rows, cols], trike_format::DenseData::F32(tensor.into_f32()))?;
        let mut block = DecoderBlock::load(self.backend, spec, layer, &mut BlockWeights(self.input))?;
        let mut choices: Vec<Measured> = Vec::new();
        for option in options {
            let (bytes, values) = match option {
                LayerChoice::Dense { .. } => (stored, None),
                LayerChoice::Int8 => {
                    let int8 = Int8Tensor::quantize(&weights, HEAD_GROUP.min(cols), true)?;
                    (int8.bytes() as u64, Some(int8.dequantize()))
                }
                &LayerChoice::Trits { planes, granularity } => {
                    let layout = TritLayout { depth: planes, granularity, ..self.config.layout };
                    let trits = self
                        .trits(&weights, layout, solver)
                        .map_err(|e| CalibrateError::quantize(name, e))?;
                    (trits.bytes() as u64, Some(trits.dequantize()))
                }
            };
            // In narrow layers several sizes of groups are the same.
            if choices.iter().any(|c| c.bytes == bytes && c.stored.planes == Stored::of(option).planes) {
                continue;
            }
            let kl = match values {
                None => 0.0,
                Some(values) => {
                    let matrix = DenseTensor::new(vec![rows, cols], DenseData::F32(values))?;
                    block.replace(self.backend, name, Tensor::Dense(matrix))?;
                    self.divergence(layer, &block, streams, dense)?
                }
            };
            choices.push(Measured { stored: Stored::of(option), bytes, kl });
        }
        Ok(Sensitivity { layer: name.to_string(), weights: (rows * cols) as u64, choices })
    }

    fn trits(
        &self,
        weights: &DenseTensor,
        layout: TritLayout,
        solver: &mut Factors,
    ) -> Result<TritTensor, QuantError> {
        let (rows, cols) = (weights.rows(), weights.cols());
        let rotation = solver.rotation;
        let values = rotated(rotation, cols, &weights.to_f32())?;
        let how = self.config.compensation().unwrap_or_default();
        let factor = solver.factor(cols, layout.granularity, how)?;
        // One round is near enough to tell layers apart, and half the time.
        let config = CompensateConfig { layout, rounds: how.rounds.min(1), threads: self.config.threads };
        let trits = compensate(MatrixView::new(rows, cols, &values)?, factor, None, &config)?.0;
        Ok(trits.with_rotation(rotation)?)
    }

    /// Mean divergence from the dense model when `block` takes the place of block `layer`.
    fn divergence(
        &self,
        layer: usize,
        block: &DecoderBlock<CpuBackend>,
        streams: &[Batch],
        dense: &[Vec<f32>],
    ) -> Result<f64, CalibrateError> {
        let (mut sum, mut tokens) = (0.0, 0usize);
        let hidden = self.input.config().spec.hidden;
        let vocab = self.input.config().spec.vocab;
        for (batch, base) in streams.iter().zip(dense) {
            let mut ours = batch.with(self.through(block, batch)?);
            for later in &self.blocks[layer + 1..] {
                ours.x = self.through(later, &ours)?;
            }
            for (ours, base) in ours.x.chunks(LOGIT_ROWS * hidden).zip(base.chunks(LOGIT_ROWS * hidden)) {
                let (ours, base) = (self.logits(ours)?, self.logits(base)?);
                let rows = ours.chunks_exact(vocab).zip(base.chunks_exact(vocab));
                sum += rows.map(|(ours, base)| divergence(ours, base)).sum::<f64>();
                tokens += ours.len() / vocab;
            }
        }
        Ok((sum / tokens.max(1) as f64).max(0.0))
    }

    fn logits(&self, stream: &[f32]) -> Result<Vec<f32>, NnError> {
        let spec = &self.input.config().spec;
        let x = self.backend.upload(stream, spec.hidden)?;
        let normed = Input::Normed(&x, Norm { weight: &self.norm, eps: spec.rms_eps });
        let out = self.backend.linear_of(normed, &[&self.head])?;
        out.into_iter().next().map_or(Ok(Vec::new()), |out| self.backend.into_host(out))
    }
}

/// What the layers that read the same input share.
struct Factors {
    /// Of the inputs as trits meet them.
    hessian: Vec<f32>,
    rotation: Option<Hadamard>,
    /// One for each way to share scales that was asked for.
    factors: Vec<(Granularity, HessianFactor)>,
}

impl Factors {
    fn factor(
        &mut self,
        cols: usize,
        granularity: Granularity,
        how: Compensation,
    ) -> Result<&HessianFactor, QuantError> {
        let at = match self.factors.iter().position(|(of, _)| *of == granularity) {
            Some(at) => at,
            None => {
                let new = HessianFactor::new(&self.hessian, cols, granularity, how.order, how.damping)?;
                self.factors.push((granularity, new));
                self.factors.len() - 1
            }
        };
        Ok(&self.factors[at].1)
    }
}

/// The ways to store a layer that a plan chooses from: planes up to `most`, each with every one of `groups`, int8, and as it is.
pub(crate) fn options(most: usize, groups: &[Granularity]) -> Vec<LayerChoice> {
    let trits = groups
        .iter()
        .flat_map(|&granularity| (1..=most).map(move |planes| LayerChoice::Trits { planes, granularity }));
    let others = [LayerChoice::Int8, LayerChoice::Dense { reason: plan::NO_ROOM.to_owned() }];
    trits.chain(others).collect()
}
