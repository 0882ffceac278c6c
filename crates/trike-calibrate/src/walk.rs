//! Block after block: what the dense one does, what the ternary one gets, and weights that bring the two together.

use std::{ops::ControlFlow, time::Instant};

use trike_core::{DenseData, DenseTensor, Int8Tensor};
use trike_llm::WeightSource;
use trike_nn::{
    Backend, BlockContext, CpuBackend, CpuRope, DecoderBlock, DecoderWeights, HookPoint, NnError, Tensor,
    WeightName,
};
use trike_quant::{
    CompensateConfig, CrossProduct, Hessian, HessianFactor, MatrixView, QuantError, QuantizeConfig, Rotation,
    TritLayout, compensate, hessian_error, quantize_matrix,
};
use trike_trit::{Granularity, Hadamard, TritTensor};

use crate::{
    CalibrateError, Compensation, LayerChoice, LayerReport, ModelQuantizationConfig, QuantizeMethod, Tuning,
    TuningReport,
    assemble::HEAD_GROUP,
    fold::site_width,
    hidden::{self, Batch},
    pruning,
    store::Store,
    tune,
};

/// An input is ruled by outliers when its largest magnitude is over so many times its root mean square.
const OUTLIER: f64 = 10.0;

/// The state of a walk: the streams of the dense model, and those of the one that is ternary so far.
pub(crate) struct Walk<'a> {
    input: &'a dyn WeightSource,
    config: &'a ModelQuantizationConfig,
    backend: &'a CpuBackend,
    store: &'a Store,
    rope: CpuRope,
    dense: Vec<Batch>,
    ternary: Vec<Batch>,
    /// How blocks and the model are tuned, where they are.
    tuning: Option<Tuning>,
    /// The calibration text.
    ids: &'a [Vec<u32>],
}

/// The weights of a block that are no longer as they were, and the report of its tuning.
type Done = (Vec<(WeightName, Tensor)>, Option<TuningReport>);

/// What a walk did.
pub(crate) struct Walked {
    pub(crate) layers: Vec<LayerReport>,
    /// Of each block that was tuned, by its number.
    pub(crate) blocks: Vec<(usize, TuningReport)>,
    /// Of all of them together.
    pub(crate) model: Option<TuningReport>,
}

/// What the tokens of a text say about a site.
struct Statistics {
    hessian: Hessian,
    /// Inputs of the dense model with those of the ternary one.
    cross: CrossProduct,
    /// What the residual streams differ by, with the inputs, where the layer's output is added to them.
    residual: Option<CrossProduct>,
}

/// Runs a block to its end.
fn go_on(_: HookPoint, _: Vec<f32>, _: Vec<f32>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Reads a block's weights in f32, all dense.
pub(crate) struct BlockWeights<'a>(pub(crate) &'a dyn WeightSource);

impl BlockWeights<'_> {
    fn load(&self, name: WeightName) -> Result<Tensor, NnError> {
        self.0.load(name).map_err(|e| NnError::Load { name: name.to_string(), source: Box::new(e) })
    }
}

impl DecoderWeights for BlockWeights<'_> {
    fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError> {
        let tensor = self.load(name)?;
        let (rows, cols) = (tensor.rows(), tensor.cols());
        Ok(Tensor::Dense(DenseTensor::new(vec![rows, cols], DenseData::F32(tensor.into_f32()))?))
    }

    fn vector(&mut self, name: WeightName) -> Result<Vec<f32>, NnError> {
        Ok(self.load(name)?.into_f32())
    }
}

impl<'a> Walk<'a> {
    pub(crate) fn new(
        input: &'a dyn WeightSource,
        config: &'a ModelQuantizationConfig,
        backend: &'a CpuBackend,
        store: &'a Store,
        ids: &'a [Vec<u32>],
        tuning: Option<Tuning>,
    ) -> Result<Self, CalibrateError> {
        let spec = &input.config().spec;
        let rope = backend.load_rope(&spec.rope, spec.head_dim, spec.context)?;
        let (dense, ternary) = (Vec::new(), Vec::new());
        let mut walk = Self { input, config, backend, store, rope, dense, ternary, tuning, ids };
        (walk.dense, walk.ternary) = (walk.embed()?, walk.embed()?);
        Ok(walk)
    }

