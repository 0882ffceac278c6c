//! Item memory: exact search for the most similar stored vectors.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};
use trike_popcount::{Cpu, PlaneMatrix, TritHit, TritOps, TritPlanes};
use trike_trit::Trit;

use crate::algebra::{Algebra, Z3};
use crate::bundle::{Bundle, share};
use crate::error::{VsaError, check_dim, check_range, check_real};
use crate::vector::{PackedTritVec, check_dims, check_trit};

/// A search result: one stored vector.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hit {
    /// Its index in the memory.
    pub index: usize,
    /// Its score: matches in [`Z3`], the dot product otherwise; for a bundle, summed over its vectors.
    pub score: i64,
    /// The score as a similarity: 1 for the same vector, about 0 for random ones; for a bundle, the estimated weight of the vector
    /// in the bundle.
    pub similarity: f64,
}

/// Result of [`ItemMemory::cleanup_iterative`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IterativeCleanup<A: Algebra = Z3> {
    /// The final vector.
    pub vector: PackedTritVec<A>,
    /// Number of steps that changed the vector.
    pub steps: usize,
    /// Whether the last step changed nothing.
    pub converged: bool,
}

/// Vectors with the same number of dimensions in one block of memory, with exact search.
///
/// A search reads every vector once for all queries of a batch, on the threads of the memory's [`Cpu`]; ties are ordered by
/// index, and the result does not depend on the number of threads.
///
/// ```
/// use trike_vsa::{ItemMemory, PackedTritVec, Z3, bundle_many};
///
/// let words = PackedTritVec::<Z3>::random_set(4096, 100, 1)?;
/// let mut memory = ItemMemory::new(4096)?;
/// for word in &words {
///     memory.push(word)?;
/// }
/// let mixed = bundle_many([&words[7], &words[40], &words[41]])?;
/// let found: Vec<usize> = memory.top_k(&mixed, 3)?.iter().map(|hit| hit.index).collect();
/// assert_eq!({ let mut found = found; found.sort(); found }, [7, 40, 41]);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ItemMemory<A: Algebra = Z3> {
    rows: PlaneMatrix,
    cpu: Cpu,
    algebra: std::marker::PhantomData<A>,
}

impl<A: Algebra> ItemMemory<A> {
    /// An empty memory that searches on the caller's thread.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] if `dim` is 0 or too large.
    pub fn new(dim: usize) -> Result<Self, VsaError> {
        Self::with_cpu(dim, Cpu::new(1)?)
    }

    /// An empty memory that searches on the threads of a [`Cpu`].
    ///
    /// # Errors
    ///
    /// As [`ItemMemory::new`].
    pub fn with_cpu(dim: usize, cpu: Cpu) -> Result<Self, VsaError> {
        check_dims(dim)?;
        Ok(Self { rows: PlaneMatrix::new(dim)?, cpu, algebra: std::marker::PhantomData })
    }

