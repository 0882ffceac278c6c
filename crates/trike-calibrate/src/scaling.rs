//! The search for scales of the inputs of layers.

use trike_cpu::grad;
use trike_nn::{CpuBackend, DecoderBlock, HookPoint, NnError, WeightName};
use trike_quant::{
    CompensateConfig, Hessian, MatrixView, QuantError, QuantizeConfig, Salience, SquareMatrix, TritLayout,
    compensate, quantize_matrix, salience, scale_columns, scaled_hessian,
};

use crate::{
    CalibrateError, LayerChoice, ModelQuantizationConfig, QuantizeMethod, SalienceReport, ScaledInputs,
    factors::{Factors, output_error},
    fold::{self, divided_by, input_width},
    streams::{Batch, Blocks, embed},
    tune::Head,
    weights::is_convertible,
};

/// Number of tokens on which outliers are detected, and scales searched.
const LOOKED_AT: usize = 4096;
/// Spread of the inputs at a hook point above which they have outliers.
const SPREAD: f64 = 8.0;
/// Maximum fraction of the squared output error that must remain for scales to be used. With a larger one, as for inputs without
/// outliers, and for one plane even with outliers, predictions do not improve in the end.
const WORTH: f64 = 0.85;
/// Number of tokens on which the model's loss on the text is measured.
const PREDICTED: usize = 512;

/// Searches the dense model, block by block, for scales of the inputs of its layers.
pub(crate) struct Search<'a> {
    config: &'a ModelQuantizationConfig,
    blocks: Blocks<'a>,
}

/// Result of a search.
#[derive(Default)]
pub(crate) struct Found {
    /// Scales of the inputs at a hook point of a layer.
    pub(crate) scales: Vec<(usize, HookPoint, Vec<f32>)>,
    /// A report of each searched hook point.
    pub(crate) reports: Vec<SalienceReport>,
    /// The dense model's loss on the beginning of the text, in nats per token.
    pub(crate) loss: f64,
}

impl<'a> Search<'a> {
    pub(crate) fn new(config: &'a ModelQuantizationConfig, blocks: Blocks<'a>) -> Self {
        Self { config, blocks }
    }

