//! The loop of training.

mod pipeline;
mod ranks;
mod saved;
mod tensor;

use std::borrow::{Borrow, BorrowMut};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trike_autodiff::{Elements, GradError, Operand, ProductPrecision, TapeEngine};
use trike_comm::{CommError, Communicator, agree};
use trike_core::{Bounds, OptionError};
use trike_cpu::{Cpu, Store};
use trike_nn::DecoderSpec;

use crate::checkpoint::{self, Keep, RunState};
use crate::data::{Batch, Batches, Position};
use crate::model::{ByPlace, GradientSink, Partition, check_gradients};
use crate::{
    Adapter, Loss, LossScaler, Objective, Optimizer, OptimizerConfig, Parameters, PrecisionPolicy, Resident,
    Schedule, ScheduleFactors, ScheduleShape, TernaryPolicy, TrainEngine, TrainError, Trained, Weights,
};

pub(crate) use self::pipeline::{Pipeline, check_ranks, losses_of};
use self::ranks::Ranks;
pub use self::ranks::{OuterConfig, RanksConfig};
pub(crate) use self::ranks::{all_numbers, sum_of_losses};
pub(crate) use self::tensor::{TensorRanks, check_tensor_ranks, losses_of_shards};

/// Maximum number of parameters of a model whose rows run concurrently, each with its own gradients: at most 32 MiB per thread.
pub(crate) const SMALL: usize = 1 << 23;

/// Constants of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainerConfig {
    /// Steps of the whole run, at least 1.
    pub steps: usize,
    /// Batches per step (gradient accumulation), at least 1. Only the rows of a step matter, not their division into batches: one
    /// batch of 16 rows gives the same bits as four of four.
    pub accumulation: usize,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// Schedule of learning rate and weight decay.
    pub schedule: Schedule,
    /// Fraction of the steps in which weights are linearly interpolated from dense to ternary.
    pub lambda: f32,
    /// Weight of the cross-entropy, relative to the divergence from a teacher; without a teacher the loss is the cross-entropy.
    pub text: f32,
    /// Blocks per segment of gradient checkpointing; `None` keeps all activations.
    pub checkpoint: Option<usize>,
    /// Precision of products.
    pub precision: PrecisionPolicy,
}

impl Default for TrainerConfig {
    /// The recipe for one ternary plane from a dense model that is also the teacher: divergence only, no weight decay, a high
    /// learning rate with cosine decay, after a short linear interpolation from dense to ternary weights. The rate is for models of
    /// less than a million parameters; larger ones need a lower one.
    fn default() -> Self {
        Self {
            steps: 7000,
            accumulation: 2,
            optimizer: OptimizerConfig {
                learning_rate: 3e-3,
                weight_decay: 0.0,
                ..OptimizerConfig::default()
            },
            schedule: Schedule { warmup: 100, shape: ScheduleShape::Cosine { end: 0.01 } },
            lambda: 0.05,
            text: 0.0,
            checkpoint: None,
            precision: PrecisionPolicy::default(),
        }
    }
}

impl TrainerConfig {
    /// Checks that all numbers are in range.
    ///
    /// # Errors
    ///
    /// [`OptionError::OutOfRange`].
    pub fn validate(&self) -> Result<(), OptionError> {
        OptionError::check("steps", Bounds::at_least(1usize), self.steps)?;
        OptionError::check("accumulation", Bounds::at_least(1usize), self.accumulation)?;
        OptionError::check("lambda", Bounds::at_least(0.0).at_most(1.0), self.lambda)?;
        OptionError::check("text", Bounds::at_least(0.0).at_most(1e3), self.text)?;
        self.schedule.validate()?;
        self.precision.validate()?;
        self.optimizer.validate()
    }

    /// Interpolation factor of step `step`: 0 is dense, 1 is ternary.
    #[must_use]
    pub fn lambda_of(&self, step: usize) -> f32 {
        let over = self.lambda * self.steps as f32;
        if over < 1.0 { 1.0 } else { (step as f32 / over).min(1.0) }
    }
}

