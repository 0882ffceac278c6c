//! The device of a run.

use std::ops::ControlFlow;

use trike_comm::{Communicator, Threads};
use trike_cpu::Cpu;
use trike_llm::DeviceChoice;

use super::{Run, RunEvent, RunPlan, RunReport};
use crate::{RanksConfig, TrainError};

/// The executor of a run's steps.
enum Executor {
    Host,
    #[cfg(feature = "gpu")]
    Device(trike_autodiff::CubeEngine),
}

impl Executor {
    /// Opens the device of a run and checks its memory.
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
                _ => Ok(Self::Device(trike_autodiff::CubeEngine::new(device))),
            };
        }
        Ok(Self::Host)
    }
}

impl Run {
    /// The plan of the run. Takes some steps to measure their time, and discards them.
    ///
    /// # Errors
    ///
    /// Errors of the device, of the data and of a step.
    pub fn check(&self, cpu: &Cpu) -> Result<RunPlan, TrainError> {
        let alone = self.alone();
        self.check_with(cpu, alone.first().map(|comm| comm as &dyn Communicator))
    }

    /// [`check`](Self::check) as one of several ranks; a collective call.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), and errors for ranks that differ.
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

    /// A single rank, for a run whose weights depend on the exchange between ranks; empty otherwise.
    fn alone(&self) -> Vec<Threads> {
        let RanksConfig { codec, local_steps, .. } = self.config.ranks();
        if codec.is_some() || local_steps > 1 { Threads::new(1) } else { Vec::new() }
    }

    /// Trains on the device of the configuration, and writes the model with the best evaluation. Resumes from the newest checkpoint
    /// in the output directory, which may come from another device.
    ///
    /// `observe` receives every step; when it returns [`ControlFlow::Break`], a checkpoint is written and the run ends. The teacher
    /// generates documents on `cpu`.
    ///
    /// # Errors
    ///
    /// [`TrainError::Diverged`] with the last checkpoint for a loss that is not finite or rises; [`TrainError::Checkpoint`] for a
    /// checkpoint of another configuration; and errors of the device, of the data and of writing.
    pub fn train(
        self,
        cpu: &Cpu,
        observe: &mut dyn FnMut(RunEvent<'_>) -> ControlFlow<()>,
    ) -> Result<RunReport, TrainError> {
        let alone = self.alone();
        self.train_with(cpu, alone.first().map(|comm| comm as &dyn Communicator), observe)
    }

    /// [`train`](Self::train) as one of several ranks, all with the same configuration and data; a collective call. The first rank
    /// reads and writes checkpoints, and writes logs and the model; the output directories of the other ranks are not used.
    ///
    /// The weights are those of [`Trainer::with_ranks`](crate::Trainer::with_ranks).
    ///
    /// # Errors
    ///
    /// As [`train`](Self::train), and [`TrainError::Comm`] for ranks that differ and for a lost rank. After an error on one rank
    /// the others wait for it until their timeout.
    pub fn train_ranks(
        self,
        cpu: &Cpu,
        comm: &dyn Communicator,
        observe: &mut dyn FnMut(RunEvent<'_>) -> ControlFlow<()>,
    ) -> Result<RunReport, TrainError> {
        self.train_with(cpu, Some(comm), observe)
    }

    fn train_with(
        self,
        cpu: &Cpu,
        comm: Option<&dyn Communicator>,
        observe: &mut dyn FnMut(RunEvent<'_>) -> ControlFlow<()>,
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
