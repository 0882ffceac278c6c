//! The result of a backward pass.

use crate::var::Var;

/// Gradients of a loss with respect to the parameters of a tape.
#[derive(Debug)]
pub struct Gradients {
    tape: u64,
    all: Vec<Option<Vec<f32>>>,
}

impl Gradients {
    pub(crate) fn new(tape: u64, all: Vec<Option<Vec<f32>>>) -> Self {
        Self { tape, all }
    }

    /// The gradient of a parameter, in its shape; `None` if the loss does not depend on it, if it is not a parameter of
    /// the tape, or if it was taken.
    pub fn get(&self, parameter: Var) -> Option<&[f32]> {
        let index = (parameter.tape == self.tape).then_some(parameter.index)?;
        self.all.get(index)?.as_deref()
    }

    /// Like [`get`](Self::get), and removes it.
    pub fn take(&mut self, parameter: Var) -> Option<Vec<f32>> {
        let index = (parameter.tape == self.tape).then_some(parameter.index)?;
        self.all.get_mut(index)?.take()
    }
}
