//! The final norm and the output head during tuning.

use std::borrow::{Borrow, BorrowMut};

use trike_autodiff::{Buffers, Elements, GradError, Tape, TapeEngine, Var};
use trike_llm::WeightSource;
use trike_nn::WeightName;

use crate::CalibrateError;

/// The final norm and the output head, in the memory of an engine.
pub(crate) struct Head<E: TapeEngine> {
    /// Multiplied by the factor of the head's input.
    norm: E::Tensor,
    eps: f32,
    /// `vocab x hidden`.
    matrix: E::Tensor,
}

impl<E: TapeEngine> Head<E> {
    pub(crate) fn load(input: &dyn WeightSource, engine: &E) -> Result<Self, CalibrateError> {
        let spec = &input.config().spec;
        let name = if spec.tied_head { WeightName::Embedding } else { WeightName::Head };
        Self::with_matrix(input, engine, input.load(name)?.into_f32())
    }

    /// The norm of a model with another matrix, `vocab x hidden`.
    pub(crate) fn with_matrix(
        input: &dyn WeightSource,
        engine: &E,
        matrix: Vec<f32>,
    ) -> Result<Self, CalibrateError> {
        let spec = &input.config().spec;
        let mut norm = input.load(WeightName::FinalNorm)?.into_f32();
        norm.iter_mut().for_each(|weight| *weight *= spec.head_factor());
        let (norm, matrix) = (engine.upload(norm)?, engine.upload(matrix)?);
        Ok(Self { norm, eps: spec.norm_eps(WeightName::FinalNorm), matrix })
    }

    /// Records the logits of a residual stream.
    fn record<'t>(&'t self, tape: &mut Tape<'t, E>, x: Var) -> Result<Var, GradError> {
        let hidden = self.norm.elements();
        let norm = tape.constant(self.norm.borrow(), hidden)?;
        let matrix = tape.constant(self.matrix.borrow(), hidden)?;
        let normed = tape.rms_norm(x, norm, self.eps)?;
        tape.linear(normed, matrix, None)
    }

    /// The logits of the residual stream `x` after all blocks.
    pub(crate) fn logits(&self, engine: &E, x: &E::View) -> Result<E::Tensor, GradError> {
        let mut tape = Tape::new(engine, &Buffers::default());
        let x = tape.constant(x, self.norm.elements())?;
        let logits = self.record(&mut tape, x)?;
        tape.into_tensor(logits)
    }

    /// The gradient of a loss with respect to `x`; `loss` receives the logits and replaces them by their gradient.
    pub(crate) fn gradient<T>(
        &self,
        engine: &E,
        x: &E::View,
        loss: impl FnOnce(&mut E::View) -> Result<T, CalibrateError>,
    ) -> Result<(T, E::Tensor), CalibrateError> {
        let mut tape = Tape::new(engine, &Buffers::default());
        let from = tape.parameter(x, self.norm.elements())?;
        let logits = self.record(&mut tape, from)?;
        let mut gradient = tape.to_tensor(logits)?;
        let loss = loss(gradient.borrow_mut())?;
        let mut found = tape.backward_from(logits, gradient)?;
        // The logits depend on the stream, which is a parameter.
        let gradient = found.take(from).ok_or(GradError::ForeignVariable)?;
        Ok((loss, gradient))
    }

    /// The divergence of the logits of `x` from those of `aim`, summed over tokens, in nats.
    pub(crate) fn divergence(&self, engine: &E, x: &E::View, aim: &E::View) -> Result<f64, CalibrateError> {
        let aim = self.logits(engine, aim)?;
        let mut logits = self.logits(engine, x)?;
        self.compare(engine, logits.borrow_mut(), aim)
    }

    /// The same with its gradient with respect to `x`.
    pub(crate) fn divergence_gradient(
        &self,
        engine: &E,
        x: &E::View,
        aim: &E::View,
    ) -> Result<(f64, E::Tensor), CalibrateError> {
        let aim = self.logits(engine, aim)?;
        self.gradient(engine, x, |logits| self.compare(engine, logits, aim))
    }

    /// The divergence of logits, which become its gradient, from others.
    fn compare(&self, engine: &E, logits: &mut E::View, mut aim: E::Tensor) -> Result<f64, CalibrateError> {
        let rows = logits.elements() / (self.matrix.elements() / self.norm.elements().max(1)).max(1);
        let mut losses = engine.losses(rows)?;
        engine.divergence(logits, 0..rows, aim.borrow_mut(), 1.0, &mut losses)?;
        let [_, divergence] = engine.totals(losses)?;
        Ok(divergence)
    }
}
