//! Linear layers of which each of several ranks holds some rows.
//!
//! All ranks have the whole input of a layer. A rank computes the outputs of its rows `a..b`, and all gather them. The gradient of these
//! rows needs the gradient of their outputs only. That of the input, `dx = dy W`, is a sum over all rows: added up across ranks it would
//! be rounded in another order than on one machine. So ranks also exchange their matrices once per step, after which each has some
//! columns `c..d` of all rows, computes `dx[c..d]` from the gradients of all outputs, and all gather these columns. Every number is then
//! computed by one rank, with the additions of one machine in their order.

mod exchange;
mod linear;
mod shard;

use trike_comm::Communicator;
use trike_grad::Engine;

pub(super) use exchange::{columns_of, scales_of};
pub(super) use linear::{Group, Input, Outputs};
pub use shard::TensorShard;

/// What the passes of a step share.
#[derive(Debug)]
pub(crate) struct Prepared<T> {
    /// The rows of ternary matrices by their place; empty if each pass ternarizes its own.
    pub(crate) ternary: Vec<Option<T>>,
    /// The scales of whole matrices by their place.
    pub(crate) scales: Vec<Option<T>>,
    /// The columns of matrices as they are multiplied, by their place; empty for passes without gradients.
    pub(crate) columns: Vec<Option<T>>,
}

impl<T> Default for Prepared<T> {
    fn default() -> Self {
        Self { ternary: Vec::new(), scales: Vec::new(), columns: Vec::new() }
    }
}

/// The ranks among which the matrices of a pass are divided.
pub(super) struct Divided<'d, E: Engine> {
    pub(super) comm: &'d dyn Communicator,
    pub(super) shard: &'d TensorShard,
    pub(super) prepared: &'d Prepared<E::Tensor>,
}

impl<E: Engine> Clone for Divided<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E: Engine> Copy for Divided<'_, E> {}
