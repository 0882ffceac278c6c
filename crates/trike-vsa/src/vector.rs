//! The hypervector.

use std::fmt;
use std::marker::PhantomData;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use trike_popcount::{Cpu, MAX_TRITS, PlaneVector, TritOps, TritPlanes, TritPlanesMut};
use trike_trit::Trit;

use crate::algebra::{Algebra, AlgebraKind, Ternary, Z3};
use crate::error::{VsaError, check_range, check_real};
use crate::random;

/// The executor of single operations: the best instruction set, on the caller's thread, since an operation takes less time
/// than a hand-over to another thread.
pub(crate) fn cpu() -> Result<&'static Cpu, VsaError> {
    static ONE: OnceLock<Cpu> = OnceLock::new();
    match ONE.get() {
        Some(cpu) => Ok(cpu),
        None => {
            let cpu = Cpu::new(1)?;
            Ok(ONE.get_or_init(|| cpu))
        }
    }
}

/// A hypervector: at least one trit, in two bit planes, with the algebra as a type parameter.
///
/// Two bits per dimension: 10,000 dimensions take 2,560 bytes. Trit `j` is bit `j % 64` of word `j / 64`, set in the positive plane
/// if it is +1 and in the negative plane if it is -1.
///
/// ```
/// use trike_vsa::{PackedTritVec, bind, similarity, unbind};
///
/// let (a, b) = (PackedTritVec::<trike_vsa::Z3>::random(10_000, 1)?, PackedTritVec::random(10_000, 2)?);
/// let bound = bind(&a, &b)?;
/// assert!(similarity(&bound, &a)?.abs() < 0.05, "like neither");
/// assert_eq!(unbind(&bound, &a)?, b, "and nothing is lost");
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "VectorParts", into = "VectorParts")]
pub struct PackedTritVec<A: Algebra = Z3> {
    trits: PlaneVector,
    algebra: PhantomData<A>,
}

/// The serialized form of a vector.
#[derive(Serialize, Deserialize)]
struct VectorParts {
    algebra: AlgebraKind,
    dim: usize,
    pos: Vec<u64>,
    neg: Vec<u64>,
}

impl<A: Algebra> From<PackedTritVec<A>> for VectorParts {
    fn from(vector: PackedTritVec<A>) -> Self {
        let view = vector.view();
        Self { algebra: A::KIND, dim: view.len(), pos: view.pos().to_vec(), neg: view.neg().to_vec() }
    }
}

impl<A: Algebra> TryFrom<VectorParts> for PackedTritVec<A> {
    type Error = VsaError;

    fn try_from(parts: VectorParts) -> Result<Self, VsaError> {
        check_algebra::<A>(parts.algebra)?;
        Self::from_view(TritPlanes::new(&parts.pos, &parts.neg, parts.dim)?)
    }
}

/// Checks the algebra of serialized data.
pub(crate) fn check_algebra<A: Algebra>(got: AlgebraKind) -> Result<(), VsaError> {
    if got == A::KIND { Ok(()) } else { Err(VsaError::Algebra { expected: A::KIND, got }) }
}

impl<A: Algebra> PackedTritVec<A> {
    /// A random vector: uniform trits, or signs without zeros in [`Bipolar`](crate::Bipolar). The same seed gives the same
    /// vector on every machine.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] for no dimensions or more than [`MAX_TRITS`].
    pub fn random(dim: usize, seed: u64) -> Result<Self, VsaError> {
        Self::from_words(dim, |word| A::random_word(seed, word as u64))
    }

    /// A random vector of signs, without zeros: in [`Ternary`], a key that can be unbound exactly.
    ///
    /// # Errors
    ///
    /// As [`PackedTritVec::random`].
    pub fn random_dense(dim: usize, seed: u64) -> Result<Self, VsaError> {
        Self::from_words(dim, |word| {
            let bits = random::bits(seed, word as u64, 0);
            [bits, !bits]
        })
    }

    /// `count` independent random vectors; vector `i` does not depend on `count`.
    ///
    /// # Errors
    ///
    /// As [`PackedTritVec::random`].
    pub fn random_set(dim: usize, count: usize, seed: u64) -> Result<Vec<Self>, VsaError> {
        (0..count).map(|i| Self::random(dim, random::item_seed(seed, i as u64))).collect()
    }

    /// The identity of binding: all zeros in [`Z3`], all ones in the other algebras.
    ///
    /// # Errors
    ///
    /// As [`PackedTritVec::random`].
    pub fn identity(dim: usize) -> Result<Self, VsaError> {
        let mut out = Self::blank(dim)?;
        A::identity(out.trits.view_mut())?;
        Ok(out)
    }

