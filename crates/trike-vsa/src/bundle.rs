//! Bundles with counts.

use serde::{Deserialize, Serialize};
use std::marker::PhantomData;

use trike_popcount::{BitCounter, TritOps, TritPlanes};
use trike_trit::Trit;

use crate::algebra::{Algebra, AlgebraKind, Bipolar, Z3};
use crate::error::{VsaError, check_dim};
use crate::sparse::SparseVec;
use crate::vector::{PackedTritVec, check_algebra, check_dims, check_trit, cpu};

/// A bundle (superposition) of vectors, stored as the counts of the three values in every dimension.
///
/// Counts are bit-sliced, 64 dimensions per word, and take `2 ceil(log2(k + 1))` bits per dimension for `k` vectors. They are
/// lossless: vectors can be added and removed at any time, a key can be bound to or unbound from all of them at once, and a score
/// is the sum of the scores of the vectors, which retrieves more of them than the two bits per dimension of
/// [`Bundle::to_vector`].
///
/// ```
/// use trike_vsa::{Bundle, PackedTritVec, Z3, bind};
///
/// let keys = PackedTritVec::<Z3>::random_set(4096, 3, 1)?;
/// let values = PackedTritVec::random_set(4096, 3, 2)?;
/// let mut record = Bundle::new(4096)?;
/// for (key, value) in keys.iter().zip(&values) {
///     record.add(&bind(key, value)?)?;
/// }
/// record.unbind(&keys[1])?;
/// assert!(record.similarity(&values[1])? > 0.9);
/// assert!(record.similarity(&values[0])? < 0.1);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "BundleParts")]
pub struct Bundle<A: Algebra = Z3> {
    counter: BitCounter,
    /// Sum of the squared weights of the vectors; saturating.
    squares: u64,
    algebra: PhantomData<A>,
}

/// The serialized form of a bundle.
#[derive(Serialize, Deserialize)]
struct BundleParts {
    algebra: AlgebraKind,
    total: u32,
    squares: u64,
    positive: Vec<u32>,
    negative: Vec<u32>,
}

impl<A: Algebra> Serialize for Bundle<A> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (mut positive, mut negative) = (vec![0; self.dim()], vec![0; self.dim()]);
        let counts = cpu().and_then(|cpu| Ok(self.counter.counts(cpu, &mut positive, &mut negative)?));
        counts.map_err(serde::ser::Error::custom)?;
        BundleParts { algebra: A::KIND, total: self.total(), squares: self.squares, positive, negative }
            .serialize(serializer)
    }
}

impl<A: Algebra> TryFrom<BundleParts> for Bundle<A> {
    type Error = VsaError;

    fn try_from(parts: BundleParts) -> Result<Self, VsaError> {
        check_algebra::<A>(parts.algebra)?;
        Self::from_counts(&parts.positive, &parts.negative, parts.total, parts.squares)
    }
}

impl<A: Algebra> Bundle<A> {
    /// An empty bundle.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] if `dim` is 0 or too large.
    pub fn new(dim: usize) -> Result<Self, VsaError> {
        check_dims(dim)?;
        Ok(Self { counter: BitCounter::new(dim)?, squares: 0, algebra: PhantomData })
    }