    /// The streams that enter the first block.
    fn embed(&self) -> Result<Vec<Batch>, CalibrateError> {
        if self.ids.is_empty() {
            return Ok(Vec::new());
        }
        let table = self.backend.load_matrix(self.input.load(WeightName::Embedding)?)?;
        hidden::embed(self.backend, &table, self.ids)
    }

    /// Every linear layer of the blocks, in order, and then all of them together.
    pub(crate) fn run(mut self, progress: &mut dyn FnMut(usize, usize)) -> Result<Walked, CalibrateError> {
        let layers = self.input.config().spec.layers;
        let whole = self.tuning.filter(|t| t.model_epochs > 0 && !self.ids.is_empty());
        let mut walked = Walked { layers: Vec::new(), blocks: Vec::new(), model: None };
        if let (Some(_), Some((layers, blocks, model))) = (whole, self.store.tuned()?) {
            return Ok(Walked { layers, blocks, model: Some(model) });
        }
        // The model as a whole counts as much as another tenth of its layers.
        let steps = layers * 7 + whole.map_or(0, |_| layers * 7 / 10 + 1);
        for layer in 0..layers {
            match self.store.load(layer)? {
                Some((done, tuned, block)) => {
                    walked.layers.extend(done);
                    walked.blocks.extend(tuned.map(|t| (layer, t)));
                    if layer + 1 < layers || whole.is_some() {
                        self.advance(layer, |name| block.load(name).transpose())?;
                    }
                }
                None => {
                    let before = walked.layers.len();
                    let mut report = |done| progress(layer * 7 + done, steps);
                    let (tensors, tuned) = self.block(layer, &mut walked.layers, &mut report)?;
                    self.store.save(layer, &walked.layers[before..], tuned, tensors)?;
                    walked.blocks.extend(tuned.map(|t| (layer, t)));
                }
            }
            progress((layer + 1) * 7, steps);
        }
        if let Some(tuning) = whole {
            self.whole(&tuning, &mut walked, &mut |done, all| {
                progress(layers * 7 + done * (steps - layers * 7) / all.max(1), steps);
            })?;
            progress(steps, steps);
        }
        Ok(walked)
    }

    /// Tunes all blocks together, where there is anything ternary in them.
    fn whole(
        self,
        tuning: &Tuning,
        walked: &mut Walked,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), CalibrateError> {
        let mut blocks = vec![Vec::new(); self.input.config().spec.layers];
        for (layer, replaced) in blocks.iter_mut().enumerate() {
            let Some((_, _, block)) = self.store.load(layer)? else { continue };
            for name in HookPoint::ALL.iter().flat_map(|site| site.matrices(layer)) {
                replaced.extend(block.load(name).transpose()?.map(|tensor| (name, tensor)));
            }
        }
        if blocks.iter().all(Vec::is_empty) {
            return Ok(());
        }
        let (head, starts) = (tune::Head::load(self.input)?, self.embed()?);
        let report = tune::whole(
            self.input,
            self.backend.cpu(),
            tuning,
            &head,
            &mut blocks,
            &starts,
            &self.dense,
            progress,
        )?;
        if report.kept {
            blocks.iter_mut().try_for_each(|tensors| self.repack(tensors))?;
            self.renew(&mut walked.layers, blocks.iter().flatten())?;
        }
        self.store.save_tuned(&walked.layers, &walked.blocks, &report, blocks.into_iter().flatten())?;
        walked.model = Some(report);
        Ok(())
    }

    /// Chooses encodings anew where that was asked for: tuning has changed what is zero.
    fn repack(&self, tensors: &mut [(WeightName, Tensor)]) -> Result<(), CalibrateError> {
        for (_, tensor) in tensors.iter_mut().filter(|_| self.config.auto_encoding) {
            if let Tensor::Ternary(trits) = tensor {
                *tensor = pruning::packed(trits.clone())?.into();
            }
        }
        Ok(())
    }

