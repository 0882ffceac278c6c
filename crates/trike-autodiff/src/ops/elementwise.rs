//! Sums and gated activations.

use std::borrow::{Borrow, BorrowMut};

use trike_cpu::GatedActivation;

use super::check_shape;
use crate::engine::{Elements, TapeEngine};
use crate::error::GradError;
use crate::tape::{Backward, Operation, Tape};
use crate::var::Var;

impl<E: TapeEngine> Tape<'_, E> {
    /// `y = a + b`, the residual sum.
    ///
    /// # Errors
    ///
    /// [`GradError::Shape`] for different shapes.
    pub fn add(&mut self, a: Var, b: Var) -> Result<Var, GradError> {
        let shape = self.shape(a)?;
        check_shape("summand", shape, self.shape(b)?)?;
        let mut y = self.copy(a)?;
        self.engine().add(y.borrow_mut(), self.value(b)?)?;
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
        let mut y = self.take(shape.0 * shape.1)?;
        self.engine().gated(self.value(gate)?, self.value(up)?, activation, y.borrow_mut())?;
        self.record(&[gate, up], y, shape.1, Gated { gate, up, activation })
    }

    /// `y = x by`.
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`].
    pub fn scale(&mut self, x: Var, by: f32) -> Result<Var, GradError> {
        let (_, cols) = self.shape(x)?;
        let mut y = self.copy(x)?;
        self.engine().scale(y.borrow_mut(), by)?;
        self.record(&[x], y, cols, Scale { x, by })
    }
}

struct Add {
    a: Var,
    b: Var,
}

impl<E: TapeEngine> Operation<E> for Add {
    fn backward(self: Box<Self>, pass: &mut Backward<'_, E>, dy: E::Tensor) -> Result<(), GradError> {
        let mut copy = pass.take(dy.elements())?;
        pass.engine().copy(dy.borrow(), copy.borrow_mut())?;
        pass.add(self.a, copy)?;
        pass.add(self.b, dy)
    }
}

struct Scale {
    x: Var,
    by: f32,
}

impl<E: TapeEngine> Operation<E> for Scale {
    fn backward(self: Box<Self>, pass: &mut Backward<'_, E>, mut dy: E::Tensor) -> Result<(), GradError> {
        pass.engine().scale(dy.borrow_mut(), self.by)?;
        pass.add(self.x, dy)
    }
}

struct Gated {
    gate: Var,
    up: Var,
    activation: GatedActivation,
}

impl<E: TapeEngine> Operation<E> for Gated {
    fn backward(self: Box<Self>, pass: &mut Backward<'_, E>, dy: E::Tensor) -> Result<(), GradError> {
        let Self { gate, up, activation } = *self;
        let [mut d_gate, mut d_up] = [pass.take(dy.elements())?, pass.take(dy.elements())?];
        let (values, gradients) =
            ([pass.value(gate)?, pass.value(up)?], [d_gate.borrow_mut(), d_up.borrow_mut()]);
        pass.engine().gated_back(values[0], values[1], activation, dy.borrow(), gradients)?;
        pass.buffers().give(dy);
        pass.add(gate, d_gate)?;
        pass.add(up, d_up)
    }
}
