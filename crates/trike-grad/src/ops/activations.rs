//! Rounding of activations.

use trike_cpu::grad;
use trike_trit::GroupSize;

use crate::error::GradError;
use crate::tape::{Backward, Operation, Tape};
use crate::var::Var;

/// Lower bound of the largest magnitude in the scale formula, as in BitNet's layers.
const SMALLEST: f32 = 1e-5;

impl Tape<'_> {
    /// Rounds activations to int8: `y = a clamp(round(x / a), -128, 127)` with `a = max(max|x|, 1e-5) / 127` over a token,
    /// or over `group` consecutive elements of one. Ties are rounded to even. The gradient is that of the identity
    /// (straight-through estimator, Bengio et al., 1308.3432).
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`].
    ///
    /// ```
    /// use trike_cpu::Cpu;
    /// use trike_grad::{Buffers, Tape};
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
        let mut y = self.buffers().take(values.len())?;
        grad::round_int8(self.cpu(), values, width, group, SMALLEST, &mut y)?;
        self.record(&[x], y, width, Through { x })
    }
}

/// An operation whose gradient is that of the identity.
struct Through {
    x: Var,
}

impl Operation for Through {
    fn backward(self: Box<Self>, pass: &mut Backward<'_>, dy: Vec<f32>) -> Result<(), GradError> {
        pass.add(self.x, dy)
    }
}
