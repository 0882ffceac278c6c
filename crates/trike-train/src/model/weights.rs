//! The weights of a pass, and which of them are trained.

use trike_autodiff::Elements;

use super::Parameters;
use crate::Adapter;

/// The weights of a pass: parameters that are all trained, or frozen ones with a trained adapter.
///
/// Frozen weights are not rounded: a [`TernaryPolicy`](crate::TernaryPolicy) rounds activations, embedding and head, but not the
/// matrices of the blocks. Those of a packed model are ternary already, and [`as_packed`](crate::as_packed) rounds dense ones.
#[derive(Debug)]
pub struct Weights<'p, T = Vec<f32>> {
    pub(crate) all: &'p Parameters<T>,
    pub(super) adapter: Option<&'p Adapter<T>>,
    /// Matrices ternarized for several passes, by parameter index.
    pub(super) ternary: &'p [Option<T>],
}

impl<T> Clone for Weights<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Weights<'_, T> {}

impl<'p, T: Elements> Weights<'p, T> {
    /// Frozen weights with an adapter.
    #[must_use]
    pub fn adapted(frozen: &'p Parameters<T>, adapter: &'p Adapter<T>) -> Self {
        Self { all: frozen, adapter: Some(adapter), ternary: &[] }
    }

    /// The trained parameters, whose shapes the gradients have.
    #[must_use]
    pub fn trained(&self) -> &'p Parameters<T> {
        self.adapter.map_or(self.all, Adapter::parameters)
    }

    /// The same with matrices from [`Trained::ternarized`](super::Trained::ternarized).
    pub(crate) fn with_ternary(self, ternary: &'p [Option<T>]) -> Self {
        Self { ternary, ..self }
    }

    pub(super) fn trains_embedding(&self) -> bool {
        self.adapter.is_none()
    }
}

impl<'p, T> From<&'p Parameters<T>> for Weights<'p, T> {
    fn from(all: &'p Parameters<T>) -> Self {
        Self { all, adapter: None, ternary: &[] }
    }
}
