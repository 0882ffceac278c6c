//! Whole runs: from a configuration to a model on disk, with logs, evaluation and checkpoints.

mod axolotl;
mod config;
mod directory;
mod executor;
mod identity;
mod log;
mod measure;
mod names;
mod page;
mod parallel;
mod ranks;
mod reading;
mod setup;
mod track;

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use trike_comm::{Communicator, agree};
use trike_core::{Bounds, OptionError};
use trike_cpu::Cpu;

pub use axolotl::ConfigFormat;
pub use config::RunConfig;
pub use log::{LogLine, StepLine};
pub use measure::HeldOutLoss;
pub use names::{CodecName, Dataset, Parallel, ScaleKind, Scheduler, Sharing, Whole};
pub use setup::Run;

use self::directory::RunDirectory;
use self::identity::RunIdentity;
use self::log::Log;
use self::ranks::{Moment, StepTraffic};
use self::track::{Means, Watch};
use crate::data::{Batches, unit_rows};
use crate::model::count;
use crate::{StepReport, TrainEngine, TrainError, Trainer, checkpoint};

/// Directory of the checkpoints in the output directory.
const CHECKPOINTS: &str = "checkpoints";
/// Number of timed steps, after one warm-up step, to estimate the length of a run in minutes.
const TIMED: usize = 3;

/// The plan of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RunPlan {
    /// Trainable values.
    pub parameters: usize,
    /// Documents to learn from.
    pub documents: usize,
    /// Documents that the teacher generates for training.
    pub written: usize,
    /// Documents that are evaluated.
    pub held_out: usize,
    /// Steps of the run.
    pub steps: usize,
    /// Tokens of a step.
    pub tokens_per_step: usize,
    /// Estimated peak memory in bytes.
    pub memory: u64,
    /// Measured seconds per step; `None` unless the run has a length in minutes or is only checked.
    pub seconds_per_step: Option<f64>,
    /// The step at which the run resumes, if there is a checkpoint.
    pub continues: Option<usize>,
}

/// Progress of a run.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum RunEvent<'e> {
    /// The teacher writes documents.
    Writing {
        /// Documents generated so far.
        done: usize,
        /// Documents to generate.
        of: usize,
    },
    /// It starts, or continues.
    Started(&'e RunPlan),
    /// A step was taken.
    Step {
        /// Report of the step.
        report: StepReport,
        /// Steps of the run.
        steps: usize,
        /// Tokens per second since the start.
        tokens_per_second: f64,
    },
    /// Held-out text was evaluated.
    Evaluated(&'e HeldOutLoss),
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// All steps were taken.
    #[default]
    Complete,
    /// Early stopping: the evaluations did not improve.
    Early,
    /// Stopped by the caller; a checkpoint was written, unless no step was taken, and no model.
    Interrupted,
}

/// Statistics of the ranks of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RanksReport {
    /// Their number.
    pub count: usize,
    /// Messages of all ranks during steps.
    pub sent_messages: u64,
    /// Their bytes, with headers.
    pub sent_bytes: u64,
    /// Mean seconds that a rank waited for messages during steps.
    pub waiting_seconds: f64,
    /// Mean seconds of the steps.
    pub step_seconds: f64,
    /// Mean CPU seconds of a rank's threads during steps; `None` if the system does not report them.
    pub processor_seconds: Option<f64>,
}

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RunReport {
    /// The output directory.
    pub output: PathBuf,
    /// Why it ended.
    pub ended: Ended,
    /// Steps taken.
    pub steps: usize,
    /// Steps that were planned.
    pub planned: usize,
    /// Documents that the teacher generated.
    pub written: usize,
    /// Tokens that were learned.
    pub tokens: u64,
    /// Seconds of all sessions of the run.
    pub seconds: f64,
    /// Evaluation before the first step; `None` without held-out text.
    pub start: Option<HeldOutLoss>,
    /// The best evaluation, which is that of the written weights.
    pub best: Option<HeldOutLoss>,
    /// The teacher's evaluation on the same text.
    pub teacher: Option<HeldOutLoss>,
    /// The ranks of this session; `None` for a run without ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<RanksReport>,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl RunReport {
    /// Ratio of the bits per token of the written weights to those of the teacher.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        Some(self.best?.bits_per_token / self.teacher?.bits_per_token)
    }
}

/// State of a run in its checkpoints, in addition to the weights.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Memory {
    tokens: u64,
    seconds: f64,
    start: Option<HeldOutLoss>,
    best: Option<HeldOutLoss>,
    /// Evaluations since the best one.
    since: usize,
}

