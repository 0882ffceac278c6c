//! Estimated memory of a run.

mod silent;

use trike_autodiff::{Count, Counted};
use trike_nn::{DecoderSpec, WeightName};

use self::silent::Silent;
use crate::data::{Batch, unit_rows};
use crate::model::{Partition, count, shapes, targeted};
use crate::trainer::{Pipeline, SMALL, TensorRanks, Trainable, check_vocabulary};
use crate::{
    Adapter, LoraConfig, OptimizerConfig, OptimizerKind, Parameters, Resident, Stage, TensorShard,
    TernaryPolicy, TrainError, Trainer, TrainerConfig,
};

/// Maximum row length and number of blocks in the counting run. The memory of a step is at most linear in both, so larger sizes are
/// extrapolated.
const LONGEST: usize = 1 << 20;
const DEEPEST: usize = 256;
/// Models with more bytes are not run: their weights alone exceed every machine.
const LARGEST: u64 = 1 << 56;

/// Sizes that determine the memory of a run.
#[derive(Clone, Debug)]
pub struct RunShape<'a> {
    /// The model.
    pub spec: &'a DecoderSpec,
    /// How it is rounded.
    pub policy: &'a TernaryPolicy,
    /// The optimizer.
    pub optimizer: OptimizerKind,
    /// Rows per step, over all its batches.
    pub rows: usize,
    /// Tokens of a row.
    pub length: usize,
    /// Blocks per segment of gradient checkpointing; `None` keeps all activations.
    pub checkpoint: Option<usize>,
    /// The adapter, if only that is trained.
    pub adapter: Option<&'a LoraConfig>,
    /// Architecture and rounding of the teacher, if any.
    pub teacher: Option<(&'a DecoderSpec, &'a TernaryPolicy)>,
    /// Number of threads: rows of small models run concurrently and are counted at their simultaneous peak.
    pub threads: usize,
}

/// Memory of a run in bytes, by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainingMemory {
    /// Weights, including an adapter's and excluding a teacher's.
    pub weights: u64,
    /// Gradients of the trained parameters.
    pub gradients: u64,
    /// Optimizer state: two values per parameter for AdamW, one for Muon and gradient descent.
    pub optimizer: u64,
    /// Peak of the values and gradients on the tapes of a step, with ternarized weights, rotary tables and the kernels' temporary
    /// memory.
    pub activations: u64,
    /// Logits, computed in chunks of rows; with a teacher, also the teacher's.
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

/// The peak memory of a run on the host: two steps of a [`Trainer`] on the counting executor ([`Count`]) allocate and free what
/// real steps do. The program, data and tokenizer, the tapes' lists of operations, and some hundred kilobytes per thread are not
/// included. Rows have `length` tokens, as packed ones do.
///
/// # Errors
///
/// [`TrainError::Nn`] for an inconsistent spec, [`TrainError::Option`] for an adapter out of range, [`TrainError::Vocabulary`] for
/// a teacher with another vocabulary size.
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
    estimate(run, Held::All)
}

/// [`estimate_training_memory`] for a rank of a pipeline, with its stage of the model and of the teacher.
///
/// # Errors
///
/// As [`estimate_training_memory`].
pub fn estimate_stage_memory(
    run: &RunShape<'_>,
    stage: &Stage,
    of_teacher: Option<&Stage>,
) -> Result<TrainingMemory, TrainError> {
    estimate(run, Held::Stage(stage, of_teacher))
}

/// [`estimate_training_memory`] for a tensor-parallel rank, with its rows of every matrix of the model and of the teacher.
///
/// # Errors
///
/// As [`estimate_training_memory`].
pub fn estimate_shard_memory(
    run: &RunShape<'_>,
    shard: &TensorShard,
    of_teacher: Option<&TensorShard>,
) -> Result<TrainingMemory, TrainError> {
    estimate(run, Held::Shard(shard, of_teacher))
}