    /// Puts what a report says about the weights themselves right after tuning.
    fn renew<'t>(
        &self,
        layers: &mut [LayerReport],
        tensors: impl Iterator<Item = &'t (WeightName, Tensor)>,
    ) -> Result<(), CalibrateError> {
        for (name, tensor) in tensors {
            let Tensor::Ternary(tensor) = tensor else { continue };
            let text = name.to_string();
            if let Some(report) = layers.iter_mut().find(|l| l.name == text) {
                let weights = self.input.load(*name)?.into_f32();
                (report.weight_error, report.zeros) = measured(&weights, tensor);
                report.bytes = tensor.bytes() as u64;
                report.stored = layout_name(tensor);
                report.bits_per_weight = tensor.bits_per_weight();
            }
        }
        Ok(())
    }

    fn load(&self, layer: usize) -> Result<DecoderBlock<CpuBackend>, NnError> {
        DecoderBlock::load(self.backend, &self.input.config().spec, layer, &mut BlockWeights(self.input))
    }

    fn place(&self) -> BlockContext<'_, CpuBackend> {
        BlockContext { backend: self.backend, spec: &self.input.config().spec, rope: &self.rope }
    }

    /// Takes the streams through a block that an earlier run finished.
    fn advance(
        &mut self,
        layer: usize,
        finished: impl Fn(WeightName) -> Result<Option<Tensor>, CalibrateError>,
    ) -> Result<(), CalibrateError> {
        if self.dense.is_empty() {
            return Ok(());
        }
        let dense = self.load(layer)?;
        let mut ternary = self.load(layer)?;
        for name in HookPoint::ALL.iter().flat_map(|site| site.matrices(layer)) {
            if let Some(tensor) = finished(name)? {
                self.replace(&mut ternary, name, tensor.rows(), tensor.into_f32())?;
            }
        }
        self.pass_dense(&dense)?;
        Ok(self.pass_ternary(&ternary)?)
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
        block.replace(self.backend, name, Tensor::Dense(matrix))?;
        Ok(())
    }

    /// Takes the streams of the dense model through its block, batch after batch in its place: they are most of what is in memory.
    fn pass_dense(&mut self, block: &DecoderBlock<CpuBackend>) -> Result<(), NnError> {
        for i in 0..self.dense.len() {
            self.dense[i].x = self.dense[i].through(self.place(), block, go_on, None)?;
        }
        Ok(())
    }

    /// The same with the streams of the ternary model.
    fn pass_ternary(&mut self, block: &DecoderBlock<CpuBackend>) -> Result<(), NnError> {
        for i in 0..self.ternary.len() {
            self.ternary[i].x = self.ternary[i].through(self.place(), block, go_on, None)?;
        }
        Ok(())
    }

    /// Makes a block ternary and takes the streams through it.
    fn block(
        &mut self,
        layer: usize,
        reports: &mut Vec<LayerReport>,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Done, CalibrateError> {
        let first = reports.len();
        let dense = self.load(layer)?;
        let mut ternary = self.load(layer)?;
        let mut tensors = Vec::new();
        let mut done = 0;
        for site in HookPoint::ALL {
            let mut wanted = Vec::new();
            for name in site.matrices(layer) {
                match self.kept(name)? {
                    Some(report) => reports.push(report),
                    None => wanted.push(name),
                }
            }
            let statistics = match self.config.method {
                QuantizeMethod::Compensate(_) if !wanted.is_empty() => {
                    Some(self.watch(layer, site, &dense, &ternary)?)
                }
                _ => None,
            };
            // One for each way to share scales that the site's layers want.
            let mut solvers: Vec<Solver<'_>> = Vec::new();
            for name in wanted {
                let granularity = self.config.layout_of(&name.to_string()).granularity;
                if let (Some(statistics), QuantizeMethod::Compensate(how)) = (&statistics, self.config.method)
                    && !solvers.iter().any(|s| s.granularity == granularity)
                {
                    // The layers of a site read the same inputs; where these are rotated, there is one.
                    let rotation = self.config.rotation_of(name, statistics.hessian.width());
                    let solver = Solver::new(how, statistics, granularity, rotation);
                    solvers.push(solver.map_err(|e| CalibrateError::quantize(name, e))?);
                }
                let solver = solvers.iter().find(|s| s.granularity == granularity);
                let (tensor, report) = self.layer(name, solver)?;
                self.replace(&mut ternary, name, tensor.rows(), tensor.to_f32())?;
                reports.push(report);
                tensors.push((name, tensor));
            }
            done += site.matrices(layer).len();
            progress(done);
        }
        self.pass_dense(&dense)?;
        drop(dense);
        let mut tuned = None;
        if let Some(tuning) = self.tuning.filter(|t| t.block_epochs > 0 && !self.ids.is_empty())
            && !tensors.is_empty()
        {
            let (input, cpu) = (self.input, self.backend.cpu());
            let streams = (&self.ternary[..], &self.dense[..]);
            let report = tune::block(input, cpu, layer, &tuning, &mut tensors, streams)?;
            if report.kept {
                for (name, tensor) in &tensors {
                    self.replace(&mut ternary, *name, tensor.rows(), tensor.clone().into_f32())?;
                }
                self.repack(&mut tensors)?;
                self.renew(&mut reports[first..], tensors.iter())?;
            }
            tuned = Some(report);
        }
        self.pass_ternary(&ternary)?;
        Ok((tensors, tuned))
    }

    /// The report of a layer that stays as it is; `None` for one that becomes ternary.
    fn kept(&self, name: WeightName) -> Result<Option<LayerReport>, CalibrateError> {
        let info = self.input.info(name)?;
        let weights = info.elements();
        let text = name.to_string();
        let reason = if info.kind.is_ternary() || matches!(self.input.load(name)?, Tensor::Ternary(_)) {
            "it is ternary already".to_owned()
        } else if self.config.skips(&text) {
            "a skip pattern names it".to_owned()
        } else if let Some(LayerChoice::Dense { reason }) = self.config.layers.get(&text) {
            reason.clone()
        } else if (weights as u128) < self.config.min_layer_size as u128 {
            format!("it has {weights} weights, fewer than {}", self.config.min_layer_size)
        } else {
            return Ok(None);
        };
        let bytes = self.input.stored_bytes(name)?;
        Ok(Some(LayerReport {
            name: text,
            rows: info.shape.first().copied().unwrap_or(0),
            cols: info.shape.last().copied().unwrap_or(0),
            kept: Some(reason),
            stored: info.kind.to_string(),
            bytes,
            bits_per_weight: 8.0 * bytes as f64 / weights.max(1) as f64,
            weight_error: None,
            output_error: None,
            zeros: None,
            damping: None,
            dead_inputs: None,
            outlier_inputs: None,
            seconds: 0.0,
        }))
    }

    /// Runs both models up to a site and sums what is seen there.
    fn watch(
        &self,
        layer: usize,
        site: HookPoint,
        dense: &DecoderBlock<CpuBackend>,
        ternary: &DecoderBlock<CpuBackend>,
    ) -> Result<Statistics, CalibrateError> {
        let spec = &self.input.config().spec;
        let width = site_width(spec, site);
        let failed = |e| CalibrateError::quantize(format!("the inputs of {}", site.matrices(layer)[0]), e);
        let mut sums = Statistics {
            hessian: Hessian::new(width).map_err(failed)?,
            cross: CrossProduct::new(width, width).map_err(failed)?,
            residual: match site.adds_to_residual() {
                true => Some(CrossProduct::new(spec.hidden, width).map_err(failed)?),
                false => None,
            },
        };
        let cpu = self.backend.cpu();
        let place = self.place();
        for (ours, theirs) in self.ternary.iter().zip(&self.dense) {
            let seen = |batch: &Batch, block| -> Result<(Vec<f32>, Vec<f32>), NnError> {
                let mut seen = (Vec::new(), Vec::new());
                let keep = |_, input, stream| {
                    seen = (input, stream);
                    ControlFlow::Break(())
                };
                batch.through(place, block, keep, Some(site))?;
                Ok(seen)
            };
            let ((x, stream), (dense_x, dense_stream)) = (seen(ours, ternary)?, seen(theirs, dense)?);
            sums.hessian.add(cpu, &x).map_err(failed)?;
            sums.cross.add(cpu, &dense_x, &x).map_err(failed)?;
            if let Some(residual) = &mut sums.residual {
                let gap: Vec<f32> = dense_stream.iter().zip(&stream).map(|(d, s)| d - s).collect();
                residual.add(cpu, &gap, &x).map_err(failed)?;
            }
        }
        Ok(sums)
    }

    fn layer(
        &self,
        name: WeightName,
        solver: Option<&Solver<'_>>,
    ) -> Result<(Tensor, LayerReport), CalibrateError> {
        let start = Instant::now();
        let tensor = self.input.load(name)?;
        let (rows, cols) = (tensor.rows(), tensor.cols());
        let weights = tensor.into_f32();
        let failed = |e| CalibrateError::quantize(name, e);
        let view = MatrixView::new(rows, cols, &weights).map_err(failed)?;
        let layout = self.config.layout_of(&name.to_string());
        if self.config.layers.get(&name.to_string()) == Some(&LayerChoice::Int8) {
            let dense = DenseTensor::new(vec![rows, cols], trike_format::DenseData::F32(weights))?;
            let int8 = Int8Tensor::quantize(&dense, HEAD_GROUP.min(cols), true)?;
            return Ok(int8_layer(name, &dense, int8, solver, start));
        }
        let (tensor, output_error) = match (solver, self.config.method) {
            (Some(solver), _) => solver.solve(self, view, layout).map_err(failed)?,
            (None, method) => {
                let rule = match method {
                    QuantizeMethod::Round(rule) => rule,
                    QuantizeMethod::Compensate(_) => QuantizeConfig::default().rule,
                };
                let config = QuantizeConfig { rule, layout, ..QuantizeConfig::default() };
                let rotation = self.config.rotation_of(name, cols);
                let turned = rotated(rotation, cols, &weights).map_err(failed)?;
                let view = MatrixView::new(rows, cols, &turned).map_err(failed)?;
                let tensor = quantize_matrix(view, &config).map_err(failed)?.0;
                (tensor.with_rotation(rotation).map_err(|e| CalibrateError::quantize(name, e.into()))?, None)
            }
        };
        let tensor = match self.config.auto_encoding {
            true => pruning::packed(tensor)?,
            false => tensor,
        };
        let (weight_error, zeros) = measured(&weights, &tensor);
        let report = LayerReport {
            name: name.to_string(),
            rows,
            cols,
            kept: None,
            bytes: tensor.bytes() as u64,
            bits_per_weight: tensor.bits_per_weight(),
            stored: layout_name(&tensor),
            weight_error,
            output_error,
            zeros,
            damping: solver.map(|s| s.factor.damping()),
            dead_inputs: solver.map(|s| s.factor.dead()),
            outlier_inputs: solver.map(|s| s.statistics.hessian.outliers(OUTLIER)),
            seconds: start.elapsed().as_secs_f64(),
        };
        Ok((tensor.into(), report))
    }
}

