//! Operations of tensor-parallel linear layers.

use std::borrow::{Borrow, BorrowMut};
use std::cell::RefCell;
use std::rc::Rc;

use trike_autodiff::{
    Backward, Elements, GradError, MixedPrecision, Operand, Operation, Tape, TapeEngine, Var,
};
use trike_comm::Shards;
use trike_cpu::Store;
use trike_nn::WeightName;

use super::Divided;
use super::exchange::{gather_columns, own_columns};

/// The input of a tensor-parallel linear layer.
#[derive(Clone, Copy)]
pub(in crate::model) struct Input {
    /// All of it.
    pub(in crate::model) whole: Var,
    /// This rank's columns, which get the gradient.
    pub(in crate::model) columns: Var,
}

/// Layers with a common input whose outputs are not gathered: in the backward pass, the gradients of all their outputs are gathered
/// together.
pub(in crate::model) struct Group<'d, E: TapeEngine>(Rc<RefCell<Vec<Waiting<'d, E>>>>);

impl<E: TapeEngine> Default for Group<'_, E> {
    fn default() -> Self {
        Self(Rc::default())
    }
}

/// Output gradients of a layer that wait for the other layers of the group.
struct Waiting<'d, E: TapeEngine> {
    dy: E::Tensor,
    outputs: &'d Shards,
    columns: Option<&'d E::View>,
}

/// Distribution of a layer's outputs.
pub(in crate::model) enum Outputs<'g, 'd, E: TapeEngine> {
    /// Gathered on all ranks.
    Gathered,
    /// Each rank keeps its own. The layer recorded first is the last one in the backward pass.
    Own { group: &'g Group<'d, E>, is_first: bool },
}

/// Copies values to memory of the tape, so that the pool gets back buffers of its own.
fn placed<E: TapeEngine>(engine: &E, mut to: E::Tensor, values: &E::Tensor) -> Result<E::Tensor, GradError> {
    engine.copy(values.borrow(), to.borrow_mut())?;
    Ok(to)
}

impl<'d, E: TapeEngine> Divided<'d, E> {
    /// This rank's columns of a whole value, as the target of the gradient of layers whose inputs are divided like those of `name`.
    pub(in crate::model) fn columns(
        self,
        tape: &mut Tape<'d, E>,
        x: Var,
        name: WeightName,
    ) -> Result<Var, GradError> {
        let (tokens, _) = tape.shape(x)?;
        let shards = self.shard.inputs(name);
        let width = shards.of_rank(self.comm.rank()).len();
        // Layers read the whole value; only the gradient uses these columns.
        let unread = tape.take(tokens * width)?;
        tape.record(&[x], unread, width, Columns { divided: self, x, shards })
    }

    /// Gathers a value whose columns are divided like the rows of `name`.
    pub(in crate::model) fn gather(
        self,
        tape: &mut Tape<'d, E>,
        x: Var,
        name: WeightName,
    ) -> Result<Var, GradError> {
        let shards = self.shard.inputs(name);
        let (tokens, _) = tape.shape(x)?;
        let whole =
            gather_columns(tape.engine(), self.comm, tokens, &[shards], &[tape.value(x)?])?.swap_remove(0);
        let y = placed(tape.engine(), tape.take(whole.elements())?, &whole)?;
        tape.record(&[x], y, shards.len(), Gather { divided: self, x, shards })
    }

    /// A linear layer of which this rank holds some rows; `place` is the index of its matrix.
    #[expect(clippy::too_many_arguments, reason = "those of a linear layer, and how it is divided")]
    pub(in crate::model) fn linear(
        self,
        tape: &mut Tape<'d, E>,
        x: Input,
        (name, place): (WeightName, usize),
        weight: Var,
        bias: Option<Var>,
        to: &Outputs<'_, 'd, E>,
        precision: MixedPrecision,
    ) -> Result<Var, GradError> {
        let Some(outputs) = self.shard.outputs(name) else {
            return tape.linear(x.whole, weight, bias);
        };
        let (engine, (tokens, cols), (rows, _)) = (tape.engine(), tape.shape(x.whole)?, tape.shape(weight)?);
        let mut y = tape.take(tokens * rows)?;
        let [input, matrix] =
            [Operand::new(tape.value(x.whole)?, cols)?, Operand::new(tape.value(weight)?, cols)?];
        engine.matmul(input, matrix.t(), y.borrow_mut(), 0, Store::Overwrite, precision.outputs)?;
        if let Some(bias) = bias {
            engine.add_row(y.borrow_mut(), tape.value(bias)?)?;
        }
        let group = match to {
            Outputs::Own { group, is_first } => Some((Group(Rc::clone(&group.0)), *is_first)),
            Outputs::Gathered => {
                let whole =
                    gather_columns(engine, self.comm, tokens, &[outputs], &[y.borrow()])?.swap_remove(0);
                tape.buffers().give(y);
                y = placed(engine, tape.take(whole.elements())?, &whole)?;
                None
            }
        };
        let width = if group.is_some() { rows } else { outputs.len() };
        let columns = self.prepared.columns.get(place).and_then(Option::as_ref).map(Borrow::borrow);
        let inputs: Vec<Var> = [x.columns, weight].into_iter().chain(bias).collect();
        let rows = RowLinear { divided: self, x, weight, bias, outputs, columns, group, cols, precision };
        tape.record(&inputs, y, width, rows)
    }
}