/// A frozen model to distill from.
#[derive(Debug)]
pub struct Teacher<'a> {
    /// Its weights; the vocabulary must have the size of the student's.
    pub parameters: &'a Parameters,
    /// Its rounding of weights and activations.
    pub policy: TernaryPolicy,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// The step, from 0.
    pub step: usize,
    /// The loss before the step; with local steps, that of this rank's rows.
    pub loss: Loss,
    /// Target tokens of all ranks.
    pub tokens: usize,
    /// Global gradient norm before clipping.
    pub norm: f64,
    /// Learning rate.
    pub rate: f32,
    /// Interpolation factor of the ternary weights.
    pub lambda: f32,
    /// Loss scale of the step.
    pub loss_scale: f32,
    /// Whether gradients overflowed in f16: the weights are unchanged, and the loss scale is reduced.
    pub skipped: bool,
}

/// The trained parameters.
#[derive(Debug)]
pub(crate) enum Trainable<'a, T> {
    All(Parameters<T>),
    Adapter { frozen: Resident<'a, T>, adapter: Adapter<T> },
}

impl<T: Elements> Trainable<'_, T> {
    pub(crate) fn weights(&self) -> Weights<'_, T> {
        match self {
            Self::All(parameters) => parameters.into(),
            Self::Adapter { frozen, adapter } => Weights::adapted(frozen.get(), adapter),
        }
    }

    pub(crate) fn trained_mut(&mut self) -> &mut Parameters<T> {
        match self {
            Self::All(parameters) => parameters,
            Self::Adapter { adapter, .. } => adapter.parameters_mut(),
        }
    }
}

/// Teacher weights resident on the engine.
#[derive(Debug)]
struct ResidentTeacher<'a, E: TapeEngine> {
    parameters: Resident<'a, E::Tensor>,
    policy: TernaryPolicy,
    model: Trained<'a, E>,
}