/// The relative error of a ternary weight, and its share of zero trits.
fn measured(weights: &[f32], tensor: &TritTensor) -> (Option<f64>, Option<f64>) {
    let trits = (weights.len() * tensor.depth()) as f64;
    (Some(relative_error(weights, &tensor.dequantize())), Some(tensor.zeros() as f64 / trits))
}

/// `||w - v|| / ||w||`.
fn relative_error(w: &[f32], v: &[f32]) -> f64 {
    let lost: f64 = w.iter().zip(v).map(|(w, v)| f64::from(w - v).powi(2)).sum();
    let whole: f64 = w.iter().map(|w| f64::from(*w).powi(2)).sum();
    if whole > 0.0 { (lost / whole).sqrt() } else { 0.0 }
}

/// The report's word for how a ternary layer is stored.
fn layout_name(tensor: &TritTensor) -> String {
    let planes = if tensor.depth() == 1 { "plane" } else { "planes" };
    let granularity = tensor.scales().granularity();
    let rotated = tensor.rotation().map_or_else(String::new, |r| format!(", rotated in {}", r.block()));
    format!("{} {planes}, {granularity}, {}{rotated}", tensor.depth(), tensor.encoding().name())
}

/// Rows of weights that read rotated inputs, of those that read `cols` inputs as they are.
pub(crate) fn rotated(rotation: Option<Hadamard>, cols: usize, rows: &[f32]) -> Result<Vec<f32>, QuantError> {
    let mut values = rows.to_vec();
    if let Some(rotation) = rotation {
        Rotation::plain(cols, rotation)?.rows(&mut values)?;
    }
    Ok(values)
}

