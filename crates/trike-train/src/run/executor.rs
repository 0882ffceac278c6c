//! The device of a run.

use std::ops::ControlFlow;

use trike_comm::{Communicator, Threads};
use trike_cpu::Cpu;
use trike_llm::DeviceChoice;

use super::{Event, Run, RunPlan, RunReport};
use crate::{RanksConfig, TrainError};

/// What computes the steps of a run.
enum Executor {
    Host,
    #[cfg(feature = "gpu")]
    Device(trike_grad::CubeEngine),
}

impl Executor {
    /// Opens the device of a run, which must have room for it.
    fn open(run: &Run) -> Result<Self, TrainError> {
        let device = run.config.device()?.open()?;
        if device.is_cpu() {
            return Ok(Self::Host);
        }
        if run.config.bf16 || run.config.fp16 {
            let problem = "bf16 and fp16 are for the device cpu: leave them out on a GPU".to_owned();
            return Err(TrainError::Config { problem });
        }
        #[cfg(feature = "gpu")]
        if let Some(device) = device.into_cube() {
            let needed = run.memory;
            return match device.memory().available() {
                Some(limit) if needed > limit => Err(TrainError::Memory { needed, limit }),
                _ => Ok(Self::Device(trike_grad::CubeEngine::new(device))),
            };
        }
        Ok(Self::Host)
    }
}

impl Run {
    /// What the run will do. Takes some steps to measure their time, and forgets them.
    ///
    /// # Errors
    ///
    /// Those of the device, of the data and of a step.
    pub fn check(&self, cpu: &Cpu) -> Result<RunPlan, TrainError> {
        let alone = self.alone();
        self.check_with(cpu, alone.first().map(|comm| comm as &dyn Communicator))
    }

    /// [`check`](Self::check) as one of several ranks, which all call this.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), and those of ranks that differ.
    pub fn check_ranks(&self, cpu: &Cpu, comm: &dyn Communicator) -> Result<RunPlan, TrainError> {
        self.check_with(cpu, Some(comm))
    }

    fn check_with(&self, cpu: &Cpu, comm: Option<&dyn Communicator>) -> Result<RunPlan, TrainError> {
        match Executor::open(self)? {
            Executor::Host => self.check_on(cpu, comm),
            #[cfg(feature = "gpu")]
            Executor::Device(engine) => self.check_on(&engine, comm),
        }
    }

    /// The only rank of a run whose weights depend on what ranks exchange; none where they do not.
    fn alone(&self) -> Vec<Threads> {
        let RanksConfig { codec, local_steps, .. } = self.config.ranks();
        if codec.is_some() || local_steps > 1 { Threads::new(1) } else { Vec::new() }
    }

    /// Trains on the device of the configuration, and writes the model with the best evaluation. Continues after the newest
    /// checkpoint in the output directory, which may be that of another device.
    ///
    /// `observe` sees every step; when it returns [`ControlFlow::Break`], a checkpoint is written and the run ends. A teacher writes
    /// documents on `cpu`.
    ///
    /// # Errors
    ///
    /// [`TrainError::Diverged`] with the last checkpoint for a loss that is not finite or rises; [`TrainError::Checkpoint`] for a
    /// checkpoint of another configuration; and those of the device, of the data and of writing.
    pub fn train(
        self,
        cpu: &Cpu,
        observe: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<RunReport, TrainError> {
        let alone = self.alone();
        self.train_with(cpu, alone.first().map(|comm| comm as &dyn Communicator), observe)
    }

    /// [`train`](Self::train) as one of several ranks, which all call this with the same configuration and data. The first one
    /// reads and writes checkpoints, and writes logs and the model; the output directories of the others are not used.
    ///
    /// Weights are those of [`Trainer::with_ranks`](crate::Trainer::with_ranks).
    ///
    /// # Errors
    ///
    /// As [`train`](Self::train), and [`TrainError::Comm`] for ranks that differ and for one that is gone. After an error of one
    /// rank the others wait for it, until their deadline.
    pub fn train_ranks(
        self,
        cpu: &Cpu,
        comm: &dyn Communicator,
        observe: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<RunReport, TrainError> {
        self.train_with(cpu, Some(comm), observe)
    }

    fn train_with(
        self,
        cpu: &Cpu,
        comm: Option<&dyn Communicator>,
        observe: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<RunReport, TrainError> {
        match Executor::open(&self)? {
            Executor::Host if self.config.device()? == DeviceChoice::Auto => {
                let mut report = self.train_on(cpu, cpu, comm, observe)?;
                report.notes.push("no GPU was found for the device auto: trained on the CPU".to_owned());
                Ok(report)
            }
            Executor::Host => self.train_on(cpu, cpu, comm, observe),
            #[cfg(feature = "gpu")]
            Executor::Device(engine) => self.train_on(&engine, cpu, comm, observe),
        }
    }
}