    /// A memory of vectors, on the caller's thread.
    ///
    /// # Errors
    ///
    /// [`VsaError::Empty`] for no vectors, [`VsaError::Dimension`] if their dimensions differ.
    pub fn of<'a>(vectors: impl IntoIterator<Item = &'a PackedTritVec<A>>) -> Result<Self, VsaError> {
        let mut vectors = vectors.into_iter().peekable();
        let dim = vectors.peek().ok_or(VsaError::Empty { what: "a memory" })?.dim();
        let mut memory = Self::new(dim)?;
        vectors.try_for_each(|vector| memory.push(vector).map(|_| ()))?;
        Ok(memory)
    }

    /// The same vectors, searched on the threads of a [`Cpu`].
    #[must_use]
    pub fn on(mut self, cpu: Cpu) -> Self {
        self.cpu = cpu;
        self
    }

    /// Reserves memory for `count` vectors in total, so that adding them does not reallocate.
    ///
    /// # Errors
    ///
    /// [`VsaError::Popcount`] if the allocation fails.
    pub fn reserve(&mut self, count: usize) -> Result<(), VsaError> {
        let mut rows = PlaneMatrix::with_capacity(count, self.dim())?;
        for row in 0..self.len() {
            rows.push(self.row(row)?)?;
        }
        self.rows = rows;
        Ok(())
    }

    /// Number of dimensions.
    pub fn dim(&self) -> usize {
        self.rows.cols()
    }

    /// Number of stored vectors.
    pub fn len(&self) -> usize {
        self.rows.rows()
    }

    /// Whether nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The planes of all vectors.
    pub fn rows(&self) -> &PlaneMatrix {
        &self.rows
    }

    /// The executor of searches.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// Stores a vector and returns its index.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`], [`VsaError::Popcount`] if an allocation fails.
    pub fn push(&mut self, vector: &PackedTritVec<A>) -> Result<usize, VsaError> {
        check_dim("a vector to be stored", self.dim(), vector.dim())?;
        self.rows.push(vector.view())?;
        Ok(self.len() - 1)
    }

    /// A copy of a stored vector.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] if `index` is out of range.
    pub fn get(&self, index: usize) -> Result<PackedTritVec<A>, VsaError> {
        PackedTritVec::from_view(self.row(index)?)
    }

    /// The planes of a stored vector.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] if `index` is out of range.
    pub fn row(&self, index: usize) -> Result<TritPlanes<'_>, VsaError> {
        self.rows.row(index).ok_or_else(|| self.past_the_end(index))
    }

    /// Overwrites a stored vector.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] if `index` is out of range, [`VsaError::Dimension`].
    pub fn replace(&mut self, index: usize, vector: &PackedTritVec<A>) -> Result<(), VsaError> {
        check_dim("a vector to be stored", self.dim(), vector.dim())?;
        let error = self.past_the_end(index);
        Ok(self.rows.row_mut(index).ok_or(error)?.copy_from(vector.view())?)
    }

    /// Changes one dimension of a stored vector in place; writes two words.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] if an index is out of range, [`VsaError::Zero`] for a zero in [`Bipolar`](crate::Bipolar).
    pub fn set(&mut self, index: usize, dimension: usize, trit: Trit) -> Result<(), VsaError> {
        check_trit::<A>(self.dim(), dimension, trit)?;
        let error = self.past_the_end(index);
        Ok(self.rows.row_mut(index).ok_or(error)?.set(dimension, trit)?)
    }

    /// Removes a vector; the last one takes its index.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] if `index` is out of range.
    pub fn swap_remove(&mut self, index: usize) -> Result<(), VsaError> {
        if self.rows.swap_remove(index) { Ok(()) } else { Err(self.past_the_end(index)) }
    }

    fn past_the_end(&self, index: usize) -> VsaError {
        let maximum = self.len().saturating_sub(1);
        VsaError::Range { what: "index of a stored vector", minimum: 0, maximum, got: index }
    }

    /// The `k` most similar vectors, best first; all vectors if fewer are stored.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`], [`VsaError::Range`] for a `k` of 0, [`VsaError::Empty`] for a memory without vectors.
    pub fn top_k(&self, query: &PackedTritVec<A>, k: usize) -> Result<Vec<Hit>, VsaError> {
        Ok(self.top_k_batch([query], k)?.swap_remove(0))
    }

    /// [`ItemMemory::top_k`] for a batch of queries: each stored vector is read from memory once.
    ///
    /// # Errors
    ///
    /// As [`ItemMemory::top_k`].
    pub fn top_k_batch<'a>(
        &self,
        queries: impl IntoIterator<Item = &'a PackedTritVec<A>>,
        k: usize,
    ) -> Result<Vec<Vec<Hit>>, VsaError> {
        self.check_search(k)?;
        let mut matrix = PlaneMatrix::new(self.dim())?;
        for query in queries {
            check_dim("a query", self.dim(), query.dim())?;
            matrix.push(query.view())?;
        }
        let found = self.cpu.trit_top_k(A::SCORE, &matrix, &self.rows, k)?;
        let hits = |(query, found): (usize, Vec<TritHit>)| {
            let query = matrix.row(query).ok_or(VsaError::Empty { what: "a batch of queries" })?;
            let hit = |found: TritHit| {
                let similarity = A::similarity(&self.cpu, found.score, query, self.row(found.row)?);
                Ok(Hit { index: found.row, score: found.score.into(), similarity })
            };
            found.into_iter().map(hit).collect()
        };
        found.into_iter().enumerate().map(hits).collect()
    }

    /// The `k` vectors with the largest weights in a bundle, by its counts, best first. If a key was unbound from the bundle
    /// beforehand, these are the values of that key.
    ///
    /// # Errors
    ///
    /// As [`ItemMemory::top_k`].
    pub fn top_k_in_bundle(&self, bundle: &Bundle<A>, k: usize) -> Result<Vec<Hit>, VsaError> {
        self.check_search(k)?;
        check_dim("a query bundle", self.dim(), bundle.dim())?;
        let mut scores = vec![0; self.len()];
        bundle.counter().scores(&self.cpu, A::SCORE, &self.rows, &mut scores)?;
        let mut order: Vec<usize> = (0..scores.len()).collect();
        let key = |&index: &usize| (Reverse(scores[index]), index);
        if k < order.len() {
            order.select_nth_unstable_by_key(k, key);
            order.truncate(k);
        }
        order.sort_unstable_by_key(key);
        let hit = |index| {
            let (score, row) = (scores[index], self.row(index)?);
            let reach = match A::KIND {
                crate::AlgebraKind::Ternary => self.cpu.trit_nonzeros(row) as usize,
                _ => self.dim(),
            };
            Ok(Hit { index, score, similarity: share::<A>(score, bundle.total(), self.dim(), reach) })
        };
        order.into_iter().map(hit).collect()
    }

    fn check_search(&self, k: usize) -> Result<(), VsaError> {
        check_range("k of a top-k search", 1, usize::MAX, k)?;
        if self.is_empty() { Err(VsaError::Empty { what: "a memory" }) } else { Ok(()) }
    }

    /// The most similar vector.
    ///
    /// # Errors
    ///
    /// As [`ItemMemory::top_k`].
    pub fn nearest(&self, query: &PackedTritVec<A>) -> Result<Hit, VsaError> {
        first(self.top_k(query, 1)?)
    }

    /// The vector with the largest weight in a bundle, by its counts.
    ///
    /// # Errors
    ///
    /// As [`ItemMemory::top_k`].
    pub fn nearest_in_bundle(&self, bundle: &Bundle<A>) -> Result<Hit, VsaError> {
        first(self.top_k_in_bundle(bundle, 1)?)
    }

    /// Replaces a noisy vector by the most similar stored one; `None` if its similarity is below `threshold`.
    ///
    /// # Errors
    ///
    /// As [`ItemMemory::top_k`], and [`VsaError::Real`] for a threshold outside -1 to 1.
    pub fn cleanup(
        &self,
        query: &PackedTritVec<A>,
        threshold: f64,
    ) -> Result<Option<PackedTritVec<A>>, VsaError> {
        check_real("threshold of a similarity", -1.0, 1.0, threshold)?;
        let hit = self.nearest(query)?;
        if hit.similarity >= threshold { self.get(hit.index).map(Some) } else { Ok(None) }
    }

    /// Iterative cleanup of a superposition: each step bundles the stored vectors with a similarity of at least `threshold`,
    /// weighted by similarity, until the vector stops changing or after `max_steps`. If no stored vector reaches the threshold, the
    /// vector is unchanged.
    ///
    /// # Errors
    ///
    /// As [`ItemMemory::cleanup`].
    pub fn cleanup_iterative(
        &self,
        query: &PackedTritVec<A>,
        threshold: f64,
        max_steps: usize,
    ) -> Result<IterativeCleanup<A>, VsaError> {
        check_real("threshold of a similarity", -1.0, 1.0, threshold)?;
        let mut vector = query.clone();
        for steps in 0..max_steps {
            let mut bundle = Bundle::<A>::new(self.dim())?;
            for hit in self.top_k(&vector, self.len())? {
                // Similarity in steps of 1/64: finer weights change no relevant trit, and each additional bit costs one pass.
                let weight = (64.0 * hit.similarity).round() as u32;
                if hit.similarity >= threshold && weight > 0 {
                    bundle.add_weighted(&self.get(hit.index)?, weight)?;
                }
            }
            let next = if bundle.total() == 0 { vector.clone() } else { bundle.to_vector()? };
            if next == vector {
                return Ok(IterativeCleanup { vector, steps, converged: true });
            }
            vector = next;
        }
        Ok(IterativeCleanup { vector, steps: max_steps, converged: false })
    }
}

