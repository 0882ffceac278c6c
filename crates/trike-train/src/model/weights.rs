//! The weights of a pass, and which of them are trained.

use super::Parameters;
use crate::Adapter;

/// The weights of a pass: parameters that are all trained, or frozen ones with an adapter, of which only the adapter is trained.
///
/// Frozen weights are multiplied as they are: a [`TernaryPolicy`](crate::TernaryPolicy) rounds activations, embedding and head, but
/// not the matrices of the blocks. Those of a packed model are ternary already, and
/// [`as_packed`](crate::as_packed) makes others so.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'p> {
    pub(crate) all: &'p Parameters,
    pub(super) adapter: Option<&'p Adapter>,
}

impl<'p> Weights<'p> {
    /// Frozen weights with an adapter.
    #[must_use]
    pub fn adapted(frozen: &'p Parameters, adapter: &'p Adapter) -> Self {
        Self { all: frozen, adapter: Some(adapter) }
    }

    /// The parameters that are trained, whose shapes gradients have.
    #[must_use]
    pub fn trained(&self) -> &'p Parameters {
        self.adapter.map_or(self.all, Adapter::parameters)
    }

    pub(super) fn trains_embedding(&self) -> bool {
        self.adapter.is_none()
    }
}

impl<'p> From<&'p Parameters> for Weights<'p> {
    fn from(all: &'p Parameters) -> Self {
        Self { all, adapter: None }
    }
}