impl Run {
    fn check_on<E: TrainEngine>(
        &self,
        engine: &E,
        comm: Option<&dyn Communicator>,
    ) -> Result<RunPlan, TrainError> {
        let mut plan = self.plan(engine, comm)?;
        plan.seconds_per_step = Some(self.seconds_per_step(engine, comm)?);
        Ok(plan)
    }

    /// The number of steps, and the checkpoint to resume from.
    fn plan<E: TrainEngine>(
        &self,
        engine: &E,
        comm: Option<&dyn Communicator>,
    ) -> Result<RunPlan, TrainError> {
        let batches = &self.batches;
        let tokens_per_step = self.config.tokens_per_step(batches)?;
        let mut seconds_per_step = None;
        let state = ranks::from_first(comm, || {
            let newest = checkpoint::newest(&self.config.output_dir.join(CHECKPOINTS))?;
            newest.map(|path| checkpoint::peek(&path)).transpose()
        })?;
        let earlier = state.as_ref().and_then(|state| state.config["training"]["steps"].as_u64());
        let all = |run: &Self| -> Result<u64, TrainError> { Ok(run.tokens()?.0) };
        let steps = match (self.config.max_steps, self.config.num_epochs, self.config.minutes) {
            (Some(steps), ..) => steps,
            (_, Some(epochs), _) => (epochs * all(self)? as f64 / tokens_per_step as f64).ceil() as usize,
            // The number of steps computed when the run was started.
            (.., Some(_)) if earlier.is_some() => earlier.unwrap_or_default() as usize,
            (.., minutes) => {
                let seconds = self.seconds_per_step(engine, comm)?;
                seconds_per_step = Some(seconds);
                let left = 60.0 * minutes.unwrap_or_default() - self.seconds_of_evaluations(engine, comm)?;
                (left / seconds) as usize
            }
        };
        let steps = steps.max(1);
        OptionError::check("steps", Bounds::at_least(1usize).at_most(usize::MAX / tokens_per_step), steps)?;
        let written = self.to_write(steps as u64 * tokens_per_step as u64)?;
        let documents = self.documents.len().saturating_add(written);
        if u32::try_from(documents).is_err() {
            return Err(TrainError::TooManyDocuments { documents, most: u32::MAX as usize });
        }
        self.check_written(written, comm)?;
        Ok(RunPlan {
            written,
            parameters: count(self.start.spec()),
            documents: self.split.train.len(),
            held_out: self.split.held_out.len(),
            steps,
            tokens_per_step,
            memory: self.memory,
            seconds_per_step,
            continues: state.map(|state| state.step),
        })
    }

    /// Number of units of a step that ranks can divide.
    fn units(&self) -> usize {
        let rows = self.batches.rows.saturating_mul(self.config.gradient_accumulation_steps);
        rows.div_ceil(unit_rows(self.batches.length))
    }

    /// The time of a step, with ternary weights.
    fn seconds_per_step<E: TrainEngine>(
        &self,
        engine: &E,
        comm: Option<&dyn Communicator>,
    ) -> Result<f64, TrainError> {
        let mut config = self.config.trainer(TIMED + 1)?;
        config.lambda = 0.0;
        let mut trainer = self.trainer(engine, config, comm)?;
        let mut batches = self.data(Default::default())?;
        trainer.step(&mut batches)?;
        let start = Instant::now();
        for _ in 0..TIMED {
            trainer.step(&mut batches)?;
        }
        let seconds = start.elapsed().as_secs_f64() / TIMED as f64;
        ranks::from_first(comm, || Ok(seconds))
    }

    /// The time of all evaluations of a run.
    fn seconds_of_evaluations<E: TrainEngine>(
        &self,
        engine: &E,
        comm: Option<&dyn Communicator>,
    ) -> Result<f64, TrainError> {
        let start = Instant::now();
        self.held_out_loss(engine, comm, &self.start, &self.policy()?)?;
        let seconds = start.elapsed().as_secs_f64() * (setup::EVALUATIONS + 2) as f64;
        ranks::from_first(comm, || Ok(seconds))
    }

