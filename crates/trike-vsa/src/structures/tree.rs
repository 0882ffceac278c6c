//! Binary trees in one bundle.

use serde::{Deserialize, Serialize};

use crate::algebra::{Algebra, Z3};
use crate::bundle::Bundle;
use crate::error::VsaError;
use crate::memory::{Hit, ItemMemory};
use crate::ops::{bind, permute};
use crate::vector::PackedTritVec;

/// A binary tree: the bundle of its values, each bound to its path, the binding of its turns, each rotated by its depth.
///
/// ```
/// use trike_vsa::{ItemMemory, PackedTritVec, Tree, Z3};
///
/// const LEFT: bool = false;
/// const RIGHT: bool = true;
/// let words = PackedTritVec::<Z3>::random_set(4096, 20, 1)?;
/// let memory = ItemMemory::of(&words)?;
/// let mut tree = Tree::new(4096, 7)?;
/// tree.insert(&[LEFT], &words[3])?;
/// tree.insert(&[RIGHT, LEFT], &words[4])?;
/// tree.insert(&[LEFT, RIGHT], &words[5])?;
/// assert_eq!(tree.get(&[RIGHT, LEFT], &memory)?.index, 4);
/// assert_eq!(tree.get(&[LEFT, RIGHT], &memory)?.index, 5);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Tree<A: Algebra = Z3> {
    turns: [PackedTritVec<A>; 2],
    bundle: Bundle<A>,
}

impl<A: Algebra> Tree<A> {
    /// A tree without values; the vectors of the two turns depend on `seed` only.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`](crate::VsaError::Range) if `dim` is 0 or too large.
    pub fn new(dim: usize, seed: u64) -> Result<Self, VsaError> {
        let [left, right] =
            [0, 1].map(|turn| PackedTritVec::random(dim, crate::random::item_seed(seed, turn)));
        Ok(Self { turns: [left?, right?], bundle: Bundle::new(dim)? })
    }

    /// The vector of a path from the root; `false` is left. The empty path is [`PackedTritVec::identity`].
    ///
    /// # Errors
    ///
    /// [`VsaError::Popcount`](crate::VsaError::Popcount) if an allocation fails.
    pub fn path(&self, path: &[bool]) -> Result<PackedTritVec<A>, VsaError> {
        let mut vector = PackedTritVec::identity(self.bundle.dim())?;
        for (depth, &right) in path.iter().enumerate() {
            vector = bind(&vector, &permute(&self.turns[usize::from(right)], depth as isize)?)?;
        }
        Ok(vector)
    }

    /// Inserts a value at the end of a path.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`](crate::VsaError::Dimension).
    pub fn insert(&mut self, path: &[bool], value: &PackedTritVec<A>) -> Result<(), VsaError> {
        self.bundle.add(&bind(&self.path(path)?, value)?)
    }

    /// Removes a value.
    ///
    /// # Errors
    ///
    /// [`VsaError::NotInBundle`](crate::VsaError::NotInBundle) if the counts rule out that it was inserted.
    pub fn remove(&mut self, path: &[bool], value: &PackedTritVec<A>) -> Result<(), VsaError> {
        self.bundle.remove(&bind(&self.path(path)?, value)?)
    }

    /// The value at the end of a path, among the vectors of a memory.
    ///
    /// # Errors
    ///
    /// As [`ItemMemory::nearest_in_bundle`].
    pub fn get(&self, path: &[bool], memory: &ItemMemory<A>) -> Result<Hit, VsaError> {
        let mut bundle = self.bundle.clone();
        bundle.unbind(&self.path(path)?)?;
        memory.nearest_in_bundle(&bundle)
    }

    /// The counts.
    pub fn bundle(&self) -> &Bundle<A> {
        &self.bundle
    }
}
