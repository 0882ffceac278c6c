//! The norms of a block during training.

use trike_autodiff::TapeEngine;
use trike_core::{DenseData, DenseTensor, Tensor};
use trike_llm::WeightSource;
use trike_nn::WeightName;
use trike_quant::Adam;

use super::{tape::BlockGradients, vectors::Vectors};
use crate::{CalibrateError, weights::BlockWeights};

/// The weights of the norms of a block, which are trained, and its biases, which are not.
#[derive(Clone)]
pub(super) struct TunedNorms {
    layer: usize,
    vectors: Vectors,
    each: [Option<Adam>; 6],
}

impl TunedNorms {
    /// Starts from those in `replaced`, otherwise from the model's.
    pub(super) fn new(
        input: &dyn WeightSource,
        layer: usize,
        replaced: &[(WeightName, Tensor)],
    ) -> Result<Self, CalibrateError> {
        let mut weights = BlockWeights::with(input, replaced);
        let vectors = Vectors::load(&input.config().spec, layer, &mut weights)?;
        let each = vectors.norms.each_ref().map(|norm| norm.as_ref().map(|norm| Adam::new(norm.len())));
        Ok(Self { layer, vectors, each })
    }

    pub(super) fn vectors(&self) -> &Vectors {
        &self.vectors
    }

    /// A step that changes each weight by about the fraction `rate` of the root mean square of its norm.
    pub(super) fn update<E: TapeEngine>(
        &mut self,
        engine: &E,
        gradients: &BlockGradients<E>,
        rate: f32,
    ) -> Result<(), CalibrateError> {
        let all = self.vectors.norms.iter_mut().zip(&mut self.each);
        for (name, (norm, adam)) in WeightName::norms(self.layer).into_iter().zip(all) {
            let (Some(norm), Some(adam), Some(gradient)) = (norm, adam, gradients.of(engine, name)?) else {
                continue;
            };
            let mean = norm.iter().map(|w| w * w).sum::<f32>() / norm.len().max(1) as f32;
            let by = rate * mean.sqrt();
            adam.update(&gradient, |i, direction| norm[i] -= by * direction)
                .map_err(|e| CalibrateError::quantize(name, e))?;
        }
        Ok(())
    }

    /// Writes the norms back.
    pub(super) fn finish(&self, replaced: &mut Vec<(WeightName, Tensor)>) -> Result<(), CalibrateError> {
        for (name, norm) in WeightName::norms(self.layer).into_iter().zip(&self.vectors.norms) {
            let Some(norm) = norm else { continue };
            let tensor = DenseTensor::new(vec![norm.len()], DenseData::F32(norm.clone()))?;
            match replaced.iter_mut().find(|(other, _)| *other == name) {
                Some((_, place)) => *place = tensor.into(),
                None => replaced.push((name, tensor.into())),
            }
        }
        Ok(())
    }
}
