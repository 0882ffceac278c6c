//! Sources of a decoder's weights.

use std::path::Path;

use trike_cpu::{FileRange, Tiles};
use trike_format::{StoredType, Tensor, TensorInfo};
use trike_nn::WeightName;

use crate::{LlmError, ModelConfig};

/// The weights of one decoder, under the decoder's names.
///
/// [`ModelFile`](crate::ModelFile) is the source that reads a checkpoint. A source that transforms weights wraps another one
/// and has its own [`config`](Self::config): `Folded` of the crate `trike-calibrate` rotates and scales weights in this way.
/// [`LanguageModel::from_source`](crate::LanguageModel::from_source) loads a decoder from any of them.
///
/// ```
/// use trike_llm::{ModelFile, WeightSource};
/// use trike_nn::WeightName;
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny");
/// let file = ModelFile::open(path)?;
/// let source: &dyn WeightSource = &file;
/// let norm = source.load(WeightName::FinalNorm)?;
/// assert_eq!(norm.shape(), [source.config().spec.hidden]);
/// # Ok::<(), trike_llm::LlmError>(())
/// ```
pub trait WeightSource {
    /// The file or directory that the weights come from, for messages.
    fn path(&self) -> &Path;

    /// The model that these weights belong to.
    fn config(&self) -> &ModelConfig;

    /// Shape and stored type of a weight.
    ///
    /// # Errors
    ///
    /// [`FormatError::MissingTensor`](trike_format::FormatError::MissingTensor).
    fn info(&self, name: WeightName) -> Result<&TensorInfo, LlmError>;

    /// Loads a weight.
    ///
    /// # Errors
    ///
    /// When it is missing, is stored in an unsupported type, or contains invalid values.
    fn load(&self, name: WeightName) -> Result<Tensor, LlmError>;

    /// A matrix stored in a mapped file in the layout of the host kernels.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    fn tiles(&self, name: WeightName) -> Result<Option<Tiles<FileRange>>, LlmError> {
        let _ = name;
        Ok(None)
    }

    /// Loads a weight in the type in which a copy of the model stores it.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    fn load_stored(&self, name: WeightName) -> Result<Tensor, LlmError> {
        self.load(name)
    }

    /// Bytes of a weight in its stored type.
    ///
    /// # Errors
    ///
    /// As [`info`](Self::info) and [`load_stored`](Self::load_stored).
    fn stored_bytes(&self, name: WeightName) -> Result<u64, LlmError> {
        Ok(self.info(name)?.bytes)
    }

    /// Whether a weight is stored as floats that its layer ternarizes in every forward pass.
    fn is_online_ternary(&self, _name: WeightName) -> bool {
        false
    }

    /// Every weight of the decoder, in the order of a checkpoint.
    fn weights(&self) -> Vec<WeightName> {
        self.config().spec.weights()
    }

    /// Whether a linear layer of a block is ternary.
    fn is_ternary(&self) -> bool {
        let mut block = self.weights().into_iter().filter(|name| name.is_block_matrix());
        block.any(|name| {
            self.is_online_ternary(name) || self.info(name).is_ok_and(|info| info.kind.is_ternary())
        })
    }

    /// Whether every weight is stored in f32.
    fn is_f32(&self) -> bool {
        self.weights().into_iter().all(|name| self.info(name).is_ok_and(|i| i.kind == StoredType::F32))
    }
}
