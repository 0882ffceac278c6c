//! Multisets in one bundle.

use serde::{Deserialize, Serialize};

use crate::algebra::{Algebra, Z3};
use crate::bundle::Bundle;
use crate::error::VsaError;
use crate::vector::PackedTritVec;

/// A multiset that estimates the multiplicity of each vector.
///
/// ```
/// use trike_vsa::{Multiset, PackedTritVec, Z3};
///
/// let fruit = PackedTritVec::<Z3>::random_set(10_000, 3, 1)?;
/// let mut basket = Multiset::new(10_000)?;
/// basket.add(&fruit[0], 5)?;
/// basket.add(&fruit[1], 2)?;
/// assert_eq!([0, 1, 2].map(|i| basket.count(&fruit[i]).unwrap()), [5, 2, 0]);
/// basket.remove(&fruit[0], 5)?;
/// assert_eq!(basket.count(&fruit[0])?, 0);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Multiset<A: Algebra = Z3> {
    bundle: Bundle<A>,
}

impl<A: Algebra> Multiset<A> {
    /// An empty multiset.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`](crate::VsaError::Range) if `dim` is 0 or too large.
    pub fn new(dim: usize) -> Result<Self, VsaError> {
        Ok(Self { bundle: Bundle::new(dim)? })
    }

    /// Adds a vector `times` times.
    ///
    /// # Errors
    ///
    /// As [`Bundle::add_weighted`].
    pub fn add(&mut self, vector: &PackedTritVec<A>, times: u32) -> Result<(), VsaError> {
        self.bundle.add_weighted(vector, times)
    }

    /// Removes a vector `times` times.
    ///
    /// # Errors
    ///
    /// As [`Bundle::remove_weighted`].
    pub fn remove(&mut self, vector: &PackedTritVec<A>, times: u32) -> Result<(), VsaError> {
        self.bundle.remove_weighted(vector, times)
    }

    /// Estimated multiplicity of a vector, rounded. The standard deviation before rounding is `sqrt(squares / (2 D))` in
    /// [`Z3`] and `sqrt(squares / D)` otherwise, with the sum `squares` of the squared weights of the other vectors.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`](crate::VsaError::Dimension).
    pub fn count(&self, vector: &PackedTritVec<A>) -> Result<u32, VsaError> {
        // The conversion maps negative numbers to 0.
        Ok(self.bundle.similarity(vector)?.round() as u32)
    }

    /// Sum of all multiplicities.
    pub fn len(&self) -> usize {
        self.bundle.total() as usize
    }

    /// Whether the multiset is empty.
    pub fn is_empty(&self) -> bool {
        self.bundle.total() == 0
    }

    /// The counts.
    pub fn bundle(&self) -> &Bundle<A> {
        &self.bundle
    }
}
