//! Causal attention.

use std::borrow::{Borrow, BorrowMut};

use trike_cpu::AttentionSpec;

use crate::engine::{Elements, TapeEngine};
use crate::error::GradError;
use crate::tape::{Backward, Operation, Tape};
use crate::var::Var;

impl<E: TapeEngine> Tape<'_, E> {
    /// Causal softmax attention of `q`, `tokens x (heads head_dim)`, to `k` and `v`, `tokens x (kv_heads head_dim)`. The tokens are
    /// packed documents of `lengths` tokens (an `Arc<[usize]>` on the host), which do not attend to each other.
    ///
    /// Attention weights are recomputed in the backward pass, so memory is linear in the number of tokens.
    ///
    /// # Errors
    ///
    /// [`GradError::Cpu`] for shapes that do not match `spec` and `lengths`.
    pub fn attention(
        &mut self,
        spec: &AttentionSpec,
        [q, k, v]: [Var; 3],
        lengths: &E::Segments,
    ) -> Result<Var, GradError> {
        let (_, width) = self.shape(q)?;
        let values = [self.value(q)?, self.value(k)?, self.value(v)?];
        let mut y = self.take(values[0].elements())?;
        self.engine().attention(spec, values, lengths, y.borrow_mut())?;
        let inputs = [q, k, v];
        self.record(&inputs, y, width, Attention { spec: *spec, inputs, lengths: lengths.clone() })
    }
}

struct Attention<E: TapeEngine> {
    spec: AttentionSpec,
    inputs: [Var; 3],
    lengths: E::Segments,
}

impl<E: TapeEngine> Operation<E> for Attention<E> {
    fn backward(self: Box<Self>, pass: &mut Backward<'_, E>, dy: E::Tensor) -> Result<(), GradError> {
        let Self { spec, inputs: [q, k, v], lengths } = *self;
        let values = [pass.value(q)?, pass.value(k)?, pass.value(v)?];
        let [dq, dk, dv] = values.map(|x| pass.take(x.elements()));
        let (mut dq, mut dk, mut dv) = (dq?, dk?, dv?);
        let gradients = [dq.borrow_mut(), dk.borrow_mut(), dv.borrow_mut()];
        pass.engine().attention_back(&spec, values, &lengths, dy.borrow(), gradients)?;
        pass.buffers().give(dy);
        for (input, gradient) in [(q, dq), (k, dk), (v, dv)] {
            pass.add(input, gradient)?;
        }
        Ok(())
    }
}
