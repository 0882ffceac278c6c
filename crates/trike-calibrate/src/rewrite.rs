//! What is rewritten before a model becomes ternary: the residual stream is rotated, inputs are scaled.

use std::ops::ControlFlow;

use trike_cpu::Cpu;
use trike_llm::{ModelFile, WeightSource};
use trike_nn::{
    ActivationPrecision, Backend, BlockContext, CpuBackend, CpuRope, DecoderBlock, DecoderSpec, HookPoint,
    WeightName,
};
use trike_quant::{
    CompensateConfig, Hessian, HessianFactor, MatrixView, QuantError, QuantizeConfig, Salience, TritLayout,
    compensate, hessian_error, quantize_matrix, salience, scale_columns, scaled_hessian,
};
use trike_trit::Granularity;

use crate::{
    CalibrateError, Fold, Folded, LayerChoice, ModelQuantizationConfig, QuantizeMethod, SalienceReport,
    assemble::stored_bytes,
    fold::{self, divided_by, site_width},
    hidden::{self, Batch},
    walk::BlockWeights,
};

/// A model as it is made ternary, and what was done to the one that was read.
pub(crate) struct Prepared<'a> {
    /// The one that was read.
    pub(crate) original: &'a ModelFile,
    folded: Option<Folded<'a>>,
    pub(crate) salience: Vec<SalienceReport>,
    pub(crate) notes: Vec<String>,
}

impl<'a> Prepared<'a> {
    /// The model that becomes ternary.
    pub(crate) fn source(&self) -> &dyn WeightSource {
        match &self.folded {
            Some(folded) => folded,
            None => self.original,
        }
    }

    /// Rewrites what `config` asks for. `progress` is called with the number of linear layers done and to do.
    pub(crate) fn new(
        original: &'a ModelFile,
        config: &ModelQuantizationConfig,
        ids: &[Vec<u32>],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, CalibrateError> {
        let mut prepared = Self { original, folded: None, salience: Vec::new(), notes: Vec::new() };
        if config.rotation.is_none() && !config.salience {
            return Ok(prepared);
        }
        let mut fold = Fold::default();
        if let Some(seed) = config.rotation {
            fold = fold.with_rotation(seed);
            let rotated = Folded::new(original, fold.clone())?;
            prepared.notes.push(rotation_note(&rotated, original, config)?);
            prepared.folded = Some(rotated);
        }
        if config.salience {
            let (found, reports) = Search::new(prepared.source(), config)?.run(ids, progress)?;
            for (layer, site, scales) in found {
                fold = fold.with_scales(layer, site, scales);
            }
            prepared.notes.push(salience_note(&reports));
            prepared.folded = Some(Folded::new(original, fold)?);
            prepared.salience = reports;
        }
        Ok(prepared)
    }
}

/// Says what a rotation did, and what embedding and head take with it and without.
fn rotation_note(
    rotated: &dyn WeightSource,
    original: &dyn WeightSource,
    config: &ModelQuantizationConfig,
) -> Result<String, CalibrateError> {
    let hidden = rotated.config().spec.hidden;
    let block = 1usize << hidden.trailing_zeros();
    let bytes = |source: &dyn WeightSource| -> Result<u64, CalibrateError> {
        let embedding = stored_bytes(source, config, WeightName::Embedding)?;
        Ok(match source.config().spec.tied_head {
            true => embedding,
            false => embedding + stored_bytes(source, config, WeightName::Head)?,
        })
    };
    let apart = if rotated.config().spec.tied_head != original.config().spec.tied_head {
        ", which were one matrix and are two now,"
    } else {
        ""
    };
    Ok(format!(
        "the residual stream, {hidden} wide, was rotated in blocks of {block}; embedding and output head{apart} take {} bytes, \
         without that {}",
        bytes(rotated)?,
        bytes(original)?
    ))
}

fn salience_note(reports: &[SalienceReport]) -> String {
    let scaled = reports.iter().filter(|r| r.alpha > 0.0).count();
    let ratios: f64 = reports.iter().filter(|r| r.before > 0.0).map(|r| (r.after / r.before).ln()).sum();
    let mean = (ratios / reports.len().max(1) as f64).exp();
    format!(
        "the inputs of layers were scaled at {scaled} of {} places, for {mean:.3} times the error there",
        reports.len()
    )
}

/// Walks the dense model for scales of the inputs of its layers.
struct Search<'a> {
    source: &'a dyn WeightSource,
    config: &'a ModelQuantizationConfig,
    backend: CpuBackend,
    rope: CpuRope,
}

