//! Sums and gated activations.

use trike_cpu::{CpuOps, GatedActivation, grad};

use super::check_shape;
use crate::error::GradError;
use crate::tape::{Backward, Operation, Tape};
use crate::var::Var;

impl Tape<'_> {
    /// `y = a + b`, the residual sum.
    ///
    /// # Errors
    ///
    /// [`GradError::Shape`] for different shapes.
    pub fn add(&mut self, a: Var, b: Var) -> Result<Var, GradError> {
        let shape = self.shape(a)?;
        check_shape("summand", shape, self.shape(b)?)?;
        let mut y = self.buffers().copy(self.value(a)?)?;
        self.cpu().add(&mut y, self.value(b)?)?;
        self.record(&[a, b], y, shape.1, Add { a, b })
    }

    /// `y = f(gate) up`, element by element. The gradients are `dy up f'(gate)` and `dy f(gate)`.
    ///
    /// # Errors
    ///
    /// [`GradError::Shape`] for different shapes.
    pub fn gated(&mut self, gate: Var, up: Var, activation: GatedActivation) -> Result<Var, GradError> {
        let shape = self.shape(gate)?;
        check_shape("up projection", shape, self.shape(up)?)?;
        let mut y = self.buffers().take(shape.0 * shape.1)?;
        self.cpu().gated(self.value(gate)?, self.value(up)?, activation, &mut y)?;
        self.record(&[gate, up], y, shape.1, Gated { gate, up, activation })
    }
}

struct Add {
    a: Var,
    b: Var,
}

impl Operation for Add {
    fn backward(self: Box<Self>, pass: &mut Backward<'_>, dy: Vec<f32>) -> Result<(), GradError> {
        let copy = pass.buffers().copy(&dy)?;
        pass.add(self.a, copy)?;
        pass.add(self.b, dy)
    }
}

struct Gated {
    gate: Var,
    up: Var,
    activation: GatedActivation,
}

impl Operation for Gated {
    fn backward(self: Box<Self>, pass: &mut Backward<'_>, dy: Vec<f32>) -> Result<(), GradError> {
        let Self { gate, up, activation } = *self;
        let [mut d_gate, mut d_up] = [pass.buffers().take(dy.len())?, pass.buffers().take(dy.len())?];
        let (cpu, values) = (pass.cpu(), [pass.value(gate)?, pass.value(up)?]);
        grad::gated(cpu, values[0], values[1], activation, &dy, &mut d_gate, &mut d_up)?;
        pass.buffers().give(dy);
        pass.add(gate, d_gate)?;
        pass.add(up, d_up)
    }
}
