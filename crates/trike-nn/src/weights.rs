//! Source of a decoder's weights.

use trike_core::Tensor;
use trike_cpu::{FileRange, Tiles};

use crate::{NnError, WeightName};

/// Source of a decoder's weights.
pub trait DecoderWeights {
    /// A matrix.
    ///
    /// # Errors
    ///
    /// [`NnError::Load`] when it is missing or cannot be read.
    fn matrix(&mut self, name: WeightName) -> Result<Tensor, NnError>;

    /// A matrix stored in a mapped file in the layout of the host kernels; `None` for any other. A backend that cannot use it
    /// requests [`matrix`](Self::matrix) instead.
    ///
    /// # Errors
    ///
    /// As [`matrix`](Self::matrix).
    fn tiles(&mut self, name: WeightName) -> Result<Option<Tiles<FileRange>>, NnError> {
        let _ = name;
        Ok(None)
    }

    /// The weights of a norm, or a bias.
    ///
    /// # Errors
    ///
    /// As [`matrix`](Self::matrix).
    fn vector(&mut self, name: WeightName) -> Result<Vec<f32>, NnError>;
}
