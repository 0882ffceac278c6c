//! Causal attention.

use std::sync::Arc;

use trike_cpu::{AttentionSpec, grad};

use crate::error::GradError;
use crate::tape::{Backward, Operation, Tape};
use crate::var::Var;

impl Tape<'_> {
    /// Causal softmax attention of `q`, `tokens x (heads head_dim)`, to `k` and `v`, `tokens x (kv_heads head_dim)`. The
    /// tokens are consecutive documents of `lengths` tokens, which do not attend to each other.
    ///
    /// Weights are recomputed in the backward pass, so memory is linear in the number of tokens.
    ///
    /// # Errors
    ///
    /// [`GradError::Cpu`] for shapes that do not match `spec` and `lengths`.
    pub fn attention(
        &mut self,
        spec: &AttentionSpec,
        [q, k, v]: [Var; 3],
        lengths: &Arc<[usize]>,
    ) -> Result<Var, GradError> {
        let (_, width) = self.shape(q)?;
        let values = [self.value(q)?, self.value(k)?, self.value(v)?];
        let mut y = self.buffers().take(values[0].len())?;
        grad::attend(self.cpu(), spec, values, lengths, &mut y)?;
        let inputs = [q, k, v];
        self.record(&inputs, y, width, Attention { spec: *spec, inputs, lengths: Arc::clone(lengths) })
    }
}

struct Attention {
    spec: AttentionSpec,
    inputs: [Var; 3],
    lengths: Arc<[usize]>,
}

impl Operation for Attention {
    fn backward(self: Box<Self>, pass: &mut Backward<'_>, dy: Vec<f32>) -> Result<(), GradError> {
        let Self { spec, inputs: [q, k, v], lengths } = *self;
        let values = [pass.value(q)?, pass.value(k)?, pass.value(v)?];
        let [dq, dk, dv] = values.map(|x| pass.buffers().take(x.len()));
        let (mut dq, mut dk, mut dv) = (dq?, dk?, dv?);
        grad::attention(pass.cpu(), &spec, values, &lengths, &dy, [&mut dq, &mut dk, &mut dv])?;
        pass.buffers().give(dy);
        for (input, gradient) in [(q, dq), (k, dk), (v, dv)] {
            pass.add(input, gradient)?;
        }
        Ok(())
    }
}
