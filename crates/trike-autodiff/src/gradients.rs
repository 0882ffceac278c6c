//! The result of a backward pass.

use std::borrow::Borrow;

use trike_cpu::Cpu;

use crate::engine::TapeEngine;
use crate::var::Var;

/// Gradients of a loss with respect to the parameters of a tape.
#[derive(Debug)]
pub struct Gradients<E: TapeEngine = Cpu> {
    tape: u64,
    all: Vec<Option<E::Tensor>>,
}

impl<E: TapeEngine> Gradients<E> {
    pub(crate) fn new(tape: u64, all: Vec<Option<E::Tensor>>) -> Self {
        Self { tape, all }
    }

    /// The gradient of a parameter, in its shape; `None` if the loss does not depend on it, if it is not a parameter of the tape,
    /// or if it was taken already.
    pub fn get(&self, parameter: Var) -> Option<&E::View> {
        let index = (parameter.tape == self.tape).then_some(parameter.index)?;
        self.all.get(index)?.as_ref().map(Borrow::borrow)
    }

    /// Like [`get`](Self::get), and removes it.
    pub fn take(&mut self, parameter: Var) -> Option<E::Tensor> {
        let index = (parameter.tape == self.tape).then_some(parameter.index)?;
        self.all.get_mut(index)?.take()
    }
}
