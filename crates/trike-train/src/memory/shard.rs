//! Memory of one rank that holds some rows of every matrix.

use trike_nn::DecoderSpec;
use trike_trit::Granularity;

use super::dry::bytes;
use super::{RunShape, TrainingMemory, estimate_training_memory};
use crate::data::unit_rows;
use crate::model::{Division, count, shapes};
use crate::trainer::SMALL;
use crate::{OptimizerKind, TensorShard, TernaryPolicy, TrainError};

/// A decoder whose matrices have as many values as those of a rank, and its activations no more.
fn of_rank(spec: &DecoderSpec, shard: &TensorShard) -> DecoderSpec {
    let (heads, kv_heads) = shard.heads().unwrap_or((spec.heads, spec.kv_heads));
    DecoderSpec { heads, kv_heads, intermediate: shard.intermediate(), ..spec.clone() }
}

/// Values per token and block that a rank has beside those of [`of_rank`]: the whole inputs of two layers, the columns of the others.
fn gathered(spec: &DecoderSpec, policy: &TernaryPolicy) -> u64 {
    let is_rounded = policy.blocks.as_ref().is_some_and(|how| how.int8_activations);
    let copies = 1 + u64::from(is_rounded) + 2 * u64::from(spec.sub_norms);
    let inputs = (spec.query_width() as u64).saturating_add(spec.intermediate as u64);
    inputs.saturating_mul(copies).saturating_add(spec.hidden as u64).saturating_mul(2)
}

/// [`estimate_training_memory`] for a rank that holds some rows of every matrix of the model and of the teacher. It is an upper bound:
/// where heads cannot be divided, their matrices count as whole on tapes.
///
/// # Errors
///
/// As [`estimate_training_memory`].
pub fn estimate_shard_memory(
    run: &RunShape<'_>,
    shard: &TensorShard,
    of_teacher: Option<&TensorShard>,
) -> Result<TrainingMemory, TrainError> {
    run.spec.validate()?;
    let spec = of_rank(run.spec, shard);
    let taught_by = run.teacher.zip(of_teacher).map(|((spec, policy), shard)| (of_rank(spec, shard), policy));
    let teacher = taught_by.as_ref().map(|(spec, policy)| (spec, *policy));
    let estimate = estimate_training_memory(&RunShape { spec: &spec, teacher, threads: 1, ..run.clone() })?;

    let held = |spec: &DecoderSpec, shard: &TensorShard, of: &dyn Fn(bool) -> u64| {
        shapes(spec).into_iter().fold(0u64, |sum, (name, shape)| {
            let count = shard.part(name, shape, shard.rank()).map_or(0, |part| part.len() as u64);
            sum.saturating_add(count.saturating_mul(of(name.is_block_matrix())))
        })
    };
    let weights = held(run.spec, shard, &|_| 4);
    let matrices = held(run.spec, shard, &|is_matrix| if is_matrix { 4 } else { 0 });
    let optimizer = held(run.spec, shard, &|is_matrix| match run.optimizer {
        OptimizerKind::Sgd => 4,
        OptimizerKind::Muon if is_matrix => 4,
        _ => 8,
    });
    // As `Trainer::step` divides its rows.
    let rows = unit_rows(run.length).min(run.rows.max(1));
    let tokens = (rows as u64).saturating_mul(run.length as u64);
    let (layers, width) = (run.spec.layers, run.spec.hidden as u64);
    let segment = run.checkpoint.unwrap_or(layers).clamp(1, layers.max(1)) as u64;
    let inputs = bytes(tokens.saturating_mul(segment.saturating_mul(gathered(run.spec, run.policy))));
    // A message, what it is made of and what becomes of it.
    let widest = width.max(run.spec.query_width() as u64).max(2 * run.spec.intermediate as u64);
    let messages = bytes(tokens.saturating_mul(widest).saturating_mul(3));
    // What a step keeps of each matrix: its columns, and ternary rows of a small model that are not on tapes.
    let is_small = count(run.spec) <= SMALL && rows >= run.rows;
    let kept = if is_small { matrices.saturating_mul(2) } else { matrices };
    let largest = shapes(run.spec).into_iter().filter(|(name, _)| name.is_block_matrix());
    let largest = largest.map(|(_, (rows, cols))| (rows as u64, cols as u64)).max_by_key(|(r, c)| r * c);
    let whole = largest.map_or(0, |(rows, cols)| {
        let is_gathered =
            run.policy.blocks.as_ref().is_some_and(|how| how.weights.granularity == Granularity::Tensor);
        let (len, side) = (rows.saturating_mul(cols), rows.min(cols));
        let of_scale = if is_gathered { bytes(len) } else { 0 };
        let update = len.saturating_mul(6).saturating_add(side.saturating_mul(side).saturating_mul(2));
        if run.optimizer == OptimizerKind::Muon { bytes(update) } else { of_scale }
    });
    let teacher = run.teacher.zip(of_teacher).map_or(0, |((spec, policy), shard)| {
        let outputs = tokens.saturating_add(spec.vocab as u64).saturating_mul(spec.hidden as u64);
        let inputs = tokens.saturating_mul(gathered(spec, policy));
        held(spec, shard, &|_| 4).saturating_add(bytes(outputs.saturating_add(inputs)))
    });
    let beside = [inputs, messages, kept, whole].into_iter().fold(0, u64::saturating_add);
    Ok(TrainingMemory {
        weights,
        gradients: weights,
        optimizer,
        activations: estimate.activations.saturating_add(beside),
        logits: estimate.logits,
        teacher,
    })
}
