//! The record of a forward pass.

use std::borrow::{Borrow, BorrowMut};
use std::sync::atomic::{AtomicU64, Ordering};

use trike_core::ProductPrecision;
use trike_cpu::{Cpu, Store};

use crate::buffers::{Buffers, take};
use crate::engine::{Elements, TapeEngine, whole_rows};
use crate::error::{GradError, check_len};
use crate::gradients::Gradients;
use crate::var::Var;

/// Tapes are numbered, so that using a variable on another tape is an error instead of a wrong gradient.
static TAPES: AtomicU64 = AtomicU64::new(0);

/// A recorded operation with everything it needs to compute the gradients of its inputs. It stays on the thread of its tape, so it
/// may hold values that are not `Send`, such as a connection to other processes.
pub trait Operation<E: TapeEngine = Cpu> {
    /// Propagates `dy`, the gradient of the loss with respect to the output, to the inputs: reads them with [`Backward::value`] and
    /// adds to their gradients with [`Backward::add`].
    ///
    /// # Errors
    ///
    /// Errors of the kernels; the first one ends the backward pass.
    fn backward(self: Box<Self>, pass: &mut Backward<'_, E>, dy: E::Tensor) -> Result<(), GradError>;
}

enum Value<'a, E: TapeEngine> {
    Borrowed(&'a E::View),
    Owned(E::Tensor),
    /// Freed after the last operation that reads it.
    Freed,
}

struct Node<'a, E: TapeEngine> {
    value: Value<'a, E>,
    rows: usize,
    cols: usize,
    /// Whether this value needs a gradient: it is a parameter or depends on one.
    tracked: bool,
    operation: Option<Box<dyn Operation<E> + 'a>>,
}

impl<E: TapeEngine> Node<'_, E> {
    fn values(&self) -> Result<&E::View, GradError> {
        match &self.value {
            Value::Borrowed(values) => Ok(values),
            Value::Owned(values) => Ok(values.borrow()),
            Value::Freed => Err(GradError::Freed),
        }
    }
}

/// The record of a forward pass: values of `rows x cols` in the order of their computation, each with its operation.
///
/// Parameters are borrowed, not copied. A tape is good for one backward pass, which consumes it and frees activations on the way;
/// their memory returns to [`Buffers`] for the next tape.
///
/// ```
/// use trike_cpu::Cpu;
/// use trike_autodiff::{Buffers, Tape};
///
/// let cpu = Cpu::new(1)?;
/// let (x, w) = ([1.0, 2.0], [3.0, 5.0]);
/// let mut tape = Tape::new(&cpu, &Buffers::default());
/// let x = tape.constant(&x, 2)?;
/// let w = tape.parameter(&w, 2)?;
/// let y = tape.linear(x, w, None)?;
/// assert_eq!(tape.value(y)?, [13.0]);
/// let mut gradients = tape.backward(y)?;
/// assert_eq!(gradients.take(w), Some(vec![1.0, 2.0]));
/// assert_eq!(gradients.take(x), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Tape<'a, E: TapeEngine = Cpu> {
    id: u64,
    engine: &'a E,
    buffers: Buffers<E::Tensor>,
    precision: MixedPrecision,
    nodes: Vec<Node<'a, E>>,
}

/// The precision to which operands of the products of linear layers are rounded. Accumulation and all other operations are f32:
/// norms, rotary embedding, attention, gates, ternarization, losses and optimizers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MixedPrecision {
    /// Outputs: `y = x W^T`.
    pub outputs: ProductPrecision,
    /// Gradients of inputs: `dx = dy W`.
    pub input_gradients: ProductPrecision,
    /// Gradients of weights: `dW = dy^T x`.
    pub weight_gradients: ProductPrecision,
    /// All three products of the output head, in its losses.
    pub head: ProductPrecision,
}

impl MixedPrecision {
    /// The same for all products.
    #[must_use]
    pub fn all(precision: ProductPrecision) -> Self {
        Self { outputs: precision, input_gradients: precision, weight_gradients: precision, head: precision }
    }

