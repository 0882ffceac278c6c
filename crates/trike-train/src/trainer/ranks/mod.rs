//! Data parallelism: ranks that train one model together.
//!
//! Every rank reads the same batches and computes its own rows of each. A [`RanksConfig`] determines what they exchange, and when:
//! by default the exact sum of gradients in every step, in an order that does not depend on the number of ranks.

mod exact;
mod local;
mod saved;

use std::borrow::{Borrow, BorrowMut};

use trike_autodiff::Elements;
use trike_comm::{CodecConfig, CommError, Communicator, PartialSum, ReductionPlan, TreeSum, agree};
use trike_core::{Bounds, OptionError};

use self::exact::Owners;
use self::local::Local;
use super::Distribution;
use crate::data::{Batch, Batches};
use crate::{Loss, Optimizer, Parameters, StepReport, TrainEngine, TrainError, Trainer};

/// What ranks exchange, and how often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RanksConfig {
    /// Compression of the weight changes; `None` = uncompressed.
    ///
    /// Weight changes are compressed instead of gradients, whose elements differ by orders of magnitude: each rank takes an
    /// optimizer step on its own rows, in which all weights change by about as much, so the codec's error is similar for all
    /// weights. A codec of gradients would also add its noise to the optimizer's second moment, which shortens the steps: at 20
    /// times fewer bytes it cost 3.6 % of the loss, compared with less than 1 % for weight changes.
    pub codec: Option<CodecConfig>,
    /// Local steps of each rank between synchronizations of the weights (DiLoCo, Douillard et al., 2311.08105), at least 1. With 1
    /// and without a codec, gradients are summed in every step.
    pub local_steps: usize,
    /// The outer optimizer of local steps.
    pub outer: OuterConfig,
}

/// The outer optimizer, whose gradient is the mean weight change of all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OuterConfig {
    /// Learning rate, in (0, 10]: with 1 and no momentum the new weights are the mean over the ranks.
    pub learning_rate: f32,
    /// Nesterov momentum, in [0, 1).
    pub momentum: f32,
}

impl Default for RanksConfig {
    fn default() -> Self {
        Self { codec: None, local_steps: 1, outer: OuterConfig::default() }
    }
}

impl Default for OuterConfig {
    /// A learning rate slightly above 1, since rows of different ranks disagree, and the mean changes less than each rank: with
    /// 1.3, runs of 256 steps on four ranks reached a loss as low as with 1 or lower; with 1.6, those with many local steps did
    /// not. DiLoCo uses 0.7 and a momentum of 0.9 for runs of thousands of synchronizations.
    fn default() -> Self {
        Self { learning_rate: 1.3, momentum: 0.0 }
    }
}

impl RanksConfig {
    /// Whether ranks take local steps.
    fn is_local(&self) -> bool {
        self.codec.is_some() || self.local_steps > 1
    }

    /// Checks that all numbers are in range, except those of the codec.
    ///
    /// # Errors
    ///
    /// [`OptionError::OutOfRange`].
    pub fn validate(&self) -> Result<(), OptionError> {
        OptionError::check("local_steps", Bounds::at_least(1usize), self.local_steps)?;
        let OuterConfig { learning_rate, momentum } = self.outer;
        OptionError::check("outer_learning_rate", Bounds::over(0.0).at_most(10.0), learning_rate)?;
        OptionError::check("outer_momentum", Bounds::at_least(0.0).at_most(0.999_999), momentum)
    }
}

/// The other ranks of a trainer.
pub(crate) struct Ranks<'a> {
    pub(crate) comm: &'a dyn Communicator,
    pub(crate) config: RanksConfig,
    mode: Mode,
}

/// How ranks are synchronized.
#[derive(Debug)]
enum Mode {
    /// The sum of gradients is reduced to the rank that updates the weights, which broadcasts them.
    Exact(Owners),
    /// Weight changes after one or more local steps.
    Local(Local),
}

impl std::fmt::Debug for Ranks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (rank, size) = (self.comm.rank(), self.comm.size());
        let mut debug = f.debug_struct("Ranks");
        debug.field("rank", &rank).field("size", &size).field("config", &self.config);
        debug.field("mode", &self.mode).finish()
    }
}