/// The Hessian of rotated inputs, of that of inputs as they are.
pub(crate) fn rotated_hessian(
    rotation: Option<Hadamard>,
    cols: usize,
    hessian: &[f32],
) -> Result<Vec<f32>, QuantError> {
    let mut values = rotated(rotation, cols, hessian)?;
    if let Some(rotation) = rotation {
        Rotation::plain(cols, rotation)?.columns(&mut values, cols)?;
    }
    Ok(values)
}

/// A layer that is int8, with its report.
fn int8_layer(
    name: WeightName,
    dense: &DenseTensor,
    int8: Int8Tensor,
    solver: Option<&Solver<'_>>,
    start: Instant,
) -> (Tensor, LayerReport) {
    let (rows, cols) = (int8.rows(), int8.cols());
    let (before, after) = (dense.to_f32(), int8.dequantize());
    let output_error = solver.and_then(|s| {
        let lost = hessian_error(&before, &after, &s.hessian).ok()?;
        let whole = hessian_error(&before, &vec![0.0; before.len()], &s.hessian).ok()?;
        Some(if whole > 0.0 { (lost / whole).sqrt() } else { 0.0 })
    });
    let report = LayerReport {
        name: name.to_string(),
        rows,
        cols,
        kept: None,
        stored: "int8".to_owned(),
        bytes: int8.bytes() as u64,
        bits_per_weight: 8.0 * int8.bytes() as f64 / (rows * cols) as f64,
        weight_error: Some(relative_error(&before, &after)),
        output_error,
        zeros: None,
        damping: None,
        dead_inputs: None,
        outlier_inputs: None,
        seconds: start.elapsed().as_secs_f64(),
    };
    (int8.into(), report)
}