    /// Whether any product is in f16, whose gradients need loss scaling.
    #[must_use]
    pub fn has_f16(self) -> bool {
        [self.outputs, self.input_gradients, self.weight_gradients, self.head]
            .contains(&ProductPrecision::F16)
    }
}

impl<E: TapeEngine> std::fmt::Debug for Tape<'_, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tape").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}

impl<'a, E: TapeEngine> Tape<'a, E> {
    /// An empty tape. Operations run on `engine`: a [`Cpu`], or a device.
    pub fn new(engine: &'a E, buffers: &Buffers<E::Tensor>) -> Self {
        let id = TAPES.fetch_add(1, Ordering::Relaxed);
        let (buffers, precision) = (buffers.clone(), MixedPrecision::default());
        Self { id, engine, buffers, precision, nodes: Vec::new() }
    }

    /// Rounds the operands of products from now on.
    #[must_use]
    pub fn with_precision(self, precision: MixedPrecision) -> Self {
        Self { precision, ..self }
    }

    pub(crate) fn precision(&self) -> MixedPrecision {
        self.precision
    }

    /// A value of rows of `cols` elements that needs no gradient.
    ///
    /// # Errors
    ///
    /// [`GradError::Cpu`] when `values` is not a whole number of rows.
    pub fn constant(&mut self, values: &'a E::View, cols: usize) -> Result<Var, GradError> {
        self.leaf(values, cols, false)
    }

    /// A value of rows of `cols` elements that needs a gradient: a weight, or the input of a block that is differentiated on its
    /// own.
    ///
    /// # Errors
    ///
    /// As [`Tape::constant`].
    pub fn parameter(&mut self, values: &'a E::View, cols: usize) -> Result<Var, GradError> {
        self.leaf(values, cols, true)
    }

    fn leaf(&mut self, values: &'a E::View, cols: usize, tracked: bool) -> Result<Var, GradError> {
        let rows = whole_rows(values.elements(), cols)?;
        Ok(self.push(Node { value: Value::Borrowed(values), rows, cols, tracked, operation: None }))
    }

    fn push(&mut self, node: Node<'a, E>) -> Var {
        self.nodes.push(node);
        Var { tape: self.id, index: self.nodes.len() - 1 }
    }

