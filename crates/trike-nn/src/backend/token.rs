//! The step of one token.

use super::Backend;
use crate::{NnError, StepInputs, StepLogits, step::usable};

/// A step in which one sequence reads one token: the usual one when a model writes, and always the same but for its inputs.
#[derive(Debug)]
pub struct TokenStep<'a, B: Backend + ?Sized> {
    /// The id, position and window: one row of one segment.
    pub inputs: StepInputs,
    /// Positions that the sequence's caches hold.
    pub capacity: usize,
    /// The embedding in which the id is looked up.
    pub table: &'a B::Matrix,
    /// A number that no two models share, nor a model before and after a weight was replaced.
    pub version: u64,
    /// How many of the largest logits are asked for; `None` for all.
    pub largest: Option<usize>,
}

/// Runs the decoder over the inputs of a step, up to the logits.
pub type RunStep<'a, B> = dyn FnMut(&<B as Backend>::Inputs) -> Result<<B as Backend>::Tensor, NnError> + 'a;

/// The largest logits of one row, or all of them where those are not usable or not asked for.
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
