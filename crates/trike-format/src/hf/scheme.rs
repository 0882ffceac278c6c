//! Packing scheme given by `quantization_config`.

use std::path::Path;

use serde_json::Value;

use super::{
    bitnet::BitNet,
    packed::{self, Packed},
};
use crate::{FormatError, error::unsupported};

/// Packing scheme of the weights of a directory.
#[derive(Debug)]
pub(crate) enum Scheme {
    /// Dense weights.
    Dense,
    /// Trike's packing: names and descriptions of the packed tensors.
    Trike(Vec<(String, Packed)>),
    /// BitNet layers.
    BitNet(BitNet),
}

impl Scheme {
    pub(crate) fn of(path: &Path, config: &Value) -> Result<Self, FormatError> {
        let quantization = match config.get("quantization_config") {
            None | Some(Value::Null) => return Ok(Self::Dense),
            Some(quantization) => quantization,
        };
        match quantization.get("quant_method").and_then(Value::as_str) {
            Some("trike") => packed::descriptions(path, quantization).map(Self::Trike),
            Some("bitnet") => BitNet::parse(path, quantization).map(Self::BitNet),
            other => Err(unsupported(
                path,
                format!("quant_method {}", other.unwrap_or("(none)")),
                "use the model's variant with dense weights (F32, F16, BF16), or a GGUF file of it",
            )),
        }
    }
}
