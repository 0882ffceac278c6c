//! Sequences and n-grams.

use serde::{Deserialize, Serialize};

use crate::algebra::{Algebra, Z3};
use crate::bundle::Bundle;
use crate::error::{VsaError, check_dim, check_range};
use crate::memory::{Hit, ItemMemory};
use crate::ops::{bind_into, permute, permute_into};
use crate::vector::PackedTritVec;

/// A list: the bundle of its vectors, each rotated by its position.
///
/// ```
/// use trike_vsa::{ItemMemory, PackedTritVec, Sequence, Z3};
///
/// let letters = PackedTritVec::<Z3>::random_set(4096, 26, 1)?;
/// let memory = ItemMemory::of(&letters)?;
/// let mut word = Sequence::new(4096)?;
/// for letter in [2, 0, 19] {
///     word.push(&letters[letter])?;
/// }
/// let read = |word: &Sequence<Z3>| (0..word.len()).map(|i| word.get(i, &memory).unwrap().index).collect::<Vec<_>>();
/// assert_eq!(read(&word), [2, 0, 19]);
/// word.replace(0, &letters[2], &letters[7])?;
/// word.pop(&letters[19])?;
/// assert_eq!(read(&word), [7, 0]);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Sequence<A: Algebra = Z3> {
    bundle: Bundle<A>,
}

impl<A: Algebra> Sequence<A> {
    /// An empty list.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] if `dim` is 0 or too large.
    pub fn new(dim: usize) -> Result<Self, VsaError> {
        Ok(Self { bundle: Bundle::new(dim)? })
    }

    /// Number of vectors in the list.
    pub fn len(&self) -> usize {
        self.bundle.total() as usize
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.bundle.total() == 0
    }

    /// The counts of the rotated vectors.
    pub fn bundle(&self) -> &Bundle<A> {
        &self.bundle
    }

    /// Appends a vector.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`].
    pub fn push(&mut self, vector: &PackedTritVec<A>) -> Result<(), VsaError> {
        self.bundle.add(&permute(vector, self.len() as isize)?)
    }

    /// Removes the last vector, which the caller has to supply.
    ///
    /// # Errors
    ///
    /// [`VsaError::Empty`], [`VsaError::NotInBundle`] if the counts rule out that `last` is the last vector.
    pub fn pop(&mut self, last: &PackedTritVec<A>) -> Result<(), VsaError> {
        let place = self.len().checked_sub(1).ok_or(VsaError::Empty { what: "a sequence" })?;
        self.bundle.remove(&permute(last, place as isize)?)
    }

    /// Replaces the vector at a position.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] past the last position, and as [`Sequence::pop`].
    pub fn replace(
        &mut self,
        place: usize,
        old: &PackedTritVec<A>,
        new: &PackedTritVec<A>,
    ) -> Result<(), VsaError> {
        self.check(place)?;
        check_dim("a vector of a sequence", self.bundle.dim(), new.dim())?;
        self.bundle.remove(&permute(old, place as isize)?)?;
        self.bundle.add(&permute(new, place as isize)?)
    }

    /// The vector at a position, among those of a memory.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] past the last position, and as [`ItemMemory::nearest_in_bundle`].
    pub fn get(&self, place: usize, memory: &ItemMemory<A>) -> Result<Hit, VsaError> {
        self.check(place)?;
        let mut bundle = self.bundle.clone();
        bundle.permute(-(place as isize))?;
        memory.nearest_in_bundle(&bundle)
    }

    fn check(&self, place: usize) -> Result<(), VsaError> {
        let last = self.len().checked_sub(1).ok_or(VsaError::Empty { what: "a sequence" })?;
        check_range("position in a sequence", 0, last, place)
    }
}

/// Binds vectors in order: the result is dissimilar to each of them and to any other order. The last is not rotated, the one
/// before it is rotated by one, and so on, so that a vector is appended by rotating and binding.
///
/// # Errors
///
/// [`VsaError::Empty`] for no vectors, [`VsaError::Dimension`].
pub fn bind_sequence<'a, A: Algebra>(
    vectors: impl IntoIterator<Item = &'a PackedTritVec<A>>,
) -> Result<PackedTritVec<A>, VsaError> {
    let mut vectors = vectors.into_iter();
    let mut bound = vectors.next().ok_or(VsaError::Empty { what: "a sequence" })?.clone();
    let mut rotated = PackedTritVec::blank(bound.dim())?;
    for vector in vectors {
        permute_into(&bound, 1, &mut rotated)?;
        bind_into(&rotated, vector, &mut bound)?;
    }
    Ok(bound)
}

/// An n-gram: [`bind_sequence`] of a slice.
///
/// # Errors
///
/// As [`bind_sequence`].
pub fn ngram<A: Algebra>(vectors: &[&PackedTritVec<A>]) -> Result<PackedTritVec<A>, VsaError> {
    bind_sequence(vectors.iter().copied())
}

/// The bundle of all n-grams of `n` consecutive vectors: the content of a text or a signal, independent of position.
///
/// # Errors
///
/// [`VsaError::Range`] for an `n` of 0 or above the number of vectors, [`VsaError::Dimension`].
pub fn ngrams<A: Algebra>(vectors: &[&PackedTritVec<A>], n: usize) -> Result<Bundle<A>, VsaError> {
    check_range("vectors of an n-gram", 1, vectors.len(), n)?;
    let grams = vectors.windows(n).map(ngram).collect::<Result<Vec<_>, VsaError>>()?;
    Bundle::of(&grams)
}
