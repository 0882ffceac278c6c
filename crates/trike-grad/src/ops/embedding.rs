//! Row lookup.

use std::sync::Arc;

use trike_cpu::{CpuError, Store};

use crate::error::GradError;
use crate::tape::{Backward, Operation, Tape};
use crate::var::Var;

impl Tape<'_> {
    /// `y[i] = table[ids[i]]`. The gradient of a row is the sum over the tokens that looked it up, in their order.
    ///
    /// # Errors
    ///
    /// [`GradError::Cpu`] for an id that is not a row of the table.
    pub fn embed(&mut self, table: Var, ids: &Arc<[u32]>) -> Result<Var, GradError> {
        let (rows, cols) = self.shape(table)?;
        if let Some((position, &id)) = ids.iter().enumerate().find(|&(_, &id)| id as usize >= rows) {
            return Err(CpuError::IdOutOfRange { position, id, rows }.into());
        }
        let mut y = self.buffers().take(ids.len() * cols)?;
        let values = self.value(table)?;
        for (y, &id) in y.chunks_exact_mut(cols).zip(ids.iter()) {
            y.copy_from_slice(&values[id as usize * cols..][..cols]);
        }
        self.record(&[table], y, cols, Embed { table, cols, ids: Arc::clone(ids) })
    }
}

struct Embed {
    table: Var,
    cols: usize,
    ids: Arc<[u32]>,
}

impl Operation for Embed {
    fn backward(self: Box<Self>, pass: &mut Backward<'_>, dy: Vec<f32>) -> Result<(), GradError> {
        let Self { table, cols, ids } = *self;
        pass.accumulate(table, |_, dt, store| {
            if store == Store::Overwrite {
                dt.fill(0.0);
            }
            for (dy, &id) in dy.chunks_exact(cols).zip(ids.iter()) {
                let row = &mut dt[id as usize * cols..][..cols];
                row.iter_mut().zip(dy).for_each(|(sum, d)| *sum += d);
            }
            Ok(())
        })?;
        pass.buffers().give(dy);
        Ok(())
    }
}
