//! Tensor-parallel linear layers, divided by rows.
//!
//! All ranks have the whole input of a layer. A rank computes the outputs of its rows `a..b`, and the outputs are all-gathered. The
//! gradient of these rows needs only the gradient of their outputs. The gradient of the input, `dx = dy W`, is a sum over all rows;
//! adding it up across ranks would round in another order than a single machine does. So ranks also exchange their matrices once
//! per step, after which each has some columns `c..d` of all rows, computes `dx[c..d]` from the gradients of all outputs, and
//! all-gathers these columns. Every value is computed by one rank, with the operations of a single machine in the same order.

mod exchange;
mod linear;
mod shard;

use trike_autodiff::TapeEngine;
use trike_comm::Communicator;

pub(super) use exchange::{columns_of, scales_of};
pub(super) use linear::{Group, Input, Outputs};
pub use shard::TensorShard;

/// Values shared by the passes of a step.
#[derive(Debug)]
pub(crate) struct Prepared<T> {
    /// The rows of ternarized matrices by parameter index; empty if each pass ternarizes its own.
    pub(crate) ternary: Vec<Option<T>>,
    /// The scales of whole matrices by parameter index.
    pub(crate) scales: Vec<Option<T>>,
    /// The columns of rounded matrices by parameter index; empty for passes without gradients.
    pub(crate) columns: Vec<Option<T>>,
}

impl<T> Default for Prepared<T> {
    fn default() -> Self {
        Self { ternary: Vec::new(), scales: Vec::new(), columns: Vec::new() }
    }
}

/// The ranks among which the matrices are divided.
pub(super) struct Divided<'d, E: TapeEngine> {
    pub(super) comm: &'d dyn Communicator,
    pub(super) shard: &'d TensorShard,
    pub(super) prepared: &'d Prepared<E::Tensor>,
}

impl<E: TapeEngine> Clone for Divided<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: TapeEngine> Copy for Divided<'_, E> {}
