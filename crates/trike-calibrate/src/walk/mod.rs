//! Quantization block by block: the dense model and the partially quantized model run side by side, and each layer is
//! fitted to reduce the difference between them.

mod layer;
mod solver;

use std::time::{Duration, Instant};

use trike_core::{DenseData, DenseTensor, Tensor};
use trike_llm::{ModelFile, WeightSource};
use trike_nn::{CpuBackend, DecoderBlock, HookPoint, WeightName};
use trike_quant::{CrossProduct, Hessian};

use self::{
    layer::{kept_layer, quantize_layer, renew},
    solver::{Solver, Statistics},
};
use crate::{
    CalibrateError, LayerReport, ModelQuantizationConfig, QuantizeMethod, Tuning, TuningReport,
    fold::input_width,
    held_out, packing,
    store::{Block, Store},
    streams::{Batch, Blocks, embed},
    tune,
};

/// Share of the time of a recovery in which text is written.
const WRITING: f64 = 0.25;
/// Number of linear layers of a block.
const LAYERS: usize = 7;

/// State of the quantization: the streams of the dense model and of the partially quantized model.
pub(crate) struct Walk<'a> {
    source: &'a dyn WeightSource,
    config: &'a ModelQuantizationConfig,
    store: &'a Store,
    blocks: Blocks<'a>,
    dense: Vec<Batch>,
    ternary: Vec<Batch>,
    /// Tuning options; `None` for no tuning.
    tuning: Option<Tuning>,
    /// Tokens of the calibration text.
    ids: &'a [Vec<u32>],
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

