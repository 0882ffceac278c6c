//! Sensitivity measurement: the loss of the whole model caused by the precision of each layer.

use trike_core::{DenseData, DenseTensor, Int8Tensor, Tensor};
use trike_cpu::Matrix;
use trike_llm::{WeightSource, divergence};
use trike_nn::{Backend, CpuBackend, DecoderBlock, HookPoint, Input, NnError, Norm, WeightName};
use trike_quant::{CompensateConfig, Hessian, MatrixView, QuantError, TritLayout, compensate};
use trike_trit::{Granularity, TritTensor};

use super::allot::NO_ROOM;
use crate::{
    CalibrateError, LayerChoice, Measured, ModelQuantizationConfig, Sensitivity, Stored,
    assemble::HEAD_GROUP,
    factors::Factors,
    fold::input_width,
    streams::{Batch, Blocks, embed},
    weights::{is_convertible, rotated},
};

/// Rows of logits in memory at a time.
const LOGIT_ROWS: usize = 256;

/// Measures the loss of every option for each layer, with the rest of the model dense. The text of `calibration` is
/// used for the Hessians, that of `held` for the divergences. All blocks are in memory, in f32.
pub(crate) fn measure(
    input: &dyn WeightSource,
    config: &ModelQuantizationConfig,
    backend: &CpuBackend,
    [calibration, held]: [&[Vec<u32>]; 2],
    options: &[LayerChoice],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Sensitivity>, CalibrateError> {
    let runner = Blocks::new(input, backend)?;
    let spec = runner.spec();
    let table = runner.embedding()?;
    let mut seen = embed(backend, &table, calibration)?;
    let mut streams = embed(backend, &table, held)?;
    let blocks: Vec<DecoderBlock<CpuBackend>> =
        (0..spec.layers).map(|layer| runner.load(layer)).collect::<Result<_, _>>()?;
    let head = match spec.tied_head {
        true => table,
        false => backend.load_matrix(input.load(WeightName::Head)?)?,
    };
    let norm = backend.load_vector(input.load(WeightName::FinalNorm)?.into_f32())?;
    let model = Model { config, runner, blocks, norm, head };
    let dense = model.finish(&streams)?;

    let total =
        (0..spec.layers).flat_map(|layer| HookPoint::ALL.map(|point| point.matrices(layer).len())).sum();
    let (mut all, mut done) = (Vec::new(), 0);
    for layer in 0..spec.layers {
        for point in HookPoint::ALL {
            let names = point.matrices(layer);
            let mut planned = Vec::new();
            for &name in &names {
                if is_convertible(input, config, name)? {
                    planned.push(name);
                }
            }
            if !planned.is_empty() {
                let failed = |e| CalibrateError::quantize(planned[0], e);
                let hessian = model.hessian(layer, point, &seen)?;
                // These layers read the same inputs; rotated inputs have only one layer.
                let rotation = config.rotation_of(planned[0], hessian.width());
                let how = config.compensation().unwrap_or_default();
                let (hessian, _) = hessian.into_matrix().map_err(failed)?;
                let mut factors = Factors::new(hessian, rotation, how).map_err(failed)?;
                for name in planned {
                    all.push(model.layer(layer, name, &mut factors, options, &streams, &dense)?);
                }
            }
            done += names.len();
            progress(done, total);
        }
        for batches in [&mut seen, &mut streams] {
            model.runner.advance(&model.blocks[layer], batches)?;
        }
    }
    Ok(all)
}

struct Model<'a> {
    config: &'a ModelQuantizationConfig,
    runner: Blocks<'a>,
    blocks: Vec<DecoderBlock<CpuBackend>>,
    norm: <CpuBackend as Backend>::Vector,
    head: Matrix,
}