    /// A bundle of vectors.
    ///
    /// # Errors
    ///
    /// [`VsaError::Empty`] for no vectors, [`VsaError::Dimension`] if their dimensions differ.
    pub fn of<'a>(vectors: impl IntoIterator<Item = &'a PackedTritVec<A>>) -> Result<Self, VsaError> {
        let views: Vec<TritPlanes<'_>> = vectors.into_iter().map(PackedTritVec::view).collect();
        let first = views.first().ok_or(VsaError::Empty { what: "a bundle" })?;
        let mut bundle = Self::new(first.len())?;
        bundle.add_views(&views)?;
        Ok(bundle)
    }

    /// A bundle from saved counts: the number of +1 and of -1 per dimension, the total weight, and the sum of the squared
    /// weights, which is the number of vectors if each was added once.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] for no dimensions, [`VsaError::Popcount`] for slices of different lengths and for counts that exceed
    /// the total, [`VsaError::Zero`] for counts below the total in [`Bipolar`](crate::Bipolar).
    pub fn from_counts(
        positive: &[u32],
        negative: &[u32],
        total: u32,
        squares: u64,
    ) -> Result<Self, VsaError> {
        check_dims(positive.len())?;
        let counter = BitCounter::from_counts(positive, negative, total)?;
        let zero = |(p, n): (&u32, &u32)| p + n < total;
        if !A::ZEROS
            && let Some(index) = positive.iter().zip(negative).position(zero)
        {
            return Err(VsaError::Zero { index });
        }
        Ok(Self { counter, squares, algebra: PhantomData })
    }

    /// Number of dimensions.
    pub fn dim(&self) -> usize {
        self.counter.len()
    }

    /// Total weight: the number of vectors if each was added once.
    pub fn total(&self) -> u32 {
        self.counter.total()
    }

    /// The counts.
    pub fn counter(&self) -> &BitCounter {
        &self.counter
    }

    /// Sum of the squared weights: the crosstalk noise between the vectors.
    pub fn squared_weights(&self) -> u64 {
        self.squares
    }

    /// Adds a vector.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`], [`VsaError::Popcount`] if the total weight would exceed `i32::MAX`.
    pub fn add(&mut self, vector: &PackedTritVec<A>) -> Result<(), VsaError> {
        self.add_weighted(vector, 1)
    }

    /// Adds a vector with a weight, equivalent to adding it `weight` times.
    ///
    /// # Errors
    ///
    /// As [`Bundle::add`].
    pub fn add_weighted(&mut self, vector: &PackedTritVec<A>, weight: u32) -> Result<(), VsaError> {
        self.check(vector.dim())?;
        self.counter.add(cpu()?, vector.view(), weight)?;
        self.squares = self.squares.saturating_add(square(weight));
        Ok(())
    }

    /// Adds many vectors, sixteen per pass over the counts.
    ///
    /// # Errors
    ///
    /// As [`Bundle::add`]; on error, nothing is added.
    pub fn add_all<'a>(
        &mut self,
        vectors: impl IntoIterator<Item = &'a PackedTritVec<A>>,
    ) -> Result<(), VsaError> {
        let views: Vec<TritPlanes<'_>> = vectors.into_iter().map(PackedTritVec::view).collect();
        self.add_views(&views)
    }

    fn add_views(&mut self, views: &[TritPlanes<'_>]) -> Result<(), VsaError> {
        views.iter().try_for_each(|view| self.check(view.len()))?;
        self.counter.add_all(cpu()?, views)?;
        self.squares = self.squares.saturating_add(views.len() as u64);
        Ok(())
    }

    /// Removes a vector that was added once.
    ///
    /// # Errors
    ///
    /// As [`Bundle::remove_weighted`].
    pub fn remove(&mut self, vector: &PackedTritVec<A>) -> Result<(), VsaError> {
        self.remove_weighted(vector, 1)
    }

    /// Removes a vector that was added with this weight.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`], [`VsaError::NotInBundle`] if the counts rule out that it was added; no other check is possible.
    pub fn remove_weighted(&mut self, vector: &PackedTritVec<A>, weight: u32) -> Result<(), VsaError> {
        self.check(vector.dim())?;
        let there = self.counter.remove(cpu()?, vector.view(), weight)?;
        self.forget(there, weight)
    }

    fn forget(&mut self, there: bool, weight: u32) -> Result<(), VsaError> {
        if !there {
            return Err(VsaError::NotInBundle { weight });
        }
        self.squares = self.squares.saturating_sub(square(weight));
        Ok(())
    }

    /// Changes one dimension of bundled vectors with this total weight from one value to another. Only the words of that dimension
    /// are accessed: one per sign and bit of a count.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] if `index` is out of range, [`VsaError::Zero`] for a zero in [`Bipolar`](crate::Bipolar),
    /// [`VsaError::NotInBundle`] if the count of the old value is less than `weight`.
    pub fn replace(&mut self, index: usize, from: Trit, to: Trit, weight: u32) -> Result<(), VsaError> {
        check_trit::<A>(self.dim(), index, to)?;
        if self.counter.replace(index, from, to, weight)? {
            Ok(())
        } else {
            Err(VsaError::NotInBundle { weight })
        }
    }

    /// Adds a sparse vector; only the words of its nonzero dimensions are accessed.
    ///
    /// # Errors
    ///
    /// As [`Bundle::add`], and [`VsaError::Zero`] in [`Bipolar`](crate::Bipolar).
    pub fn add_sparse(&mut self, vector: &SparseVec, weight: u32) -> Result<(), VsaError> {
        self.check_sparse(vector)?;
        self.counter.add_sparse(vector.entries(), weight)?;
        self.squares = self.squares.saturating_add(square(weight));
        Ok(())
    }

    /// Removes a vector added by [`Bundle::add_sparse`].
    ///
    /// # Errors
    ///
    /// As [`Bundle::remove_weighted`].
    pub fn remove_sparse(&mut self, vector: &SparseVec, weight: u32) -> Result<(), VsaError> {
        self.check_sparse(vector)?;
        let there = self.counter.remove_sparse(cpu()?, vector.entries(), weight)?;
        self.forget(there, weight)
    }

    fn check_sparse(&self, vector: &SparseVec) -> Result<(), VsaError> {
        self.check(vector.dim())?;
        match vector.first_zero() {
            Some(index) if !A::ZEROS => Err(VsaError::Zero { index }),
            _ => Ok(()),
        }
    }

    /// Adds a negative example: reduces the similarity to a vector by as much as adding it with this weight would increase it.
    ///
    /// In [`Bipolar`] and [`Ternary`](crate::Ternary) the negated vector is added. In [`Z3`], `vector + 1` and `vector - 1`
    /// (modulo 3) are added, so that the total grows by twice the weight.
    ///
    /// # Errors
    ///
    /// As [`Bundle::add_weighted`].
    pub fn add_negative(&mut self, vector: &PackedTritVec<A>, weight: u32) -> Result<(), VsaError> {
        self.check(vector.dim())?;
        let mut other = PackedTritVec::blank(vector.dim())?;
        if A::KIND != AlgebraKind::Z3 {
            other.view_mut().copy_from(vector.view().negated())?;
            return self.add_weighted(&other, weight);
        }
        let ones = PackedTritVec::<Bipolar>::identity(vector.dim())?;
        for third in [ones.view(), ones.view().negated()] {
            cpu()?.trit_sum_mod3(vector.view(), third, other.view_mut())?;
            self.add_weighted(&other, weight)?;
        }
        Ok(())
    }

    /// Adds the vectors of another bundle.
    ///
    /// # Errors
    ///
    /// As [`Bundle::add`].
    pub fn merge(&mut self, other: &Self) -> Result<(), VsaError> {
        self.check(other.dim())?;
        self.counter.merge(cpu()?, &other.counter)?;
        self.squares = self.squares.saturating_add(other.squares);
        Ok(())
    }

    /// Binds a key to everything in the bundle.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`].
    pub fn bind(&mut self, key: &PackedTritVec<A>) -> Result<(), VsaError> {
        self.check(key.dim())?;
        A::bind_counts(cpu()?, &mut self.counter, key.view())
    }

    /// Unbinds a key from everything in the bundle.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`].
    pub fn unbind(&mut self, key: &PackedTritVec<A>) -> Result<(), VsaError> {
        self.check(key.dim())?;
        A::unbind_counts(cpu()?, &mut self.counter, key.view())
    }

    /// Rotates everything in the bundle, as [`permute`](crate::permute()) does.
    ///
    /// # Errors
    ///
    /// [`VsaError::Popcount`] if an allocation fails.
    pub fn permute(&mut self, by: isize) -> Result<(), VsaError> {
        Ok(self.counter.rotate(cpu()?, by)?)
    }

    /// The trits of the bundle: by plurality, majority or a threshold, depending on the algebra.
    ///
    /// # Errors
    ///
    /// [`VsaError::Popcount`] if an allocation fails.
    pub fn to_vector(&self) -> Result<PackedTritVec<A>, VsaError> {
        let mut out = PackedTritVec::blank(self.dim())?;
        A::decide(cpu()?, &self.counter, self.squares, out.view_mut())?;
        Ok(out)
    }

    /// The sum of the vectors: per dimension, the count of +1 minus the count of -1.
    ///
    /// # Errors
    ///
    /// [`VsaError::Popcount`] if an allocation fails.
    pub fn sums(&self) -> Result<Vec<i32>, VsaError> {
        let mut sums = vec![0; self.dim()];
        self.counter.sums(cpu()?, &mut sums)?;
        Ok(sums)
    }

    /// The weighted sum of the scores of a vector with all vectors in the bundle: matches in [`Z3`], dot products
    /// otherwise.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`], and [`VsaError::Host`] if the host kernels cannot be initialized.
    pub fn score(&self, vector: &PackedTritVec<A>) -> Result<i64, VsaError> {
        self.check(vector.dim())?;
        Ok(self.counter.score(cpu()?, A::SCORE, vector.view())?)
    }

    /// Estimated weight of a vector in the bundle: about 1 for a vector that was added once, about 0 for a random one,
    /// proportional to the weight. 0 for an all-zero vector in [`Ternary`](crate::Ternary).
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`].
    pub fn similarity(&self, vector: &PackedTritVec<A>) -> Result<f64, VsaError> {
        let score = self.score(vector)?;
        let reach = if A::KIND == AlgebraKind::Ternary { vector.nonzeros()? } else { self.dim() };
        Ok(share::<A>(score, self.total(), self.dim(), reach))
    }

    fn check(&self, dim: usize) -> Result<(), VsaError> {
        check_dim("an operand of a bundle", self.dim(), dim)
    }
}

/// Converts a score with counts to a number of vectors; `reach` is the score of a vector with itself.
pub(crate) fn share<A: Algebra>(score: i64, total: u32, dim: usize, reach: usize) -> f64 {
    if reach == 0 {
        return 0.0;
    }
    match A::KIND {
        AlgebraKind::Z3 => {
            let chance = f64::from(total) * dim as f64;
            (3.0 * score as f64 - chance) / (2.0 * dim as f64)
        }
        _ => score as f64 / reach as f64,
    }
}

fn square(weight: u32) -> u64 {
    u64::from(weight) * u64::from(weight)
}
