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
use trike_comm::{CommError, Communicator, agree};
use trike_core::{Bounds, OptionError};
use trike_cpu::{Cpu, Store};
use trike_grad::{Elements, Engine, GradError, Operand, ProductPrecision};
use trike_nn::DecoderSpec;

use crate::checkpoint::{self, Keep, RunState};
use crate::data::{Batch, Batches, Position};
use crate::model::{ByPlace, Division, Sums, check_gradients};
use crate::{
    Adapter, Factors, Loss, LossScaler, Objective, Optimizer, OptimizerConfig, Parameters, PrecisionPolicy,
    Resident, Schedule, Shape, TernaryPolicy, TrainEngine, TrainError, Trained, Weights,
};

pub(crate) use self::pipeline::{Pipeline, check_ranks, losses_of};
use self::ranks::Ranks;
pub use self::ranks::{OuterConfig, RanksConfig};
pub(crate) use self::ranks::{all_numbers, sum_of_losses};
pub(crate) use self::tensor::{TensorRanks, check_tensor_ranks, losses_of_shards};

/// Parameters of a model whose rows are computed side by side, each with gradients of its own: at most 32 MiB per thread.
pub(crate) const SMALL: usize = 1 << 23;

/// Constants of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainerConfig {
    /// Steps of the whole run, at least 1.
    pub steps: usize,
    /// Batches whose gradients are added up for a step, at least 1. Only the rows of a step count, not their division into
    /// batches: one batch of 16 rows is the same step, to the bit, as four of four.
    pub accumulation: usize,
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// Learning rate and weight decay over the run.
    pub schedule: Schedule,
    /// Share of the steps over which weights go from dense to ternary, linearly.
    pub lambda: f32,
    /// Share of the cross-entropy in the loss beside the divergence from a teacher; without a teacher the loss is the
    /// cross-entropy.
    pub text: f32,
    /// Blocks of a segment of gradient checkpointing; `None` keeps all activations.
    pub checkpoint: Option<usize>,
    /// What products are rounded to.
    pub precision: PrecisionPolicy,
}

impl Default for TrainerConfig {
    /// The recipe for one ternary plane from a dense model that is also the teacher: the divergence alone, without weight
    /// decay, at a high rate that falls with a cosine, after a short linear path from dense to ternary weights. The rate is that
    /// of models of less than a million parameters; larger ones want less.
    fn default() -> Self {
        Self {
            steps: 7000,
            accumulation: 2,
            optimizer: OptimizerConfig {
                learning_rate: 3e-3,
                weight_decay: 0.0,
                ..OptimizerConfig::default()
            },
            schedule: Schedule { warmup: 100, shape: Shape::Cosine { end: 0.01 } },
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

    /// Share of the ternary weights in step `step`: 0 is dense, 1 is ternary.
    #[must_use]
    pub fn lambda_of(&self, step: usize) -> f32 {
        let over = self.lambda * self.steps as f32;
        if over < 1.0 { 1.0 } else { (step as f32 / over).min(1.0) }
    }
}

/// A frozen model whose logits are learned.
#[derive(Debug)]
pub struct Teacher<'a> {
    /// Its weights; the vocabulary must be that of the student.
    pub parameters: &'a Parameters,
    /// How it rounds weights and activations.
    pub policy: TernaryPolicy,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// The step, from 0.
    pub step: usize,
    /// The loss before it; with local steps, that of this rank's share.
    pub loss: Loss,
    /// Tokens that were learned, on all ranks together.
    pub tokens: usize,
    /// Norm of all gradients together, before it was limited.
    pub norm: f64,
    /// Learning rate.
    pub rate: f32,
    /// Share of the ternary weights.
    pub lambda: f32,
    /// Factor of the loss while its gradients were computed.
    pub loss_scale: f32,
    /// Whether gradients overflowed in f16: weights are what they were, and the next factor is smaller.
    pub skipped: bool,
}

/// What a run changes.
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

/// A teacher where the executor reads it.
#[derive(Debug)]
struct Tutor<'a, E: Engine> {
    parameters: Resident<'a, E::Tensor>,
    policy: TernaryPolicy,
    model: Trained<'a, E>,
}

