//! The finished directory, put together from finished blocks and the weights that stay as they were.

use trike_format::{HfDirWriter, Int8Tensor, Tensor};
use trike_llm::{ModelFile, WeightSource, carry_tokenizer, hf_tensor};
use trike_nn::WeightName;

use crate::{CalibrateError, ModelQuantizationConfig, store::Store};

/// Weights that share a scale when a head is rounded: a block of `Q8_0`.
pub(crate) const HEAD_GROUP: usize = 32;

/// Bytes that a tensor takes in the result when it is no linear layer that becomes ternary.
pub(crate) fn stored_bytes(
    input: &dyn WeightSource,
    config: &ModelQuantizationConfig,
    name: WeightName,
) -> Result<u64, CalibrateError> {
    let tensor = input.load_stored(name)?;
    Ok(match rounded_head(config, name, &tensor)? {
        Some(int8) => int8.bytes() as u64,
        None => tensor.bytes() as u64,
    })
}

/// A head or embedding in int8, where that was asked for.
fn rounded_head(
    config: &ModelQuantizationConfig,
    name: WeightName,
    tensor: &Tensor,
) -> Result<Option<Int8Tensor>, CalibrateError> {
    match tensor {
        Tensor::Dense(dense)
            if config.int8_head && matches!(name, WeightName::Embedding | WeightName::Head) =>
        {
            Ok(Some(Int8Tensor::quantize(dense, HEAD_GROUP, true)?))
        }
        _ => Ok(None),
    }
}

/// Writes the model's directory into the store, and returns the bytes and weights of its tensors.
pub(crate) fn assemble(
    file: &ModelFile,
    input: &dyn WeightSource,
    config: &ModelQuantizationConfig,
    store: &Store,
    json: serde_json::Value,
    notes: &mut Vec<String>,
) -> Result<(u64, u64), CalibrateError> {
    let mut writer = HfDirWriter::create(store.model(), json)?;
    let spec = &input.config().spec;
    let (mut bytes, mut parameters) = (0u64, 0u64);
    let blocks = store.blocks(spec.layers)?;
    for name in input.weights() {
        let mut tensor = match blocks.iter().find_map(|block| block.load(name)) {
            Some(tensor) => tensor?,
            None => input.load_stored(name)?,
        };
        tensor = hf_tensor(spec, name, tensor)?;
        if let Some(int8) = rounded_head(config, name, &tensor)? {
            tensor = int8.into();
        }
        writer.tensor(&name.to_string(), &tensor)?;
        bytes += tensor.bytes() as u64;
        parameters += tensor.shape().iter().map(|&d| d as u64).product::<u64>();
    }
    notes.extend(carry_tokenizer(&writer, file, config.tokenizer.as_deref())?);
    writer.finish()?;
    Ok((bytes, parameters))
}