impl Model<'_> {
    /// The residual streams after the last block, computed from those before the first.
    fn finish(&self, streams: &[Batch]) -> Result<Vec<Vec<f32>>, NnError> {
        let one = |batch: &Batch| {
            let mut batch = batch.with(batch.x.clone());
            for block in &self.blocks {
                batch.x = self.runner.output(block, &batch)?;
            }
            Ok(batch.x)
        };
        streams.iter().map(one).collect()
    }

    fn hessian(&self, layer: usize, point: HookPoint, batches: &[Batch]) -> Result<Hessian, CalibrateError> {
        let failed = |e| CalibrateError::quantize(format!("the inputs of {}", point.matrices(layer)[0]), e);
        let mut hessian = Hessian::new(input_width(self.runner.spec(), point)).map_err(failed)?;
        for batch in batches {
            let (inputs, _) = self.runner.inputs(&self.blocks[layer], batch, point)?;
            hessian.add(self.runner.cpu(), &inputs).map_err(failed)?;
        }
        Ok(hessian)
    }

    /// Measures every option for a layer of a block.
    fn layer(
        &self,
        layer: usize,
        name: WeightName,
        factors: &mut Factors,
        options: &[LayerChoice],
        streams: &[Batch],
        dense: &[Vec<f32>],
    ) -> Result<Sensitivity, CalibrateError> {
        let source = self.runner.source;
        let tensor = source.load(name)?;
        let (rows, cols) = (tensor.rows(), tensor.cols());
        let stored = source.load_stored(name)?.bytes() as u64;
        let weights = DenseTensor::new(vec![rows, cols], trike_format::DenseData::F32(tensor.into_f32()))?;
        let mut block = self.runner.load(layer)?;
        let mut choices: Vec<Measured> = Vec::new();
        for option in options {
            let (bytes, values) = match option {
                LayerChoice::Dense { .. } => (stored, None),
                LayerChoice::Int8 => {
                    let int8 = Int8Tensor::quantize(&weights, HEAD_GROUP.min(cols), true)?;
                    (int8.bytes() as u64, Some(int8.dequantize()))
                }
                &LayerChoice::Trits { planes, granularity } => {
                    let layout = self.config.layout.with_depth(planes).with_granularity(granularity);
                    let trits = self
                        .trits(&weights, layout, factors)
                        .map_err(|e| CalibrateError::quantize(name, e))?;
                    (trits.bytes() as u64, Some(trits.dequantize()))
                }
            };
            // In narrow layers several group sizes coincide.
            if choices.iter().any(|c| c.bytes == bytes && c.stored.planes == Stored::of(option).planes) {
                continue;
            }
            let kl = match values {
                None => 0.0,
                Some(values) => {
                    let matrix = DenseTensor::new(vec![rows, cols], DenseData::F32(values))?;
                    block.replace(self.runner.backend, name, Tensor::Dense(matrix))?;
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
        factors: &mut Factors,
    ) -> Result<TritTensor, QuantError> {
        let (rows, cols) = (weights.rows(), weights.cols());
        let rotation = factors.rotation;
        let values = rotated(rotation, cols, &weights.to_f32())?;
        let how = self.config.compensation().unwrap_or_default();
        let factor = factors.get(self.runner.cpu(), layout.granularity)?;
        // One round is accurate enough to rank layers, and takes half the time.
        let config = CompensateConfig::default().with_layout(layout).with_rounds(how.rounds.min(1));
        let view = MatrixView::new(rows, cols, &values)?;
        let trits = compensate(self.runner.cpu(), view, factor, None, &config)?.0;
        Ok(trits.with_rotation(rotation)?)
    }

    /// Mean divergence from the dense model with `block` in place of block `layer`.
    fn divergence(
        &self,
        layer: usize,
        block: &DecoderBlock<CpuBackend>,
        streams: &[Batch],
        dense: &[Vec<f32>],
    ) -> Result<f64, CalibrateError> {
        let (mut sum, mut tokens) = (0.0, 0usize);
        let (hidden, vocab) = (self.runner.spec().hidden, self.runner.spec().vocab);
        for (batch, base) in streams.iter().zip(dense) {
            let mut ours = batch.with(self.runner.output(block, batch)?);
            for later in &self.blocks[layer + 1..] {
                ours.x = self.runner.output(later, &ours)?;
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
        let (backend, spec) = (self.runner.backend, self.runner.spec());
        let x = backend.upload(stream, spec.hidden)?;
        let normed = Input::Normed(&x, Norm { weight: &self.norm, eps: spec.rms_eps });
        let out = backend.linear_of(normed, &[&self.head])?;
        out.into_iter().next().map_or(Ok(Vec::new()), |out| backend.move_to_host(out))
    }
}

/// The candidates of a plan for each layer: planes up to `most` with each of `groups`, int8, and unchanged.
pub(crate) fn options(most: usize, groups: &[Granularity]) -> Vec<LayerChoice> {
    let trits = groups
        .iter()
        .flat_map(|&granularity| (1..=most).map(move |planes| LayerChoice::Trits { planes, granularity }));
    let others = [LayerChoice::Int8, LayerChoice::Dense { reason: NO_ROOM.to_owned() }];
    trits.chain(others).collect()
}