/// The parts of model and teacher in memory.
#[derive(Clone, Copy)]
enum Held<'h> {
    All,
    Stage(&'h Stage, Option<&'h Stage>),
    Shard(&'h TensorShard, Option<&'h TensorShard>),
}

impl<'h> Held<'h> {
    fn model(self) -> Option<&'h dyn Partition> {
        match self {
            Self::All => None,
            Self::Stage(stage, _) => Some(stage),
            Self::Shard(shard, _) => Some(shard),
        }
    }

    fn teacher(self) -> Option<&'h dyn Partition> {
        match self {
            Self::All => None,
            Self::Stage(_, stage) => stage.map(|stage| stage as &dyn Partition),
            Self::Shard(_, shard) => shard.map(|shard| shard as &dyn Partition),
        }
    }
}

/// Rows of a step.
#[derive(Clone, Copy)]
struct Units {
    /// Rows of a unit.
    rows: usize,
    /// Number of full units.
    whole: usize,
    /// Rows of the smaller last unit, if any.
    rest: usize,
}

impl Units {
    /// Units as a trainer divides the rows of a step.
    fn new(run: &RunShape<'_>) -> Self {
        let all = run.rows.max(1);
        let rows = unit_rows(run.length).min(all);
        Self { rows, whole: all / rows, rest: all % rows }
    }

    fn count(self) -> usize {
        self.whole + usize::from(self.rest > 0)
    }

    /// Number of units that run concurrently, if the model is small.
    fn together(self, threads: usize) -> usize {
        threads.max(1).min(self.count())
    }

    /// Batches with the peak memory of all units: from the third on, units reuse the buffers of the second.
    fn batches(self, length: usize) -> Vec<Batch> {
        let rows = std::iter::repeat_n(self.rows, self.whole.min(2));
        let batch = |rows: usize| Batch {
            ids: vec![0; rows * length],
            targets: vec![Some(0); rows * length],
            segments: (0..rows).map(|row| row * length..(row + 1) * length).collect(),
        };
        rows.chain((self.rest > 0).then_some(self.rest)).map(batch).collect()
    }
}

/// Bytes of numbers in f32.
fn bytes(len: u64) -> u64 {
    len.saturating_mul(4)
}

fn estimate(run: &RunShape<'_>, held: Held<'_>) -> Result<TrainingMemory, TrainError> {
    run.spec.validate()?;
    if let Some((spec, _)) = run.teacher {
        spec.validate()?;
        check_vocabulary(run.spec, spec)?;
    }
    if let Some(adapter) = run.adapter {
        adapter.validate()?;
    }
    let all = kept(run, held);
    if all.total() > LARGEST {
        return Ok(TrainingMemory { activations: u64::MAX, ..all });
    }
    let units = Units::new(run);
    // The stages of ranks cannot be shortened.
    let deepest = if matches!(held, Held::All) { DEEPEST } else { usize::MAX };
    let shorten = |spec: &DecoderSpec| DecoderSpec { layers: spec.layers.min(deepest), ..spec.clone() };
    let (spec, teacher) = (shorten(run.spec), run.teacher.map(|(spec, policy)| (shorten(spec), policy)));
    let teacher = teacher.as_ref().map(|(spec, policy)| (spec, *policy));
    let short = RunShape { spec: &spec, teacher, length: run.length.clamp(1, LONGEST), ..run.clone() };
    let layers = run.teacher.map_or(0, |(spec, _)| spec.layers).max(run.spec.layers);
    let times = (run.length.div_ceil(LONGEST).max(1) as u64).saturating_mul(layers.div_ceil(deepest) as u64);

    let Counted { peak, logits, .. } = count_steps(&short, held, units)?;
    let transient =
        peak.saturating_sub(kept(&short, held).total()).saturating_sub(logits).saturating_mul(times);
    let outputs = outputs(run, held, units);
    let of_stage = if let Held::Stage(stage, _) = held { of_stage(run, stage, units) } else { 0 };
    Ok(TrainingMemory {
        activations: transient.saturating_sub(outputs).saturating_add(of_stage),
        logits,
        teacher: all.teacher.saturating_add(outputs),
        ..all
    })
}

