//! Rotary position embedding.

use std::borrow::BorrowMut;

use crate::engine::TapeEngine;
use crate::error::GradError;
use crate::tape::{Backward, Operation, Tape};
use crate::var::Var;

impl<E: TapeEngine> Tape<'_, E> {
    /// Rotates the `heads` heads of each token of `x`. The gradient is rotated back.
    ///
    /// # Errors
    ///
    /// [`GradError::Cpu`] when the width is not a multiple of `heads` or there is not one position per token.
    pub fn rope(&mut self, x: Var, heads: usize, how: &E::Rotary) -> Result<Var, GradError> {
        let (_, width) = self.shape(x)?;
        let mut y = self.copy(x)?;
        self.engine().rope(y.borrow_mut(), heads, how, false)?;
        self.record(&[x], y, width, Rope::<E> { x, heads, how: how.clone() })
    }
}

struct Rope<E: TapeEngine> {
    x: Var,
    heads: usize,
    how: E::Rotary,
}

impl<E: TapeEngine> Operation<E> for Rope<E> {
    fn backward(self: Box<Self>, pass: &mut Backward<'_, E>, mut dy: E::Tensor) -> Result<(), GradError> {
        let Self { x, heads, how } = *self;
        pass.engine().rope(dy.borrow_mut(), heads, &how, true)?;
        pass.add(x, dy)
    }
}