impl<'a, E: TrainEngine> Trainer<'a, E> {
    /// The same trainer as one of several data-parallel ranks. All ranks have the same configuration, weights and data; the data is
    /// not checked.
    ///
    /// Without a codec and local steps, the trained weights are bit-identical for one to four ranks: the gradients of a step's rows
    /// are added in a tree over their numbers ([`ReductionPlan`]). A trainer without ranks adds them sequentially, which gives
    /// other bits. Each rank holds the optimizer's moments only for its own share of the weights. With a codec or local steps the
    /// weights depend on the number of ranks.
    ///
    /// # Errors
    ///
    /// [`TrainError::Option`]; [`TrainError::Comm`] for ranks that differ, and for a codec with settings out of range;
    /// [`TrainError::Config`] for a codec or local steps with f16 products, since loss scales would differ between ranks;
    /// [`TrainError::Alone`] with pipeline or tensor parallelism.
    pub fn with_ranks(mut self, comm: &'a dyn Communicator, config: RanksConfig) -> Result<Self, TrainError> {
        self.check_alone("another partition among ranks")?;
        config.validate()?;
        if self.scaler.is_some() && config.is_local() {
            let problem = "a codec or local steps with fp16: expected bf16 or f32 products".to_owned();
            return Err(TrainError::Config { problem });
        }
        agree(comm, "version", env!("CARGO_PKG_VERSION"))?;
        let settings = format!("{:?}, {:?}, {config:?}", self.config, self.policy);
        agree(comm, "training configuration", &settings)?;
        agree(comm, "model", &format!("checksum {:08x}", self.checksum(self.parameters())?))?;
        let taught_by = self.teacher_parameters().map(|teacher| self.checksum(teacher)).transpose()?;
        agree(comm, "teacher", &taught_by.map_or("none".to_owned(), |sum| format!("checksum {sum:08x}")))?;
        let shapes: Vec<[usize; 2]> = self.parameters().all().iter().map(|p| [p.rows(), p.cols]).collect();
        let mode = match config.codec {
            codec if config.is_local() => {
                let codec = codec.map(|codec| codec.build(&shapes)).transpose()?;
                Mode::Local(Local::new(self.flat_weights()?, codec))
            }
            _ => {
                let lens: Vec<usize> = self.parameters().all().iter().map(|p| p.values.elements()).collect();
                let owners = Owners::new(&lens, comm.size())?;
                let owns = |place: usize| owners.owns(comm.rank(), place);
                self.optimizer = Optimizer::of(self.engine, self.config.optimizer, self.parameters(), &owns)?;
                Mode::Exact(owners)
            }
        };
        // Each step allocates its own.
        self.gradients = Vec::new();
        self.distribution = Distribution::Data(Ranks { comm, config, mode });
        Ok(self)
    }

    /// Whether all ranks have the same weights now, which holds after every synchronization.
    #[must_use]
    pub fn is_together(&self) -> bool {
        match &self.distribution {
            Distribution::Data(ranks) => self.is_last_of(ranks.config.local_steps),
            _ => true,
        }
    }

    /// Whether the last step completed a period of `steps` local ones.
    fn is_last_of(&self, steps: usize) -> bool {
        self.step.is_multiple_of(steps) || self.step == self.config.steps
    }

    /// A step of all ranks.
    pub(crate) fn step_together(
        &mut self,
        ranks: &mut Ranks<'_>,
        batches: &mut Batches<'_>,
    ) -> Result<StepReport, TrainError> {
        let units = batches.next_units(self.config.accumulation)?;
        let tokens: usize = units.iter().map(Batch::learned).sum();
        let plan = ReductionPlan::new(units.len(), ranks.comm);
        let Ranks { comm, config, mode } = ranks;
        match mode {
            Mode::Exact(owners) => self.step_exact(*comm, owners, &plan, &units, tokens),
            Mode::Local(local) => {
                let report = self.step_alone(*comm, &units, tokens)?;
                if self.is_last_of(config.local_steps) {
                    self.bring_together(*comm, local, config.outer)?;
                }
                Ok(report)
            }
        }
    }

    /// The loss of all ranks, and the sums of this rank's gradients, one per subtree of its blocks.
    fn block_sums(
        &self,
        plan: &ReductionPlan,
        units: &[Batch],
    ) -> Result<(Vec<Loss>, SumsOfBlocks<E::Tensor>), TrainError> {
        let scale = self.scale_of(units);
        let (mut tree, mut losses, mut failed) = (TreeSum::default(), Vec::new(), Ok(()));
        for block in plan.blocks() {
            let units = &units[plan.units(block)];
            if units.is_empty() {
                tree.push(block, None, |_, _| {});
                continue;
            }
            let mut sums = self.parameters().zeros_on(self.engine)?;
            losses.push(self.add_units(units, scale, &mut sums)?);
            tree.push(block, Some(sums), |sums: &mut Vec<E::Tensor>, more| {
                for (sum, more) in sums.iter_mut().zip(more) {
                    if failed.is_ok() {
                        failed = self.engine.add(sum.borrow_mut(), (*more).borrow());
                    }
                }
            });
        }
        failed?;
        Ok((losses, tree.into_parts()))
    }