/// Memory held from the first step to the last: weights, gradients, optimizer state and the teacher.
fn kept(run: &RunShape<'_>, held: Held<'_>) -> TrainingMemory {
    // Bytes of the parameters on this rank, each multiplied by its bytes per element.
    let sum =
        |spec: &DecoderSpec, len: &dyn Fn(WeightName, (usize, usize)) -> usize, of: &dyn Fn(bool) -> u64| {
            shapes(spec).into_iter().fold(0u64, |sum, (name, shape)| {
                sum.saturating_add((len(name, shape) as u64).saturating_mul(of(name.is_block_matrix())))
            })
        };
    let part = |partition: Option<&dyn Partition>, name, shape: (usize, usize)| match partition {
        None => shape.0 * shape.1,
        Some(partition) => partition.part(name, shape, partition.rank()).map_or(0, |part| part.len()),
    };
    let state = |name, shape: (usize, usize)| match held.model() {
        None => shape.0 * shape.1,
        Some(partition) => partition.state(name, shape, partition.rank()).map_or(0, |part| part.len()),
    };
    let weights = sum(run.spec, &|name, shape| part(held.model(), name, shape), &|_| 4);
    // Muon keeps one value per element of the matrices of the blocks, including adapter factors.
    let (muon, sgd) = (run.optimizer == OptimizerKind::Muon, run.optimizer == OptimizerKind::Sgd);
    let (factors, gradients, optimizer) = match run.adapter {
        None => (0, weights, sum(run.spec, &state, &|block| if sgd || block && muon { 4 } else { 8 })),
        Some(adapter) => {
            let rank = adapter.rank as u64;
            let factors = targeted(adapter, run.spec).fold(0u64, |sum, (_, (rows, cols))| {
                sum.saturating_add(bytes((rows as u64 + cols as u64).saturating_mul(rank)))
            });
            (factors, factors, factors.saturating_mul(if muon || sgd { 1 } else { 2 }))
        }
    };
    let of_teacher = |spec: &DecoderSpec| sum(spec, &|name, shape| part(held.teacher(), name, shape), &|_| 4);
    TrainingMemory {
        weights: weights.saturating_add(factors),
        gradients,
        optimizer,
        teacher: run.teacher.map_or(0, |(spec, _)| of_teacher(spec)),
        ..TrainingMemory::default()
    }
}

/// The teacher's hidden states and its rounded head, which are counted among the activations.
fn outputs(run: &RunShape<'_>, held: Held<'_>, units: Units) -> u64 {
    let (Some((spec, _)), true) = (run.teacher, computes_head(held)) else { return 0 };
    let tokens = (units.rows as u64).saturating_mul(run.length as u64);
    let outputs = bytes(tokens.saturating_add(spec.vocab as u64).saturating_mul(spec.hidden as u64));
    let is_alone = matches!(held, Held::All) && count(run.spec) <= SMALL;
    outputs.saturating_mul(if is_alone { units.together(run.threads) as u64 } else { 1 })
}

fn computes_head(held: Held<'_>) -> bool {
    if let Held::Stage(stage, _) = held { stage.is_last() } else { true }
}

