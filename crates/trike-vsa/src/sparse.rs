//! Sparse vectors.

use serde::{Deserialize, Serialize};
use trike_trit::Trit;

use crate::algebra::Algebra;
use crate::error::{VsaError, check_dim, check_range};
use crate::vector::{PackedTritVec, check_dims};

/// A sparse vector of trits, as a list of its nonzero dimensions in ascending order: smaller than [`PackedTritVec`] below one
/// nonzero per 64 dimensions, and bundled without accessing the zeros ([`Bundle::add_sparse`](crate::Bundle::add_sparse)).
///
/// ```
/// use trike_vsa::{PackedTritVec, SparseVec, Ternary};
/// use trike_trit::Trit;
///
/// let sparse = SparseVec::new(10_000, vec![(7, Trit::P), (4_000, Trit::N)])?;
/// let dense: PackedTritVec<Ternary> = sparse.to_packed()?;
/// assert_eq!(dense.get(4_000), Some(Trit::N));
/// assert_eq!(SparseVec::from_packed(&dense), sparse);
/// assert_eq!(sparse.dot(&dense)?, 2);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "SparseParts", into = "SparseParts")]
pub struct SparseVec {
    dim: usize,
    entries: Vec<(usize, Trit)>,
}

/// The serialized form of a sparse vector.
#[derive(Serialize, Deserialize)]
struct SparseParts {
    dim: usize,
    positive: Vec<usize>,
    negative: Vec<usize>,
}

impl From<SparseVec> for SparseParts {
    fn from(vector: SparseVec) -> Self {
        let of = |sign| vector.entries.iter().filter(|e| e.1 == sign).map(|e| e.0).collect();
        Self { dim: vector.dim, positive: of(Trit::P), negative: of(Trit::N) }
    }
}

impl TryFrom<SparseParts> for SparseVec {
    type Error = VsaError;

    fn try_from(parts: SparseParts) -> Result<Self, VsaError> {
        let positive = parts.positive.into_iter().map(|index| (index, Trit::P));
        let mut entries: Vec<_> =
            positive.chain(parts.negative.into_iter().map(|index| (index, Trit::N))).collect();
        entries.sort_unstable_by_key(|entry| entry.0);
        Self::new(parts.dim, entries)
    }
}

impl SparseVec {
    /// A vector from its nonzero dimensions.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] for no or too many dimensions, and for entries that are not ascending or out of range;
    /// [`VsaError::Zero`] for a trit that is 0.
    pub fn new(dim: usize, entries: Vec<(usize, Trit)>) -> Result<Self, VsaError> {
        check_dims(dim)?;
        let mut next = 0;
        for &(index, trit) in &entries {
            check_range("dimension of a sparse vector", next, dim - 1, index)?;
            if trit == Trit::Z {
                return Err(VsaError::Zero { index });
            }
            next = index + 1;
        }
        Ok(Self { dim, entries })
    }

    /// The nonzero dimensions of a packed vector.
    #[must_use]
    pub fn from_packed<A: Algebra>(vector: &PackedTritVec<A>) -> Self {
        let view = vector.view();
        let mut entries = Vec::new();
        for (word, (&pos, &neg)) in view.pos().iter().zip(view.neg()).enumerate() {
            let mut left = pos | neg;
            while left != 0 {
                let bit = left.trailing_zeros() as usize;
                entries.push((64 * word + bit, if (pos >> bit) & 1 == 1 { Trit::P } else { Trit::N }));
                left &= left - 1;
            }
        }
        Self { dim: vector.dim(), entries }
    }

    /// The same vector, packed.
    ///
    /// # Errors
    ///
    /// [`VsaError::Zero`] for zeros in [`Bipolar`](crate::Bipolar).
    pub fn to_packed<A: Algebra>(&self) -> Result<PackedTritVec<A>, VsaError> {
        if let (false, Some(index)) = (A::ZEROS, self.first_zero()) {
            return Err(VsaError::Zero { index });
        }
        let mut out = PackedTritVec::blank(self.dim)?;
        for &(index, trit) in &self.entries {
            out.view_mut().set(index, trit)?;
        }
        Ok(out)
    }

    /// Number of dimensions.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The nonzero dimensions, in ascending order.
    pub fn entries(&self) -> &[(usize, Trit)] {
        &self.entries
    }

    /// The first dimension that is zero.
    pub(crate) fn first_zero(&self) -> Option<usize> {
        let first = self.entries.iter().enumerate().position(|(at, entry)| at != entry.0);
        first.or((self.entries.len() < self.dim).then_some(self.entries.len()))
    }

    /// The dot product with a packed vector, in time linear in the number of nonzeros of `self`.
    ///
    /// # Errors
    ///
    /// [`VsaError::Dimension`].
    pub fn dot<A: Algebra>(&self, other: &PackedTritVec<A>) -> Result<i32, VsaError> {
        check_dim("the packed vector", self.dim, other.dim())?;
        let trit = |index| other.get(index).map_or(0, |t| i32::from(t.value()));
        Ok(self.entries.iter().map(|&(index, sign)| i32::from(sign.value()) * trit(index)).sum())
    }
}
