//! Root-mean-square normalization.

use trike_cpu::{CpuOps, grad};

use super::check_shape;
use crate::error::GradError;
use crate::tape::{Backward, Operation, Tape};
use crate::var::Var;

impl Tape<'_> {
    /// `y = x / sqrt(mean(x^2) + eps) weight` for each `cols` elements of `x`, where `weight` is `1 x cols`: the width of
    /// `x`, or of one of its heads.
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
        let mut y = self.buffers().take(self.value(x)?.len())?;
        self.cpu().rms_norm(self.value(x)?, self.value(weight)?, eps, &mut y)?;
        self.record(&[x, weight], y, width, RmsNorm { x, weight, eps })
    }
}

struct RmsNorm {
    x: Var,
    weight: Var,
    eps: f32,
}

impl Operation for RmsNorm {
    fn backward(self: Box<Self>, pass: &mut Backward<'_>, dy: Vec<f32>) -> Result<(), GradError> {
        let Self { x, weight, eps } = *self;
        if pass.is_tracked(weight)? {
            let mut dw = pass.buffers().take(pass.value(weight)?.len())?;
            grad::rms_norm_weight(pass.cpu(), pass.value(x)?, eps, &dy, &mut dw)?;
            pass.add(weight, dw)?;
        }
        if pass.is_tracked(x)? {
            let mut dx = pass.buffers().take(dy.len())?;
            grad::rms_norm(pass.cpu(), pass.value(x)?, pass.value(weight)?, eps, &dy, &mut dx)?;
            pass.add(x, dx)?;
        }
        pass.buffers().give(dy);
        Ok(())
    }
}
