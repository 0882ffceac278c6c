//! The device of a run.

use std::ops::ControlFlow;

use trike_cpu::Cpu;
use trike_llm::DeviceChoice;

use super::{Event, Run, RunPlan, RunReport};
use crate::TrainError;

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
        match Executor::open(self)? {
            Executor::Host => self.check_on(cpu),
            #[cfg(feature = "gpu")]
            Executor::Device(engine) => self.check_on(&engine),
        }
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
        match Executor::open(&self)? {
            Executor::Host if self.config.device()? == DeviceChoice::Auto => {
                let mut report = self.train_on(cpu, cpu, observe)?;
                report.notes.push("no GPU was found for the device auto: trained on the CPU".to_owned());
                Ok(report)
            }
            Executor::Host => self.train_on(cpu, cpu, observe),
            #[cfg(feature = "gpu")]
            Executor::Device(engine) => self.train_on(&engine, cpu, observe),
        }
    }
}
