//! The step of one token.

use super::Backend;
use crate::{NnError, StepInputs, StepLogits, step::usable};

/// A step of one token of one sequence: the usual decode step, identical from token to token except for its inputs.
#[derive(Debug)]
pub struct TokenStep<'a, B: Backend + ?Sized> {
    /// The id, position and window: one row of one segment.
    pub inputs: StepInputs,
    /// Capacity of the sequence's KV caches, in positions.
    pub capacity: usize,
    /// The embedding table for the id.
    pub table: &'a B::Matrix,
    /// A number unique to the model, which changes whenever a weight is replaced.
    pub version: u64,
    /// Number of largest logits requested; `None` for all.
    pub largest: Option<usize>,
}

/// Runs the decoder over the inputs of a step, up to the logits.
pub type RunStep<'a, B> = dyn FnMut(&<B as Backend>::Inputs) -> Result<<B as Backend>::Tensor, NnError> + 'a;

/// The largest logits of one row, or all logits if those are unusable or were not requested.
pub(crate) fn logits_of<B: Backend + ?Sized>(
    backend: &B,
    logits: B::Tensor,
    largest: Option<usize>,
) -> Result<StepLogits, NnError> {
    match largest.map_or(Ok(None), |k| backend.top(&logits, k))?.as_deref_mut() {
        Some([row]) if usable(row) => Ok(StepLogits::Top(std::mem::take(row))),
        _ => Ok(StepLogits::All(backend.move_to_host(logits)?)),
    }
}