/// A linear layer of which this rank holds some rows.
struct RowLinear<'d, E: TapeEngine> {
    divided: Divided<'d, E>,
    x: Input,
    weight: Var,
    bias: Option<Var>,
    outputs: &'d Shards,
    /// This rank's columns of the whole matrix.
    columns: Option<&'d E::View>,
    /// `None` if the outputs were gathered.
    group: Option<(Group<'d, E>, bool)>,
    cols: usize,
    precision: MixedPrecision,
}

impl<E: TapeEngine> RowLinear<'_, E> {
    /// The gradients of this rank's rows, given those of their outputs.
    fn rows_back(&self, pass: &mut Backward<'_, E>, dy: &E::View) -> Result<(), GradError> {
        let rows = self.outputs.of_rank(self.divided.comm.rank()).len();
        pass.accumulate(self.weight, |pass, dw, store| {
            let (dy, x) = (Operand::new(dy, rows)?, Operand::new(pass.value(self.x.whole)?, self.cols)?);
            pass.engine().matmul(dy.t(), x, dw, 0, store, self.precision.weight_gradients)
        })?;
        if let Some(bias) = self.bias {
            let mut sums = pass.take(rows)?;
            pass.engine().sum_rows(dy, sums.borrow_mut())?;
            pass.add(bias, sums)?;
        }
        Ok(())
    }

    /// Adds the gradient of this rank's columns of the input, given those of all outputs.
    fn columns_back(
        &self,
        pass: &mut Backward<'_, E>,
        dy: &E::View,
        outputs: &Shards,
        columns: Option<&E::View>,
    ) -> Result<(), GradError> {
        let width = pass.cols(self.x.columns)?;
        pass.accumulate(self.x.columns, |pass, dx, store| {
            let missing =
                GradError::Length { what: "columns of a matrix", expected: outputs.len() * width, got: 0 };
            let columns = Operand::new(columns.ok_or(missing)?, width)?;
            let dy = Operand::new(dy, outputs.len())?;
            pass.engine().matmul(dy, columns, dx, 0, store, self.precision.input_gradients)
        })
    }
}

impl<E: TapeEngine> Operation<E> for RowLinear<'_, E> {
    fn backward(self: Box<Self>, pass: &mut Backward<'_, E>, dy: E::Tensor) -> Result<(), GradError> {
        let (engine, comm, outputs) = (pass.engine(), self.divided.comm, self.outputs);
        let Some((group, is_first)) = &self.group else {
            self.rows_back(pass, own_columns(engine, comm, outputs, dy.borrow())?.borrow())?;
            self.columns_back(pass, dy.borrow(), outputs, self.columns)?;
            pass.buffers().give(dy);
            return Ok(());
        };
        self.rows_back(pass, dy.borrow())?;
        RefCell::borrow_mut(&group.0).push(Waiting { dy, outputs, columns: self.columns });
        if !is_first {
            return Ok(());
        }
        let waiting = group.0.take();
        let tokens = waiting
            .first()
            .map_or(0, |own| own.dy.elements() / own.outputs.of_rank(comm.rank()).len().max(1));
        let shards: Vec<&Shards> = waiting.iter().map(|waiting| waiting.outputs).collect();
        let own: Vec<&E::View> = waiting.iter().map(|waiting| waiting.dy.borrow()).collect();
        let whole = gather_columns(engine, comm, tokens, &shards, &own)?;
        // In the order of the gradients, as on a single machine.
        for (Waiting { dy, outputs, columns }, whole) in waiting.into_iter().zip(whole) {
            self.columns_back(pass, whole.borrow(), outputs, columns)?;
            pass.buffers().give(dy);
        }
        Ok(())
    }
}

/// This rank's columns of a whole value.
struct Columns<'d, E: TapeEngine> {
    divided: Divided<'d, E>,
    x: Var,
    shards: &'d Shards,
}

impl<E: TapeEngine> Operation<E> for Columns<'_, E> {
    fn backward(self: Box<Self>, pass: &mut Backward<'_, E>, dy: E::Tensor) -> Result<(), GradError> {
        let Self { divided: Divided { comm, .. }, x, shards } = *self;
        let tokens = dy.elements() / shards.of_rank(comm.rank()).len().max(1);
        let whole = gather_columns(pass.engine(), comm, tokens, &[shards], &[dy.borrow()])?.swap_remove(0);
        pass.buffers().give(dy);
        let dx = placed(pass.engine(), pass.take(whole.elements())?, &whole)?;
        pass.add(x, dx)
    }
}

/// A gather of the columns of a value.
struct Gather<'d, E: TapeEngine> {
    divided: Divided<'d, E>,
    x: Var,
    shards: &'d Shards,
}

impl<E: TapeEngine> Operation<E> for Gather<'_, E> {
    fn backward(self: Box<Self>, pass: &mut Backward<'_, E>, dy: E::Tensor) -> Result<(), GradError> {
        let Self { divided: Divided { comm, .. }, x, shards } = *self;
        let own = own_columns(pass.engine(), comm, shards, dy.borrow())?;
        pass.buffers().give(dy);
        let dx = placed(pass.engine(), pass.take(own.elements())?, &own)?;
        pass.add(x, dx)
    }
}
