//! The matrices of a block during training.

use trike_core::Tensor;
use trike_cpu::grad::{BlockGradients, BlockMatrices, BlockShape, BlockVectors};
use trike_llm::WeightSource;
use trike_nn::{DecoderSpec, DecoderWeights, NnError, WeightName};
use trike_quant::{LatentLearningRates, LatentWeights, MatrixView, QuantError};
use trike_trit::{Coupling, Hadamard};

use crate::{
    CalibrateError, Tuning,
    weights::{BlockWeights, rotated},
};

/// The names of the matrices of a block, in the order of [`BlockMatrices`].
pub(super) fn names(layer: usize) -> [WeightName; BlockMatrices::COUNT] {
    use WeightName as W;
    [W::Query, W::Key, W::Value, W::Output, W::Gate, W::Up, W::Down].map(|name| name(layer))
}

/// Norms and biases of a block, which are not trained.
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

/// A block whose ternary matrices are trained.
pub(super) struct Learner {
    pub(super) vectors: BlockVectors,
    matrices: [(WeightName, Learned); BlockMatrices::COUNT],
}

/// A matrix of the block.
enum Learned {
    /// Trained.
    Latent(Box<Latents>),
    /// Fixed.
    Fixed(Vec<f32>),
}

/// A trained matrix.
struct Latents {
    /// Latent weights, in the rotated basis of the trits.
    latent: LatentWeights,
    rotation: Option<Hadamard>,
}

impl Latents {
    /// Transforms values between the basis of the matrix and that of the latent weights. The transform is its own
    /// inverse, and its own transpose for gradients.
    fn rotated(&self, values: &[f32]) -> Result<Vec<f32>, QuantError> {
        rotated(self.rotation, self.latent.cols(), values)
    }
}

impl Learned {
    fn new(
        input: &dyn WeightSource,
        name: WeightName,
        tuning: &Tuning,
        replaced: &[(WeightName, Tensor)],
    ) -> Result<Self, CalibrateError> {
        let tensor = input.load(name)?;
        let (rows, cols) = (tensor.rows(), tensor.cols());
        let values = tensor.into_f32();
        let trits = match replaced.iter().find(|(other, _)| *other == name) {
            None => return Ok(Self::Fixed(values)),
            Some((_, Tensor::Ternary(t))) if t.coupling() == Coupling::Tied || t.depth() == 1 => t,
            Some((_, other)) => return Ok(Self::Fixed(other.clone().into_f32())),
        };
        let failed = |e| CalibrateError::quantize(name, e);
        let rotation = trits.rotation();
        let trits = trits.clone().with_rotation(None).map_err(|e| failed(e.into()))?;
        let values = rotated(rotation, cols, &values).map_err(failed)?;
        let view = MatrixView::new(rows, cols, &values).map_err(failed)?;
        let keep: Option<Vec<bool>> =
            tuning.keep_zeros.then(|| trits.dequantize().iter().map(|v| *v != 0.0).collect());
        let latent = LatentWeights::new(view, &trits, keep.as_deref()).map_err(failed)?;
        Ok(Self::Latent(Box::new(Latents { latent, rotation })))
    }
}

impl Learner {
    pub(super) fn new(
        input: &dyn WeightSource,
        layer: usize,
        tuning: &Tuning,
        replaced: &[(WeightName, Tensor)],
    ) -> Result<Self, CalibrateError> {
        let vectors = vectors(&input.config().spec, layer, &mut BlockWeights(input))?;
        let matrix = |name| Ok::<_, CalibrateError>((name, Learned::new(input, name, tuning, replaced)?));
        let [q, k, v, o, g, u, d] = names(layer).map(matrix);
        Ok(Self { vectors, matrices: [q?, k?, v?, o?, g?, u?, d?] })
    }

    /// All blocks of a model.
    pub(super) fn all(
        input: &dyn WeightSource,
        tuning: &Tuning,
        replaced: &[Vec<(WeightName, Tensor)>],
    ) -> Result<Vec<Self>, CalibrateError> {
        let each = replaced.iter().enumerate();
        each.map(|(layer, replaced)| Self::new(input, layer, tuning, replaced)).collect()
    }

    /// The current matrices.
    pub(super) fn matrices(&self, shape: &BlockShape) -> Result<BlockMatrices, CalibrateError> {
        let value = |(name, matrix): &(WeightName, Learned)| match matrix {
            Learned::Latent(m) => {
                m.rotated(&m.latent.values()).map_err(|e| CalibrateError::quantize(*name, e))
            }
            Learned::Fixed(values) => Ok(values.clone()),
        };
        let [q, k, v, o, g, u, d] = self.matrices.each_ref().map(value);
        Ok(BlockMatrices::new(shape, [q?, k?, v?, o?, g?, u?, d?])?)
    }

    pub(super) fn update(
        &mut self,
        gradients: &BlockGradients,
        rates: LatentLearningRates,
    ) -> Result<(), CalibrateError> {
        for ((name, matrix), gradient) in self.matrices.iter_mut().zip(&gradients.matrices) {
            if let Learned::Latent(m) = matrix {
                let failed = |e| CalibrateError::quantize(*name, e);
                let gradient = m.rotated(gradient).map_err(failed)?;
                // Each plane makes the levels three times as dense, so there is less to gain.
                let factor = 3f32.powi(1 - m.latent.depth() as i32);
                let rates = rates.with_codes(rates.codes * factor).with_scales(rates.scales * factor);
                m.latent.update(&gradient, rates).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Writes the trained matrices back.
    pub(super) fn finish(&self, replaced: &mut [(WeightName, Tensor)]) -> Result<(), CalibrateError> {
        for (name, matrix) in &self.matrices {
            if let Learned::Latent(tuned) = matrix
                && let Latents { latent, rotation } = &**tuned
                && let Some((_, tensor)) = replaced.iter_mut().find(|(other, _)| other == name)
            {
                let failed = |e| CalibrateError::quantize(*name, e);
                let trits = latent.tensor().map_err(failed)?;
                *tensor = trits.with_rotation(*rotation).map_err(|e| failed(e.into()))?.into();
            }
        }
        Ok(())
    }
}
