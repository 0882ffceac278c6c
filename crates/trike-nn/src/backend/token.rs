//! The step of one token of each sequence.

use super::Backend;
use crate::{NnError, StepInputs, StepLogits, step::usable};

/// A step of one token of one or more sequences: the usual decode step, identical from token to token except for its inputs.
#[derive(Debug)]
pub struct TokenStep<'a, B: Backend + ?Sized> {
    /// The id, position and window of each token: every segment is one row.
    pub inputs: StepInputs,
    /// Capacity of each sequence's KV caches, in positions.
    pub capacity: usize,
    /// The embedding table for the ids.
    pub table: &'a B::Matrix,
    /// A number unique to the model, which changes whenever a weight is replaced.
    pub version: u64,
    /// Number of largest logits requested of each row; `None` for all.
    pub largest: Option<usize>,
}

/// The KV caches of each sequence of a step, those of one layer after the other.
pub type StepCaches<'a, 'b, B> = &'a mut [&'b mut [<B as Backend>::Cache]];

/// Runs the decoder over the inputs of a step, up to the logits of each token.
pub type RunStep<'a, B> =
    dyn FnMut(&<B as Backend>::Inputs, StepCaches<'_, '_, B>) -> Result<<B as Backend>::Tensor, NnError> + 'a;

/// The largest logits of each of `rows` rows, or all logits if one of those is unusable or they were not requested.
pub(crate) fn logits_of<B: Backend + ?Sized>(
    backend: &B,
    logits: B::Tensor,
    largest: Option<usize>,
    rows: usize,
) -> Result<Vec<StepLogits>, NnError> {
    match largest.map_or(Ok(None), |k| backend.top(&logits, k))? {
        Some(best) if best.len() == rows && best.iter().all(|row| usable(row)) => {
            Ok(best.into_iter().map(StepLogits::Top).collect())
        }
        _ => Ok(split(backend.move_to_host(logits)?, rows)),
    }
}

/// All logits of each of `rows` rows of one length.
pub(crate) fn split(all: Vec<f32>, rows: usize) -> Vec<StepLogits> {
    match rows {
        0 => Vec::new(),
        1 => vec![StepLogits::All(all)],
        _ => all.chunks_exact((all.len() / rows).max(1)).map(|row| StepLogits::All(row.to_vec())).collect(),
    }
}
