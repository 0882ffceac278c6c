//! Linear layers.

use std::borrow::{Borrow, BorrowMut};

use trike_cpu::Store;
use trike_trit::GroupSize;

use super::check_shape;
use super::ternary::TernarizeSpec;
use crate::engine::{Operand, TapeEngine};
use crate::error::GradError;
use crate::tape::{Backward, MixedPrecision, Operation, Tape};
use crate::var::Var;

/// A linear layer as BitNet b1.58 trains it: latent f32 weights that are ternarized in the forward pass.
///
/// ```
/// use trike_cpu::Cpu;
/// use trike_autodiff::{BitLinearSpec, Buffers, Tape};
///
/// let cpu = Cpu::new(1)?;
/// let (x, w) = ([127.0, 27.0, -5.0], [0.75, -1.0, 0.125, 1.0, 0.0, -0.125]);
/// let mut tape = Tape::new(&cpu, &Buffers::default());
/// let x = tape.constant(&x, 3)?;
/// let w = tape.parameter(&w, 3)?;
/// // Trits [1, -1, 0] and [1, 0, 0] with the scale 0.5.
/// let y = tape.bit_linear(x, w, None, &BitLinearSpec::default())?;
/// assert_eq!(tape.value(y)?, [50.0, 63.5]);
/// // The gradient reaches the latent weights as if they had been multiplied.
/// let mut gradients = tape.backward_from(y, vec![1.0, 0.0])?;
/// assert_eq!(gradients.take(w), Some(vec![127.0, 27.0, -5.0, 0.0, 0.0, 0.0]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct BitLinearSpec {
    /// How the weights are ternarized.
    pub weights: TernarizeSpec,
    /// Whether the activations are rounded to int8, see [`Tape::int8_activations`].
    pub int8_activations: bool,
    /// Activations per scale; `None` = one scale per token.
    pub activation_group: Option<GroupSize>,
}

impl Default for BitLinearSpec {
    /// BitNet b1.58: one scale per matrix, the mean magnitude; int8 activations with one scale per token.
    fn default() -> Self {
        Self { weights: TernarizeSpec::default(), int8_activations: true, activation_group: None }
    }
}

impl<E: TapeEngine> Tape<'_, E> {
    /// `y = x W^T + b` for `x` of `tokens x in`, `W` of `out x in` and `b` of `1 x out`. The gradients are `dx = dy W`,
    /// `dW = dy^T x` and `db`, the sum of the rows of `dy`.
    ///
    /// # Errors
    ///
    /// [`GradError::Shape`] for shapes that do not match.
    pub fn linear(&mut self, x: Var, weight: Var, bias: Option<Var>) -> Result<Var, GradError> {
        let ((tokens, cols), (rows, weight_cols)) = (self.shape(x)?, self.shape(weight)?);
        check_shape("weights of linear", (rows, cols), (rows, weight_cols))?;
        if let Some(bias) = bias {
            check_shape("bias of linear", (1, rows), self.shape(bias)?)?;
        }
        let precision = self.precision();
        let mut y = self.take(tokens * rows)?;
        let operands = (Operand::new(self.value(x)?, cols)?, Operand::new(self.value(weight)?, cols)?);
        self.engine().matmul(
            operands.0,
            operands.1.t(),
            y.borrow_mut(),
            0,
            Store::Overwrite,
            precision.outputs,
        )?;
        if let Some(bias) = bias {
            self.engine().add_row(y.borrow_mut(), self.value(bias)?)?;
        }
        let inputs: Vec<Var> = [x, weight].into_iter().chain(bias).collect();
        self.record(&inputs, y, rows, Linear { x, weight, bias, rows, cols, precision })
    }

    /// [`Tape::linear`] of int8 activations and ternarized weights, see [`BitLinearSpec`].
    ///
    /// # Errors
    ///
    /// As [`Tape::linear`] and [`Tape::ternarize`].
    pub fn bit_linear(
        &mut self,
        x: Var,
        weight: Var,
        bias: Option<Var>,
        how: &BitLinearSpec,
    ) -> Result<Var, GradError> {
        let x = if how.int8_activations { self.int8_activations(x, how.activation_group)? } else { x };
        let weight = self.ternarize(weight, &how.weights)?;
        self.linear(x, weight, bias)
    }
}

struct Linear {
    x: Var,
    weight: Var,
    bias: Option<Var>,
    rows: usize,
    cols: usize,
    precision: MixedPrecision,
}

impl<E: TapeEngine> Operation<E> for Linear {
    fn backward(self: Box<Self>, pass: &mut Backward<'_, E>, dy: E::Tensor) -> Result<(), GradError> {
        let Self { x, weight, bias, rows, cols, precision } = *self;
        let d = Operand::new(dy.borrow(), rows)?;
        pass.accumulate(weight, |pass, dw, store| {
            pass.engine().matmul(
                d.t(),
                Operand::new(pass.value(x)?, cols)?,
                dw,
                0,
                store,
                precision.weight_gradients,
            )
        })?;
        pass.accumulate(x, |pass, dx, store| {
            pass.engine().matmul(
                d,
                Operand::new(pass.value(weight)?, cols)?,
                dx,
                0,
                store,
                precision.input_gradients,
            )
        })?;
        if let Some(bias) = bias {
            let mut sums = pass.take(rows)?;
            pass.engine().sum_rows(dy.borrow(), sums.borrow_mut())?;
            pass.add(bias, sums)?;
        }
        pass.buffers().give(dy);
        Ok(())
    }
}