    /// The scales of all hook points where they reduce the error.
    pub(crate) fn run(
        &self,
        ids: &[Vec<u32>],
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Found, CalibrateError> {
        let spec = self.blocks.spec();
        // Check that the inputs can be scaled before any expensive work.
        let mut wanted = Vec::new();
        for (layer, point) in (0..spec.layers).flat_map(|l| HookPoint::ALL.map(|point| (l, point))) {
            let names = self.becoming_ternary(layer, point)?;
            if !names.is_empty() && self.is_foldable(layer, point)? {
                wanted.push((layer, point, names));
            }
        }
        let ids = match self.config.salience {
            ScaledInputs::Outliers => beginning(ids, LOOKED_AT),
            _ => ids,
        };
        let mut batches = embed(self.blocks.backend, &self.blocks.embedding()?, ids)?;
        let mut found = Found::default();
        for layer in 0..spec.layers {
            let block = self.blocks.load(layer)?;
            // Keep the input streams for the points to search.
            let before: Vec<Batch> = batches.iter().map(|batch| batch.with(batch.x.clone())).collect();
            let spreads = self.advance(&block, &mut batches)?;
            for (_, point, names) in wanted.iter().filter(|(l, ..)| *l == layer) {
                let spread = spreads[*point as usize];
                if self.config.salience == ScaledInputs::Outliers && spread <= SPREAD {
                    continue;
                }
                let mut best = self.best_scales(&block, *point, names, &before)?;
                if self.config.salience == ScaledInputs::Outliers && best.after > WORTH * best.before {
                    best.alpha = 0.0;
                }
                found.reports.push(SalienceReport {
                    layer,
                    inputs_of: point.matrices(layer)[0].to_string(),
                    spread,
                    alpha: best.alpha,
                    before: best.before,
                    after: best.after,
                });
                if best.alpha > 0.0 {
                    found.scales.push((layer, *point, best.scales));
                }
            }
            progress((layer + 1) * 7, spec.layers * 7);
        }
        found.loss = self.loss_of(ids, &batches)?;
        Ok(found)
    }

    /// The model's loss on the first tokens of a text, given the residual streams after the last block, in nats per token.
    fn loss_of(&self, ids: &[Vec<u32>], batches: &[Batch]) -> Result<f64, CalibrateError> {
        let (spec, cpu) = (self.blocks.spec(), self.blocks.cpu());
        let Some(batch) = batches.first() else { return Ok(0.0) };
        let next = |ids: &Vec<u32>| ids.iter().skip(1).map(|id| Some(*id)).chain([None]).collect::<Vec<_>>();
        let x = &batch.x[..batch.x.len().min(PREDICTED * spec.hidden)];
        let targets: Vec<Option<u32>> = ids.iter().flat_map(next).take(x.len() / spec.hidden).collect();
        let mut logits = Head::load(self.blocks.source, cpu)?.logits(cpu, x)?;
        let sum = grad::cross_entropy(cpu, &mut logits, &targets, spec.vocab, 1.0)?;
        Ok(sum / targets.iter().flatten().count().max(1) as f64)
    }

    /// Passes the residual streams through a block. Returns the spread of the inputs at each hook point.
    fn advance(&self, block: &DecoderBlock<CpuBackend>, batches: &mut [Batch]) -> Result<[f64; 4], NnError> {
        let spec = self.blocks.spec();
        let mut sums = HookPoint::ALL.map(|point| vec![0f64; input_width(spec, point)]);
        for batch in batches {
            batch.x = self.blocks.watch(block, batch, |point, inputs| {
                let sums = &mut sums[point as usize];
                for row in inputs.chunks_exact(sums.len()) {
                    row.iter().zip(&mut *sums).for_each(|(x, sum)| *sum += f64::from(*x) * f64::from(*x));
                }
            })?;
        }
        Ok(sums.map(|sums| spread(&sums)))
    }

    /// Whether the preceding operation can absorb scales. If scales were requested explicitly, it is an error if it cannot.
    fn is_foldable(&self, layer: usize, point: HookPoint) -> Result<bool, CalibrateError> {
        let divided = divided_by(self.blocks.spec(), layer, point);
        let mut changed = point.matrices(layer).into_iter().chain(divided);
        let found = changed.try_for_each(|name| fold::check(self.blocks.source, name));
        if self.config.salience == ScaledInputs::All {
            found?;
            return Ok(true);
        }
        // Rotated inputs have no outliers.
        let turned = match point {
            HookPoint::Attention | HookPoint::Mlp => self.config.rotation.is_some(),
            HookPoint::Output | HookPoint::Down => self.config.input_rotation.is_some(),
        };
        Ok(found.is_ok() && !turned)
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

/// `n sum(m^2) / sum(m)^2` of the mean squares `m` of `n` inputs: 1 if all are equal, `n` if only one is nonzero.
fn spread(squares: &[f64]) -> f64 {
    let sum: f64 = squares.iter().sum();
    let fourth: f64 = squares.iter().map(|m| m * m).sum();
    if sum > 0.0 { squares.len() as f64 * fourth / (sum * sum) } else { 1.0 }
}

/// The first sequences with at least `tokens` tokens together, at least one.
fn beginning(ids: &[Vec<u32>], tokens: usize) -> &[Vec<u32>] {
    let mut left = tokens;
    let mut needed = |ids: &&Vec<u32>| {
        let needed = left > 0;
        left = left.saturating_sub(ids.len());
        needed
    };
    &ids[..ids.iter().take_while(&mut needed).count()]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_one_over_the_share_of_equal_inputs() {
        for (squares, want) in [
            (&[2.0; 8][..], 1.0),
            (&[0.0, 3.0, 0.0, 0.0], 4.0),
            (&[1.0, 1.0, 0.0, 0.0], 2.0),
            (&[0.0, 0.0], 1.0),
        ] {
            assert_eq!(spread(squares), want, "{squares:?}");
        }
    }

    #[test]
    fn whole_sequences_are_looked_at() {
        let ids = [vec![0; 3], vec![0; 2], vec![0; 4]];
        for (tokens, count) in [(1, 1), (3, 1), (4, 2), (5, 2), (6, 3), (100, 3)] {
            assert_eq!(beginning(&ids, tokens).len(), count, "{tokens}");
        }
    }

    #[test]
    fn heads_that_share_a_value_head_share_a_sum() {
        let mut sums = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        share_heads(&mut sums, 4, 2);
        assert_eq!(sums, [4.0, 6.0, 4.0, 6.0, 12.0, 14.0, 12.0, 14.0]);
    }
}
