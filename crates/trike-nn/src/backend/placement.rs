//! The part of a model that a backend holds: stages and ranks.

use std::ops::Range;

use trike_core::Tensor;

use super::BackendWeights;
use crate::{NnError, StepNotice, WeightName};

/// The part of a model that a backend holds: all of it, unless the model runs on several devices or ranks.
///
/// *Stages* are consecutive layers with memory of their own, on a backend over several devices. *Ranks* are processes that each
/// hold some layers or a row shard of every matrix.
pub trait BackendPlacement: BackendWeights {
    /// Number of stages. The first one has the embedding too, the last one the final norm and the LM head.
    fn stages(&self) -> usize {
        1
    }

    /// The stage that runs a layer.
    fn stage_of(&self, layer: usize) -> usize {
        let _ = layer;
        0
    }

    /// The backend of a stage, to which its weights, caches and tensors belong. It takes the [`Inputs`](crate::BackendBase::Inputs) made by the
    /// whole backend.
    fn stage(&self, index: usize) -> &Self {
        let _ = index;
        self
    }

    /// The rows of a weight that this backend holds, out of `rows`; for a vector, its elements. Empty for a stage that another rank
    /// runs.
    fn rows_of(&self, name: WeightName, rows: usize) -> Range<usize> {
        let _ = name;
        0..rows
    }

    /// Loads [`rows_of`](Self::rows_of) a matrix of `rows` rows when they are a shard of it; `weight` reads the whole matrix.
    ///
    /// # Errors
    ///
    /// Errors of `weight`, and as [`load_matrix`](crate::BackendWeights::load_matrix).
    fn load_rows(
        &self,
        name: WeightName,
        rows: usize,
        weight: &mut dyn FnMut() -> Result<Tensor, NnError>,
    ) -> Result<Self::Matrix, NnError> {
        self.load_part(weight()?, self.rows_of(name, rows))
    }

    /// Called before each step, so that the other ranks run it too.
    ///
    /// # Errors
    ///
    /// [`NnError::Unsupported`] for a step of several sequences on several ranks, and errors of messages.
    fn announce(&self, step: &StepNotice<'_>) -> Result<(), NnError> {
        let _ = step;
        Ok(())
    }

    /// The next step that rank 0 [announces](Self::announce); `None` at the end of the run, and on every backend that is not a
    /// follower.
    ///
    /// # Errors
    ///
    /// [`NnError::Notice`], and errors of messages.
    fn next_step(&self) -> Result<Option<StepNotice<'static>>, NnError> {
        Ok(None)
    }
}