/// The distribution of weights and rows among ranks, chosen once.
#[derive(Debug, Default)]
enum Distribution<'a> {
    /// All on this rank.
    #[default]
    Alone,
    /// Data parallelism: all ranks hold all weights and divide the rows.
    Data(Ranks<'a>),
    /// Pipeline parallelism: each rank holds some blocks.
    Pipeline(Pipeline<'a>),
    /// Tensor parallelism: each rank holds some rows of every matrix.
    Tensor(TensorRanks<'a>),
}

impl<'a> Distribution<'a> {
    /// The other ranks and the partition of the weights among them; `None` if this rank holds all weights.
    fn partition(&self) -> Option<(&'a dyn Communicator, &dyn Partition)> {
        match self {
            Self::Alone | Self::Data(_) => None,
            Self::Pipeline(pipeline) => Some((pipeline.comm(), pipeline.stage())),
            Self::Tensor(tensor) => Some((tensor.comm, &tensor.shard)),
        }
    }
}

/// A model in training, on the host or on a device.
///
/// Steps are deterministic: the weights depend on configuration, data, seed and executor, but not on the number of threads.
/// Weights, gradients and the optimizer's state stay in the memory of the executor; [`save`](Self::save) and
/// [`download`](Self::download) copy them.
#[derive(Debug)]
pub struct Trainer<'a, E: TapeEngine = Cpu> {
    pub(crate) engine: &'a E,
    pub(crate) config: TrainerConfig,
    pub(crate) policy: TernaryPolicy,
    model: Trained<'a, E>,
    teacher: Option<ResidentTeacher<'a, E>>,
    pub(crate) trainable: Trainable<'a, E::Tensor>,
    pub(crate) optimizer: Optimizer<E::Tensor>,
    pub(crate) gradients: Vec<E::Tensor>,
    pub(crate) step: usize,
    pub(crate) scaler: Option<LossScaler>,
    distribution: Distribution<'a>,
}

impl<'a, E: TrainEngine> Trainer<'a, E> {
    /// A run from step 0 on `engine`, a [`Cpu`] or a device, to which the parameters are copied.
    ///
    /// # Errors
    ///
    /// [`TrainError::Option`], [`TrainError::Vocabulary`] for a teacher with another vocabulary size, and [`TrainError::Grad`] for
    /// a device with too little memory.
    pub fn new(
        engine: &'a E,
        config: TrainerConfig,
        policy: TernaryPolicy,
        parameters: Parameters,
        teacher: Option<Teacher<'a>>,
    ) -> Result<Self, TrainError> {
        config.validate()?;
        Self::start(engine, config, policy, Trainable::All(parameters.upload(engine)?), teacher)
    }

    /// A run from step 0 that trains an adapter on a frozen model, see [`Weights`]. The model may be its own teacher.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), [`TrainError::Option`] for a `lambda` other than 0, since frozen weights are not ternarized, and as
    /// [`Adapter::check`].
    pub fn with_adapter(
        engine: &'a E,
        config: TrainerConfig,
        policy: TernaryPolicy,
        frozen: &'a Parameters,
        adapter: Adapter,
        teacher: Option<Teacher<'a>>,
    ) -> Result<Self, TrainError> {
        OptionError::check("lambda", Bounds::at_least(0.0).at_most(0.0), config.lambda)?;
        adapter.check(frozen)?;
        let trainable =
            Trainable::Adapter { frozen: engine.resident(frozen)?, adapter: adapter.upload(engine)? };
        Self::start(engine, config, policy, trainable, teacher)
    }

    fn start(
        engine: &'a E,
        config: TrainerConfig,
        policy: TernaryPolicy,
        trainable: Trainable<'a, E::Tensor>,
        teacher: Option<Teacher<'a>>,
    ) -> Result<Self, TrainError> {
        let teacher = match teacher {
            None => None,
            Some(Teacher { parameters, policy }) => {
                check_vocabulary(trainable.weights().all.spec(), parameters.spec())?;
                Some((engine.resident(parameters)?, policy))
            }
        };
        Self::of(engine, config, policy, trainable, teacher)
    }

    /// A run from step 0 with weights that are already resident on the engine.
    pub(crate) fn of(
        engine: &'a E,
        config: TrainerConfig,
        policy: TernaryPolicy,
        trainable: Trainable<'a, E::Tensor>,
        teacher: Option<(Resident<'a, E::Tensor>, TernaryPolicy)>,
    ) -> Result<Self, TrainError> {
        config.validate()?;
        let spec = trainable.weights().all.spec();
        let model = Trained::new(engine, spec, config.checkpoint)?;
        let model = model.with_precision(config.precision.products());
        let teacher = teacher.map(|(parameters, policy)| {
            let model = Trained::new(engine, parameters.get().spec(), None)?;
            Ok::<_, TrainError>(ResidentTeacher { parameters, policy, model })
        });
        let teacher = teacher.transpose()?;
        let trained = trainable.weights().trained();
        let optimizer = Optimizer::on(engine, config.optimizer, trained)?;
        let gradients = trained.zeros_on(engine)?;
        let scaler = config.precision.scaler();
        Ok(Self {
            engine,
            config,
            policy,
            model,
            teacher,
            trainable,
            optimizer,
            gradients,
            step: 0,
            scaler,
            distribution: Distribution::Alone,
        })
    }

    /// Steps taken.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.step
    }

    /// The trained weights: with an adapter, its factors; with pipeline or tensor parallelism, this rank's part.
    #[must_use]
    pub fn parameters(&self) -> &Parameters<E::Tensor> {
        self.trainable.weights().trained()
    }

    /// A copy of [`parameters`](Self::parameters) on the host.
    ///
    /// # Errors
    ///
    /// [`TrainError::Grad`] of the executor.
    pub fn download(&self) -> Result<Parameters, TrainError> {
        Ok(self.parameters().download(self.engine)?)
    }

    /// [`parameters`](Self::parameters), consuming the trainer.
    #[must_use]
    pub fn into_parameters(self) -> Parameters<E::Tensor> {
        match self.trainable {
            Trainable::All(parameters) => parameters,
            Trainable::Adapter { adapter, .. } => adapter.into_parameters(),
        }
    }

    /// The trained adapter; `None` if all weights are trained.
    #[must_use]
    pub fn adapter(&self) -> Option<&Adapter<E::Tensor>> {
        match &self.trainable {
            Trainable::All(_) => None,
            Trainable::Adapter { adapter, .. } => Some(adapter),
        }
    }

    /// Writes a checkpoint, see [`checkpoint::save`]. `settings` are the caller's settings that must not change when the run
    /// resumes, such as its data. `memory` is the caller's state, stored in the checkpoint and returned by
    /// [`resume`](Self::resume).
    ///
    /// # Errors
    ///
    /// As [`checkpoint::save`].
    pub fn save(
        &self,
        dir: &Path,
        position: Position,
        settings: Value,
        memory: Value,
        keep: Keep,
    ) -> Result<PathBuf, TrainError> {
        let config = self.with_settings(settings)?;
        let state = RunState { step: self.step, position, config, memory, loss_scaler: self.scaler };
        if let Distribution::Data(ranks) = &self.distribution {
            return self.save_together(ranks, dir, &state, keep);
        }
        if let Some((comm, partition)) = self.distribution.partition() {
            return self.save_parts(comm, partition, dir, &state, keep);
        }
        let tensors = checkpoint::tensors_of(self.parameters(), &self.optimizer, |tensor| {
            Ok(self.engine.download(tensor.borrow())?.into_owned())
        })?;
        checkpoint::write(dir, &state, self.optimizer.steps(), 1, &tensors, keep)
    }

    /// Resumes from a checkpoint; returns its state, with the start of the next batch. Only the first of several ranks reads it. It
    /// may have been written by another number of ranks.
    ///
    /// # Errors
    ///
    /// As [`checkpoint::load`].
    pub fn resume(&mut self, path: &Path, settings: Value) -> Result<RunState, TrainError> {
        let config = self.with_settings(settings)?;
        let state = self.with_distribution(|trainer, distribution| match distribution {
            Distribution::Alone => {
                let (parameters, optimizer) = (trainer.trainable.trained_mut(), &mut trainer.optimizer);
                let write = |values| Ok(trainer.engine.upload(values)?);
                checkpoint::load_into(path, &config, parameters, optimizer, write)
            }
            Distribution::Data(ranks) => trainer.resume_together(ranks, path, &config),
            Distribution::Pipeline(pipeline) => {
                trainer.resume_parts(pipeline.comm(), pipeline.stage(), path, &config)
            }
            Distribution::Tensor(tensor) => trainer.resume_parts(tensor.comm, &tensor.shard, path, &config),
        })?;
        (self.step, self.scaler) = (state.step, state.loss_scaler);
        Ok(state)
    }

    fn with_settings(&self, settings: Value) -> Result<Value, TrainError> {
        let wrong =
            |e: serde_json::Error| TrainError::Checkpoint { path: PathBuf::new(), problem: e.to_string() };
        let config = serde_json::to_value(self.config).map_err(wrong)?;
        // The caller's settings come first, so that differences are reported by the caller's names.
        let mut all =
            json!({ "settings": settings, "training": config, "weights": format!("{:?}", self.policy) });
        if let Some(adapter) = self.adapter() {
            all["adapter"] = serde_json::to_value(adapter.config()).map_err(wrong)?;
        }
        Ok(all)
    }

    /// Takes a training step on the next batches.
    ///
    /// # Errors
    ///
    /// [`TrainError::NonFinite`] for a loss or gradient that is not finite; the weights are then unchanged. With f16 products the
    /// step is skipped instead, unless the loss scale is already the smallest. And errors of the data.
    pub fn step(&mut self, batches: &mut Batches<'_>) -> Result<StepReport, TrainError> {
        self.with_distribution(|trainer, distribution| match distribution {
            Distribution::Data(ranks) => trainer.step_together(ranks, batches),
            other => {
                let units = batches.next_units(trainer.config.accumulation)?;
                trainer.step_units(other, &units)
            }
        })
    }

    /// Calls `run` with the distribution, moved out of the trainer so that both can be borrowed mutably.
    fn with_distribution<T>(&mut self, run: impl FnOnce(&mut Self, &mut Distribution<'a>) -> T) -> T {
        let mut distribution = std::mem::take(&mut self.distribution);
        let done = run(self, &mut distribution);
        self.distribution = distribution;
        done
    }

    /// A step on these units, on a single rank.
    pub(crate) fn step_of(&mut self, units: &[Batch]) -> Result<StepReport, TrainError> {
        self.with_distribution(|trainer, distribution| trainer.step_units(distribution, units))
    }

    fn step_units(
        &mut self,
        distribution: &mut Distribution<'a>,
        units: &[Batch],
    ) -> Result<StepReport, TrainError> {
        match distribution {
            Distribution::Pipeline(pipeline) => return self.step_in_pipeline(pipeline, units),
            Distribution::Tensor(tensor) => return self.step_in_tensor(tensor, units),
            Distribution::Alone | Distribution::Data(_) => {}
        }
        let loss = self.accumulate(units)?;
        let gradients = std::mem::take(&mut self.gradients);
        let report = self.update(loss, &gradients, loss.tokens);
        self.gradients = gradients;
        report
    }

    /// The loss of the next batches and its gradients, in the order of [`parameters`](Self::parameters), without an update: for
    /// loops that modify them before [`step_with`](Self::step_with).
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step), and [`TrainError::Alone`] with ranks.
    pub fn gradients(&mut self, batches: &mut Batches<'_>) -> Result<(Loss, &[E::Tensor]), TrainError> {
        self.check_alone("gradients without a step")?;
        let units = batches.next_units(self.config.accumulation)?;
        let loss = self.accumulate(&units)?;
        Ok((loss, &self.gradients))
    }

    /// Updates the weights with given gradients of a loss.
    ///
    /// # Errors
    ///
    /// [`TrainError::Grad`] for gradients whose shapes are not those of the parameters, [`TrainError::NonFinite`], after which the
    /// weights are unchanged, and [`TrainError::Alone`] with ranks.
    pub fn step_with(&mut self, loss: Loss, gradients: &[E::Tensor]) -> Result<StepReport, TrainError> {
        self.check_alone("a step along given gradients")?;
        check_gradients(self.parameters(), gradients)?;
        self.update(loss, gradients, loss.tokens)
    }

    /// Whether the weights are divided among ranks.
    pub(crate) fn is_divided(&self) -> bool {
        self.distribution.partition().is_some()
    }

    /// The teacher's weights.
    pub(crate) fn teacher_parameters(&self) -> Option<&Parameters<E::Tensor>> {
        self.teacher.as_ref().map(|teacher| teacher.parameters.get())
    }

    fn check_alone(&self, what: &'static str) -> Result<(), TrainError> {
        if matches!(self.distribution, Distribution::Alone) {
            Ok(())
        } else {
            Err(TrainError::Alone { what })
        }
    }

    /// Computes the loss and the gradients of some units; the previous gradients are overwritten.
    fn accumulate(&mut self, units: &[Batch]) -> Result<Loss, TrainError> {
        let scale = self.scale_of(units);
        let mut sums = std::mem::take(&mut self.gradients);
        let cleared = sums.iter_mut().try_for_each(|sum| self.engine.fill(sum.borrow_mut(), 0.0));
        let added = self.add_units(units, scale, &mut sums);
        let unscaled = self.unscale(&mut sums);
        self.gradients = sums;
        cleared?;
        let loss = added?;
        unscaled?;
        self.check_loss(loss)?;
        Ok(loss)
    }

    /// Factor of the gradients of some units: the reciprocal of their number of targets, times the loss scale.
    pub(crate) fn scale_of(&self, units: &[Batch]) -> f32 {
        let learned: usize = units.iter().map(Batch::learned).sum();
        // Documents without targets are skipped, but a row may end before an answer begins.
        self.scaler.map_or(1.0, |scaler| scaler.scale()) / learned.max(1) as f32
    }

    /// Divides gradients by the loss scale.
    pub(crate) fn unscale(&self, gradients: &mut [E::Tensor]) -> Result<(), GradError> {
        let loss_scale = self.scaler.map_or(1.0, |scaler| scaler.scale());
        if loss_scale == 1.0 {
            return Ok(());
        }
        gradients
            .iter_mut()
            .try_for_each(|gradient| self.engine.scale(gradient.borrow_mut(), 1.0 / loss_scale))
    }

    /// Refuses a loss that is not finite, unless a smaller loss scale may help.
    pub(crate) fn check_loss(&self, loss: Loss) -> Result<(), TrainError> {
        if self.scaler.is_none() && !(loss.sum + loss.divergence).is_finite() {
            return Err(TrainError::NonFinite { what: "loss", step: self.optimizer.steps() });
        }
        Ok(())
    }

    /// Computes the loss of some units and adds their gradients, times `scale`, to `sums` in order.
    pub(crate) fn add_units(
        &self,
        units: &[Batch],
        scale: f32,
        sums: &mut [E::Tensor],
    ) -> Result<Loss, TrainError> {
        let Self { engine, model, teacher, config, trainable, .. } = self;
        let policy = &self.policy.clone().with_lambda(config.lambda_of(self.step));
        let work = Work { model, teacher: teacher.as_ref(), text: config.text, policy, scale };
        let weights = trainable.weights();
        let mut loss = Loss::default();
        if !E::SIDE_BY_SIDE || units.len() < 2 || weights.all.count() > SMALL {
            for batch in units {
                loss.add(work.add_gradients(engine, weights, batch, &mut GradientSink::Accumulate(sums))?);
            }
            return Ok(loss);
        }
        // One unit per thread: the operations of a small model are too short to parallelize. Each unit has its own gradients, which
        // are added in order, so the bits do not depend on the number of threads.
        let ternary = model.ternarized(weights, policy)?;
        let count = sums.len();
        let mut done: Result<(), TrainError> = Ok(());
        let run = |alone: &E, batch: &Batch| {
            let mut found: ByPlace<E::Tensor> = Vec::new();
            found.resize_with(count, || None);
            let weights = weights.with_ternary(&ternary);
            let part = work.add_gradients(alone, weights, batch, &mut GradientSink::Collect(&mut found))?;
            Ok::<_, TrainError>((part, found))
        };
        let mut add = |part: Result<(Loss, ByPlace<E::Tensor>), TrainError>| {
            let (part, found) = part?;
            loss.add(part);
            for (sum, gradient) in sums.iter_mut().zip(&found) {
                if let Some(gradient) = gradient {
                    engine.add(sum.borrow_mut(), gradient.borrow())?;
                }
            }
            model.reuse(found);
            Ok(())
        };
        let started = engine.each_alone(units.iter().collect(), run, |part| {
            if done.is_ok() {
                done = add(part);
            }
        });
        model.reuse(ternary);
        started?;
        done?;
        Ok(loss)
    }

    pub(crate) fn update(
        &mut self,
        loss: Loss,
        gradients: &[E::Tensor],
        tokens: usize,
    ) -> Result<StepReport, TrainError> {
        self.update_by(loss, tokens, |trainer, factors| {
            let parameters = trainer.trainable.trained_mut();
            trainer.optimizer.step(trainer.engine, parameters, gradients, factors)
        })
    }

    /// Applies the update `change`, which returns the gradient norm.
    pub(crate) fn update_by(
        &mut self,
        loss: Loss,
        tokens: usize,
        change: impl FnOnce(&mut Self, ScheduleFactors) -> Result<f64, TrainError>,
    ) -> Result<StepReport, TrainError> {
        let factors = self.config.schedule.factors(self.step, self.config.steps);
        let stepped = match (loss.sum + loss.divergence).is_finite() {
            true => change(self, factors),
            false => Err(TrainError::NonFinite { what: "loss", step: self.optimizer.steps() }),
        };
        let loss_scale = self.scaler.map_or(1.0, |scaler| scaler.scale());
        let (norm, skipped) = match stepped {
            Ok(norm) => {
                self.scaler.iter_mut().for_each(LossScaler::accepted);
                (norm, false)
            }
            Err(TrainError::NonFinite { .. }) if self.scaler.as_mut().is_some_and(LossScaler::overflowed) => {
                (f64::INFINITY, true)
            }
            Err(error) => return Err(error),
        };
        let lambda = self.config.lambda_of(self.step);
        let rate = self.config.optimizer.learning_rate * factors.rate;
        self.step += 1;
        Ok(StepReport { step: self.step - 1, loss, tokens, norm, rate, lambda, loss_scale, skipped })
    }

    /// The loss of batches with ternary weights, without training on them.
    ///
    /// # Errors
    ///
    /// Errors of the data and of [`Trained::loss`].
    pub fn evaluate(&self, batches: impl IntoIterator<Item = Batch>) -> Result<Loss, TrainError> {
        let (weights, policy) = (self.trainable.weights(), &self.policy);
        let comm = match &self.distribution {
            Distribution::Pipeline(pipeline) => {
                return losses_of(pipeline.comm(), self.engine, &self.model, weights, policy, batches);
            }
            Distribution::Tensor(TensorRanks { comm, shard, .. }) => {
                return losses_of_shards(*comm, shard, &self.model, weights, policy, batches);
            }
            Distribution::Data(ranks) => Some(ranks.comm),
            Distribution::Alone => None,
        };
        ranks::sum_of_losses(comm, batches, |batch| self.model.loss(weights, batch, policy))
    }
}

/// Refuses a teacher with another vocabulary size.
pub(crate) fn check_vocabulary(spec: &DecoderSpec, of_teacher: &DecoderSpec) -> Result<(), TrainError> {
    let [expected, got] = [spec.vocab, of_teacher.vocab];
    if expected == got { Ok(()) } else { Err(TrainError::Vocabulary { expected, got }) }
}

/// Everything needed to compute a unit.
struct Work<'w, E: TapeEngine> {
    model: &'w Trained<'w, E>,
    teacher: Option<&'w ResidentTeacher<'w, E>>,
    /// Weight of the cross-entropy with a teacher.
    text: f32,
    policy: &'w TernaryPolicy,
    scale: f32,
}

