//! Memory of a run, before it starts.

mod dry;
mod shard;
mod stage;
mod step;

use trike_grad::BitLinear;
use trike_nn::DecoderSpec;

use crate::data::unit_rows;
use crate::model::shapes;
use crate::trainer::SMALL;
use crate::{LoraConfig, OptimizerKind, TernaryPolicy, TrainError};
use dry::bytes;
pub use shard::estimate_shard_memory;
pub use stage::estimate_stage_memory;
use step::Step;

/// Sizes on which the memory of a run depends.
#[derive(Clone, Debug)]
pub struct RunShape<'a> {
    /// The model.
    pub spec: &'a DecoderSpec,
    /// How it is rounded.
    pub policy: &'a TernaryPolicy,
    /// The optimizer.
    pub optimizer: OptimizerKind,
    /// Rows of a step, over all its batches.
    pub rows: usize,
    /// Tokens of a row.
    pub length: usize,
    /// Blocks of a segment of gradient checkpointing; `None` keeps all activations.
    pub checkpoint: Option<usize>,
    /// The adapter, if only that is trained.
    pub adapter: Option<&'a LoraConfig>,
    /// Architecture and rounding of a teacher, if there is one.
    pub teacher: Option<(&'a DecoderSpec, &'a TernaryPolicy)>,
    /// Threads that compute: rows of small models are computed side by side.
    pub threads: usize,
}

/// Bytes of a run by their use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainingMemory {
    /// Weights, with those of an adapter and without those of a teacher.
    pub weights: u64,
    /// Gradients of what is trained.
    pub gradients: u64,
    /// State of the optimizer: AdamW has two numbers per trained value, Muon and gradient descent one.
    pub optimizer: u64,
    /// Values and gradients on the tapes of a step at their peak, with ternarized weights, and what the kernels need beside them.
    pub activations: u64,
    /// Logits, of which some rows exist at a time; with a teacher three times, its own and a copy.
    pub logits: u64,
    /// Weights of the teacher, with its hidden states and its head for the batch.
    pub teacher: u64,
}

impl TrainingMemory {
    /// All bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        let parts =
            [self.weights, self.gradients, self.optimizer, self.activations, self.logits, self.teacher];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// Refuses a run that needs more than `limit` bytes.
    ///
    /// # Errors
    ///
    /// [`TrainError::Memory`].
    pub fn check(&self, limit: u64) -> Result<(), TrainError> {
        let needed = self.total();
        if needed > limit { Err(TrainError::Memory { needed, limit }) } else { Ok(()) }
    }
}