    /// Splits values into tensors of the parameters' shapes.
    fn unflatten(&self, mut flat: &[f32]) -> Result<Vec<E::Tensor>, TrainError> {
        let mut all = Vec::new();
        for parameter in self.parameters().all() {
            let (values, rest) = flat.split_at(parameter.values.elements());
            all.push(self.engine.upload(values.to_vec())?);
            flat = rest;
        }
        Ok(all)
    }

    fn checksum(&self, parameters: &Parameters<E::Tensor>) -> Result<u32, TrainError> {
        let mut checksum = 0;
        for parameter in parameters.all() {
            let values = self.engine.download(parameter.values.borrow())?;
            checksum = values.iter().fold(checksum, |sum, v| crc32c::crc32c_append(sum, &v.to_le_bytes()));
        }
        Ok(checksum)
    }

    /// All weights, concatenated.
    fn flat_weights(&self) -> Result<Vec<f32>, TrainError> {
        let mut flat = Vec::with_capacity(self.parameters().count());
        for parameter in self.parameters().all() {
            flat.extend_from_slice(&self.engine.download(parameter.values.borrow())?);
        }
        Ok(flat)
    }
}

/// The sums of the gradients of all parameters, per subtree of a rank's blocks.
type SumsOfBlocks<T> = Vec<PartialSum<Vec<T>>>;

/// Maximum number of values in a message.
const NUMBERS: usize = 1 << 22;

/// Gathers the values of all ranks.
pub(crate) fn all_numbers(comm: &dyn Communicator, numbers: &[f64]) -> Result<Vec<Vec<f64>>, CommError> {
    let message: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let all = comm.all_gather(&message, 8 * NUMBERS)?;
    Ok(all
        .iter()
        .map(|message| message.as_chunks().0.iter().map(|word| f64::from_le_bytes(*word)).collect())
        .collect())
}

/// The total loss of all ranks' blocks, in order. A loss that is not finite is refused, naming the rank, unless all ranks have one
/// or `overflows` permits it.
fn all_losses(comm: &dyn Communicator, blocks: &[Loss], overflows: bool) -> Result<Loss, TrainError> {
    let own: Vec<f64> =
        blocks.iter().flat_map(|loss| [loss.sum, loss.divergence, loss.tokens as f64]).collect();
    let (mut all, mut wrong, mut right) = (Loss::default(), None, false);
    for (rank, numbers) in all_numbers(comm, &own)?.iter().enumerate() {
        for [sum, divergence, tokens] in numbers.as_chunks().0 {
            match (sum + divergence).is_finite() {
                true => right = true,
                false => wrong = Some(rank),
            }
            all.add(Loss { sum: *sum, divergence: *divergence, tokens: *tokens as usize });
        }
    }
    match wrong.filter(|_| right && !overflows) {
        Some(rank) => Err(CommError::NonFinite { rank }.into()),
        None => Ok(all),
    }
}

/// The total loss of some batches, divided among ranks: bit-identical for every number of ranks.
pub(crate) fn sum_of_losses(
    comm: Option<&dyn Communicator>,
    batches: impl IntoIterator<Item = Batch>,
    each: impl Fn(&Batch) -> Result<Loss, TrainError>,
) -> Result<Loss, TrainError> {
    let (rank, size) = comm.map_or((0, 1), |comm| (comm.rank(), comm.size()));
    let (mut own, mut count) = (Vec::new(), 0);
    for batch in batches {
        if count % size == rank {
            let loss = each(&batch)?;
            own.extend([loss.sum, loss.tokens as f64]);
        }
        count += 1;
    }
    let ranks = comm.map_or_else(|| Ok(vec![own.clone()]), |comm| all_numbers(comm, &own))?;
    let mut all = Loss::default();
    for batch in 0..count {
        let (rank, at) = (batch % size, 2 * (batch / size));
        let Some([sum, tokens]) = ranks[rank].get(at..at + 2) else {
            return Err(CommError::Cut { rank, expected: 8 * (at + 2), got: 8 * ranks[rank].len() }.into());
        };
        all.sum += sum;
        all.tokens += *tokens as usize;
    }
    Ok(all)
}
