//! Sparse distributed memory.

use crate::algebra::{Algebra, Z3};
use crate::bundle::Bundle;
use crate::error::{VsaError, check_dim, check_range, check_real};
use crate::memory::{Hit, ItemMemory};
use crate::vector::PackedTritVec;

/// Kanerva's memory: a value is written to every one of many random locations that is similar enough to its address, and read
/// from those of an address that may be noisy.
///
/// ```
/// use trike_vsa::{Bipolar, DistributedMemory, PackedTritVec, similarity};
///
/// // Locations more similar than 0.09 are about 2 % of them in 512 dimensions.
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

/// Locations at most, so that a mistyped number does not take all memory.
const MAX_LOCATIONS: usize = 1 << 24;

impl<A: Algebra> DistributedMemory<A> {
    /// An empty memory: random locations of a seed, and the similarity with an address from which a location takes part.
    ///
    /// A random location is this similar with the probability that a normal number exceeds `threshold * sqrt(D)`, or
    /// `threshold * sqrt(2 D)` in [`Z3`].
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`](crate::VsaError::Range) for no dimensions, and for no locations or more than 2^24;
    /// [`VsaError::Real`](crate::VsaError::Real) for a threshold outside of -1 to 1.
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

    /// The locations, which an address is compared with.
    pub fn locations(&self) -> &ItemMemory<A> {
        &self.locations
    }

    fn active(&self, address: &PackedTritVec<A>) -> Result<Vec<Hit>, VsaError> {
        let mut hits = self.locations.top_k(address, self.locations.len())?;
        hits.retain(|hit| hit.similarity >= self.threshold);
        Ok(hits)
    }

    /// Writes a value, and returns to how many locations.
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

    /// Reads the value of an address: the bundle of all that its locations hold, as trits. `None` where nothing was written
    /// near it.
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
