//! Decode steps: one token of each sequence.

use super::{BackendBase, BackendPlacement, BackendTransfers};
use crate::{Largest, NnError, StepInputs, StepLogits, step::usable};

/// A step of one token of one or more sequences: the usual decode step, identical from token to token except for its inputs.
#[derive(Debug)]
pub struct TokenStep<'a, B: BackendBase + ?Sized> {
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
pub type StepCaches<'a, 'b, B> = &'a mut [&'b mut [<B as BackendBase>::Cache]];

/// Runs the decoder over the inputs of a step, up to the logits of each token.
pub type RunStep<'a, B> = dyn FnMut(&<B as BackendBase>::Inputs, StepCaches<'_, '_, B>) -> Result<<B as BackendBase>::Tensor, NnError>
    + 'a;

/// Decode steps of one token of each sequence, which a backend may record and replay.
pub trait BackendSteps: BackendTransfers + BackendPlacement {
    /// The `k` largest values of each row with their columns, in one transfer: in descending order, ties by column, NaN
    /// first. `None` when whole rows are as cheap to read, or when the backend does not support so large a `k`.
    ///
    /// # Errors
    ///
    /// When the device fails.
    fn top(&self, x: &Self::Tensor, k: usize) -> Result<Option<Vec<Largest>>, NnError> {
        let _ = (x, k);
        Ok(None)
    }

    /// Logits of a step of one token of each sequence, computed by `run`: all, or the number of largest logits that `step`
    /// requests.
    ///
    /// `run` makes the same calls each time and is idempotent, so a backend may record its launches over input buffers that are
    /// overwritten before each replay. Recordings are stored in `recorded`, which belongs to the only sequence, or to all
    /// sequences whose caches were made [together](crate::BackendCaches::new_caches), any of which may be in `step`; for others it is empty.
    ///
    /// # Errors
    ///
    /// Errors of `run`, and when the device fails.
    fn tokens(
        &self,
        step: TokenStep<'_, Self>,
        recorded: &mut Self::Recorded,
        caches: StepCaches<'_, '_, Self>,
        run: &mut RunStep<'_, Self>,
    ) -> Result<Vec<StepLogits>, NnError> {
        let _ = recorded;
        let rows = step.inputs.rows();
        let inputs = self.inputs(step.inputs)?;
        logits_of(self.stage(self.stages() - 1), run(&inputs, caches)?, step.largest, rows)
    }
}

/// The largest logits of each of `rows` rows, or all logits if one of those is unusable or they were not requested.
pub(crate) fn logits_of<B: BackendSteps + ?Sized>(
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
