//! The loop of training.

use std::borrow::{Borrow, BorrowMut};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use trike_core::{Bounds, OptionError};
use trike_cpu::{Cpu, Store};
use trike_grad::{Elements, Engine, GradError, Operand, ProductPrecision};

use crate::checkpoint::{self, Keep, RunState};
use crate::data::{Batch, Batches, Position};
use crate::model::{ByPlace, Sums, check_gradients};
use crate::{
    Adapter, Loss, LossScaler, Objective, Optimizer, OptimizerConfig, Parameters, PrecisionPolicy, Resident,
    Schedule, Shape, TernaryPolicy, TrainEngine, TrainError, Trained, Weights,
};

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
    /// The loss before it.
    pub loss: Loss,
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
enum Trainable<'a, T> {
    All(Parameters<T>),
    Adapter { frozen: Resident<'a, T>, adapter: Adapter<T> },
}

impl<T: Elements> Trainable<'_, T> {
    fn weights(&self) -> Weights<'_, T> {
        match self {
            Self::All(parameters) => parameters.into(),
            Self::Adapter { frozen, adapter } => Weights::adapted(frozen.get(), adapter),
        }
    }

    fn trained_mut(&mut self) -> &mut Parameters<T> {
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

/// A model in training, on the host or on a device.
///
/// Steps are deterministic: weights depend on configuration, data, seed and executor, and not on the number of threads. Weights,
/// gradients and the optimizer's state stay in the memory of the executor; [`save`](Self::save) and
/// [`download`](Self::download) copy them.
#[derive(Debug)]
pub struct Trainer<'a, E: Engine = Cpu> {
    engine: &'a E,
    config: TrainerConfig,
    policy: TernaryPolicy,
    model: Trained<'a, E>,
    teacher: Option<Tutor<'a, E>>,
    trainable: Trainable<'a, E::Tensor>,
    optimizer: Optimizer<E::Tensor>,
    gradients: Vec<E::Tensor>,
    step: usize,
    scaler: Option<LossScaler>,
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
        config.validate()?;
        let spec = match &trainable {
            Trainable::All(parameters) => parameters.spec(),
            Trainable::Adapter { frozen, .. } => frozen.get().spec(),
        };
        let model = Trained::new(engine, spec, config.checkpoint)?;
        let model = model.with_precision(config.precision.products());
        let teacher = match teacher {
            None => None,
            Some(teacher) => {
                let [expected, got] = [spec.vocab, teacher.parameters.spec().vocab];
                if expected != got {
                    return Err(TrainError::Vocabulary { expected, got });
                }
                let model = Trained::new(engine, teacher.parameters.spec(), None)?;
                let Teacher { parameters, policy } = teacher;
                Some(Tutor { parameters: engine.resident(parameters)?, policy, model })
            }
        };
        let trained = trainable.weights().trained();
        let optimizer = Optimizer::on(engine, config.optimizer, trained)?;
        let gradients = trained.zeros_on(engine)?;
        let scaler = config.precision.scaler();
        Ok(Self { engine, config, policy, model, teacher, trainable, optimizer, gradients, step: 0, scaler })
    }

    /// Steps taken.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.step
    }

    /// The weights that are trained: with an adapter, its factors.
    #[must_use]
    pub fn parameters(&self) -> &Parameters<E::Tensor> {
        self.trainable.weights().trained()
    }

    /// A copy of the weights that are trained on the host: with an adapter, its factors.
    ///
    /// # Errors
    ///
    /// [`TrainError::Grad`] of the executor.
    pub fn download(&self) -> Result<Parameters, TrainError> {
        Ok(self.parameters().download(self.engine)?)
    }

    /// The weights that are trained, at the end of a run.
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
        let read = |tensor: &E::Tensor| Ok(self.engine.download(tensor.borrow())?.into_owned());
        checkpoint::save_from(dir, &state, self.parameters(), &self.optimizer, keep, &read)
    }

    /// Continues from a checkpoint; returns its state, with the position at which the next batch starts.
    ///
    /// # Errors
    ///
    /// As [`checkpoint::load`].
    pub fn resume(&mut self, path: &Path, settings: Value) -> Result<RunState, TrainError> {
        let config = self.with_settings(settings)?;
        let (parameters, optimizer) = (self.trainable.trained_mut(), &mut self.optimizer);
        let write = |values| Ok(self.engine.upload(values)?);
        let state = checkpoint::load_into(path, &config, parameters, optimizer, write)?;
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
        let loss = self.accumulate(batches)?;
        let gradients = std::mem::take(&mut self.gradients);
        let report = self.update(loss, &gradients);
        self.gradients = gradients;
        report
    }

    /// The loss of the next batches and its gradients, in the order of [`parameters`](Self::parameters), without a step: for
    /// loops that change them before [`step_with`](Self::step_with).
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step).
    pub fn gradients(&mut self, batches: &mut Batches<'_>) -> Result<(Loss, &[E::Tensor]), TrainError> {
        let loss = self.accumulate(batches)?;
        Ok((loss, &self.gradients))
    }

    /// Takes a step along the given gradients of a loss.
    ///
    /// # Errors
    ///
    /// [`TrainError::Grad`] for gradients of other shapes than the parameters, and [`TrainError::NonFinite`], after which weights are
    /// what they were.
    pub fn step_with(&mut self, loss: Loss, gradients: &[E::Tensor]) -> Result<StepReport, TrainError> {
        check_gradients(self.parameters(), gradients)?;
        self.update(loss, gradients)
    }

    /// The loss of the next batches, whose gradients replace those of the last.
    fn accumulate(&mut self, batches: &mut Batches<'_>) -> Result<Loss, TrainError> {
        let parts = batches.next_units(self.config.accumulation)?;
        let learned: usize = parts.iter().map(Batch::learned).sum();
        // Documents without anything to learn are passed over, but a row may end before an answer begins.
        let loss_scale = self.scaler.map_or(1.0, |scaler| scaler.scale());
        let scale = loss_scale / learned.max(1) as f32;
        for gradient in &mut self.gradients {
            self.engine.fill(gradient.borrow_mut(), 0.0)?;
        }
        let lambda = self.config.lambda_of(self.step);
        let policy = self.policy.clone().with_lambda(lambda);
        let mut loss = Loss::default();
        if E::SIDE_BY_SIDE && parts.len() > 1 && self.trainable.weights().all.count() <= SMALL {
            // A whole unit per thread: the operations of a small model are too short to be shared out. Each unit has its
            // own gradients, which are added in order, so the bits do not depend on the number of threads.
            let ternary = self.model.ternarized(self.trainable.weights(), &policy)?;
            let mut sums = std::mem::take(&mut self.gradients);
            let count = sums.len();
            let mut done: Result<(), TrainError> = Ok(());
            let run = |alone: &E, batch: &Batch| {
                let mut found: ByPlace<E::Tensor> = Vec::new();
                found.resize_with(count, || None);
                let weights = self.trainable.weights().with_ternary(&ternary);
                let sums = &mut Sums::Found(&mut found);
                let part = self.add_gradients(alone, weights, batch, &policy, scale, sums)?;
                Ok::<_, TrainError>((part, found))
            };
            let mut add = |part: Result<(Loss, ByPlace<E::Tensor>), TrainError>| {
                let (part, found) = part?;
                loss.add(part);
                for (sum, gradient) in sums.iter_mut().zip(&found) {
                    if let Some(gradient) = gradient {
                        self.engine.add(sum.borrow_mut(), gradient.borrow())?;
                    }
                }
                self.model.reuse(found);
                Ok(())
            };
            let started = self.engine.each_alone(parts.iter().collect(), run, |part| {
                if done.is_ok() {
                    done = add(part);
                }
            });
            self.gradients = sums;
            self.model.reuse(ternary);
            started?;
            done?;
        } else {
            let mut gradients = std::mem::take(&mut self.gradients);
            let done = parts.iter().try_for_each(|batch| {
                let weights = self.trainable.weights();
                let sums = &mut Sums::Added(&mut gradients);
                loss.add(self.add_gradients(self.engine, weights, batch, &policy, scale, sums)?);
                Ok::<(), TrainError>(())
            });
            self.gradients = gradients;
            done?;
        }
        if loss_scale != 1.0 {
            for gradient in &mut self.gradients {
                self.engine.scale(gradient.borrow_mut(), 1.0 / loss_scale)?;
            }
        }
        if self.scaler.is_none() && !(loss.sum + loss.divergence).is_finite() {
            return Err(TrainError::NonFinite { what: "loss", step: self.optimizer.steps() });
        }
        Ok(loss)
    }

    fn update(&mut self, loss: Loss, gradients: &[E::Tensor]) -> Result<StepReport, TrainError> {
        let factors = self.config.schedule.factors(self.step, self.config.steps);
        let stepped = match (loss.sum + loss.divergence).is_finite() {
            true => self.optimizer.step(self.engine, self.trainable.trained_mut(), gradients, factors),
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
        Ok(StepReport { step: self.step - 1, loss, norm, rate, lambda, loss_scale, skipped })
    }

    /// The loss of a batch, whose gradient is added to `gradients`.
    fn add_gradients(
        &self,
        engine: &E,
        weights: Weights<'_, E::Tensor>,
        batch: &Batch,
        policy: &TernaryPolicy,
        scale: f32,
        gradients: &mut Sums<'_, E::Tensor>,
    ) -> Result<Loss, TrainError> {
        let Self { model, teacher, config, .. } = self;
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
        let objective = Objective::Distill { text: config.text, teacher: &mut logits };
        model.gradients_on(engine, weights, batch, policy, objective, scale, gradients)
    }

    /// The loss of batches with ternary weights, without learning from them.
    ///
    /// # Errors
    ///
    /// Those of the data and of [`Trained::loss`].
    pub fn evaluate(&self, batches: impl IntoIterator<Item = Batch>) -> Result<Loss, TrainError> {
        let mut all = Loss::default();
        for batch in batches {
            let loss = self.model.loss(self.trainable.weights(), &batch, &self.policy)?;
            all.sum += loss.sum;
            all.tokens += loss.tokens;
        }
        Ok(all)
    }
}
