//! Quantization block by block: the dense model and the partially quantized model run side by side, and each layer is
//! fitted to reduce the difference between them.

mod layer;
mod solver;

use std::time::{Duration, Instant};

use trike_autodiff::TapeEngine;
use trike_core::{DenseData, DenseTensor, ProductPrecision, Tensor};
use trike_llm::{ModelFile, WeightSource};
use trike_nn::{CpuBackend, DecoderBlock, DecoderWeights, HookPoint, WeightName};
use trike_quant::{CrossProduct, Hessian};

use self::{
    layer::{kept_layer, quantize_layer, renew},
    solver::{Aim, Solver, Statistics},
};
use crate::{
    CalibrateError, Compensation, LayerReport, ModelQuantizationConfig, QuantizeMethod, Tuning, TuningReport,
    fold::input_width,
    guide::{Labels, TokenWeights},
    held_out, packing,
    store::{Block, Store},
    streams::{Batch, Blocks, Half, embed},
    tune::{self, Executors},
    weights::{BlockWeights, block_weights},
};

/// Precision to which activations and weights are rounded before products, when text is run through the blocks and statistics are
/// accumulated: its loss is far smaller than that of ternary weights.
pub(crate) const PRODUCTS: ProductPrecision = ProductPrecision::Bf16;
/// Fraction of the time of a recovery spent on generating text.
const WRITING: f64 = 0.25;
/// Number of linear layers of a block.
const LAYERS: usize = 7;
/// Units of tuning in the progress of a block.
const TUNING: usize = 2 * LAYERS;

/// State of the quantization: the streams of the dense model and of the partially quantized model.
pub(crate) struct Walk<'a, E: TapeEngine> {
    source: &'a dyn WeightSource,
    config: &'a ModelQuantizationConfig,
    store: &'a Store,
    blocks: Blocks<'a>,
    /// The executor of tuning.
    engine: &'a E,
    dense: Vec<Batch>,
    ternary: Vec<Batch>,
    /// Tuning options; `None` for no tuning.
    tuning: Option<Tuning>,
    /// Tokens of the calibration text.
    ids: &'a [Vec<u32>],
    /// Token weights, if not uniform.
    guide: Option<TokenWeights>,
}

/// The changed weights of a block, and the report of its tuning.
type Done = (Vec<(WeightName, Tensor)>, Option<TuningReport>);

/// The reports of a finished quantization.
pub(crate) struct Walked {
    pub(crate) layers: Vec<LayerReport>,
    /// Tuning reports of blocks, with the index of the block.
    pub(crate) blocks: Vec<(usize, TuningReport)>,
    /// Tuning report of the whole model.
    pub(crate) model: Option<TuningReport>,
    /// Report of its recovery.
    pub(crate) recovered: Option<TuningReport>,
}

impl<'a, E: TapeEngine> Walk<'a, E> {
    pub(crate) fn new(
        source: &'a dyn WeightSource,
        config: &'a ModelQuantizationConfig,
        (backend, engine): (&'a CpuBackend, &'a E),
        store: &'a Store,
        ids: &'a [Vec<u32>],
        tuning: Option<Tuning>,
    ) -> Result<Self, CalibrateError> {
        let blocks = Blocks::new(source, backend)?;
        let (dense, ternary) = (Vec::new(), Vec::new());
        let mut walk =
            Self { source, config, store, blocks, engine, dense, ternary, tuning, ids, guide: None };
        (walk.dense, walk.ternary) = (walk.embed()?, walk.embed()?);
        Ok(walk)
    }

