//! A model with some matrices rounded to a type of llama.cpp, for comparison with trits. Nothing is stored.

use std::path::Path;

use trike_core::{DenseData, DenseTensor, Tensor};
use trike_format::{GgufType, TensorInfo, round_to_blocks};
use trike_llm::{LlmError, ModelConfig, ModelFile, WeightSource};
use trike_nn::{NnError, WeightName};

/// A model whose named matrices are rounded.
pub(crate) struct Rounded<'a> {
    pub(crate) inner: &'a ModelFile,
    pub(crate) to: GgufType,
    /// Names of the matrices.
    pub(crate) layers: Vec<String>,
}

impl WeightSource for Rounded<'_> {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn config(&self) -> &ModelConfig {
        self.inner.config()
    }

    fn info(&self, name: WeightName) -> Result<&TensorInfo, LlmError> {
        self.inner.info(name)
    }

    fn load(&self, name: WeightName) -> Result<Tensor, LlmError> {
        let tensor = self.inner.load(name)?;
        if !self.layers.contains(&name.to_string()) {
            return Ok(tensor);
        }
        // As floats: the measurement is of the type, not of the kernels for it.
        let (shape, values) = (tensor.shape(), round_to_blocks(self.to, &tensor)?.into_f32());
        Ok(DenseTensor::new(shape, DenseData::F32(values)).map_err(NnError::from)?.into())
    }

    fn is_f32(&self) -> bool {
        true
    }
}