    /// A vector from the numbers -1, 0 and 1.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] for an empty slice, [`VsaError::Popcount`] for other numbers, [`VsaError::Zero`] for zeros in
    /// [`Bipolar`](crate::Bipolar).
    pub fn from_trits(trits: &[i8]) -> Result<Self, VsaError> {
        check_dims(trits.len())?;
        Self::checked(PlaneVector::from_trits(trits)?)
    }

    /// A copy of a view of trit planes.
    ///
    /// # Errors
    ///
    /// As [`PackedTritVec::from_trits`].
    pub fn from_view(planes: TritPlanes<'_>) -> Result<Self, VsaError> {
        check_dims(planes.len())?;
        Self::checked(PlaneVector::from_view(planes)?)
    }

    fn checked(trits: PlaneVector) -> Result<Self, VsaError> {
        let view = trits.view();
        if !A::ZEROS && cpu()?.trit_nonzeros(view) as usize != view.len() {
            let index = (0..view.len()).find(|&i| view.get(i) == Some(Trit::Z)).unwrap_or(0);
            return Err(VsaError::Zero { index });
        }
        Ok(Self { trits, algebra: PhantomData })
    }

    /// Storage for a result; all zeros, which is not a valid vector of every algebra until it is written.
    pub(crate) fn blank(dim: usize) -> Result<Self, VsaError> {
        check_dims(dim)?;
        Ok(Self { trits: PlaneVector::zeros(dim)?, algebra: PhantomData })
    }

    pub(crate) fn from_words(dim: usize, word: impl FnMut(usize) -> [u64; 2]) -> Result<Self, VsaError> {
        check_dims(dim)?;
        Ok(Self { trits: random::from_words(dim, word)?, algebra: PhantomData })
    }

    /// Number of dimensions.
    #[inline]
    pub fn dim(&self) -> usize {
        self.trits.len()
    }

    /// A view of the trit planes.
    #[inline]
    pub fn view(&self) -> TritPlanes<'_> {
        self.trits.view()
    }

    #[inline]
    pub(crate) fn view_mut(&mut self) -> TritPlanesMut<'_> {
        self.trits.view_mut()
    }

    /// The trits as -1, 0 and 1.
    pub fn to_trits(&self) -> Vec<i8> {
        self.trits.to_trits()
    }

    /// The trit at `index`; `None` if out of range.
    pub fn get(&self, index: usize) -> Option<Trit> {
        self.view().get(index)
    }

    /// Changes one dimension in place; writes two words.
    ///
    /// # Errors
    ///
    /// [`VsaError::Range`] if `index` is out of range, [`VsaError::Zero`] for a zero in [`Bipolar`](crate::Bipolar).
    pub fn set(&mut self, index: usize, trit: Trit) -> Result<(), VsaError> {
        check_trit::<A>(self.dim(), index, trit)?;
        Ok(self.view_mut().set(index, trit)?)
    }

    /// Number of nonzero dimensions.
    ///
    /// # Errors
    ///
    /// [`VsaError::Host`] if the host kernels cannot be initialized.
    pub fn nonzeros(&self) -> Result<usize, VsaError> {
        Ok(cpu()?.trit_nonzeros(self.view()) as usize)
    }
}

impl PackedTritVec<Ternary> {
    /// A random vector whose trits are nonzero with probability `density`.
    ///
    /// # Errors
    ///
    /// [`VsaError::Real`] for a density outside 0 to 1, and as [`PackedTritVec::random`].
    pub fn random_with_density(dim: usize, density: f64, seed: u64) -> Result<Self, VsaError> {
        check_real("density of a random vector", 0.0, 1.0, density)?;
        Self::from_words(dim, |word| random::of_density(seed, word as u64, density))
    }
}

/// Checks a number of dimensions.
pub(crate) fn check_dims(dim: usize) -> Result<(), VsaError> {
    check_range("dimensions of a hypervector", 1, MAX_TRITS, dim)
}

/// Checks that a dimension is in range and that the algebra allows the trit.
pub(crate) fn check_trit<A: Algebra>(dim: usize, index: usize, trit: Trit) -> Result<(), VsaError> {
    check_range("dimension of a hypervector", 0, dim - 1, index)?;
    if !A::ZEROS && trit == Trit::Z { Err(VsaError::Zero { index }) } else { Ok(()) }
}

/// The algebra, the number of dimensions and the first trits.
impl<A: Algebra> fmt::Debug for PackedTritVec<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackedTritVec<{}>({} trits: ", A::KIND, self.dim())?;
        let first = (0..self.dim().min(16)).filter_map(|i| self.get(i));
        first.map(|t| ["-", "0", "+"][usize::from(t.code())]).try_for_each(|t| f.write_str(t))?;
        f.write_str(if self.dim() > 16 { "...)" } else { ")" })
    }
}