/// Memory of a pipeline rank in addition to the counted units: messages of the neighbouring ranks, which may be a step ahead;
/// segment inputs of further units that wait for their gradients; and on the last rank, for a tied embedding, lists of rows that
/// the host adds up.
fn of_stage(run: &RunShape<'_>, stage: &Stage, units: Units) -> u64 {
    let tokens = (units.rows as u64).saturating_mul(run.length as u64);
    let (width, vocab, count) = (run.spec.hidden as u64, run.spec.vocab as u64, units.count() as u64);
    let seam = bytes(tokens.saturating_mul(width));
    let neighbours = u64::from(!stage.is_first()) + u64::from(!stage.is_last());
    let messages = seam.saturating_mul(count.saturating_mul(neighbours));
    if !stage.is_last() {
        let layers = stage.layers().len().max(1);
        let segments = layers.div_ceil(run.checkpoint.unwrap_or(layers).clamp(1, layers)) as u64;
        let more = units.whole.saturating_sub(2) as u64;
        return messages.saturating_add(seam.saturating_mul(more.saturating_mul(segments)));
    }
    if !stage.copies(WeightName::Embedding) {
        return messages;
    }
    let rows = count.saturating_add(1).saturating_mul(vocab.min(count.saturating_mul(tokens)));
    messages.saturating_add(bytes(width.saturating_mul(rows)))
}

/// The memory of two steps; the second reuses the buffers of the first.
fn count_steps(run: &RunShape<'_>, held: Held<'_>, units: Units) -> Result<Counted, TrainError> {
    let (rank, size) = held.model().map_or((0, 1), |partition| (partition.rank(), partition.ranks()));
    let comm = Silent { rank, size, most: 8 * shapes(run.spec).len() };
    let engine = Count::new(run.threads.max(1), units.together(run.threads));
    let allocate = |spec: &DecoderSpec, of: Option<&dyn Partition>| Parameters::allocate(&engine, spec, of);
    let resident = |spec: &DecoderSpec, of: Option<&dyn Partition>| {
        Ok::<_, TrainError>(Resident::Owned(Box::new(allocate(spec, of)?)))
    };
    let trainable = match run.adapter {
        None => Trainable::All(allocate(run.spec, held.model())?),
        Some(adapter) => Trainable::Adapter {
            frozen: resident(run.spec, None)?,
            adapter: Adapter::allocate(&engine, adapter, run.spec)?,
        },
    };
    let teacher = match run.teacher {
        Some((spec, policy)) => Some((resident(spec, held.teacher())?, policy.clone())),
        None => None,
    };
    let config = TrainerConfig {
        optimizer: OptimizerConfig { kind: run.optimizer, ..OptimizerConfig::default() },
        lambda: 0.0,
        checkpoint: run.checkpoint,
        ..TrainerConfig::default()
    };
    let trainer = Trainer::of(&engine, config, run.policy.clone(), trainable, teacher)?;
    let mut trainer = match held {
        Held::All => trainer,
        Held::Stage(stage, of_teacher) => {
            trainer.with_pipeline(Pipeline::new(&comm, stage.clone(), of_teacher.cloned()))?
        }
        Held::Shard(shard, of_teacher) => {
            let (shard, of_teacher) = (shard.clone(), of_teacher.cloned());
            trainer.with_tensor_ranks(TensorRanks { comm: &comm, shard, of_teacher })
        }
    };
    let batches = units.batches(run.length);
    for _ in 0..2 {
        trainer.step_of(&batches)?;
    }
    Ok(engine.counted())
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

    #[test]
    fn more_blocks_than_are_run_take_a_multiple() {
        let of = |layers| {
            let spec = DecoderSpec { layers, tied_head: true, ..DecoderSpec::llama(8, 2, 2, 10) };
            let run = RunShape {
                spec: &spec,
                policy: &TernaryPolicy::DENSE,
                optimizer: OptimizerKind::AdamW,
                rows: 1,
                length: 4,
                checkpoint: None,
                adapter: None,
                teacher: None,
                threads: 1,
            };
            estimate_training_memory(&run).expect("an estimate")
        };
        let (some, twice) = (of(DEEPEST), of(2 * DEEPEST));
        assert_eq!(twice.activations, 2 * some.activations);
        assert!(twice.weights > 2 * some.weights - 1000 && twice.logits == some.logits);
    }
}