    /// Records the output of an operation, rows of `cols` elements, computed from `inputs`. If none of them needs a gradient, the
    /// operation is dropped.
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`], and [`GradError::Cpu`] when `output` is not a whole number of rows.
    pub fn record(
        &mut self,
        inputs: &[Var],
        output: E::Tensor,
        cols: usize,
        operation: impl Operation<E> + 'a,
    ) -> Result<Var, GradError> {
        let rows = whole_rows(output.elements(), cols)?;
        let mut tracked = false;
        for input in inputs {
            tracked |= self.node(*input)?.tracked;
        }
        let operation = tracked.then(|| Box::new(operation) as Box<dyn Operation<E> + 'a>);
        Ok(self.push(Node { value: Value::Owned(output), rows, cols, tracked, operation }))
    }

    /// The elements of a value, row-major.
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`].
    pub fn value(&self, var: Var) -> Result<&E::View, GradError> {
        self.node(var)?.values()
    }

    /// A copy of a value, which outlives the tape.
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`], and errors of the executor.
    pub fn to_tensor(&self, var: Var) -> Result<E::Tensor, GradError> {
        let value = self.value(var)?;
        let mut copy = self.engine.allocate(value.elements())?;
        self.engine.copy(value, copy.borrow_mut())?;
        Ok(copy)
    }

    /// Consumes the tape and returns a value, without a copy if the tape owns it.
    ///
    /// # Errors
    ///
    /// As [`Tape::to_tensor`].
    pub fn into_tensor(mut self, var: Var) -> Result<E::Tensor, GradError> {
        if var.tape == self.id
            && let Value::Owned(_) = &self.nodes[var.index].value
            && let Value::Owned(values) = std::mem::replace(&mut self.nodes[var.index].value, Value::Freed)
        {
            return Ok(values);
        }
        self.to_tensor(var)
    }

    /// Memory of the tape for `len` elements, with arbitrary contents, such as the output of an operation.
    ///
    /// # Errors
    ///
    /// Out-of-memory errors of the executor.
    pub fn take(&self, len: usize) -> Result<E::Tensor, GradError> {
        take(self.engine, &self.buffers, len)
    }

    /// A copy of a value in memory of the tape.
    pub(crate) fn copy(&self, var: Var) -> Result<E::Tensor, GradError> {
        let value = self.value(var)?;
        let mut copy = self.take(value.elements())?;
        self.engine.copy(value, copy.borrow_mut())?;
        Ok(copy)
    }

    /// Rows and columns of a value.
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`].
    pub fn shape(&self, var: Var) -> Result<(usize, usize), GradError> {
        self.node(var).map(|node| (node.rows, node.cols))
    }

    /// Whether a value needs a gradient.
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`].
    pub fn is_tracked(&self, var: Var) -> Result<bool, GradError> {
        self.node(var).map(|node| node.tracked)
    }

    /// The executor.
    pub fn engine(&self) -> &'a E {
        self.engine
    }

    /// The memory of the tape.
    pub fn buffers(&self) -> &Buffers<E::Tensor> {
        &self.buffers
    }

    /// Size of the activations that the tape owns, in bytes.
    pub fn bytes(&self) -> usize {
        let owned = |node: &Node<'_, E>| match &node.value {
            Value::Owned(values) => 4 * values.elements(),
            Value::Borrowed(_) | Value::Freed => 0,
        };
        self.nodes.iter().map(owned).sum()
    }

    /// The gradients of a loss, a value of one element, with respect to all parameters.
    ///
    /// # Errors
    ///
    /// [`GradError::Length`] for a value of more than one element, and the errors of [`Tape::backward_from`].
    pub fn backward(self, loss: Var) -> Result<Gradients<E>, GradError> {
        check_len("gradient of the output", self.value(loss)?.elements(), 1)?;
        let mut one = self.engine.allocate(1)?;
        self.engine.fill(one.borrow_mut(), 1.0)?;
        self.backward_from(loss, one)
    }

    /// The gradients of `sum(y dy)` with respect to all parameters, for a value `y`: `dy` is the gradient of a loss
    /// with respect to `y`, computed by another tape.
    ///
    /// # Errors
    ///
    /// [`GradError::Length`] when the length of `dy` is not that of `y`, [`GradError::ForeignVariable`], and the errors of the
    /// operations.
    pub fn backward_from(self, y: Var, dy: E::Tensor) -> Result<Gradients<E>, GradError> {
        check_len("gradient of the output", self.value(y)?.elements(), dy.elements())?;
        let Self { id, engine, buffers, nodes, .. } = self;
        let mut gradients: Vec<Option<E::Tensor>> = Vec::new();
        gradients.resize_with(nodes.len(), || None);
        gradients[y.index] = Some(dy);
        let mut pass = Backward { id, engine, buffers, nodes, gradients };
        for index in (0..=y.index).rev() {
            let node = &mut pass.nodes[index];
            let Some(operation) = node.operation.take() else { continue };
            if let Some(dy) = pass.gradients[index].take() {
                operation.backward(&mut pass, dy)?;
            }
            // All operations that read this value are done.
            let value = std::mem::replace(&mut pass.nodes[index].value, Value::Freed);
            if let Value::Owned(values) = value {
                pass.buffers.give(values);
            }
        }
        let Backward { buffers, nodes, mut gradients, .. } = pass;
        for (node, gradient) in nodes.into_iter().zip(&mut gradients) {
            if let Value::Owned(values) = node.value {
                buffers.give(values);
            }
            if let Some(unwanted) = gradient.take_if(|_| !node.tracked) {
                buffers.give(unwanted);
            }
        }
        Ok(Gradients::new(id, gradients))
    }

    fn node(&self, var: Var) -> Result<&Node<'a, E>, GradError> {
        // An index of this tape was returned by `push`.
        if var.tape == self.id { Ok(&self.nodes[var.index]) } else { Err(GradError::ForeignVariable) }
    }
}

impl<'a> Tape<'a> {
    /// The executor of a tape on the host.
    pub fn cpu(&self) -> &'a Cpu {
        self.engine
    }
}

/// A backward pass in progress, as seen by an [`Operation`]; its variables are the ones it was recorded with.
pub struct Backward<'t, E: TapeEngine = Cpu> {
    id: u64,
    engine: &'t E,
    buffers: Buffers<E::Tensor>,
    nodes: Vec<Node<'t, E>>,
    gradients: Vec<Option<E::Tensor>>,
}

impl<E: TapeEngine> std::fmt::Debug for Backward<'_, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backward").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}

impl<'t, E: TapeEngine> Backward<'t, E> {
    /// The executor.
    pub fn engine(&self) -> &'t E {
        self.engine
    }

    /// The memory of the pass.
    pub fn buffers(&self) -> &Buffers<E::Tensor> {
        &self.buffers
    }

    /// The elements of an input.
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`].
    pub fn value(&self, input: Var) -> Result<&E::View, GradError> {
        self.node(input)?.values()
    }

    /// Memory for a gradient of `len` elements, with arbitrary contents.
    ///
    /// # Errors
    ///
    /// Out-of-memory errors of the executor.
    pub fn take(&self, len: usize) -> Result<E::Tensor, GradError> {
        take(self.engine, &self.buffers, len)
    }

    /// Columns of an input.
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`].
    pub fn cols(&self, input: Var) -> Result<usize, GradError> {
        self.node(input).map(|node| node.cols)
    }

    /// Whether an input needs a gradient.
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`].
    pub fn is_tracked(&self, input: Var) -> Result<bool, GradError> {
        self.node(input).map(|node| node.tracked)
    }

    /// Adds to the gradient of an input.
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`], and [`GradError::Length`] when the length of `gradient` is not that of the input.
    pub fn add(&mut self, input: Var, gradient: E::Tensor) -> Result<(), GradError> {
        let node = self.node(input)?;
        check_len("gradient of an input", node.rows * node.cols, gradient.elements())?;
        if !node.tracked {
            self.buffers.give(gradient);
            return Ok(());
        }
        match &mut self.gradients[input.index] {
            slot @ None => *slot = Some(gradient),
            Some(sum) => {
                self.engine.add(sum.borrow_mut(), gradient.borrow())?;
                self.buffers.give(gradient);
            }
        }
        Ok(())
    }

    /// Computes a contribution to the gradient of an input in place: `write` gets the values of the pass, the buffer,
    /// and whether to overwrite it or to add to it.
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`] and the errors of `write`.
    pub fn accumulate(
        &mut self,
        input: Var,
        write: impl FnOnce(&Self, &mut E::View, Store) -> Result<(), GradError>,
    ) -> Result<(), GradError> {
        let node = self.node(input)?;
        if !node.tracked {
            return Ok(());
        }
        let len = node.rows * node.cols;
        let (mut gradient, store) = match self.gradients[input.index].take() {
            Some(sum) => (sum, Store::Add),
            None => (self.take(len)?, Store::Overwrite),
        };
        write(self, gradient.borrow_mut(), store)?;
        self.gradients[input.index] = Some(gradient);
        Ok(())
    }

    fn node(&self, var: Var) -> Result<&Node<'t, E>, GradError> {
        if var.tape == self.id { Ok(&self.nodes[var.index]) } else { Err(GradError::ForeignVariable) }
    }
}

impl<'t> Backward<'t> {
    /// The executor of a pass on the host.
    pub fn cpu(&self) -> &'t Cpu {
        self.engine
    }
}
