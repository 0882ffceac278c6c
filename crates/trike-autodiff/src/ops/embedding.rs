//! Row lookup.

use std::borrow::{Borrow, BorrowMut};
use std::sync::Arc;

use trike_cpu::{CpuError, Store};

use crate::engine::TapeEngine;
use crate::error::GradError;
use crate::tape::{Backward, Operation, Tape};
use crate::var::Var;

impl<E: TapeEngine> Tape<'_, E> {
    /// `y[i] = table[ids[i]]`. The gradient of a table row is the sum over the tokens that looked it up, in token order.
    ///
    /// # Errors
    ///
    /// [`GradError::Cpu`] for an id that is not a row of the table.
    pub fn embed(&mut self, table: Var, ids: &Arc<[u32]>) -> Result<Var, GradError> {
        let (rows, cols) = self.shape(table)?;
        if let Some((position, &id)) = ids.iter().enumerate().find(|&(_, &id)| id as usize >= rows) {
            return Err(CpuError::IdOutOfRange { position, id, rows }.into());
        }
        let mut y = self.take(ids.len() * cols)?;
        let ids = self.engine().ids(ids, rows)?;
        self.engine().gather(self.value(table)?, cols, &ids, y.borrow_mut())?;
        self.record(&[table], y, cols, Embed::<E> { table, cols, ids })
    }
}

struct Embed<E: TapeEngine> {
    table: Var,
    cols: usize,
    ids: E::Ids,
}

impl<E: TapeEngine> Operation<E> for Embed<E> {
    fn backward(self: Box<Self>, pass: &mut Backward<'_, E>, dy: E::Tensor) -> Result<(), GradError> {
        let Self { table, cols, ids } = *self;
        pass.accumulate(table, |pass, dt, store| {
            if store == Store::Overwrite {
                pass.engine().fill(dt, 0.0)?;
            }
            pass.engine().scatter_add(dy.borrow(), cols, &ids, dt)
        })?;
        pass.buffers().give(dy);
        Ok(())
    }
}