/// A site and its scales.
type Found = (usize, HookPoint, Vec<f32>);

impl<'a> Search<'a> {
    fn new(
        source: &'a dyn WeightSource,
        config: &'a ModelQuantizationConfig,
    ) -> Result<Self, CalibrateError> {
        let spec = &source.config().spec;
        let backend = CpuBackend::new(Cpu::new(config.threads)?, ActivationPrecision::F32);
        let rope = backend.load_rope(&spec.rope, spec.head_dim, spec.context)?;
        Ok(Self { source, config, backend, rope })
    }

    fn spec(&self) -> &DecoderSpec {
        &self.source.config().spec
    }

    fn run(
        &self,
        ids: &[Vec<u32>],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(Vec<Found>, Vec<SalienceReport>), CalibrateError> {
        let layers = self.spec().layers;
        // What cannot be scaled is said before anything takes time.
        let mut wanted = Vec::new();
        for (layer, site) in (0..layers).flat_map(|l| HookPoint::ALL.map(|site| (l, site))) {
            let names = self.becoming_ternary(layer, site)?;
            if !names.is_empty() {
                let mut changed =
                    site.matrices(layer).into_iter().chain(divided_by(self.spec(), layer, site));
                changed.try_for_each(|name| fold::check(self.source, name))?;
                wanted.push((layer, site, names));
            }
        }
        let table = self.backend.load_matrix(self.source.load(WeightName::Embedding)?)?;
        let mut batches = hidden::embed(&self.backend, &table, ids)?;
        let (mut found, mut reports) = (Vec::new(), Vec::new());
        for layer in 0..layers {
            let block =
                DecoderBlock::load(&self.backend, self.spec(), layer, &mut BlockWeights(self.source))?;
            for (_, site, names) in wanted.iter().filter(|(l, ..)| *l == layer) {
                let best = self.site(&block, *site, names, &batches)?;
                reports.push(SalienceReport {
                    layer,
                    inputs_of: site.matrices(layer)[0].to_string(),
                    alpha: best.alpha,
                    before: best.before,
                    after: best.after,
                });
                if best.alpha > 0.0 {
                    found.push((layer, *site, best.scales));
                }
            }
            for batch in &mut batches {
                let on = |_, _, _| ControlFlow::Continue(());
                batch.x = batch.through(self.place(), &block, on, None)?;
            }
            progress((layer + 1) * 7, layers * 7);
        }
        Ok((found, reports))
    }

    fn place(&self) -> BlockContext<'_, CpuBackend> {
        BlockContext { backend: &self.backend, spec: self.spec(), rope: &self.rope }
    }

