//! The final norm and the output head during tuning.

use trike_autodiff::{Buffers, GradError, Tape};
use trike_cpu::Cpu;
use trike_llm::WeightSource;
use trike_nn::WeightName;

use crate::CalibrateError;

/// The final norm and the output head.
pub(crate) struct Head {
    /// Multiplied by the factor of the head's input.
    norm: Vec<f32>,
    eps: f32,
    /// `vocab x hidden`.
    matrix: Vec<f32>,
}

impl Head {
    pub(crate) fn load(input: &dyn WeightSource) -> Result<Self, CalibrateError> {
        let spec = &input.config().spec;
        let name = if spec.tied_head { WeightName::Embedding } else { WeightName::Head };
        let matrix = input.load(name)?.into_f32();
        let mut norm = input.load(WeightName::FinalNorm)?.into_f32();
        norm.iter_mut().for_each(|weight| *weight *= spec.head_factor());
        Ok(Self { norm, eps: spec.norm_eps(WeightName::FinalNorm), matrix })
    }

    /// The same norm with another matrix, `vocab x hidden`.
    pub(crate) fn with_matrix(&self, matrix: Vec<f32>) -> Self {
        Self { norm: self.norm.clone(), matrix, ..*self }
    }

    /// The logits of the residual stream `x` after all blocks.
    pub(crate) fn logits(&self, cpu: &Cpu, x: &[f32]) -> Result<Vec<f32>, GradError> {
        let mut tape = Tape::new(cpu, &Buffers::default());
        let x = tape.constant(x, self.norm.len())?;
        let norm = tape.constant(&self.norm, self.norm.len())?;
        let matrix = tape.constant(&self.matrix, self.norm.len())?;
        let normed = tape.rms_norm(x, norm, self.eps)?;
        let logits = tape.linear(normed, matrix, None)?;
        tape.into_tensor(logits)
    }

    /// The gradient of a loss with respect to `x`; `loss` receives the logits and replaces them by their gradient.
    pub(crate) fn gradient<T>(
        &self,
        cpu: &Cpu,
        x: &[f32],
        loss: impl FnOnce(&mut [f32]) -> Result<T, CalibrateError>,
    ) -> Result<(T, Vec<f32>), CalibrateError> {
        let mut tape = Tape::new(cpu, &Buffers::default());
        let from = tape.parameter(x, self.norm.len())?;
        let norm = tape.constant(&self.norm, self.norm.len())?;
        let matrix = tape.constant(&self.matrix, self.norm.len())?;
        let normed = tape.rms_norm(from, norm, self.eps)?;
        let logits = tape.linear(normed, matrix, None)?;
        let mut gradient = tape.to_tensor(logits)?;
        let loss = loss(&mut gradient)?;
        let mut found = tape.backward_from(logits, gradient)?;
        Ok((loss, found.take(from).unwrap_or_default()))
    }
}