    /// The executors of tuning.
    fn executors(&self) -> Executors<'a, E> {
        Executors { cpu: self.blocks.cpu(), engine: self.engine }
    }

    /// The streams at the input of the first block.
    fn embed(&self) -> Result<Vec<Batch>, CalibrateError> {
        match self.ids {
            [] => Ok(Vec::new()),
            ids => embed(self.blocks.backend, &self.blocks.embedding()?, ids),
        }
    }

    /// Quantizes all linear layers of the blocks in order, then tunes them together. `file` is the dense model.
    pub(crate) fn run(
        mut self,
        file: &ModelFile,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> Result<Walked, CalibrateError> {
        let layers = self.blocks.spec().layers;
        let whole = self.tuning.filter(|t| (t.tunes_model() || t.recover > 0.0) && !self.ids.is_empty());
        let mut walked = Walked { layers: Vec::new(), blocks: Vec::new(), model: None, recovered: None };
        if let (Some(_), Some((layers, blocks, [model, recovered]))) = (whole, self.store.tuned()?) {
            return Ok(Walked { layers, blocks, model, recovered });
        }
        let tunes = self.tuning.is_some_and(|t| t.tunes_blocks()) && !self.ids.is_empty();
        let (step, each) = match tunes {
            true => ("quantizing and tuning layers", LAYERS + TUNING),
            false => ("quantizing layers", LAYERS),
        };
        let steps = layers * each;
        if let QuantizeMethod::Compensate(Compensation { guided: true, .. }) = self.config.method {
            let mut set = |done, all| progress("weighing tokens by the loss", done, all);
            self.guide =
                Some(TokenWeights::new(&self.blocks, Labels::Text, self.ids, &self.dense, &mut set)?);
        }
        for layer in 0..layers {
            match self.store.load(layer)? {
                Some((done, tuned, block)) => {
                    walked.layers.extend(done);
                    walked.blocks.extend(tuned.map(|t| (layer, t)));
                    if layer + 1 < layers || whole.is_some() {
                        self.resume(layer, &block)?;
                    }
                }
                None => {
                    let before = walked.layers.len();
                    let mut report = |done| progress(step, layer * each + done, steps);
                    let (tensors, tuned) = self.block(layer, &mut walked.layers, &mut report)?;
                    self.store.save(layer, &walked.layers[before..], tuned, tensors)?;
                    walked.blocks.extend(tuned.map(|t| (layer, t)));
                }
            }
            progress(step, (layer + 1) * each, steps);
        }
        if let Some(tuning) = whole {
            self.whole(file, &tuning, &mut walked, progress)?;
        }
        Ok(walked)
    }

    /// Tunes all blocks together, if any of their layers is ternary.
    fn whole(
        mut self,
        file: &ModelFile,
        tuning: &Tuning,
        walked: &mut Walked,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> Result<(), CalibrateError> {
        if walked.layers.iter().all(|layer| layer.kept.is_some()) {
            return Ok(());
        }
        // The next stage starts from the embedded tokens again.
        self.ternary = Vec::new();
        let load = |layer| self.load(layer);
        let (head, starts) = (tune::Head::load(self.source, self.engine)?, self.embed()?);
        if block_weights(self.source)? > tuning.max_weights {
            return self.scales(tuning, &head, &starts, walked, progress);
        }
        let mut blocks = (0..self.blocks.spec().layers).map(load).collect::<Result<Vec<_>, _>>()?;
        if tuning.tunes_model() {
            let mut set = |done, all| progress("tuning the whole model", done, all);
            let (on, ends) = (self.executors(), (&starts[..], &self.dense[..]));
            let report = tune::whole(self.source, on, tuning, &head, &mut blocks, ends, &mut set)?;
            walked.model = Some(report);
        }
        if tuning.recover > 0.0 {
            let judged = (&starts[..], &self.dense[..]);
            walked.recovered = Some(self.recover(file, tuning, &head, &mut blocks, judged, progress)?);
        }
        if [walked.model, walked.recovered].iter().flatten().any(|report| report.kept) {
            blocks.iter_mut().try_for_each(|tensors| self.repack(tensors))?;
            renew(self.source, &mut walked.layers, blocks.iter().flatten())?;
        }
        let reports = [walked.model, walked.recovered];
        self.store.save_tuned(&walked.layers, &walked.blocks, reports, blocks.into_iter().flatten().map(Ok))
    }

    /// The changed weights of a finished block.
    fn load(&self, layer: usize) -> Result<Vec<(WeightName, Tensor)>, CalibrateError> {
        self.store.load(layer)?.map_or(Ok(Vec::new()), |(_, _, block)| block.all(layer))
    }

    /// Tunes the scales and norms of all blocks together, if there are too many codes.
    fn scales(
        &self,
        tuning: &Tuning,
        head: &tune::Head<E>,
        starts: &[Batch],
        walked: &mut Walked,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> Result<(), CalibrateError> {
        let mut set = |done, all| progress("tuning the scales of the whole model", done, all);
        let (on, ends) = (self.executors(), (starts, &self.dense[..]));
        let load = |layer| self.load(layer);
        let (report, tuned) = tune::scales(self.source, on, tuning, head, &load, ends, &mut set)?;
        walked.model = Some(report);
        let apply = |layer| {
            let mut tensors = self.load(layer)?;
            if let Some(tuned) = &tuned {
                tuned.apply(layer, &mut tensors)?;
            }
            Ok(tensors)
        };
        let layers = self.blocks.spec().layers;
        for layer in 0..layers {
            renew(self.source, &mut walked.layers, apply(layer)?.iter())?;
        }
        let each = (0..layers).flat_map(|layer| match apply(layer) {
            Ok(tensors) => tensors.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        });
        self.store.save_tuned(&walked.layers, &walked.blocks, [walked.model, None], each)
    }

    /// Tunes all blocks together on the calibration text and on text generated by the dense model.
    fn recover(
        &self,
        file: &ModelFile,
        tuning: &Tuning,
        head: &tune::Head<E>,
        blocks: &mut [Vec<(WeightName, Tensor)>],
        judged: tune::BothEnds<'_>,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> Result<TuningReport, CalibrateError> {
        let (start, all) = (Instant::now(), Duration::from_secs_f64(60.0 * tuning.recover));
        let count = self.ids.len();
        let seen = self.ids.iter().enumerate().filter(|(i, _)| !tune::is_held_out(*i, count));
        let mut texts: Vec<Vec<u32>> = seen.map(|(_, ids)| ids.clone()).collect();
        let writing = all.mul_f64(WRITING);
        texts.extend(held_out::written(file, self.config, writing, &mut |done, all| {
            progress("writing text for the recovery", done, all);
        })?);
        let rest = all.saturating_sub(start.elapsed());
        let mut set = |done, all| progress("recovering", done, all);
        let mut report =
            tune::recover(&self.blocks, self.engine, tuning, head, blocks, (&texts, judged), rest, &mut set)?;
        report.seconds = start.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Chooses encodings again if the configuration does not fix them: tuning changes the zeros.
    fn repack(&self, tensors: &mut [(WeightName, Tensor)]) -> Result<(), CalibrateError> {
        for (_, tensor) in tensors.iter_mut().filter(|_| self.config.auto_encoding) {
            if let Tensor::Ternary(trits) = tensor {
                *tensor = packing::packed(trits.clone())?.into();
            }
        }
        Ok(())
    }

    /// Passes the streams through a block finished by an earlier run.
    fn resume(&mut self, layer: usize, finished: &Block) -> Result<(), CalibrateError> {
        if self.dense.is_empty() {
            return Ok(());
        }
        let dense = self.blocks.load(layer)?;
        let ternary = self.blocks.load_with(layer, &finished.all(layer)?)?;
        self.blocks.advance(&dense, &mut self.dense)?;
        Ok(self.blocks.advance(&ternary, &mut self.ternary)?)
    }

    fn replace(
        &self,
        block: &mut DecoderBlock<CpuBackend>,
        name: WeightName,
        rows: usize,
        values: Vec<f32>,
    ) -> Result<(), CalibrateError> {
        let cols = values.len() / rows.max(1);
        let matrix = DenseTensor::new(vec![rows, cols], DenseData::F32(values))?;
        block.replace(self.blocks.backend, name, Tensor::Dense(matrix))?;
        Ok(())
    }

    /// Quantizes a block and passes the streams through it.
    fn block(
        &mut self,
        layer: usize,
        reports: &mut Vec<LayerReport>,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Done, CalibrateError> {
        let first = reports.len();
        let dense = self.blocks.load(layer)?;
        let mut ternary = self.blocks.load(layer)?;
        let tuning = self.tuning.filter(|t| t.tunes_blocks() && !self.ids.is_empty());
        // Tuning starts from the input of the block.
        let starts: Vec<Batch> =
            tuning.iter().flat_map(|_| &self.ternary).map(|batch| batch.with(batch.x.clone())).collect();
        let mut tensors = Vec::new();
        let mut done = 0;
        for (half, point) in Half::ALL.into_iter().flat_map(|half| half.points().map(|point| (half, point))) {
            if point.adds_to_residual() {
                self.blocks.advance_half(&dense, half, &mut self.dense)?;
            }
            let mut wanted = Vec::new();
            for name in point.matrices(layer) {
                match kept_layer(self.source, self.config, name)? {
                    Some(report) => reports.push(report),
                    None => wanted.push(name),
                }
            }
            let mut solver = match (self.config.method, wanted.first()) {
                (QuantizeMethod::Compensate(how), Some(&name)) => {
                    let statistics = self.statistics(layer, point, how.follow.then_some(&dense), &ternary)?;
                    // The layers of a hook point read the same inputs; if these are rotated, there is only one layer.
                    let rotation = self.config.rotation_of(name, statistics.hessian.width());
                    let solver = Solver::new(self.blocks.cpu(), how, statistics, rotation);
                    Some(solver.map_err(|e| CalibrateError::quantize(name, e))?)
                }
                _ => None,
            };
            for name in wanted {
                let (tensor, report) = quantize_layer(self.source, self.config, name, solver.as_mut())?;
                self.replace(&mut ternary, name, tensor.rows(), tensor.to_f32())?;
                reports.push(report);
                tensors.push((name, tensor));
            }
            if point.adds_to_residual() {
                self.blocks.advance_half(&ternary, half, &mut self.ternary)?;
            }
            done += point.matrices(layer).len();
            progress(done);
        }
        drop(dense);
        let mut tuned = None;
        if let Some(tuning) = tuning
            && !tensors.is_empty()
        {
            drop(ternary);
            // The streams take most of the memory, and are recomputed.
            self.ternary.iter_mut().for_each(|batch| batch.x = Vec::new());
            let streams = (&starts[..], &self.dense[..]);
            let (on, mut reached) = (self.executors(), 0);
            let mut set = |done: usize, all: usize| {
                // A stage may be retried.
                reached = reached.max(TUNING * done / all.max(1));
                progress(LAYERS + reached);
            };
            let report = tune::block(self.source, on, layer, &tuning, &mut tensors, streams, &mut set)?;
            if report.kept {
                self.repack(&mut tensors)?;
                renew(self.source, &mut reports[first..], tensors.iter())?;
            }
            self.ternary = starts;
            self.blocks.advance(&self.blocks.load_with(layer, &tensors)?, &mut self.ternary)?;
            tuned = Some(report);
        }
        Ok((tensors, tuned))
    }

    /// Accumulates the statistics of the inputs at a hook point, and of the targets of its weights if the dense block is given. The
    /// streams of the ternary model are at the start of that half of the block; those of the dense model are at its start for its
    /// first hook point, and at its end for the second.
    fn statistics(
        &self,
        layer: usize,
        point: HookPoint,
        dense: Option<&DecoderBlock<CpuBackend>>,
        ternary: &DecoderBlock<CpuBackend>,
    ) -> Result<Statistics, CalibrateError> {
        let spec = self.blocks.spec();
        let width = input_width(spec, point);
        let failed = |e| CalibrateError::quantize(format!("the inputs of {}", point.matrices(layer)[0]), e);
        let mut hessian = Hessian::new(width).map_err(failed)?.with_products(PRODUCTS);
        let outputs = if point.adds_to_residual() { spec.hidden } else { width };
        let mut cross = dense
            .map(|dense| Ok((dense, CrossProduct::new(outputs, width)?.with_products(PRODUCTS))))
            .transpose()
            .map_err(failed)?;
        let bias = match point {
            HookPoint::Output if spec.biases.output => Some(WeightName::OutputBias(layer)),
            HookPoint::Down if spec.biases.mlp => Some(WeightName::DownBias(layer)),
            _ => None,
        };
        let bias = bias.map(|name| BlockWeights::new(self.source).vector(name)).transpose()?;
        let cpu = self.blocks.cpu();
        for (i, (ours, theirs)) in self.ternary.iter().zip(&self.dense).enumerate() {
            let scale = |x: &mut [f32], width| {
                if let Some(guide) = &self.guide {
                    guide.scale(layer, point, i, x, width);
                }
            };
            let mut x = self.blocks.half_inputs(ternary, ours, point)?;
            scale(&mut x, width);
            hessian.add(cpu, &x).map_err(failed)?;
            let Some((dense, cross)) = &mut cross else { continue };
            let mut aim = if point.adds_to_residual() {
                let mut aim: Vec<f32> = theirs.x.iter().zip(&ours.x).map(|(d, s)| d - s).collect();
                for (aim, bias) in aim.chunks_exact_mut(spec.hidden).zip(bias.iter().cycle()) {
                    aim.iter_mut().zip(bias).for_each(|(aim, bias)| *aim -= bias);
                }
                aim
            } else {
                self.blocks.half_inputs(dense, theirs, point)?
            };
            scale(&mut aim, outputs);
            cross.add(cpu, &aim, &x).map_err(failed)?;
        }
        let aim = cross.map(|(_, cross)| match point.adds_to_residual() {
            true => Aim::Outputs(cross),
            false => Aim::Inputs(cross),
        });
        Ok(Statistics { hessian, aim })
    }
}
