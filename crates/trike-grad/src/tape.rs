//! The record of a forward pass.

use std::sync::atomic::{AtomicU64, Ordering};

use trike_cpu::{Cpu, CpuOps, Store};

use crate::buffers::Buffers;
use crate::error::{GradError, check_len};
use crate::gradients::Gradients;
use crate::var::Var;

/// Tapes are numbered, so that a variable of another tape is an error and not a wrong gradient.
static TAPES: AtomicU64 = AtomicU64::new(0);

/// An operation as recorded, with whatever it needs to compute the gradients of its inputs.
pub trait Operation: Send + Sync {
    /// Passes on `dy`, the gradient of the loss with respect to the output, as gradients of the inputs: reads the
    /// inputs with [`Backward::value`] and adds to their gradients with [`Backward::add`].
    ///
    /// # Errors
    ///
    /// Those of the kernels; the backward pass ends with the first.
    fn backward(self: Box<Self>, pass: &mut Backward<'_>, dy: Vec<f32>) -> Result<(), GradError>;
}

enum Value<'a> {
    Borrowed(&'a [f32]),
    Owned(Vec<f32>),
}

struct Node<'a> {
    value: Value<'a>,
    rows: usize,
    cols: usize,
    /// Whether a gradient is wanted, of this value or of one that it was computed from.
    tracked: bool,
    operation: Option<Box<dyn Operation + 'a>>,
}

impl Node<'_> {
    fn values(&self) -> &[f32] {
        match &self.value {
            Value::Borrowed(values) => values,
            Value::Owned(values) => values,
        }
    }
}

/// The record of a forward pass: values of `rows x cols` in the order in which they were computed, each with the
/// operation that it came from.
///
/// Parameters are borrowed, not copied. A tape is used for one backward pass, which consumes it and frees activations
/// on the way; the memory goes to [`Buffers`], for the next tape.
///
/// ```
/// use trike_cpu::Cpu;
/// use trike_grad::{Buffers, Tape};
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
pub struct Tape<'a> {
    id: u64,
    cpu: &'a Cpu,
    buffers: Buffers,
    nodes: Vec<Node<'a>>,
}

impl std::fmt::Debug for Tape<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tape").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}

impl<'a> Tape<'a> {
    /// An empty tape.
    pub fn new(cpu: &'a Cpu, buffers: &Buffers) -> Self {
        let id = TAPES.fetch_add(1, Ordering::Relaxed);
        Self { id, cpu, buffers: buffers.clone(), nodes: Vec::new() }
    }

    /// A value of rows of `cols` elements without a gradient.
    ///
    /// # Errors
    ///
    /// [`GradError::Cpu`] when `values` is not a whole number of rows.
    pub fn constant(&mut self, values: &'a [f32], cols: usize) -> Result<Var, GradError> {
        self.leaf(values, cols, false)
    }

    /// A value of rows of `cols` elements whose gradient is wanted: a weight, or the input of a block that is
    /// differentiated on its own.
    ///
    /// # Errors
    ///
    /// As [`Tape::constant`].
    pub fn parameter(&mut self, values: &'a [f32], cols: usize) -> Result<Var, GradError> {
        self.leaf(values, cols, true)
    }

    fn leaf(&mut self, values: &'a [f32], cols: usize, tracked: bool) -> Result<Var, GradError> {
        let rows = trike_cpu::MatrixRef::new(values, cols)?.rows();
        Ok(self.push(Node { value: Value::Borrowed(values), rows, cols, tracked, operation: None }))
    }

    fn push(&mut self, node: Node<'a>) -> Var {
        self.nodes.push(node);
        Var { tape: self.id, index: self.nodes.len() - 1 }
    }