    fn train_on<E: TrainEngine>(
        mut self,
        engine: &E,
        cpu: &Cpu,
        comm: Option<&dyn Communicator>,
        observe: &mut dyn FnMut(RunEvent<'_>) -> ControlFlow<()>,
    ) -> Result<RunReport, TrainError> {
        if let Some(comm) = comm {
            agree(comm, "version", env!("CARGO_PKG_VERSION"))?;
            agree(comm, "parallel", &format!("{:?}", self.config.parallel))?;
        }
        let identity = RunIdentity::of(&self)?;
        if let Some(comm) = comm {
            identity.agree(comm)?;
            self.check_alike(cpu, comm)?;
        }
        let is_first = ranks::is_first(comm);
        let dir = &self.config.output_dir.clone();
        let checkpoints = dir.join(CHECKPOINTS);
        // The claim is released after the model is written.
        let mut claimed = None;
        ranks::from_first(comm, || {
            claimed = Some(RunDirectory::claim(dir)?);
            Ok(())
        })?;
        // Checked before any computation.
        let settings = |path: &Path| ranks::from_first(comm, || identity.settings_of(path));
        let newest = ranks::from_first(comm, || checkpoint::newest(&checkpoints))?;
        let earlier = newest.map(|path| Ok::<_, TrainError>((settings(&path)?, path))).transpose()?;
        let plan = self.plan(engine, comm)?;
        let steps = plan.steps;
        let of = plan.written;
        let written =
            self.write_documents(cpu, of, comm, &mut |done| observe(RunEvent::Writing { done, of }))?;
        if !written {
            let ended = Ended::Interrupted;
            return Ok(RunReport { output: dir.clone(), ended, planned: steps, ..RunReport::default() });
        }
        let mut trainer = self.trainer(engine, self.config.trainer(steps)?, comm)?;
        let mut position = Default::default();
        let mut memory = Memory::default();
        if let Some((settings, path)) = earlier {
            let state = trainer.resume(&path, settings)?;
            position = state.position;
            memory = serde_json::from_value(state.memory)
                .map_err(|e| TrainError::Checkpoint { path, problem: format!("memory: {e}") })?;
        }
        let text = self.config.to_toml()?;
        let mut log = None;
        if is_first {
            setup::write(&dir.join("run.toml"), &text)?;
            log = Some(Log::open(dir, trainer.steps())?);
        }
        let mut add = |line: LogLine| log.iter_mut().try_for_each(|log| log.add(line));
        let _ = observe(RunEvent::Started(&plan));
        let (before, started) = (memory.seconds, Instant::now());
        let learned_before = memory.tokens;
        if !self.text.is_empty() && memory.start.is_none() {
            let evaluation = self.evaluate(&trainer)?;
            add(LogLine::Evaluation(evaluation))?;
            memory.start = Some(evaluation);
            let _ = observe(RunEvent::Evaluated(&evaluation));
        }
        // Between local steps the weights of the ranks differ.
        let local = self.config.local_steps;
        let [every, save] = self.config.intervals(steps);
        let every = every.unwrap_or(steps.div_ceil(setup::EVALUATIONS)).next_multiple_of(local);
        let save = save.unwrap_or(every).next_multiple_of(local);
        let mut batches = self.data(position)?;
        let mut traffic = StepTraffic::default();
        let mut watch = Watch::default();
        let mut means = Means { since: Some(Instant::now()), ..Means::default() };
        let (mut ended, mut is_enough) = (Ended::Complete, false);
        let patience = self.config.early_stopping_patience;
        while trainer.steps() < steps {
            if patience > 0 && memory.since >= patience {
                ended = Ended::Early;
                break;
            }
            let diverged = |step: usize| -> Result<TrainError, TrainError> {
                Ok(TrainError::Diverged { step, checkpoint: checkpoint::newest(&checkpoints)? })
            };
            let before_step = comm.map(Moment::now);
            let report = match trainer.step(&mut batches) {
                Err(TrainError::NonFinite { .. }) => return Err(diverged(trainer.steps())?),
                report => report?,
            };
            if let (Some(comm), Some(before)) = (comm, before_step) {
                traffic.add(&before, &Moment::now(comm));
            }
            memory.tokens += if report.skipped { 0 } else { report.tokens as u64 };
            memory.seconds = before + started.elapsed().as_secs_f64();
            means.add(&report);
            let done = trainer.steps();
            let loss = (report.loss.sum + report.loss.divergence) / report.loss.tokens.max(1) as f64;
            // The loss rises while weights become ternary.
            if report.lambda == 1.0 && !report.skipped && watch.diverges(loss) {
                return Err(diverged(done)?);
            }
            if done.is_multiple_of(self.config.logging_steps) || done == steps {
                add(means.line(&report, memory.tokens))?;
            }
            let is_evaluated = !self.text.is_empty() && (done.is_multiple_of(every) || done == steps);
            if is_evaluated {
                let evaluation = self.evaluate(&trainer)?;
                add(LogLine::Evaluation(evaluation))?;
                let bits = evaluation.bits_per_token;
                let is_best = bits.is_finite() && memory.best.is_none_or(|best| bits < best.bits_per_token);
                memory.since = if is_best { 0 } else { memory.since + 1 };
                if is_best {
                    memory.best = Some(evaluation);
                }
                let _ = observe(RunEvent::Evaluated(&evaluation));
                means.since = Some(Instant::now());
            }
            let learned = (memory.tokens - learned_before) as f64;
            let tokens_per_second = learned / started.elapsed().as_secs_f64().max(1e-9);
            is_enough |= observe(RunEvent::Step { report, steps, tokens_per_second }).is_break();
            let stops = trainer.is_together() && done < steps && ranks::any(comm, is_enough)?;
            if is_evaluated || done.is_multiple_of(save) || stops || done == steps {
                self.save(&trainer, &batches, &memory, &identity, &checkpoints)?;
            }
            if stops {
                ended = Ended::Interrupted;
                break;
            }
        }
        let mut report = RunReport {
            output: dir.clone(),
            ended,
            steps: trainer.steps(),
            planned: steps,
            written: plan.written,
            tokens: memory.tokens,
            seconds: memory.seconds,
            start: memory.start,
            best: memory.best,
            ranks: comm.map(|comm| ranks::report(comm, &traffic)).transpose()?,
            teacher: self.evaluate_teacher(engine, comm)?,
            notes: Vec::new(),
        };
        if ended != Ended::Interrupted {
            if report.tokens == 0 {
                return Err(TrainError::NothingLearned { steps: report.steps });
            }
            if let Some(best) = memory.best.filter(|best| best.step != trainer.steps()) {
                let path = checkpoint::folder(&checkpoints, best.step);
                trainer.resume(&path, settings(&path)?)?;
            }
            let gathered = if trainer.is_divided() { trainer.gather()? } else { None };
            if !is_first {
                return Ok(report);
            }
            let weights =
                gathered.map_or_else(|| engine.on_host(trainer.parameters()), |all| Ok(Cow::Owned(all)))?;
            report.notes = self.write_model(&weights)?;
            let (units, ranks) = (self.units(), comm.map_or(1, Communicator::size));
            if units < ranks && self.config.parallel != Parallel::Tensor {
                report.notes.push(format!(
                    "a step was {units} units of at least 512 tokens for {ranks} ranks: a larger micro_batch_size or \
                     gradient_accumulation_steps gives all of them work"
                ));
            }
            report.notes.extend(batches.cut().note(self.batches.length));
            if self.text.is_empty() && !self.split.held_out.is_empty() {
                report.notes.push(format!(
                    "none of the {} held-out documents has a target token: the last weights were written, without an evaluation",
                    self.split.held_out.len()
                ));
            }
            let (length, context) = (self.batches.length, weights.spec().context);
            if length < context {
                report.notes.push(format!(
                    "rows had {length} tokens, and the context has {context}: later positions were not trained"
                ));
            }
            setup::write(&dir.join("report.json"), &(to_json(&report)?.to_string() + "\n"))?;
            let lines = log.map(|log| log.lines).unwrap_or_default();
            setup::write(&dir.join("report.html"), &page::page(&report, &lines, &text)?)?;
        }
        drop(claimed);
        Ok(report)
    }

    fn save<E: TrainEngine>(
        &self,
        trainer: &Trainer<'_, E>,
        batches: &Batches<'_>,
        memory: &Memory,
        identity: &RunIdentity,
        dir: &Path,
    ) -> Result<(), TrainError> {
        let also = memory.best.map(|best| best.step);
        let keep = checkpoint::Keep { newest: self.config.save_total_limit, also };
        let memory = to_json(memory)?;
        trainer.save(dir, batches.position(), identity.to_json()?, memory, keep)?;
        Ok(())
    }

    fn evaluate<E: TrainEngine>(&self, trainer: &Trainer<'_, E>) -> Result<HeldOutLoss, TrainError> {
        let loss = trainer.evaluate(self.text.batches.iter().cloned())?;
        Ok(self.text.evaluation(trainer.steps(), loss.sum))
    }

    fn evaluate_teacher<E: TrainEngine>(
        &self,
        engine: &E,
        comm: Option<&dyn Communicator>,
    ) -> Result<Option<HeldOutLoss>, TrainError> {
        let Some(teacher) = self.teacher().filter(|_| !self.text.is_empty()) else { return Ok(None) };
        let loss = self.held_out_loss(engine, comm, teacher.parameters, &teacher.policy)?;
        Ok(Some(self.text.evaluation(0, loss.sum)))
    }
}

fn to_json(value: &impl Serialize) -> Result<Value, TrainError> {
    serde_json::to_value(value).map_err(|e| TrainError::Config { problem: e.to_string() })
}