/// The memory of a run at its peak: a dry run of a training step counts the buffers that tapes take and return. It does not
/// contain the program, data and tokenizer, and some hundred kilobytes per thread. Rows have `length` tokens, as packed ones
/// do.
///
/// # Errors
///
/// [`TrainError::Nn`] for an inconsistent spec, [`TrainError::Option`] for an adapter out of range.
///
/// ```
/// use trike_nn::DecoderSpec;
/// use trike_train::{OptimizerKind, RunShape, TernaryPolicy, TrainError, estimate_training_memory};
///
/// let spec = DecoderSpec { tied_head: true, ..DecoderSpec::llama(64, 4, 4, 1000) };
/// let mut run = RunShape {
///     spec: &spec,
///     policy: &TernaryPolicy::DENSE,
///     optimizer: OptimizerKind::AdamW,
///     rows: 1,
///     length: 512,
///     checkpoint: None,
///     adapter: None,
///     teacher: None,
///     threads: 1,
/// };
/// let all = estimate_training_memory(&run)?;
/// assert_eq!((all.gradients, all.optimizer), (all.weights, 2 * all.weights));
/// // Keeping the inputs of the blocks only takes less than half of it here.
/// run.checkpoint = Some(1);
/// let less = estimate_training_memory(&run)?;
/// assert!(less.activations < all.activations / 2);
/// let refused = all.check(less.total());
/// assert!(matches!(refused, Err(TrainError::Memory { limit, .. }) if limit == less.total()));
/// # Ok::<(), TrainError>(())
/// ```
pub fn estimate_training_memory(run: &RunShape<'_>) -> Result<TrainingMemory, TrainError> {
    run.spec.validate()?;
    let values = |spec: &DecoderSpec, of: &dyn Fn(bool) -> u64| {
        shapes(spec).into_iter().fold(0u64, |sum, (name, (rows, cols))| {
            let count = (rows as u64).saturating_mul(cols as u64);
            sum.saturating_add(count.saturating_mul(of(name.is_block_matrix())))
        })
    };
    let weights = values(run.spec, &|_| 4);
    // Muon keeps one number for the matrices of the blocks, to which the factors of an adapter count.
    let (muon, sgd) = (run.optimizer == OptimizerKind::Muon, run.optimizer == OptimizerKind::Sgd);
    let (trained, optimizer) = match run.adapter {
        None => (weights, values(run.spec, &|block| if sgd || block && muon { 4 } else { 8 })),
        Some(adapter) => {
            adapter.validate()?;
            let factors = step::factors(adapter, run.spec).fold(0, u64::saturating_add);
            (bytes(factors), bytes(factors).saturating_mul(if muon || sgd { 1 } else { 2 }))
        }
    };
    // As `Trainer::step` divides its rows.
    let rows = unit_rows(run.length).min(run.rows.max(1));
    let units = run.rows.max(1).div_ceil(rows);
    let tokens = (rows as u64).saturating_mul(run.length as u64);
    let is_small = weights / 4 <= SMALL as u64;
    let side_by_side = if is_small { units.min(run.threads.max(1)) as u64 } else { 1 };
    let alone = is_small && units > 1;
    let mut teacher = 0;
    if let Some((spec, _)) = run.teacher {
        spec.validate()?;
        let outputs = tokens.saturating_add(spec.vocab as u64).saturating_mul(spec.hidden as u64);
        teacher = values(spec, &|_| 4).saturating_add(bytes(outputs).saturating_mul(side_by_side));
    }
    let prepares = |how: &BitLinear| !how.weights.needs_scales();
    let prepared = alone && run.adapter.is_none() && run.policy.blocks.as_ref().is_some_and(prepares);
    let ternary = if prepared { values(run.spec, &|block| if block { 4 } else { 0 }) } else { 0 };
    let (peak, logits, outputs) = Step { run, tokens, prepared, alone }.peak();
    Ok(TrainingMemory {
        weights: weights.saturating_add(if run.adapter.is_some() { trained } else { 0 }),
        gradients: trained,
        optimizer,
        activations: (peak.saturating_sub(logits).saturating_sub(outputs))
            .saturating_mul(side_by_side)
            .saturating_add(ternary),
        logits: logits.saturating_mul(side_by_side),
        teacher,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_no_machine_has_are_refused() {
        let largest = DecoderSpec {
            hidden: 1 << 24,
            intermediate: 1 << 24,
            vocab: 1 << 24,
            layers: 100,
            ..DecoderSpec::llama(64, 1, 4, 10)
        };
        let run = RunShape {
            spec: &largest,
            policy: &TernaryPolicy::DENSE,
            optimizer: OptimizerKind::AdamW,
            rows: usize::MAX,
            length: usize::MAX,
            checkpoint: None,
            adapter: None,
            teacher: None,
            threads: 2,
        };
        let estimate = estimate_training_memory(&run).expect("an estimate");
        let refused = estimate.check(1 << 40);
        assert!(matches!(refused, Err(TrainError::Memory { needed: u64::MAX, limit }) if limit == 1 << 40));
        assert!(estimate.check(u64::MAX).is_ok());
        let none = DecoderSpec { hidden: 0, ..largest.clone() };
        let run = RunShape { spec: &none, ..run };
        assert!(matches!(estimate_training_memory(&run), Err(TrainError::Nn(_))));
    }
}