impl<E: TrainEngine> Work<'_, E> {
    /// Computes the loss of a batch and adds its gradient to `gradients`.
    fn add_gradients(
        &self,
        engine: &E,
        weights: Weights<'_, E::Tensor>,
        batch: &Batch,
        gradients: &mut GradientSink<'_, E::Tensor>,
    ) -> Result<Loss, TrainError> {
        let Self { model, teacher, text, policy, scale } = *self;
        let Some(ResidentTeacher { parameters, policy: of_teacher, model: taught_by }) = teacher else {
            return model.gradients_on(engine, weights, batch, policy, Objective::Text, scale, gradients);
        };
        let width = parameters.get().spec().hidden;
        let [hidden, head] = taught_by.hidden_on(engine, parameters.get().into(), batch, of_teacher)?;
        let mut logits = |rows: Range<usize>, out: &mut E::View| -> Result<(), GradError> {
            let x = Operand::new(hidden.borrow(), width)?.rows(rows);
            engine.matmul(
                x,
                Operand::new(head.borrow(), width)?.t(),
                out,
                0,
                Store::Overwrite,
                ProductPrecision::F32,
            )
        };
        let objective = Objective::Distill { text, teacher: &mut logits };
        model.gradients_on(engine, weights, batch, policy, objective, scale, gradients)
    }
}

/// Checks that pipeline or tensor-parallel ranks agree on the version, the configuration and the model's shape; `how` names the
/// partition.
fn agree_on_run(
    comm: &dyn Communicator,
    how: &str,
    config: &TrainerConfig,
    policy: &TernaryPolicy,
    spec: &DecoderSpec,
) -> Result<(), CommError> {
    agree(comm, "version", env!("CARGO_PKG_VERSION"))?;
    agree(comm, "training configuration", &format!("{how}, {config:?}, {policy:?}"))?;
    agree(comm, "model", &format!("{spec:?}"))
}
