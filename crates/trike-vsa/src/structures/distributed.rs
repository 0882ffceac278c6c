//! Sparse distributed memory.

use crate::algebra::{Algebra, Z3};
use crate::bundle::Bundle;
use crate::error::{VsaError, check_dim, check_range, check_real};
use crate::memory::{Hit, ItemMemory};
use crate::vector::PackedTritVec;

/// Kanerva's sparse distributed memory: a value is written to all random locations that are similar enough to its address, and
/// read from those that are similar to a possibly noisy address.
///
/// ```
/// use trike_vsa::{Bipolar, DistributedMemory, PackedTritVec, similarity};
///
/// // In 512 dimensions, about 2 % of the locations have a similarity of at least 0.09.
/// let mut memory = DistributedMemory::<Bipolar>::new(512, 1000, 0.09, 1)?;
/// let data = PackedTritVec::random_set(512, 20, 2)?;
/// for vector in &data {
///     memory.write(vector, vector)?;
/// }
/// let mut noisy = data[7].clone();
/// for i in 0..50 {
///     noisy.set(i, -noisy.get(i).unwrap())?;
/// }
/// let read = memory.read(&noisy)?.unwrap();
/// assert!(similarity(&read, &data[7])? > similarity(&noisy, &data[7])? + 0.1);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DistributedMemory<A: Algebra = Z3> {
    locations: ItemMemory<A>,
    contents: Vec<Bundle<A>>,
    threshold: f64,
}

/// Maximum number of locations, so that a mistyped number does not exhaust memory.
const MAX_LOCATIONS: usize = 1 << 24;

impl<A: Algebra> DistributedMemory<A> {
    /// An empty memory with random locations; a location is active if its similarity to the address is at least `threshold`.
    ///
    /// A random location is active with the probability that a standard normal variable exceeds `threshold * sqrt(D)`, or
    /// `threshold * sqrt(2 D)` in [`Z3`].
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`](crate::VsaError::Range) for no dimensions, and for no locations or more than 2^24;
    /// [`VsaError::Real`](crate::VsaError::Real) for a threshold outside -1 to 1.
    pub fn new(dim: usize, locations: usize, threshold: f64, seed: u64) -> Result<Self, VsaError> {
        check_range("locations of a memory", 1, MAX_LOCATIONS, locations)?;
        check_real("threshold of a similarity", -1.0, 1.0, threshold)?;
        let mut memory = ItemMemory::new(dim)?;
        let mut contents = Vec::new();
        for at in 0..locations {
            memory.push(&PackedTritVec::random(dim, crate::random::item_seed(seed, at as u64))?)?;
            contents.push(Bundle::new(dim)?);
        }
        Ok(Self { locations: memory, contents, threshold })
    }

    /// The locations with which addresses are compared.
    pub fn locations(&self) -> &ItemMemory<A> {
        &self.locations
    }

    fn active(&self, address: &PackedTritVec<A>) -> Result<Vec<Hit>, VsaError> {
        let mut hits = self.locations.top_k(address, self.locations.len())?;
        hits.retain(|hit| hit.similarity >= self.threshold);
        Ok(hits)
    }

    /// Writes a value and returns the number of locations written to.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`](crate::VsaError::Dimension).
    pub fn write(&mut self, address: &PackedTritVec<A>, value: &PackedTritVec<A>) -> Result<usize, VsaError> {
        check_dim("a value to be written", self.locations.dim(), value.dim())?;
        let active = self.active(address)?;
        active.iter().try_for_each(|hit| self.contents[hit.index].add(value))?;
        Ok(active.len())
    }

    /// Reads the value at an address: the bundle of the contents of all active locations, as trits. `None` if none of them was
    /// written to.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`](crate::VsaError::Dimension).
    pub fn read(&self, address: &PackedTritVec<A>) -> Result<Option<PackedTritVec<A>>, VsaError> {
        let mut all = Bundle::new(self.locations.dim())?;
        for hit in self.active(address)? {
            all.merge(&self.contents[hit.index])?;
        }
        if all.total() == 0 { Ok(None) } else { all.to_vector().map(Some) }
    }
}
