//! The matrices and norms of a block during training.

use std::borrow::Borrow;

use trike_autodiff::{EngineValues, TapeEngine};
use trike_core::Tensor;
use trike_llm::WeightSource;
use trike_nn::WeightName;
use trike_quant::{LatentLearningRates, LatentWeights, MatrixView, QuantError};
use trike_trit::{Coupling, Hadamard};

use super::executors::Executors;
use super::norms::TunedNorms;
use super::tape::{BlockGradients, BlockValues, VectorValues};
use crate::{CalibrateError, Tuning, weights::rotated};

/// A block whose ternary matrices and norms are trained. Latent weights are on the host, fixed matrices in the memory of the engine.
pub(crate) struct Learner<E: TapeEngine> {
    norms: TunedNorms,
    matrices: [(WeightName, Learned<E>); 7],
}

/// Each plane makes the levels three times denser, so there is less to gain: learning rates of scales are divided by three per
/// plane.
pub(super) fn by_depth(depth: usize) -> f32 {
    3f32.powi(1 - depth as i32)
}

/// Factor on the learning rates of codes: as for scales, except that 1/9 is better than 1/3 for two planes (stories260K in groups
/// of 32: a remaining divergence of 0.069 nats instead of 0.080).
fn of_codes(depth: usize) -> f32 {
    if depth == 2 { by_depth(3) } else { by_depth(depth) }
}

/// A matrix of the block.
enum Learned<E: TapeEngine> {
    /// Trained.
    Latent(Box<Latents>),
    /// Fixed.
    Fixed(E::Tensor),
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

impl<E: TapeEngine> Learned<E> {
    fn new(
        engine: &E,
        input: &dyn WeightSource,
        name: WeightName,
        tuning: &Tuning,
        replaced: &[(WeightName, Tensor)],
    ) -> Result<Self, CalibrateError> {
        let tensor = input.load(name)?;
        let (rows, cols) = (tensor.rows(), tensor.cols());
        let values = tensor.into_f32();
        let trits = match replaced.iter().find(|(other, _)| *other == name) {
            None => return Ok(Self::Fixed(engine.upload(values)?)),
            Some((_, Tensor::Ternary(t))) if t.coupling() == Coupling::Tied || t.depth() == 1 => t,
            Some((_, other)) => return Ok(Self::Fixed(engine.upload(other.clone().into_f32())?)),
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

impl<E: TapeEngine> Learned<E> {
    /// The current values.
    fn values(&self, name: WeightName, on: Executors<'_, E>) -> Result<EngineValues<'_, E>, CalibrateError> {
        match self {
            Self::Latent(m) => {
                let values = m.rotated(&m.latent.values(on.cpu));
                let values = values.map_err(|e| CalibrateError::quantize(name, e))?;
                Ok(EngineValues::Owned(on.engine.upload(values)?))
            }
            Self::Fixed(values) => Ok(EngineValues::Borrowed(values.borrow())),
        }
    }
}

impl<E: TapeEngine> Learner<E> {
    pub(crate) fn new(
        engine: &E,
        input: &dyn WeightSource,
        layer: usize,
        tuning: &Tuning,
        replaced: &[(WeightName, Tensor)],
    ) -> Result<Self, CalibrateError> {
        let norms = TunedNorms::new(input, layer, replaced)?;
        let matrix =
            |name| Ok::<_, CalibrateError>((name, Learned::new(engine, input, name, tuning, replaced)?));
        let [q, k, v, o, g, u, d] = WeightName::matrices(layer).map(matrix);
        Ok(Self { norms, matrices: [q?, k?, v?, o?, g?, u?, d?] })
    }

    /// All blocks of a model.
    pub(super) fn all(
        engine: &E,
        input: &dyn WeightSource,
        tuning: &Tuning,
        replaced: &[Vec<(WeightName, Tensor)>],
    ) -> Result<Vec<Self>, CalibrateError> {
        let each = replaced.iter().enumerate();
        each.map(|(layer, replaced)| Self::new(engine, input, layer, tuning, replaced)).collect()
    }

    /// The current weights.
    pub(crate) fn values(&self, on: Executors<'_, E>) -> Result<BlockValues<'_, E>, CalibrateError> {
        let [q, k, v, o, g, u, d] = self.matrices.each_ref().map(|(name, matrix)| matrix.values(*name, on));
        Ok(BlockValues {
            matrices: [q?, k?, v?, o?, g?, u?, d?],
            trained: self.matrices.each_ref().map(|(_, matrix)| matches!(matrix, Learned::Latent(_))),
            vectors: VectorValues::new(on.engine, self.norms.vectors())?,
        })
    }

    pub(super) fn update(
        &mut self,
        on: Executors<'_, E>,
        gradients: &BlockGradients<E>,
        rates: LatentLearningRates,
    ) -> Result<(), CalibrateError> {
        let mut deepest = 1;
        for (name, matrix) in &mut self.matrices {
            if let Learned::Latent(m) = matrix
                && let Some(gradient) = gradients.of(on.engine, *name)?
            {
                let failed = |e| CalibrateError::quantize(*name, e);
                let gradient = m.rotated(&gradient).map_err(failed)?;
                let depth = m.latent.depth();
                deepest = deepest.max(depth);
                let codes = rates.codes * of_codes(depth);
                let rates = rates.with_codes(codes).with_scales(rates.scales * by_depth(depth));
                m.latent.update(on.cpu, &gradient, rates).map_err(failed)?;
            }
        }
        self.norms.update(on.engine, gradients, rates.scales * by_depth(deepest))
    }

    /// Writes the trained matrices and norms back.
    pub(super) fn finish(&self, replaced: &mut Vec<(WeightName, Tensor)>) -> Result<(), CalibrateError> {
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
        self.norms.finish(replaced)
    }
}
