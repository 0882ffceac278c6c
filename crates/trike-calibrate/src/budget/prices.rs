//! Sensitivities (prices): the divergence of the whole model from the dense one due to the precision of each layer.
//!
//! An error `e` of the outputs of a layer at a token adds `sum_o (g_o e_o)^2 / 2` to the divergence of that token and later ones,
//! where `g` is the gradient of the log-likelihood with respect to the outputs: the second-order expansion without the cross terms
//! between outputs, whose signs are uncorrelated. One backward pass gives the mean square of `g` for each token and layer, and the
//! `X^T X` of the inputs weighted by it gives the sum for any change of the weights. So an estimate needs no pass through the rest
//! of the model, one block is in memory at a time, and a sample of the rows of a matrix is sufficient.

use trike_core::{DenseData, DenseTensor, Int8Tensor, Tensor};
use trike_cpu::Cpu;
use trike_eval::divergence;
use trike_llm::WeightSource;
use trike_nn::{CpuBackend, DecoderBlock, HookPoint, WeightName};
use trike_quant::{
    CompensateConfig, Hessian, MatrixView, QuantError, SquareMatrix, TritLayout, compensate, hessian_error,
};
use trike_trit::{Encoding, Granularity, TritTensor};

use super::allot::NO_ROOM;
use crate::{
    CalibrateError, LayerChoice, Measured, ModelQuantizationConfig, Sensitivity, Stored,
    assemble::HEAD_GROUP,
    factors::Factors,
    fold::input_width,
    guide::{Labels, TokenWeights},
    streams::{Batch, Blocks, Half, embed},
    tune,
    walk::PRODUCTS,
    weights::{is_convertible, rotated},
};

/// Number of sampled rows per matrix.
const ROWS: usize = 128;
/// Number of tokens of the calibration text to which these rows are fitted.
pub(super) const FITTED: usize = 32_768;
/// Tokens whose logits are computed with an int8 head.
const HEAD_TOKENS: usize = 1024;
/// Rows of logits in memory at a time.
const LOGIT_ROWS: usize = 256;

/// Factor on the estimates of query and key projections: a part of the score errors is common to all keys, and softmax is invariant
/// to it. On stories260K with three planes, the measured loss of layers is 0.5 (queries) and 0.4 times (keys, 0.25 to 0.7) the
/// estimate from gradients.
const OF_SCORES: f64 = 0.5;

/// Progress callback: step, units done and in total.
type Progress<'a> = &'a mut dyn FnMut(&str, usize, usize);

/// Estimates the sensitivity of each layer to every option, and that of embedding and head to int8 if `with_head`. Weights are
/// fitted to the text of `fitted`, and their errors are measured on the text of `held`.
pub(crate) fn prices(
    input: &dyn WeightSource,
    config: &ModelQuantizationConfig,
    backend: &CpuBackend,
    [fitted, held]: [&[Vec<u32>]; 2],
    (options, with_head): (&[LayerChoice], bool),
    progress: Progress<'_>,
) -> Result<Vec<Sensitivity>, CalibrateError> {
    let blocks = Blocks::new(input, backend)?;
    let layers = blocks.spec().layers;
    let table = blocks.embedding()?;
    let mut probed = embed(backend, &table, held)?;
    let guide = TokenWeights::new(&blocks, Labels::Drawn, held, &probed, &mut |done, total| {
        progress("weighing tokens by the loss", done, total);
    })?;
    let mut fitted = embed(backend, &table, fitted)?;
    drop(table);
    let tokens = held.iter().map(Vec::len).sum::<usize>().max(1);
    let pricing = Pricing { config, blocks, guide, options, tokens };
    let mut all = Vec::new();
    for layer in 0..layers {
        progress("pricing layers", layer, layers);
        let block = pricing.blocks.load(layer)?;
        for half in Half::ALL {
            for point in half.points() {
                all.extend(pricing.point(layer, &block, point, [&fitted, &probed])?);
            }
            for batches in [&mut fitted, &mut probed] {
                pricing.blocks.advance_half(&block, half, batches)?;
            }
        }
    }
    if with_head {
        all.extend(pricing.head(&probed)?);
    }
    progress("pricing layers", layers, layers);
    Ok(all)
}

/// The first sequences with at least `tokens` tokens together.
pub(super) fn first(sequences: &[Vec<u32>], tokens: usize) -> &[Vec<u32>] {
    let mut sum = 0;
    let room = |ids: &&Vec<u32>| {
        let room = sum < tokens;
        sum += ids.len();
        room
    };
    &sequences[..sequences.iter().take_while(room).count()]
}

