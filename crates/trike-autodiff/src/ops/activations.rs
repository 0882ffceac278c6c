//! Rounding of activations.

use std::borrow::BorrowMut;

use trike_trit::GroupSize;

use crate::engine::{Elements, TapeEngine};
use crate::error::GradError;
use crate::tape::{Backward, Operation, Tape};
use crate::var::Var;

/// Lower bound of the absolute maximum in the scale formula, as in BitNet's layers.
const SMALLEST: f32 = 1e-5;

impl<E: TapeEngine> Tape<'_, E> {
    /// Rounds activations to int8: `y = a clamp(round(x / a), -128, 127)` with `a = max(max|x|, 1e-5) / 127` per token, or per
    /// `group` consecutive elements of a token. Ties are rounded to even. The gradient is that of the identity (straight-through
    /// estimator, Bengio et al., 1308.3432).
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`].
    ///
    /// ```
    /// use trike_cpu::Cpu;
    /// use trike_autodiff::{Buffers, Tape};
    ///
    /// let cpu = Cpu::new(1)?;
    /// let x = [127.0, -2.4, 0.5, 254.0, 3.0, 0.0];
    /// let mut tape = Tape::new(&cpu, &Buffers::default());
    /// let x = tape.parameter(&x, 3)?;
    /// let y = tape.int8_activations(x, None)?;
    /// assert_eq!(tape.value(y)?, [127.0, -2.0, 0.0, 254.0, 4.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn int8_activations(&mut self, x: Var, group: Option<GroupSize>) -> Result<Var, GradError> {
        let (_, width) = self.shape(x)?;
        let group = group.map_or(width, GroupSize::get);
        let values = self.value(x)?;
        let mut y = self.take(values.elements())?;
        self.engine().round_activations(values, width, group, SMALLEST, y.borrow_mut())?;
        self.record(&[x], y, width, Through { x })
    }

    /// Weights, `rows x cols`, as a packed model stores embeddings and heads: int8 in groups of `group` columns of a row, with the
    /// absolute maximum / 127 as f16 scale. The gradient is that of the identity.
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`], [`GradError::Tensor`] for a group of 0 and, on the host, for a scale that is not finite in
    /// f16.
    ///
    /// ```
    /// use trike_cpu::Cpu;
    /// use trike_autodiff::{Buffers, Tape};
    ///
    /// let cpu = Cpu::new(1)?;
    /// let table = [127.0, -2.4, 0.5, 63.5, 3.2, 0.0];
    /// let mut tape = Tape::new(&cpu, &Buffers::default());
    /// let table = tape.parameter(&table, 3)?;
    /// let y = tape.int8_weights(table, 32)?;
    /// assert_eq!(tape.value(y)?, [127.0, -2.0, 0.0, 63.5, 3.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn int8_weights(&mut self, weights: Var, group: usize) -> Result<Var, GradError> {
        let (_, cols) = self.shape(weights)?;
        let values = self.value(weights)?;
        let take = || self.take(values.elements());
        let y = self.engine().round_weights(values, cols, group, take)?;
        self.record(&[weights], y, cols, Through { x: weights })
    }
}

/// An operation whose gradient is that of the identity.
struct Through {
    x: Var,
}

impl<E: TapeEngine> Operation<E> for Through {
    fn backward(self: Box<Self>, pass: &mut Backward<'_, E>, dy: E::Tensor) -> Result<(), GradError> {
        pass.add(self.x, dy)
    }
}