impl<'a> Walk<'a> {
    pub(crate) fn new(
        source: &'a dyn WeightSource,
        config: &'a ModelQuantizationConfig,
        backend: &'a CpuBackend,
        store: &'a Store,
        ids: &'a [Vec<u32>],
        tuning: Option<Tuning>,
    ) -> Result<Self, CalibrateError> {
        let blocks = Blocks::new(source, backend)?;
        let (dense, ternary) = (Vec::new(), Vec::new());
        let mut walk = Self { source, config, store, blocks, dense, ternary, tuning, ids };
        (walk.dense, walk.ternary) = (walk.embed()?, walk.embed()?);
        Ok(walk)
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
        let whole = self.tuning.filter(|t| (t.model_epochs > 0 || t.recover > 0.0) && !self.ids.is_empty());
        let mut walked = Walked { layers: Vec::new(), blocks: Vec::new(), model: None, recovered: None };
        if let (Some(_), Some((layers, blocks, [model, recovered]))) = (whole, self.store.tuned()?) {
            return Ok(Walked { layers, blocks, model, recovered });
        }
        let steps = layers * LAYERS;
        let tunes = self.tuning.is_some_and(|t| t.block_epochs > 0) && !self.ids.is_empty();
        let step = if tunes { "quantizing and tuning layers" } else { "quantizing layers" };
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
                    let mut report = |done| progress(step, layer * LAYERS + done, steps);
                    let (tensors, tuned) = self.block(layer, &mut walked.layers, &mut report)?;
                    self.store.save(layer, &walked.layers[before..], tuned, tensors)?;
                    walked.blocks.extend(tuned.map(|t| (layer, t)));
                }
            }
            progress(step, (layer + 1) * LAYERS, steps);
        }
        if let Some(tuning) = whole {
            self.whole(file, &tuning, &mut walked, progress)?;
        }
        Ok(walked)
    }

    /// Tunes all blocks together, if any of their layers is ternary.
    fn whole(
        self,
        file: &ModelFile,
        tuning: &Tuning,
        walked: &mut Walked,
        progress: &mut dyn FnMut(&str, usize, usize),
    ) -> Result<(), CalibrateError> {
        let mut blocks = vec![Vec::new(); self.blocks.spec().layers];
        for (layer, replaced) in blocks.iter_mut().enumerate() {
            let Some((_, _, block)) = self.store.load(layer)? else { continue };
            for name in matrices(layer) {
                replaced.extend(block.load(name).transpose()?.map(|tensor| (name, tensor)));
            }
        }
        if blocks.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let (head, starts) = (tune::Head::load(self.source)?, self.embed()?);
        let cpu = self.blocks.cpu();
        if tuning.model_epochs > 0 {
            let mut set = |done, all| progress("tuning the whole model", done, all);
            let report =
                tune::whole(self.source, cpu, tuning, &head, &mut blocks, &starts, &self.dense, &mut set)?;
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
        self.store.save_tuned(&walked.layers, &walked.blocks, reports, blocks.into_iter().flatten())
    }

    /// Tunes all blocks together on the calibration text and on what the dense model writes.
    fn recover(
        &self,
        file: &ModelFile,
        tuning: &Tuning,
        head: &tune::Head,
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
        let mut report =
            tune::recover(&self.blocks, tuning, head, blocks, &texts, judged, rest, &mut |done, all| {
                progress("recovering", done, all);
            })?;
        report.seconds = start.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Chooses encodings again if the configuration leaves them open: tuning changes which trits are zero.
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
        let mut ternary = self.blocks.load(layer)?;
        for name in matrices(layer) {
            if let Some(tensor) = finished.load(name).transpose()? {
                self.replace(&mut ternary, name, tensor.rows(), tensor.into_f32())?;
            }
        }
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
        let mut tensors = Vec::new();
        let mut done = 0;
        for point in HookPoint::ALL {
            let mut wanted = Vec::new();
            for name in point.matrices(layer) {
                match kept_layer(self.source, self.config, name)? {
                    Some(report) => reports.push(report),
                    None => wanted.push(name),
                }
            }
            let mut solver = match (self.config.method, wanted.first()) {
                (QuantizeMethod::Compensate(how), Some(&name)) => {
                    let statistics = self.statistics(layer, point, &dense, &ternary)?;
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
            done += point.matrices(layer).len();
            progress(done);
        }
        self.blocks.advance(&dense, &mut self.dense)?;
        drop(dense);
        let mut tuned = None;
        if let Some(tuning) = self.tuning.filter(|t| t.block_epochs > 0 && !self.ids.is_empty())
            && !tensors.is_empty()
        {
            let streams = (&self.ternary[..], &self.dense[..]);
            let report = tune::block(self.source, self.blocks.cpu(), layer, &tuning, &mut tensors, streams)?;
            if report.kept {
                for (name, tensor) in &tensors {
                    self.replace(&mut ternary, *name, tensor.rows(), tensor.clone().into_f32())?;
                }
                self.repack(&mut tensors)?;
                renew(self.source, &mut reports[first..], tensors.iter())?;
            }
            tuned = Some(report);
        }
        self.blocks.advance(&ternary, &mut self.ternary)?;
        Ok((tensors, tuned))
    }

    /// Runs both models up to a hook point and accumulates the statistics of its inputs.
    fn statistics(
        &self,
        layer: usize,
        point: HookPoint,
        dense: &DecoderBlock<CpuBackend>,
        ternary: &DecoderBlock<CpuBackend>,
    ) -> Result<Statistics, CalibrateError> {
        let spec = self.blocks.spec();
        let width = input_width(spec, point);
        let failed = |e| CalibrateError::quantize(format!("the inputs of {}", point.matrices(layer)[0]), e);
        let mut sums = Statistics {
            hessian: Hessian::new(width).map_err(failed)?,
            cross: CrossProduct::new(width, width).map_err(failed)?,
            residual: match point.adds_to_residual() {
                true => Some(CrossProduct::new(spec.hidden, width).map_err(failed)?),
                false => None,
            },
        };
        let cpu = self.blocks.cpu();
        for (ours, theirs) in self.ternary.iter().zip(&self.dense) {
            let (x, stream) = self.blocks.inputs(ternary, ours, point)?;
            let (dense_x, dense_stream) = self.blocks.inputs(dense, theirs, point)?;
            sums.hessian.add(cpu, &x).map_err(failed)?;
            sums.cross.add(cpu, &dense_x, &x).map_err(failed)?;
            if let Some(residual) = &mut sums.residual {
                let gap: Vec<f32> = dense_stream.iter().zip(&stream).map(|(d, s)| d - s).collect();
                residual.add(cpu, &gap, &x).map_err(failed)?;
            }
        }
        Ok(sums)
    }
}

/// The linear layers of a block, in order.
fn matrices(layer: usize) -> impl Iterator<Item = WeightName> {
    HookPoint::ALL.into_iter().flat_map(move |point| point.matrices(layer))
}
