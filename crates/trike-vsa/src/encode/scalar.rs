//! Scalar encoding on a bounded scale.

use crate::algebra::{Algebra, Z3};
use crate::basis::level_set;
use crate::error::{VsaError, check_range, check_real};
use crate::memory::ItemMemory;
use crate::vector::PackedTritVec;

/// Encodes numbers of an interval as vectors whose similarity falls with distance, and decodes them.
///
/// ```
/// use trike_vsa::{ScalarEncoder, Z3, similarity};
///
/// let degrees = ScalarEncoder::<Z3>::new(10_000, -20.0, 40.0, 121, 1)?;
/// let (cold, mild, warm) = (degrees.encode(-5.0)?, degrees.encode(12.1)?, degrees.encode(15.0)?);
/// assert!(similarity(&mild, &warm)? > 0.9 && similarity(&cold, &warm)? < 0.75);
/// assert_eq!(degrees.decode(&mild)?, 12.0);
/// assert_eq!(degrees.encode(99.0)?, degrees.encode(40.0)?);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ScalarEncoder<A: Algebra = Z3> {
    levels: ItemMemory<A>,
    low: f64,
    high: f64,
}

impl<A: Algebra> ScalarEncoder<A> {
    /// Equally spaced levels from `low` to `high`, as in [`level_set`].
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] for fewer than two levels or more than 2^24, and for an invalid number of dimensions;
    /// [`VsaError::Real`] unless `low < high`, both finite.
    pub fn new(dim: usize, low: f64, high: f64, levels: usize, seed: u64) -> Result<Self, VsaError> {
        check_range("levels of a scale", 2, usize::MAX, levels)?;
        check_real("low end of a scale", f64::MIN, f64::MAX, low)?;
        check_real("high end of a scale", low.next_up(), f64::MAX, high)?;
        Ok(Self { levels: ItemMemory::of(&level_set(dim, levels, seed)?)?, low, high })
    }

    /// The vector of the nearest level; numbers outside the interval are clamped.
    ///
    /// # Errors
    ///
    /// [`VsaError::Real`] for NaN.
    pub fn encode(&self, value: f64) -> Result<PackedTritVec<A>, VsaError> {
        check_real("a number to be encoded", f64::NEG_INFINITY, f64::INFINITY, value)?;
        // Halved, so that an interval over the whole range of f64 does not overflow.
        let share =
            (0.5 * value.clamp(self.low, self.high) - 0.5 * self.low) / (0.5 * self.high - 0.5 * self.low);
        self.levels.get((share * (self.levels.len() - 1) as f64).round() as usize)
    }

    /// The value of the most similar level.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`].
    pub fn decode(&self, vector: &PackedTritVec<A>) -> Result<f64, VsaError> {
        let step = (0.5 * self.high - 0.5 * self.low) / (self.levels.len() - 1) as f64;
        Ok(2.0 * (0.5 * self.low + step * self.levels.nearest(vector)?.index as f64))
    }

    /// The vectors of the levels, in ascending order.
    pub fn levels(&self) -> &ItemMemory<A> {
        &self.levels
    }
}

impl<A: Algebra> TryFrom<ItemMemory<A>> for ScalarEncoder<A> {
    type Error = VsaError;

    /// A scale from 0 to 1 with existing level vectors.
    fn try_from(levels: ItemMemory<A>) -> Result<Self, VsaError> {
        check_range("levels of a scale", 2, usize::MAX, levels.len())?;
        Ok(Self { levels, low: 0.0, high: 1.0 })
    }
}