/// Where the weights and the rows of a step lie, chosen once.
#[derive(Debug, Default)]
enum Distribution<'a> {
    /// All on this rank.
    #[default]
    Alone,
    /// All ranks have all weights, and divide the rows.
    Data(Ranks<'a>),
    /// Each rank has some blocks.
    Pipeline(Pipeline<'a>),
    /// Each rank has some rows of every matrix.
    Tensor(TensorRanks<'a>),
}

impl<'a> Distribution<'a> {
    /// The other ranks, and which part of the weights each of them holds; `None` if this one holds all.
    fn division(&self) -> Option<(&'a dyn Communicator, &dyn Division)> {
        match self {
            Self::Alone | Self::Data(_) => None,
            Self::Pipeline(pipeline) => Some((pipeline.comm(), pipeline.stage())),
            Self::Tensor(tensor) => Some((tensor.comm, &tensor.shard)),
        }
    }
}

/// A model in training, on the host or on a device.
///
/// Steps are deterministic: weights depend on configuration, data, seed and executor, and not on the number of threads. Weights,
/// gradients and the optimizer's state stay in the memory of the executor; [`save`](Self::save) and
/// [`download`](Self::download) copy them.
#[derive(Debug)]
pub struct Trainer<'a, E: Engine = Cpu> {
    pub(crate) engine: &'a E,
    pub(crate) config: TrainerConfig,
    pub(crate) policy: TernaryPolicy,
    model: Trained<'a, E>,
    teacher: Option<Tutor<'a, E>>,
    pub(crate) trainable: Trainable<'a, E::Tensor>,
    pub(crate) optimizer: Optimizer<E::Tensor>,
    pub(crate) gradients: Vec<E::Tensor>,
    pub(crate) step: usize,
    pub(crate) scaler: Option<LossScaler>,
    distribution: Distribution<'a>,
}

impl<'a, E: TrainEngine> Trainer<'a, E> {
    /// A run from step 0 on `engine`, a [`Cpu`] or a device, in whose memory the parameters are placed.
    ///
    /// # Errors
    ///
    /// [`TrainError::Option`], [`TrainError::Vocabulary`] for a teacher with another vocabulary, and [`TrainError::Grad`] for a
    /// device without room.
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
    /// As [`new`](Self::new), [`TrainError::Option`] for a `lambda` other than 0, since frozen weights do not become ternary, and
    /// as [`Adapter::check`].
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

    /// A run from step 0 whose weights are where the executor reads them.
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
            Ok::<_, TrainError>(Tutor { parameters, policy, model })
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

    /// The weights that are trained: with an adapter, its factors; in a pipeline or of divided matrices, those of this rank.
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

    /// [`parameters`](Self::parameters), at the end of a run.
    #[must_use]
    pub fn into_parameters(self) -> Parameters<E::Tensor> {
        match self.trainable {
            Trainable::All(parameters) => parameters,
            Trainable::Adapter { adapter, .. } => adapter.into_parameters(),
        }
    }

    /// The adapter that is trained; `None` if all weights are.
    #[must_use]
    pub fn adapter(&self) -> Option<&Adapter<E::Tensor>> {
        match &self.trainable {
            Trainable::All(_) => None,
            Trainable::Adapter { adapter, .. } => Some(adapter),
        }
    }

    /// Writes a checkpoint, see [`checkpoint::save`]. `settings` are those of the caller that have to be the same when the run
    /// continues, such as its data; `memory` is what it wants to remember.
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
        if let Some((comm, division)) = self.distribution.division() {
            return self.save_parts(comm, division, dir, &state, keep);
        }
        let tensors = checkpoint::tensors_of(self.parameters(), &self.optimizer, |tensor| {
            Ok(self.engine.download(tensor.borrow())?.into_owned())
        })?;
        checkpoint::write(dir, &state, self.optimizer.steps(), 1, &tensors, keep)
    }

    /// Continues from a checkpoint; returns its state, with the position at which the next batch starts. Of several ranks only the
    /// first reads it. It may have been written by another number of ranks.
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
        // The caller's settings come first: a difference has the name that it was given.
        let mut all =
            json!({ "settings": settings, "training": config, "weights": format!("{:?}", self.policy) });
        if let Some(adapter) = self.adapter() {
            all["adapter"] = serde_json::to_value(adapter.config()).map_err(wrong)?;
        }
        Ok(all)
    }

    /// Takes a step with the next batches.
    ///
    /// # Errors
    ///
    /// [`TrainError::NonFinite`] for a loss or gradient that is not finite, after which weights are what they were; with products
    /// in f16 only if the factor of the loss is the smallest already, otherwise the step is skipped. And those of the data.
    pub fn step(&mut self, batches: &mut Batches<'_>) -> Result<StepReport, TrainError> {
        self.with_distribution(|trainer, distribution| match distribution {
            Distribution::Data(ranks) => trainer.step_together(ranks, batches),
            other => {
                let units = batches.next_units(trainer.config.accumulation)?;
                trainer.step_units(other, &units)
            }
        })
    }

    /// Calls `run` with the distribution beside the rest of the trainer, which it changes.
    fn with_distribution<T>(&mut self, run: impl FnOnce(&mut Self, &mut Distribution<'a>) -> T) -> T {
        let mut distribution = std::mem::take(&mut self.distribution);
        let done = run(self, &mut distribution);
        self.distribution = distribution;
        done
    }

    /// A step with these units; not for ranks that divide them between them.
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

    /// The loss of the next batches and its gradients, in the order of [`parameters`](Self::parameters), without a step: for
    /// loops that change them before [`step_with`](Self::step_with).
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

    /// Takes a step along the given gradients of a loss.
    ///
    /// # Errors
    ///
    /// [`TrainError::Grad`] for gradients of other shapes than the parameters, and [`TrainError::NonFinite`], after which weights are
    /// what they were, and [`TrainError::Alone`] with ranks.
    pub fn step_with(&mut self, loss: Loss, gradients: &[E::Tensor]) -> Result<StepReport, TrainError> {
        self.check_alone("a step along given gradients")?;
        check_gradients(self.parameters(), gradients)?;
        self.update(loss, gradients, loss.tokens)
    }

    /// Whether other ranks hold parts of the weights.
    pub(crate) fn is_divided(&self) -> bool {
        self.distribution.division().is_some()
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

    /// The loss of some units, whose gradients replace those of the last.
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

    /// What the gradients of some units are multiplied with: their mean, times the factor of the loss.
    pub(crate) fn scale_of(&self, units: &[Batch]) -> f32 {
        let learned: usize = units.iter().map(Batch::learned).sum();
        // Documents without anything to learn are passed over, but a row may end before an answer begins.
        self.scaler.map_or(1.0, |scaler| scaler.scale()) / learned.max(1) as f32
    }

    /// Takes the factor of the loss out of gradients.
    pub(crate) fn unscale(&self, gradients: &mut [E::Tensor]) -> Result<(), GradError> {
        let loss_scale = self.scaler.map_or(1.0, |scaler| scaler.scale());
        if loss_scale == 1.0 {
            return Ok(());
        }
        gradients
            .iter_mut()
            .try_for_each(|gradient| self.engine.scale(gradient.borrow_mut(), 1.0 / loss_scale))
    }

    /// Refuses a loss that is not finite, unless a smaller factor of the loss may help.
    pub(crate) fn check_loss(&self, loss: Loss) -> Result<(), TrainError> {
        if self.scaler.is_none() && !(loss.sum + loss.divergence).is_finite() {
            return Err(TrainError::NonFinite { what: "loss", step: self.optimizer.steps() });
        }
        Ok(())
    }

    /// The loss of some units, whose gradients times `scale` are added to `sums` in their order.
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
                loss.add(work.add_gradients(engine, weights, batch, &mut Sums::Added(sums))?);
            }
            return Ok(loss);
        }
        // A whole unit per thread: the operations of a small model are too short to be shared out. Each unit has its own
        // gradients, which are added in order, so the bits do not depend on the number of threads.
        let ternary = model.ternarized(weights, policy)?;
        let count = sums.len();
        let mut done: Result<(), TrainError> = Ok(());
        let run = |alone: &E, batch: &Batch| {
            let mut found: ByPlace<E::Tensor> = Vec::new();
            found.resize_with(count, || None);
            let weights = weights.with_ternary(&ternary);
            let part = work.add_gradients(alone, weights, batch, &mut Sums::Found(&mut found))?;
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

    /// Takes the step that `change` takes, which returns the norm of the gradients.
    pub(crate) fn update_by(
        &mut self,
        loss: Loss,
        tokens: usize,
        change: impl FnOnce(&mut Self, Factors) -> Result<f64, TrainError>,
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

    /// The loss of batches with ternary weights, without learning from them.
    ///
    /// # Errors
    ///
    /// Those of the data and of [`Trained::loss`].
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

/// Refuses a teacher with another vocabulary.
pub(crate) fn check_vocabulary(spec: &DecoderSpec, of_teacher: &DecoderSpec) -> Result<(), TrainError> {
    let [expected, got] = [spec.vocab, of_teacher.vocab];
    if expected == got { Ok(()) } else { Err(TrainError::Vocabulary { expected, got }) }
}

/// What a unit is computed with.
struct Work<'w, E: Engine> {
    model: &'w Trained<'w, E>,
    teacher: Option<&'w Tutor<'w, E>>,
    /// Share of the cross-entropy beside a teacher.
    text: f32,
    policy: &'w TernaryPolicy,
    scale: f32,
}

impl<E: TrainEngine> Work<'_, E> {
    /// The loss of a batch, whose gradient is added to `gradients`.
    fn add_gradients(
        &self,
        engine: &E,
        weights: Weights<'_, E::Tensor>,
        batch: &Batch,
        gradients: &mut Sums<'_, E::Tensor>,
    ) -> Result<Loss, TrainError> {
        let Self { model, teacher, text, policy, scale } = *self;
        let Some(Tutor { parameters, policy: of_teacher, model: taught_by }) = teacher else {
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

/// Ranks that hold parts of a model agree on the version, the configuration and the model's shape; `how` says how it is divided.
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