/// What all layers of a site share.
struct Solver<'a> {
    how: Compensation,
    granularity: Granularity,
    statistics: &'a Statistics,
    /// Of the inputs as they are.
    hessian: Vec<f32>,
    rotation: Option<Hadamard>,
    /// Of the inputs as the trits meet them.
    factor: HessianFactor,
}

impl<'a> Solver<'a> {
    fn new(
        how: Compensation,
        statistics: &'a Statistics,
        granularity: Granularity,
        rotation: Option<Hadamard>,
    ) -> Result<Self, QuantError> {
        let hessian = statistics.hessian.matrix()?;
        let width = statistics.hessian.width();
        let turned = rotated_hessian(rotation, width, &hessian)?;
        let factor = HessianFactor::new(&turned, width, granularity, how.order, how.damping)?;
        Ok(Self { how, granularity, statistics, hessian, rotation, factor })
    }

    /// The ternary weight, and what it loses of the outputs that it aimed at.
    fn solve(
        &self,
        walk: &Walk<'_>,
        weights: MatrixView<'_>,
        layout: TritLayout,
    ) -> Result<(TritTensor, Option<f64>), QuantError> {
        let cpu = walk.backend.cpu();
        let turned = |values: &[f32]| rotated(self.rotation, weights.cols(), values);
        let mut target = turned(weights.values())?;
        if self.how.follow {
            let Statistics { cross, residual, .. } = self.statistics;
            let shift = cross.shift(cpu, weights.values(), &self.hessian, residual.as_ref())?;
            target = self.factor.corrected(cpu, &target, &turned(&shift)?)?;
        }
        let view = MatrixView::new(weights.rows(), weights.cols(), &target)?;
        let config = CompensateConfig { layout, rounds: self.how.rounds, threads: walk.config.threads };
        let keep = match &walk.config.prune {
            // Nothing is rotated then.
            Some(prune) => Some(prune.keep(view, &self.statistics.hessian, &self.factor)?),
            None => None,
        };
        let (tensor, _) = compensate(view, &self.factor, keep.as_deref(), &config)?;
        let tensor = tensor.with_rotation(self.rotation)?;
        // Rotating twice is as not at all.
        let target = turned(&target)?;
        let lost = hessian_error(&target, &tensor.dequantize(), &self.hessian)?;
        let whole = hessian_error(&target, &vec![0.0; target.len()], &self.hessian)?;
        Ok((tensor, Some(if whole > 0.0 { (lost / whole).sqrt() } else { 0.0 })))
    }
}