    /// Records the output of an operation, rows of `cols` elements. `inputs` are the values that it was computed from;
    /// if none of them has a gradient, the operation is dropped.
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`], and [`GradError::Cpu`] when `output` is not a whole number of rows.
    pub fn record(
        &mut self,
        inputs: &[Var],
        output: Vec<f32>,
        cols: usize,
        operation: impl Operation + 'a,
    ) -> Result<Var, GradError> {
        let rows = trike_cpu::MatrixRef::new(&output, cols)?.rows();
        let mut tracked = false;
        for input in inputs {
            tracked |= self.node(*input)?.tracked;
        }
        let operation = tracked.then(|| Box::new(operation) as Box<dyn Operation + 'a>);
        Ok(self.push(Node { value: Value::Owned(output), rows, cols, tracked, operation }))
    }

    /// The elements of a value, row-major.
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`].
    pub fn value(&self, var: Var) -> Result<&[f32], GradError> {
        Ok(self.node(var)?.values())
    }

    /// Rows and columns of a value.
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`].
    pub fn shape(&self, var: Var) -> Result<(usize, usize), GradError> {
        self.node(var).map(|node| (node.rows, node.cols))
    }

    /// Whether gradients reach a value.
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`].
    pub fn is_tracked(&self, var: Var) -> Result<bool, GradError> {
        self.node(var).map(|node| node.tracked)
    }

    /// The executor.
    pub fn cpu(&self) -> &'a Cpu {
        self.cpu
    }

    /// The memory of the tape.
    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Size of the activations that the tape owns, in bytes.
    pub fn bytes(&self) -> usize {
        let owned = |node: &Node<'_>| match &node.value {
            Value::Owned(values) => 4 * values.len(),
            Value::Borrowed(_) => 0,
        };
        self.nodes.iter().map(owned).sum()
    }

    /// The gradients of a loss, a value of one element, with respect to all parameters.
    ///
    /// # Errors
    ///
    /// [`GradError::Length`] for a value of more than one element, and those of [`Tape::backward_from`].
    pub fn backward(self, loss: Var) -> Result<Gradients, GradError> {
        self.backward_from(loss, vec![1.0])
    }

    /// The gradients of `sum(y dy)` with respect to all parameters, for a value `y`: `dy` is the gradient of a loss
    /// with respect to `y`, computed by another tape.
    ///
    /// # Errors
    ///
    /// [`GradError::Length`] when `dy` has another length than `y`, [`GradError::ForeignVariable`], and the errors of
    /// the operations.
    pub fn backward_from(self, y: Var, dy: Vec<f32>) -> Result<Gradients, GradError> {
        check_len("gradient of the output", self.value(y)?.len(), dy.len())?;
        let Self { id, cpu, buffers, nodes } = self;
        let mut gradients: Vec<Option<Vec<f32>>> = Vec::new();
        gradients.resize_with(nodes.len(), || None);
        gradients[y.index] = Some(dy);
        let mut pass = Backward { id, cpu, buffers, nodes, gradients };
        for index in (0..=y.index).rev() {
            let node = &mut pass.nodes[index];
            let Some(operation) = node.operation.take() else { continue };
            if let Some(dy) = pass.gradients[index].take() {
                operation.backward(&mut pass, dy)?;
            }
            // All operations that read this value have passed.
            let value = std::mem::replace(&mut pass.nodes[index].value, Value::Borrowed(&[]));
            if let Value::Owned(values) = value {
                pass.buffers.give(values);
            }
        }
        let Backward { buffers, nodes, mut gradients, .. } = pass;
        for (node, gradient) in nodes.into_iter().zip(&mut gradients) {
            if let Value::Owned(values) = node.value {
                buffers.give(values);
            }
            if let (false, Some(unwanted)) = (node.tracked, gradient.as_mut()) {
                buffers.give(std::mem::take(unwanted));
                *gradient = None;
            }
        }
        Ok(Gradients::new(id, gradients))
    }

    fn node(&self, var: Var) -> Result<&Node<'a>, GradError> {
        // An index of this tape was returned by `push`.
        if var.tape == self.id { Ok(&self.nodes[var.index]) } else { Err(GradError::ForeignVariable) }
    }
}

/// A backward pass in progress, as an [`Operation`] sees it. Its variables are those that it was recorded with.
pub struct Backward<'t> {
    id: u64,
    cpu: &'t Cpu,
    buffers: Buffers,
    nodes: Vec<Node<'t>>,
    gradients: Vec<Option<Vec<f32>>>,
}

impl std::fmt::Debug for Backward<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backward").field("nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}

impl<'t> Backward<'t> {
    /// The executor.
    pub fn cpu(&self) -> &'t Cpu {
        self.cpu
    }

    /// The memory of the pass.
    pub fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// The elements of an input.
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`].
    pub fn value(&self, input: Var) -> Result<&[f32], GradError> {
        self.node(input).map(Node::values)
    }

    /// Columns of an input.
    ///
    /// # Errors
    ///
    /// [`GradError::ForeignVariable`].
    pub fn cols(&self, input: Var) -> Result<usize, GradError> {
        self.node(input).map(|node| node.cols)
    }

    /// Whether the gradient of an input is wanted.
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
    /// [`GradError::ForeignVariable`], and [`GradError::Length`] when `gradient` has another length than the input.
    pub fn add(&mut self, input: Var, gradient: Vec<f32>) -> Result<(), GradError> {
        let node = self.node(input)?;
        check_len("gradient of an input", node.rows * node.cols, gradient.len())?;
        if !node.tracked {
            self.buffers.give(gradient);
            return Ok(());
        }
        match &mut self.gradients[input.index] {
            slot @ None => *slot = Some(gradient),
            Some(sum) => {
                self.cpu.add(sum, &gradient)?;
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
        write: impl FnOnce(&Self, &mut [f32], Store) -> Result<(), GradError>,
    ) -> Result<(), GradError> {
        let node = self.node(input)?;
        if !node.tracked {
            return Ok(());
        }
        let len = node.rows * node.cols;
        let (mut gradient, store) = match self.gradients[input.index].take() {
            Some(sum) => (sum, Store::Add),
            None => (self.buffers.take(len)?, Store::Overwrite),
        };
        write(self, &mut gradient, store)?;
        self.gradients[input.index] = Some(gradient);
        Ok(())
    }

    fn node(&self, var: Var) -> Result<&Node<'t>, GradError> {
        if var.tape == self.id { Ok(&self.nodes[var.index]) } else { Err(GradError::ForeignVariable) }
    }
}
