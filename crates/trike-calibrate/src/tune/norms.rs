//! The norms of a block during training.

use trike_core::{DenseData, DenseTensor, Tensor};
use trike_cpu::grad::BlockVectors;
use trike_llm::WeightSource;
use trike_nn::{DecoderSpec, DecoderWeights, NnError, WeightName};
use trike_quant::Adam;

use crate::{CalibrateError, weights::BlockWeights};

/// The names of the norms of a block, in the order of [`BlockVectors::norms`].
pub(crate) fn norms(layer: usize) -> [WeightName; BlockVectors::NORMS] {
    use WeightName as W;
    [W::AttentionNorm, W::QueryNorm, W::KeyNorm, W::AttentionSubNorm, W::MlpNorm, W::MlpSubNorm]
        .map(|name| name(layer))
}

/// Norms and biases of a block.
pub(super) fn vectors(
    spec: &DecoderSpec,
    layer: usize,
    weights: &mut impl DecoderWeights,
) -> Result<BlockVectors, NnError> {
    use WeightName as W;
    let mut optional = |wanted: bool, name| wanted.then(|| weights.vector(name)).transpose();
    let b = spec.biases;
    let biases = [
        optional(b.qkv, W::QueryBias(layer))?,
        optional(b.qkv, W::KeyBias(layer))?,
        optional(b.qkv, W::ValueBias(layer))?,
        optional(b.output, W::OutputBias(layer))?,
        optional(b.mlp, W::GateBias(layer))?,
        optional(b.mlp, W::UpBias(layer))?,
        optional(b.mlp, W::DownBias(layer))?,
    ];
    let attention_sub_norm = optional(spec.sub_norms, W::AttentionSubNorm(layer))?;
    let mlp_sub_norm = optional(spec.sub_norms, W::MlpSubNorm(layer))?;
    let qk_norm = match spec.qk_norm {
        false => None,
        true => Some([weights.vector(W::QueryNorm(layer))?, weights.vector(W::KeyNorm(layer))?]),
    };
    Ok(BlockVectors {
        attention_norm: weights.vector(W::AttentionNorm(layer))?,
        qk_norm,
        attention_sub_norm,
        mlp_norm: weights.vector(W::MlpNorm(layer))?,
        mlp_sub_norm,
        biases,
    })
}

/// The weights of the norms of a block, which are trained, and its biases, which are not.
#[derive(Clone)]
pub(super) struct TunedNorms {
    layer: usize,
    vectors: BlockVectors,
    each: [Option<Adam>; BlockVectors::NORMS],
}

impl TunedNorms {
    /// Starts from those in `replaced`, otherwise from the model's.
    pub(super) fn new(
        input: &dyn WeightSource,
        layer: usize,
        replaced: &[(WeightName, Tensor)],
    ) -> Result<Self, CalibrateError> {
        let mut weights = BlockWeights::with(input, replaced);
        let vectors = vectors(&input.config().spec, layer, &mut weights)?;
        let each = vectors.norms().map(|norm| norm.map(|norm| Adam::new(norm.len())));
        Ok(Self { layer, vectors, each })
    }

    pub(super) fn vectors(&self) -> &BlockVectors {
        &self.vectors
    }

    /// A step that changes each weight by about a share of `rate` of the root mean square of its norm.
    pub(super) fn update(&mut self, gradients: &BlockVectors, rate: f32) -> Result<(), CalibrateError> {
        let all = self.vectors.norms_mut().into_iter().zip(&mut self.each).zip(gradients.norms());
        for (name, ((norm, adam), gradient)) in norms(self.layer).into_iter().zip(all) {
            let (Some(norm), Some(adam), Some(gradient)) = (norm, adam, gradient) else { continue };
            let mean = norm.iter().map(|w| w * w).sum::<f32>() / norm.len().max(1) as f32;
            let by = rate * mean.sqrt();
            adam.update(gradient, |i, direction| norm[i] -= by * direction)
                .map_err(|e| CalibrateError::quantize(name, e))?;
        }
        Ok(())
    }

    /// Writes the norms back.
    pub(super) fn finish(&self, replaced: &mut Vec<(WeightName, Tensor)>) -> Result<(), CalibrateError> {
        for (name, norm) in norms(self.layer).into_iter().zip(self.vectors.norms()) {
            let Some(norm) = norm else { continue };
            let tensor = DenseTensor::new(vec![norm.len()], DenseData::F32(norm.to_vec()))?;
            match replaced.iter_mut().find(|(other, _)| *other == name) {
                Some((_, place)) => *place = tensor.into(),
                None => replaced.push((name, tensor.into())),
            }
        }
        Ok(())
    }
}