fn first(hits: Vec<Hit>) -> Result<Hit, VsaError> {
    hits.first().copied().ok_or(VsaError::Empty { what: "a memory" })
}

impl<A: Algebra> PartialEq for ItemMemory<A> {
    fn eq(&self, other: &Self) -> bool {
        self.rows == other.rows
    }
}

impl<A: Algebra> Eq for ItemMemory<A> {}

/// The serialized form of a memory.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
struct MemoryParts<A: Algebra> {
    dim: usize,
    vectors: Vec<PackedTritVec<A>>,
}

impl<A: Algebra> Serialize for ItemMemory<A> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let vectors: Result<Vec<_>, VsaError> = (0..self.len()).map(|index| self.get(index)).collect();
        let vectors = vectors.map_err(serde::ser::Error::custom)?;
        MemoryParts { dim: self.dim(), vectors }.serialize(serializer)
    }
}

/// The memory searches on the caller's thread; see [`ItemMemory::on`].
impl<'de, A: Algebra> Deserialize<'de> for ItemMemory<A> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parts = MemoryParts::<A>::deserialize(deserializer)?;
        let memory = || {
            let mut memory = Self::new(parts.dim)?;
            parts.vectors.iter().try_for_each(|vector| memory.push(vector).map(|_| ()))?;
            Ok::<_, VsaError>(memory)
        };
        memory().map_err(serde::de::Error::custom)
    }
}
