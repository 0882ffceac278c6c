//! Loading and rotation of the weights of a block.

use trike_core::{DenseData, DenseTensor, Tensor};
use trike_llm::WeightSource;
use trike_nn::{DecoderWeights, NnError, WeightName};
use trike_quant::{QuantError, Rotation, SquareMatrix};
use trike_trit::Hadamard;

use crate::{CalibrateError, ModelQuantizationConfig};

/// Loads the weights of a block, dense and in f32.
pub(crate) struct BlockWeights<'a> {
    source: &'a dyn WeightSource,
    replaced: &'a [(WeightName, Tensor)],
}

impl<'a> BlockWeights<'a> {
    pub(crate) fn new(source: &'a dyn WeightSource) -> Self {
        Self { source, replaced: &[] }
    }

    /// A loader with some weights replaced.
    pub(crate) fn with(source: &'a dyn WeightSource, replaced: &'a [(WeightName, Tensor)]) -> Self {
        Self { source, replaced }
    }

    fn load(&self, name: WeightName) -> Result<Tensor, NnError> {
        match self.replaced.iter().find(|(other, _)| *other == name) {
            Some((_, tensor)) => Ok(tensor.clone()),
            None => self
                .source
                .load(name)
                .map_err(|e| NnError::Load { name: name.to_string(), source: Box::new(e) }),
        }
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

/// Rotates rows of weights, so that they match rotated inputs; `cols` is the number of inputs.
pub(crate) fn rotated(rotation: Option<Hadamard>, cols: usize, rows: &[f32]) -> Result<Vec<f32>, QuantError> {
    let mut values = rows.to_vec();
    if let Some(rotation) = rotation {
        Rotation::plain(cols, rotation)?.rows(&mut values)?;
    }
    Ok(values)
}

/// The Hessian of the rotated inputs, from that of the unrotated inputs.
pub(crate) fn rotated_hessian(
    rotation: Hadamard,
    hessian: &SquareMatrix,
) -> Result<SquareMatrix, QuantError> {
    let width = hessian.side();
    let mut values = rotated(Some(rotation), width, hessian.values())?;
    Rotation::plain(width, rotation)?.columns(&mut values, width)?;
    SquareMatrix::new(width, values)
}

/// Number of weights of the linear layers of all blocks.
pub(crate) fn block_weights(source: &dyn WeightSource) -> Result<u64, CalibrateError> {
    let names = source.weights().into_iter().filter(|name| name.is_block_matrix());
    names.map(|name| Ok(source.info(name)?.elements())).sum()
}

/// Whether a layer can become ternary and the configuration does not exclude it.
pub(crate) fn is_convertible(
    source: &dyn WeightSource,
    config: &ModelQuantizationConfig,
    name: WeightName,
) -> Result<bool, CalibrateError> {
    let info = source.info(name)?;
    let ternary = info.kind.is_ternary() || source.is_online_ternary(name);
    let small = u128::from(info.elements()) < config.min_layer_size as u128;
    Ok(!(ternary || small || config.skips(&name.to_string())))
}
