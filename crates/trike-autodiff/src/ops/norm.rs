//! Root-mean-square normalization.

use std::borrow::{Borrow, BorrowMut};

use super::check_shape;
use crate::engine::{Elements, TapeEngine};
use crate::error::GradError;
use crate::tape::{Backward, Operation, Tape};
use crate::var::Var;

impl<E: TapeEngine> Tape<'_, E> {
    /// `y = x / sqrt(mean(x^2) + eps) weight` per group of `cols` elements of `x`; `weight` is `1 x cols`, where `cols` is the
    /// width of `x` or of one head.
    ///
    /// # Errors
    ///
    /// [`GradError::Shape`] for a weight of more than one row, [`GradError::Cpu`] when its width does not divide that of
    /// `x`.
    pub fn rms_norm(&mut self, x: Var, weight: Var, eps: f32) -> Result<Var, GradError> {
        let ((_, width), (rows, cols)) = (self.shape(x)?, self.shape(weight)?);
        check_shape("weight of rms_norm", (1, cols), (rows, cols))?;
        if !width.is_multiple_of(cols) {
            return Err(trike_cpu::CpuError::NotMultiple {
                what: "input of rms_norm",
                unit: cols,
                got: width,
            }
            .into());
        }
        let mut y = self.take(self.value(x)?.elements())?;
        self.engine().rms_norm(self.value(x)?, self.value(weight)?, eps, y.borrow_mut())?;
        self.record(&[x, weight], y, width, RmsNorm { x, weight, eps })
    }
}

struct RmsNorm {
    x: Var,
    weight: Var,
    eps: f32,
}

impl<E: TapeEngine> Operation<E> for RmsNorm {
    fn backward(self: Box<Self>, pass: &mut Backward<'_, E>, dy: E::Tensor) -> Result<(), GradError> {
        let Self { x, weight, eps } = *self;
        if pass.is_tracked(weight)? {
            let mut dw = pass.take(pass.value(weight)?.elements())?;
            pass.engine().rms_norm_weight(pass.value(x)?, eps, dy.borrow(), dw.borrow_mut())?;
            pass.add(weight, dw)?;
        }
        if pass.is_tracked(x)? {
            let (mut dx, values) = (pass.take(dy.elements())?, [pass.value(x)?, pass.value(weight)?]);
            pass.engine().rms_norm_input(values[0], values[1], eps, dy.borrow(), dx.borrow_mut())?;
            pass.add(x, dx)?;
        }
        pass.buffers().give(dy);
        Ok(())
    }
}
