//! Errors of adapter files.

/// An adapter file that is malformed or needs an unsupported feature.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// A file larger than any adapter of this model.
    #[error("the file has {bytes} bytes: expected at most {limit}")]
    Size {
        /// Bytes of the file.
        bytes: u64,
        /// The largest number.
        limit: u64,
    },
    /// The configuration is not JSON.
    #[error("expected a JSON object: {0}")]
    Json(serde_json::Error),
    /// A setting of the configuration is missing, malformed or not supported.
    #[error("{field} is {got}: expected {expected}")]
    Setting {
        /// The setting.
        field: String,
        /// The accepted values.
        expected: &'static str,
        /// The value, in JSON; `missing` if there is none.
        got: String,
    },
    /// The tensors cannot be read or written.
    #[error(transparent)]
    Tensors(safetensors::SafeTensorError),
    /// A factor is missing.
    #[error("{name} is missing")]
    Missing {
        /// Name of the tensor.
        name: String,
    },
    /// A tensor that is not a factor of a target.
    #[error("{name} is not a tensor of the adapter: expected lora_A and lora_B of the target modules only")]
    Unexpected {
        /// Name of the tensor.
        name: String,
    },
    /// A factor of a wrong shape.
    #[error("{name}: expected {} x {}, got {got:?}", expected.0, expected.1)]
    Shape {
        /// Name of the tensor.
        name: String,
        /// The shape required by rank and model.
        expected: (usize, usize),
        /// The shape in the file.
        got: Vec<usize>,
    },
    /// A factor of an unsupported dtype.
    #[error("{name} is stored as {got}: expected F32, F16 or BF16")]
    Dtype {
        /// Name of the tensor.
        name: String,
        /// The type in the file.
        got: String,
    },
    /// A factor with a value that is NaN or infinite.
    #[error("{name} has a value that is not finite: expected numbers only")]
    NonFinite {
        /// Name of the tensor.
        name: String,
    },
}