struct Pricing<'a> {
    config: &'a ModelQuantizationConfig,
    blocks: Blocks<'a>,
    guide: TokenWeights,
    options: &'a [LayerChoice],
    /// Number of tokens of the text on which errors are measured.
    tokens: usize,
}

impl Pricing<'_> {
    fn cpu(&self) -> &Cpu {
        self.blocks.cpu()
    }

    /// Sensitivities of the layers at a hook point. The residual streams, of the fitted and of the held-out text, are at the start
    /// of that half of the block.
    fn point(
        &self,
        layer: usize,
        block: &DecoderBlock<CpuBackend>,
        point: HookPoint,
        [fitted, probed]: [&[Batch]; 2],
    ) -> Result<Vec<Sensitivity>, CalibrateError> {
        let mut planned = Vec::new();
        for name in point.matrices(layer) {
            if is_convertible(self.blocks.source, self.config, name)? {
                planned.push(name);
            }
        }
        let Some(&name) = planned.first() else { return Ok(Vec::new()) };
        let failed = |e| CalibrateError::quantize(name, e);
        let (hessian, _) = self.hessian(layer, block, point, fitted, false)?.into_matrix().map_err(failed)?;
        let (errors, _) = self.hessian(layer, block, point, probed, true)?.into_matrix().map_err(failed)?;
        // These layers read the same inputs; rotated inputs have only one layer.
        let rotation = self.config.rotation_of(name, hessian.side());
        let how = self.config.compensation().unwrap_or_default();
        let mut factors = Factors::new(hessian, rotation, how).map_err(failed)?;
        planned.into_iter().map(|name| self.layer(layer, name, &mut factors, &errors)).collect()
    }

    /// `X^T X` of the inputs at a hook point, weighted by token or unweighted.
    fn hessian(
        &self,
        layer: usize,
        block: &DecoderBlock<CpuBackend>,
        point: HookPoint,
        batches: &[Batch],
        weighted: bool,
    ) -> Result<Hessian, CalibrateError> {
        let failed = |e| CalibrateError::quantize(format!("the inputs of {}", point.matrices(layer)[0]), e);
        let width = input_width(self.blocks.spec(), point);
        let mut hessian = Hessian::new(width).map_err(failed)?.with_products(PRODUCTS);
        for (i, batch) in batches.iter().enumerate() {
            let mut inputs = self.blocks.half_inputs(block, batch, point)?;
            if weighted {
                self.guide.scale(layer, point, i, &mut inputs, width);
            }
            hessian.add(self.cpu(), &inputs).map_err(failed)?;
        }
        Ok(hessian)
    }

    /// Sensitivities of a layer to every option; `errors` is the weighted `X^T X` of its inputs.
    fn layer(
        &self,
        layer: usize,
        name: WeightName,
        factors: &mut Factors,
        errors: &SquareMatrix,
    ) -> Result<Sensitivity, CalibrateError> {
        let failed = |e| CalibrateError::quantize(name, e);
        let source = self.blocks.source;
        let stored = source.stored_bytes(name)?;
        let tensor = source.load(name)?;
        let (rows, cols) = (tensor.rows(), tensor.cols());
        let values = tensor.into_f32();
        // If sizes depend on the weights, a sample of rows does not determine them.
        let packing = self.config.layout.encoding;
        let by_shape =
            !self.config.auto_encoding && !matches!(packing, Encoding::Bitmap | Encoding::RowCompressed);
        let count = if by_shape { rows.min(ROWS) } else { rows };
        let some: Vec<f32> =
            (0..count).flat_map(|i| &values[i * rows / count * cols..][..cols]).copied().collect();
        drop(values);
        let rest = rows as f64 / count.max(1) as f64;
        let all = |bytes: usize| (bytes as f64 * rest).round() as u64;
        let scores = matches!(name, WeightName::Query(_) | WeightName::Key(_));
        let price = rest * self.guide.of_output(layer, name) / (2.0 * self.tokens as f64)
            * if scores { OF_SCORES } else { 1.0 };
        let mut choices: Vec<Measured> = Vec::new();
        for option in self.options {
            let (bytes, values) = match option {
                LayerChoice::Dense { .. } => (stored, None),
                LayerChoice::Int8 => {
                    let weights = DenseTensor::new(vec![count, cols], DenseData::F32(some.clone()))?;
                    let int8 = Int8Tensor::quantize(&weights, HEAD_GROUP.min(cols), true)?;
                    (all(int8.bytes()), Some(int8.dequantize()))
                }
                &LayerChoice::Trits { planes, granularity } => {
                    let layout = self.config.layout.with_depth(planes).with_granularity(granularity);
                    let view = MatrixView::new(count, cols, &some).map_err(failed)?;
                    let trits = self.trits(view, layout, factors).map_err(failed)?;
                    (all(trits.bytes()), Some(trits.dequantize()))
                }
            };
            // In narrow layers several group sizes coincide.
            if choices.iter().any(|c| c.bytes == bytes && c.stored.planes == Stored::of(option).planes) {
                continue;
            }
            let kl = match values {
                None => 0.0,
                Some(values) => price * hessian_error(self.cpu(), &some, &values, errors).map_err(failed)?,
            };
            choices.push(Measured { stored: Stored::of(option), bytes, kl });
        }
        Ok(Sensitivity { layer: name.to_string(), weights: (rows * cols) as u64, choices })
    }

    fn trits(
        &self,
        weights: MatrixView<'_>,
        layout: TritLayout,
        factors: &mut Factors,
    ) -> Result<TritTensor, QuantError> {
        let rotation = factors.rotation;
        let values = rotated(rotation, weights.cols(), weights.values())?;
        let view = MatrixView::new(weights.rows(), weights.cols(), &values)?;
        let rounds = self.config.compensation().unwrap_or_default().rounds;
        let config = CompensateConfig::default().with_layout(layout).with_rounds(rounds);
        let trits =
            compensate(self.cpu(), view, factors.get(self.cpu(), layout.granularity)?, None, &config)?.0;
        Ok(trits.with_rotation(rotation)?)
    }

    /// Sensitivities to int8 of the embedding and the head. `ends` are the residual streams after the last block.
    fn head(&self, ends: &[Batch]) -> Result<Vec<Sensitivity>, CalibrateError> {
        let (source, spec) = (self.blocks.source, self.blocks.spec());
        let mut all = Vec::new();
        for name in source.weights() {
            let is_head = name == WeightName::Head || name == WeightName::Embedding && spec.tied_head;
            if !matches!(name, WeightName::Head | WeightName::Embedding)
                || self.config.skips(&name.to_string())
            {
                continue;
            }
            let Tensor::Dense(dense) = source.load_stored(name)? else { continue };
            let int8 = Int8Tensor::quantize(&dense, HEAD_GROUP, true)?;
            let (bytes, values) = (int8.bytes() as u64, int8.dequantize());
            let mut kl = 0.0;
            if name == WeightName::Embedding {
                let squares = values.iter().zip(dense.to_f32()).map(|(a, b)| f64::from(a - b).powi(2));
                let of_token = squares.sum::<f64>() / dense.rows().max(1) as f64;
                kl += 0.5 * self.guide.of_embedding() * of_token;
            }
            if is_head {
                kl += self.head_price(ends, values)?;
            }
            let choices = vec![
                Measured { stored: Stored::of(&LayerChoice::Int8), bytes, kl },
                Measured { stored: Stored::of(&unchanged()), bytes: dense.bytes() as u64, kl: 0.0 },
            ];
            let weights = (dense.rows() * dense.cols()) as u64;
            all.push(Sensitivity { layer: name.to_string(), weights, choices });
        }
        Ok(all)
    }

    /// The measured mean divergence with another head.
    fn head_price(&self, ends: &[Batch], values: Vec<f32>) -> Result<f64, CalibrateError> {
        let spec = self.blocks.spec();
        let head = tune::Head::load(self.blocks.source, self.cpu())?;
        let rounded = tune::Head::with_matrix(self.blocks.source, self.cpu(), values)?;
        let rows = ends.iter().flat_map(|batch| batch.x.chunks(LOGIT_ROWS * spec.hidden));
        let (mut sum, mut tokens) = (0.0, 0usize);
        for x in rows {
            if tokens >= HEAD_TOKENS {
                break;
            }
            let [ours, base] = [&rounded, &head].map(|head| head.logits(self.cpu(), x));
            let (ours, base) = (ours?, base?);
            let rows = ours.chunks_exact(spec.vocab).zip(base.chunks_exact(spec.vocab));
            sum += rows.map(|(ours, base)| divergence(ours, base)).sum::<f64>();
            tokens += x.len() / spec.hidden;
        }
        Ok((sum / tokens.max(1) as f64).max(0.0))
    }
}

fn unchanged() -> LayerChoice {
    LayerChoice::Dense { reason: NO_ROOM.to_owned() }
}

/// The candidates of a plan for each layer: up to `most` planes with each of `groups`, int8, and unchanged.
pub(crate) fn options(most: usize, groups: &[Granularity]) -> Vec<LayerChoice> {
    let trits = groups
        .iter()
        .flat_map(|&granularity| (1..=most).map(move |planes| LayerChoice::Trits { planes, granularity }));
    trits.chain([LayerChoice::Int8, unchanged()]).collect()
}
