//! Assembly of the output directory from finished blocks and unchanged weights.

use trike_format::{HfDirWriter, Int8Tensor, Tensor};
use trike_llm::{ModelFile, WeightSource, hf_tensor, write_tokenizer};
use trike_nn::WeightName;

use crate::{CalibrateError, LayerChoice, ModelQuantizationConfig, store::Store};

/// Group size of an int8 head: a block of `Q8_0`.
pub(crate) const HEAD_GROUP: usize = 32;

/// Stored size in bytes of a tensor that is not a ternary linear layer.
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

/// The LM head or embedding in int8, if the plan or the configuration requests it.
fn rounded_head(
    config: &ModelQuantizationConfig,
    name: WeightName,
    tensor: &Tensor,
) -> Result<Option<Int8Tensor>, CalibrateError> {
    let Tensor::Dense(dense) = tensor else { return Ok(None) };
    let wanted = match config.layers.get(&name.to_string()) {
        Some(choice) => *choice == LayerChoice::Int8,
        None => config.int8_head,
    };
    match wanted && matches!(name, WeightName::Embedding | WeightName::Head) {
        true => Ok(Some(Int8Tensor::quantize(dense, HEAD_GROUP, true)?)),
        false => Ok(None),
    }
}

/// Writes the model's directory into the store, and returns the bytes and number of weights of its tensors.
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
    notes.extend(write_tokenizer(&writer, file, config.tokenizer.as_deref())?);
    writer.finish()?;
    Ok((bytes, parameters))
}
