//! Memory of one rank of a pipeline.

use trike_nn::{DecoderSpec, WeightName};

use super::dry::bytes;
use super::{RunShape, TrainingMemory, estimate_training_memory};
use crate::data::unit_rows;
use crate::model::shapes;
use crate::{OptimizerKind, Stage, TrainError};

/// Bytes of the weights of a model that `has` wants, each value counted with `of`.
fn values(spec: &DecoderSpec, has: &dyn Fn(WeightName) -> bool, of: &dyn Fn(WeightName) -> u64) -> u64 {
    shapes(spec).into_iter().filter(|(name, _)| has(*name)).fold(0, |sum, (name, (rows, cols))| {
        sum.saturating_add((rows as u64).saturating_mul(cols as u64).saturating_mul(of(name)))
    })
}

/// [`estimate_training_memory`] for a rank of a pipeline, which holds a part of the model and of the teacher. It is an upper bound:
/// every rank counts as if it looked up the embedding and computed the head.
///
/// # Errors
///
/// As [`estimate_training_memory`].
pub fn estimate_stage_memory(
    run: &RunShape<'_>,
    stage: &Stage,
    of_teacher: Option<&Stage>,
) -> Result<TrainingMemory, TrainError> {
    run.spec.validate()?;
    // The blocks of this rank, one unit at a time.
    let with = |spec: &DecoderSpec, stage: &Stage| {
        let layers = stage.layers().len().max(1);
        DecoderSpec { layers, ..spec.clone() }
    };
    let spec = with(run.spec, stage);
    let taught_by = run.teacher.zip(of_teacher).map(|((spec, policy), stage)| (with(spec, stage), policy));
    let teacher = taught_by.as_ref().map(|(spec, policy)| (spec, *policy));
    let part = RunShape { spec: &spec, teacher, threads: 1, ..run.clone() };
    let estimate = estimate_training_memory(&part)?;

    let is_held = |name: WeightName| stage.holds(name);
    let is_changed = |name: WeightName| is_held(name) && (stage.is_last() || !stage.copies(name));
    let weights = values(run.spec, &is_held, &|_| 4);
    let optimizer = values(run.spec, &is_changed, &|name| match run.optimizer {
        OptimizerKind::Sgd => 4,
        OptimizerKind::Muon if name.is_block_matrix() => 4,
        _ => 8,
    });
    // As `Trainer::step` divides its rows.
    let rows = unit_rows(run.length).min(run.rows.max(1));
    let units = run.rows.max(1).div_ceil(rows) as u64;
    let tokens = (rows as u64).saturating_mul(run.length as u64);
    let width = run.spec.hidden as u64;
    let seam = bytes(tokens.saturating_mul(width));
    let segments = spec.layers.div_ceil(run.checkpoint.unwrap_or(spec.layers).clamp(1, spec.layers)) as u64;
    // Inputs of units that wait for their gradients, and a message with what it is made of.
    let waiting = if stage.is_last() { 0 } else { seam.saturating_mul(units.saturating_mul(segments)) };
    let messages = seam.saturating_mul(3);
    let mut tied = 0;
    if stage.is_last() && stage.copies(WeightName::Embedding) {
        // The head's part of a unit and a copy of the sum, and the rows of each unit for the tokens of the step.
        let vocab = run.spec.vocab as u64;
        let of_units = units.saturating_add(1).saturating_mul(vocab.min(units.saturating_mul(tokens)));
        tied = bytes(width.saturating_mul(vocab.saturating_mul(2).saturating_add(of_units)));
    }
    let teacher = run.teacher.zip(of_teacher).map_or(0, |((spec, _), stage)| {
        let outputs = tokens.saturating_add(spec.vocab as u64).saturating_mul(spec.hidden as u64);
        let outputs = if stage.is_last() { bytes(outputs) } else { 0 };
        values(spec, &|name| stage.holds(name), &|_| 4).saturating_add(outputs)
    });
    let activations = estimate.activations.saturating_add(waiting).saturating_add(messages);
    Ok(TrainingMemory {
        weights,
        gradients: weights,
        optimizer,
        activations: activations.saturating_add(tied),
        logits: if stage.is_last() { estimate.logits } else { 0 },
        teacher,
    })
}
