//! Key-value records in one bundle.

use serde::{Deserialize, Serialize};

use super::policy::{CapacityPolicy, Insertion};
use crate::algebra::{Algebra, Z3};
use crate::bundle::Bundle;
use crate::error::VsaError;
use crate::memory::{Hit, ItemMemory};
use crate::ops::{bind, unbind};
use crate::vector::PackedTritVec;

/// Key-value pairs: the bundle of `bind(key, value)`.
///
/// A value is retrieved by unbinding its key from the counts and taking the candidate with the largest weight. If a record must
/// be a single vector, [`Record::to_vector`] reduces it to trits; retrieval with [`unbind`] and
/// [`ItemMemory::nearest`] then has a lower [`capacity`](crate::capacity).
///
/// ```
/// use trike_vsa::{ItemMemory, PackedTritVec, Record, Z3};
///
/// let [name, capital] = [1, 2].map(|seed| PackedTritVec::<Z3>::random(2048, seed).unwrap());
/// let words = PackedTritVec::random_set(2048, 50, 3)?;
/// let memory = ItemMemory::of(&words)?;
/// let mut country = Record::new(2048)?;
/// country.insert(&name, &words[10])?;
/// country.insert(&capital, &words[20])?;
/// assert_eq!(country.get(&capital, &memory)?.index, 20);
/// country.replace(&capital, &words[20], &words[30])?;
/// assert_eq!(country.get(&capital, &memory)?.index, 30);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Record<A: Algebra = Z3> {
    bundle: Bundle<A>,
    #[serde(skip)]
    policy: Option<CapacityPolicy>,
}

impl<A: Algebra> Record<A> {
    /// An empty record without a capacity limit.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`](crate::VsaError::Range) if `dim` is 0 or too large.
    pub fn new(dim: usize) -> Result<Self, VsaError> {
        Ok(Self { bundle: Bundle::new(dim)?, policy: None })
    }

    /// An empty record with a capacity policy.
    ///
    /// # Errors
    ///
    /// As [`Record::new`].
    pub fn with_policy(dim: usize, policy: CapacityPolicy) -> Result<Self, VsaError> {
        Ok(Self { bundle: Bundle::new(dim)?, policy: Some(policy) })
    }

    /// Number of dimensions.
    pub fn dim(&self) -> usize {
        self.bundle.dim()
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.bundle.total() as usize
    }

    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.bundle.total() == 0
    }

    /// The counts of all pairs.
    pub fn bundle(&self) -> &Bundle<A> {
        &self.bundle
    }

    /// Adds a pair.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`](crate::VsaError::Dimension), and [`VsaError::Capacity`](crate::VsaError::Capacity) if the
    /// policy refuses.
    pub fn insert(
        &mut self,
        key: &PackedTritVec<A>,
        value: &PackedTritVec<A>,
    ) -> Result<Insertion, VsaError> {
        let judged = CapacityPolicy::judge::<A>(self.policy.as_ref(), self.dim(), self.len() + 1)?;
        self.bundle.add(&bind(key, value)?)?;
        Ok(judged)
    }

    /// Removes a pair.
    ///
    /// # Errors
    ///
    /// [`VsaError::NotInBundle`](crate::VsaError::NotInBundle) if the counts rule out that it was inserted.
    pub fn remove(&mut self, key: &PackedTritVec<A>, value: &PackedTritVec<A>) -> Result<(), VsaError> {
        self.bundle.remove(&bind(key, value)?)
    }

    /// Replaces the value of a key.
    ///
    /// # Errors
    ///
    /// As [`Record::remove`]; on error, nothing is changed.
    pub fn replace(
        &mut self,
        key: &PackedTritVec<A>,
        old: &PackedTritVec<A>,
        new: &PackedTritVec<A>,
    ) -> Result<(), VsaError> {
        let new = bind(key, new)?;
        self.remove(key, old)?;
        self.bundle.add(&new)
    }

    /// The value of a key among the vectors of a memory.
    ///
    /// # Errors
    ///
    /// As [`ItemMemory::nearest_in_bundle`].
    pub fn get(&self, key: &PackedTritVec<A>, memory: &ItemMemory<A>) -> Result<Hit, VsaError> {
        let mut bundle = self.bundle.clone();
        bundle.unbind(key)?;
        memory.nearest_in_bundle(&bundle)
    }

    /// The record as one vector, with two bits per dimension.
    ///
    /// # Errors
    ///
    /// As [`Bundle::to_vector`].
    pub fn to_vector(&self) -> Result<PackedTritVec<A>, VsaError> {
        self.bundle.to_vector()
    }

    /// The noisy value of a key in a record that was reduced by [`Record::to_vector`].
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`](crate::VsaError::Dimension).
    pub fn get_from(vector: &PackedTritVec<A>, key: &PackedTritVec<A>) -> Result<PackedTritVec<A>, VsaError> {
        unbind(vector, key)
    }
}
