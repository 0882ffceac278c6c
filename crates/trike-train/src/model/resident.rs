//! Frozen weights in the memory of an executor.

use std::borrow::Cow;

use trike_autodiff::{Count, CountTensor, EngineMemory, GradError, TapeEngine};
use trike_cpu::Cpu;

use super::{Parameter, Parameters};

/// An executor for training: the host, a device (feature `gpu`), or [`Count`], which counts the memory of the host.
pub trait TrainEngine: TapeEngine {
    /// Host weights for reading: borrowed on the host, copied to a device.
    ///
    /// # Errors
    ///
    /// [`GradError`] of the executor.
    fn resident<'p>(&self, host: &'p Parameters) -> Result<Resident<'p, Self::Tensor>, GradError>;

    /// Weights in host memory: borrowed on the host, copied from a device.
    ///
    /// # Errors
    ///
    /// [`GradError`] of the executor.
    fn on_host<'p>(&self, weights: &'p Parameters<Self::Tensor>) -> Result<Cow<'p, Parameters>, GradError>;
}

/// Weights in the memory of an executor.
#[derive(Debug)]
pub enum Resident<'p, T> {
    /// Borrowed from the caller.
    Borrowed(&'p Parameters<T>),
    /// A copy.
    Owned(Box<Parameters<T>>),
}

impl<T> Resident<'_, T> {
    /// The weights.
    #[must_use]
    pub fn get(&self) -> &Parameters<T> {
        match self {
            Self::Borrowed(parameters) => parameters,
            Self::Owned(parameters) => parameters,
        }
    }
}

impl TrainEngine for Cpu {
    fn resident<'p>(&self, host: &'p Parameters) -> Result<Resident<'p, Vec<f32>>, GradError> {
        Ok(Resident::Borrowed(host))
    }

    fn on_host<'p>(&self, weights: &'p Parameters) -> Result<Cow<'p, Parameters>, GradError> {
        Ok(Cow::Borrowed(weights))
    }
}

impl TrainEngine for Count {
    fn resident<'p>(&self, host: &'p Parameters) -> Result<Resident<'p, CountTensor>, GradError> {
        let allocate = |parameter: &Parameter| {
            Ok::<_, GradError>(parameter.with(self.allocate(parameter.values.len())?))
        };
        let all = host.all().iter().map(allocate).collect::<Result<_, _>>()?;
        Ok(Resident::Owned(Box::new(Parameters::of(host.spec(), all))))
    }

    fn on_host<'p>(&self, weights: &'p Parameters<CountTensor>) -> Result<Cow<'p, Parameters>, GradError> {
        Ok(Cow::Owned(weights.download(self)?))
    }
}

#[cfg(feature = "gpu")]
impl TrainEngine for trike_autodiff::CubeEngine {
    fn resident<'p>(&self, host: &'p Parameters) -> Result<Resident<'p, Self::Tensor>, GradError> {
        Ok(Resident::Owned(Box::new(host.clone().upload(self)?)))
    }

    fn on_host<'p>(&self, weights: &'p Parameters<Self::Tensor>) -> Result<Cow<'p, Parameters>, GradError> {
        Ok(Cow::Owned(weights.download(self)?))
    }
}
