//! Nested records: three levels of roles.

use trike_trit::Tryte3;

use super::policy::{CapacityPolicy, Insertion};
use crate::algebra::{Algebra, Z3};
use crate::bundle::Bundle;
use crate::error::VsaError;
use crate::memory::{Hit, ItemMemory};
use crate::ops::bind_into;
use crate::random::item_seed;
use crate::vector::PackedTritVec;

/// Number of roles per level: the values of a tryte.
pub const ROLES: usize = Tryte3::VALUES;

/// A record of three levels, each with one role per tryte value: 27^3 = 19,683 addressable slots, of which as many can hold a
/// value as the capacity allows.
///
/// The 81 role vectors are generated once. The key of a slot is the binding of the three roles of its address.
///
/// ```
/// use trike_trit::Tryte3;
/// use trike_vsa::{CapacityPolicy, Hierarchy, ItemMemory, PackedTritVec, FullAction, Z3};
///
/// let words = PackedTritVec::<Z3>::random_set(4096, 100, 1)?;
/// let memory = ItemMemory::of(&words)?;
/// let policy = CapacityPolicy::new(100, 0.999, FullAction::Refuse)?;
/// let mut record = Hierarchy::new(4096, 7, policy)?;
/// let address = |a, b, c| [a, b, c].map(|value| Tryte3::new(value).unwrap());
/// record.insert(address(-13, 0, 5), &words[3])?;
/// let inserted = record.insert(address(-13, 0, 6), &words[4])?;
/// assert!(inserted.probability > 0.999);
/// assert_eq!(record.get(address(-13, 0, 6), &memory)?.index, 4);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Hierarchy<A: Algebra = Z3> {
    /// Level by level, one role per tryte value in ascending order.
    roles: Vec<PackedTritVec<A>>,
    bundle: Bundle<A>,
    policy: CapacityPolicy,
}

impl<A: Algebra> Hierarchy<A> {
    /// An empty record; the roles depend on `seed` only.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`](crate::VsaError::Range) if `dim` is 0 or too large.
    pub fn new(dim: usize, seed: u64, policy: CapacityPolicy) -> Result<Self, VsaError> {
        let roles = PackedTritVec::random_set(dim, 3 * ROLES, item_seed(seed, 0))?;
        Ok(Self { roles, bundle: Bundle::new(dim)?, policy })
    }

    /// The key of a slot.
    ///
    /// # Errors
    ///
    /// [`VsaError::Popcount`](crate::VsaError::Popcount) if an allocation fails.
    pub fn key(&self, address: [Tryte3; 3]) -> Result<PackedTritVec<A>, VsaError> {
        let role = |level: usize| {
            let offset = address[level].value() - Tryte3::MIN.value();
            &self.roles[level * ROLES + offset as usize]
        };
        let mut outer = PackedTritVec::blank(self.bundle.dim())?;
        bind_into(role(0), role(1), &mut outer)?;
        let mut key = PackedTritVec::blank(self.bundle.dim())?;
        bind_into(&outer, role(2), &mut key)?;
        Ok(key)
    }

    /// Number of slots with a value.
    pub fn len(&self) -> usize {
        self.bundle.total() as usize
    }

    /// Whether no slot has a value.
    pub fn is_empty(&self) -> bool {
        self.bundle.total() == 0
    }

    /// The counts of all slots.
    pub fn bundle(&self) -> &Bundle<A> {
        &self.bundle
    }

    /// Puts a value into a slot.
    ///
    /// # Errors
    ///
    /// [`VsaError::Capacity`](crate::VsaError::Capacity) if the policy refuses,
    /// [`VsaError::Dimension`](crate::VsaError::Dimension).
    pub fn insert(&mut self, address: [Tryte3; 3], value: &PackedTritVec<A>) -> Result<Insertion, VsaError> {
        let judged = CapacityPolicy::judge::<A>(Some(&self.policy), self.bundle.dim(), self.len() + 1)?;
        self.bundle.add(&self.slot(address, value)?)?;
        Ok(judged)
    }

    /// Removes a value from a slot.
    ///
    /// # Errors
    ///
    /// [`VsaError::NotInBundle`](crate::VsaError::NotInBundle) if the counts rule out that it was inserted.
    pub fn remove(&mut self, address: [Tryte3; 3], value: &PackedTritVec<A>) -> Result<(), VsaError> {
        self.bundle.remove(&self.slot(address, value)?)
    }

    fn slot(&self, address: [Tryte3; 3], value: &PackedTritVec<A>) -> Result<PackedTritVec<A>, VsaError> {
        crate::ops::bind(&self.key(address)?, value)
    }

    /// The value of a slot, among the vectors of a memory.
    ///
    /// # Errors
    ///
    /// As [`ItemMemory::nearest_in_bundle`].
    pub fn get(&self, address: [Tryte3; 3], memory: &ItemMemory<A>) -> Result<Hit, VsaError> {
        let mut bundle = self.bundle.clone();
        bundle.unbind(&self.key(address)?)?;
        memory.nearest_in_bundle(&bundle)
    }
}
