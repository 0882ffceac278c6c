//! Trained weights as packed models.

use trike_core::{DenseData, DenseTensor, Int8Tensor, Tensor};
use trike_format::HfDirWriter;
use trike_llm::hf_tensor;
use trike_nn::WeightName;

use crate::{EMBEDDING_GROUP, Parameter, Parameters, Part, TernaryPolicy, TrainError};

/// A parameter as a packed model stores it: the matrices of the blocks ternary, embedding and head int8 if `policy` says so,
/// everything else f32. Dequantized, it is bit-identical to the values used in the forward pass.
///
/// # Errors
///
/// [`TrainError::Grad`] and [`TrainError::Nn`] for values that are not finite.
pub fn packed(parameter: &Parameter, policy: &TernaryPolicy) -> Result<Tensor, TrainError> {
    let Parameter { name, part, cols, values } = parameter;
    let dense = || -> Result<DenseTensor, TrainError> {
        let shape = if name.is_vector() { vec![*cols] } else { vec![parameter.rows(), *cols] };
        Ok(DenseTensor::new(shape, DenseData::F32(values.clone()))?)
    };
    match (&policy.blocks, name) {
        // Adapter factors are never rounded.
        _ if *part != Part::Whole => Ok(Tensor::Dense(dense()?)),
        (Some(how), name) if name.is_block_matrix() => {
            Ok(Tensor::Ternary(how.weights.tensor(values, *cols, &[])?))
        }
        (_, WeightName::Embedding | WeightName::Head) if policy.int8_embedding => {
            Ok(Int8Tensor::quantize(&dense()?, EMBEDDING_GROUP, true)?.into())
        }
        _ => Ok(Tensor::Dense(dense()?)),
    }
}

/// Rounds the parameters to the values of their [`packed`] tensors, for the frozen weights of an [`Adapter`](crate::Adapter):
/// ternary as in the packed model.
///
/// # Errors
///
/// Errors of [`packed`].
pub fn as_packed(mut parameters: Parameters, policy: &TernaryPolicy) -> Result<Parameters, TrainError> {
    for parameter in parameters.all_mut() {
        parameter.values = packed(parameter, policy)?.into_f32();
    }
    Ok(parameters)
}

/// Adds all parameters to a directory, as [`packed`] tensors.
///
/// # Errors
///
/// Errors of [`packed`] and of writing.
pub fn write_packed(
    writer: &mut HfDirWriter,
    parameters: &Parameters,
    policy: &TernaryPolicy,
) -> Result<(), TrainError> {
    for parameter in parameters.all() {
        let tensor = hf_tensor(parameters.spec(), parameter.name, packed(parameter, policy)?)?;
        writer.tensor(&parameter.name.to_string(), &tensor)?;
    }
    Ok(())
}
