//! Rotary position embedding.

use std::sync::Arc;

use trike_cpu::{CpuOps, RopePairing, RopeTable, grad};

use crate::error::GradError;
use crate::tape::{Backward, Operation, Tape};
use crate::var::Var;

/// The rotation of the heads of some tokens.
#[derive(Clone, Debug)]
pub struct Rotary {
    /// Frequencies.
    pub table: Arc<RopeTable>,
    /// Pairing of the elements that are rotated together.
    pub pairing: RopePairing,
    /// The position of each token in its document.
    pub positions: Arc<[u32]>,
}

impl Tape<'_> {
    /// Rotates the `heads` heads of each token of `x`. The gradient is rotated back.
    ///
    /// # Errors
    ///
    /// [`GradError::Cpu`] when the width is not a multiple of `heads` or there is not one position per token.
    pub fn rope(&mut self, x: Var, heads: usize, how: &Rotary) -> Result<Var, GradError> {
        let (_, width) = self.shape(x)?;
        let head_dim = width / heads.max(1);
        let mut y = self.buffers().copy(self.value(x)?)?;
        self.cpu().rope(&mut y, heads, head_dim, &how.positions, &how.table, how.pairing)?;
        self.record(&[x], y, width, Rope { x, heads, head_dim, how: how.clone() })
    }
}

struct Rope {
    x: Var,
    heads: usize,
    head_dim: usize,
    how: Rotary,
}

impl Operation for Rope {
    fn backward(self: Box<Self>, pass: &mut Backward<'_>, mut dy: Vec<f32>) -> Result<(), GradError> {
        let Self { x, heads, head_dim, how } = *self;
        grad::rope(pass.cpu(), &mut dy, heads, head_dim, &how.positions, &how.table, how.pairing)?;
        pass.add(x, dy)
    }
}
