//! Where the weights of a decoder come from.

use std::path::Path;

use trike_format::{StoredType, Tensor, TensorInfo};
use trike_nn::WeightName;

use crate::{LlmError, ModelConfig, names};

/// The weights of one decoder, by the decoder's own names.
///
/// [`ModelFile`](crate::ModelFile) is the source that reads a checkpoint. A source that changes what is read wraps another one and keeps its own
/// [`config`](Self::config): `Folded` of the crate `trike-calibrate` rotates and scales weights on their way this way.
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
    /// When it is missing, stored in a type that is not read, or holds unusable numbers.
    fn load(&self, name: WeightName) -> Result<Tensor, LlmError>;

    /// Loads a weight in the type in which a copy of the model stores it.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    fn load_stored(&self, name: WeightName) -> Result<Tensor, LlmError> {
        self.load(name)
    }

    /// Bytes of a weight in the type in which the model stores it.
    ///
    /// # Errors
    ///
    /// As [`info`](Self::info) and [`load_stored`](Self::load_stored).
    fn stored_bytes(&self, name: WeightName) -> Result<u64, LlmError> {
        Ok(self.info(name)?.bytes)
    }

    /// Whether a weight is stored as floats that its layer makes ternary each time it runs.
    fn ternarizes(&self, _name: WeightName) -> bool {
        false
    }

    /// Every weight of the decoder, in the order of a checkpoint.
    fn weights(&self) -> Vec<WeightName> {
        names::all(&self.config().spec)
    }

    /// Whether a linear layer of a block is ternary.
    fn is_ternary(&self) -> bool {
        let mut block = self.weights().into_iter().filter(|name| name.is_block_matrix());
        block.any(|name| self.ternarizes(name) || self.info(name).is_ok_and(|info| info.kind.is_ternary()))
    }

    /// Whether every weight is stored in f32.
    fn is_f32(&self) -> bool {
        self.weights().into_iter().all(|name| self.info(name).is_ok_and(|i| i.kind == StoredType::F32))
    }
}
