//! Rewriting before quantization: rotation of the residual stream, scales of inputs.

use trike_cpu::Cpu;
use trike_llm::{ModelFile, WeightSource};
use trike_nn::{ActivationPrecision, CpuBackend, DecoderBlock, HookPoint, WeightName};
use trike_quant::{
    CompensateConfig, Hessian, MatrixView, QuantError, QuantizeConfig, Salience, SquareMatrix, TritLayout,
    compensate, quantize_matrix, salience, scale_columns, scaled_hessian,
};

use crate::{
    CalibrateError, Fold, Folded, LayerChoice, ModelQuantizationConfig, QuantizeMethod, SalienceReport,
    factors::{Factors, output_error},
    fold::{self, divided_by, input_width},
    streams::{Batch, Blocks, embed},
    weights::is_convertible,
};

/// A model to be quantized, with the rewriting that was applied to it.
pub(crate) struct Prepared<'a> {
    /// The model that was read.
    pub(crate) original: &'a ModelFile,
    folded: Option<Folded<'a>>,
    pub(crate) salience: Vec<SalienceReport>,
    pub(crate) notes: Vec<String>,
}

impl<'a> Prepared<'a> {
    /// The model to be quantized.
    pub(crate) fn source(&self) -> &dyn WeightSource {
        match &self.folded {
            Some(folded) => folded,
            None => self.original,
        }
    }

    /// Applies the rewriting that `config` requests. `progress` is called with the number of linear layers done and in
    /// total.
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
            prepared.notes.push(rotation_note(&rotated, original));
            prepared.folded = Some(rotated);
        }
        if config.salience {
            let backend = CpuBackend::new(Cpu::new(config.threads)?, ActivationPrecision::F32);
            let search = Search { config, blocks: Blocks::new(prepared.source(), &backend)? };
            let (found, reports) = search.run(ids, progress)?;
            for (layer, point, scales) in found {
                fold = fold.with_scales(layer, point, scales);
            }
            prepared.notes.push(salience_note(&reports));
            prepared.folded = Some(Folded::new(original, fold)?);
            prepared.salience = reports;
        }
        Ok(prepared)
    }
}

/// Note on a rotation.
fn rotation_note(rotated: &dyn WeightSource, original: &dyn WeightSource) -> String {
    let hidden = rotated.config().spec.hidden;
    let block = 1usize << hidden.trailing_zeros();
    let apart = if rotated.config().spec.tied_head != original.config().spec.tied_head {
        "; the output head is no longer the embedding"
    } else {
        ""
    };
    format!("rotated the residual stream (width {hidden}) in blocks of {block}{apart}")
}

fn salience_note(reports: &[SalienceReport]) -> String {
    let scaled = reports.iter().filter(|r| r.alpha > 0.0).count();
    let ratios: f64 = reports.iter().filter(|r| r.before > 0.0).map(|r| (r.after / r.before).ln()).sum();
    let mean = (ratios / reports.len().max(1) as f64).exp();
    format!(
        "scaled the layer inputs at {scaled} of {} hook points; output error changed there by a factor of {mean:.3}",
        reports.len()
    )
}

/// Searches the dense model, block by block, for scales of the inputs of its layers.
struct Search<'a> {
    config: &'a ModelQuantizationConfig,
    blocks: Blocks<'a>,
}

/// Scales of the inputs at a hook point of a layer.
type Found = (usize, HookPoint, Vec<f32>);