    fn becoming_ternary(&self, layer: usize, site: HookPoint) -> Result<Vec<WeightName>, CalibrateError> {
        let mut names = Vec::new();
        for name in site.matrices(layer) {
            let (info, text) = (self.source.info(name)?, name.to_string());
            let ternary = info.kind.is_ternary() || self.source.ternarizes(name);
            let small = u128::from(info.elements()) < self.config.min_layer_size as u128;
            let other =
                matches!(self.config.layers.get(&text), Some(LayerChoice::Int8 | LayerChoice::Dense { .. }));
            if !(ternary || small || other || self.config.skips(&text)) {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// The best scales of a site's inputs.
    fn site(
        &self,
        block: &DecoderBlock<CpuBackend>,
        site: HookPoint,
        names: &[WeightName],
        batches: &[Batch],
    ) -> Result<Salience, CalibrateError> {
        let failed = |e| CalibrateError::quantize(format!("the inputs of {}", names[0]), e);
        let width = site_width(self.spec(), site);
        let mut hessian = Hessian::new(width).map_err(failed)?;
        let mut sums = vec![0f64; width];
        for batch in batches {
            let mut seen = Vec::new();
            let keep = |_, input, _| {
                seen = input;
                ControlFlow::Break(())
            };
            batch.through(self.place(), block, keep, Some(site))?;
            hessian.add(self.backend.cpu(), &seen).map_err(failed)?;
            for row in seen.chunks_exact(width) {
                row.iter().zip(&mut sums).for_each(|(x, sum)| *sum += f64::from(x.abs()));
            }
        }
        if divided_by(self.spec(), 0, site) == Some(WeightName::Value(0)) {
            let spec = self.spec();
            share_heads(&mut sums, spec.query_width() / spec.kv_heads, spec.head_dim);
        }
        let tokens = hessian.tokens().max(1) as f64;
        let magnitudes: Vec<f32> = sums.iter().map(|sum| (sum / tokens) as f32).collect();
        let hessian = hessian.matrix().map_err(failed)?;
        let mut matrices = Vec::new();
        for &name in names {
            matrices.push((self.source.load(name)?.into_f32(), self.config.layout_of(&name.to_string())));
        }
        salience(&magnitudes, &mut |scales| self.loss(&matrices, &hessian, scales)).map_err(failed)
    }

    /// The error that the outputs of a site's layers have over themselves, summed over the layers.
    fn loss(
        &self,
        matrices: &[(Vec<f32>, TritLayout)],
        hessian: &[f32],
        scales: &[f32],
    ) -> Result<f64, QuantError> {
        let hessian = scaled_hessian(hessian, scales)?;
        let width = scales.len();
        let mut factors: Vec<(Granularity, HessianFactor)> = Vec::new();
        let mut total = 0.0;
        for (weights, layout) in matrices {
            let mut weights = weights.clone();
            scale_columns(&mut weights, scales)?;
            let view = MatrixView::new(weights.len() / width, width, &weights)?;
            let (trits, _) = match self.config.method {
                QuantizeMethod::Round(rule) => quantize_matrix(
                    view,
                    &QuantizeConfig { rule, layout: *layout, ..QuantizeConfig::default() },
                )?,
                QuantizeMethod::Compensate(how) => {
                    let granularity = layout.granularity;
                    if !factors.iter().any(|(of, _)| *of == granularity) {
                        let new = HessianFactor::new(&hessian, width, granularity, how.order, how.damping)?;
                        factors.push((granularity, new));
                    }
                    // One round is near enough to tell scales apart.
                    let (layout, rounds) = (*layout, how.rounds.min(1));
                    let config = CompensateConfig { layout, rounds, threads: self.config.threads };
                    let factor = factors.iter().find(|(of, _)| *of == granularity).map(|(_, factor)| factor);
                    match factor {
                        Some(factor) => compensate(view, factor, None, &config)?,
                        None => continue,
                    }
                }
            };
            let lost = hessian_error(&weights, &trits.dequantize(), &hessian)?;
            let whole = hessian_error(&weights, &vec![0.0; weights.len()], &hessian)?;
            total += if whole > 0.0 { lost / whole } else { 0.0 };
        }
        Ok(total)
    }
}

/// Gives all query heads, `d` wide, that share a value head, `group` inputs together, the sum of what each has.
fn share_heads(sums: &mut [f64], group: usize, d: usize) {
    for group in sums.chunks_exact_mut(group) {
        for i in 0..d {
            let sum: f64 = group.iter().skip(i).step_by(d).sum();
            group.iter_mut().skip(i).step_by(d).for_each(|s| *s = sum);
        }
    }
}

/// Whether a configuration needs a text to run the model on.
pub(crate) fn needs_text(config: &ModelQuantizationConfig) -> bool {
    config.salience || matches!(config.method, QuantizeMethod::Compensate(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_that_share_a_value_head_share_a_sum() {
        let mut sums = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        share_heads(&mut sums, 4, 2);
        assert_eq!(sums, [4.0, 6.0, 4.0, 6.0, 12.0, 14.0, 12.0, 14.0]);
    }
}