impl Search<'_> {
    fn run(
        &self,
        ids: &[Vec<u32>],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(Vec<Found>, Vec<SalienceReport>), CalibrateError> {
        let spec = self.blocks.spec();
        // Check that the inputs can be scaled before any expensive work.
        let mut wanted = Vec::new();
        for (layer, point) in (0..spec.layers).flat_map(|l| HookPoint::ALL.map(|point| (l, point))) {
            let names = self.becoming_ternary(layer, point)?;
            if !names.is_empty() {
                let mut changed = point.matrices(layer).into_iter().chain(divided_by(spec, layer, point));
                changed.try_for_each(|name| fold::check(self.blocks.source, name))?;
                wanted.push((layer, point, names));
            }
        }
        let mut batches = embed(self.blocks.backend, &self.blocks.embedding()?, ids)?;
        let (mut found, mut reports) = (Vec::new(), Vec::new());
        for layer in 0..spec.layers {
            let block = self.blocks.load(layer)?;
            for (_, point, names) in wanted.iter().filter(|(l, ..)| *l == layer) {
                let best = self.best_scales(&block, *point, names, &batches)?;
                reports.push(SalienceReport {
                    layer,
                    inputs_of: point.matrices(layer)[0].to_string(),
                    alpha: best.alpha,
                    before: best.before,
                    after: best.after,
                });
                if best.alpha > 0.0 {
                    found.push((layer, *point, best.scales));
                }
            }
            self.blocks.advance(&block, &mut batches)?;
            progress((layer + 1) * 7, spec.layers * 7);
        }
        Ok((found, reports))
    }

    fn becoming_ternary(&self, layer: usize, point: HookPoint) -> Result<Vec<WeightName>, CalibrateError> {
        let mut names = Vec::new();
        for name in point.matrices(layer) {
            let choice = self.config.layers.get(&name.to_string());
            let other = matches!(choice, Some(LayerChoice::Int8 | LayerChoice::Dense { .. }));
            if !other && is_convertible(self.blocks.source, self.config, name)? {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// The best scales of the inputs at a hook point.
    fn best_scales(
        &self,
        block: &DecoderBlock<CpuBackend>,
        point: HookPoint,
        names: &[WeightName],
        batches: &[Batch],
    ) -> Result<Salience, CalibrateError> {
        let failed = |e| CalibrateError::quantize(format!("the inputs of {}", names[0]), e);
        let spec = self.blocks.spec();
        let width = input_width(spec, point);
        let mut hessian = Hessian::new(width).map_err(failed)?;
        let mut sums = vec![0f64; width];
        for batch in batches {
            let (inputs, _) = self.blocks.inputs(block, batch, point)?;
            hessian.add(self.blocks.cpu(), &inputs).map_err(failed)?;
            for row in inputs.chunks_exact(width) {
                row.iter().zip(&mut sums).for_each(|(x, sum)| *sum += f64::from(x.abs()));
            }
        }
        if divided_by(spec, 0, point) == Some(WeightName::Value(0)) {
            share_heads(&mut sums, spec.query_width() / spec.kv_heads, spec.head_dim);
        }
        let (hessian, inputs) = hessian.into_matrix().map_err(failed)?;
        let tokens = inputs.tokens().max(1) as f64;
        let magnitudes: Vec<f32> = sums.iter().map(|sum| (sum / tokens) as f32).collect();
        let mut matrices = Vec::new();
        for &name in names {
            let weights = self.blocks.source.load(name)?.into_f32();
            matrices.push((weights, self.config.layout_of(&name.to_string())));
        }
        salience(&magnitudes, &mut |scales| self.loss(&matrices, &hessian, scales)).map_err(failed)
    }

    /// Relative squared error of the outputs of some layers, summed over the layers.
    fn loss(
        &self,
        matrices: &[(Vec<f32>, TritLayout)],
        hessian: &SquareMatrix,
        scales: &[f32],
    ) -> Result<f64, QuantError> {
        let hessian = scaled_hessian(hessian, scales)?;
        let mut factors = match self.config.method {
            QuantizeMethod::Round(_) => None,
            QuantizeMethod::Compensate(how) => Some(Factors::new(hessian.clone(), None, how)?),
        };
        let mut total = 0.0;
        for (weights, layout) in matrices {
            let mut weights = weights.clone();
            scale_columns(&mut weights, scales)?;
            let view = MatrixView::new(weights.len() / scales.len(), scales.len(), &weights)?;
            let (trits, _) = match (self.config.method, &mut factors) {
                (QuantizeMethod::Compensate(how), Some(factors)) => {
                    // One round is accurate enough to compare scales.
                    let config =
                        CompensateConfig::default().with_layout(*layout).with_rounds(how.rounds.min(1));
                    let factor = factors.get(self.blocks.cpu(), layout.granularity)?;
                    compensate(self.blocks.cpu(), view, factor, None, &config)?
                }
                (method, _) => {
                    let rule = match method {
                        QuantizeMethod::Round(rule) => rule,
                        QuantizeMethod::Compensate(_) => QuantizeConfig::default().rule,
                    };
                    let config = QuantizeConfig::default().with_rule(rule).with_layout(*layout);
                    quantize_matrix(view, &config)?
                }
            };
            total += output_error(self.blocks.cpu(), &weights, &trits.dequantize(), &hessian)?;
        }
        Ok(total)
    }
}

/// Replaces the values of all query heads of width `d` that share a value head, `group` inputs together, by their sum.
fn share_heads(sums: &mut [f64], group: usize, d: usize) {
    for group in sums.chunks_exact_mut(group) {
        for i in 0..d {
            let sum: f64 = group.iter().skip(i).step_by(d).sum();
            group.iter_mut().skip(i).step_by(d).for_each(|s| *s = sum);
        }
    }
}

/// Whether a configuration requires a calibration text.
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
