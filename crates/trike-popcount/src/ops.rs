//! The operations on trit planes, as methods of [`Cpu`].

use trike_core::{TritHit, TritScore};
use trike_host::Cpu;

use crate::element::{Overlay, Product, SumMod3, elements};
use crate::error::{PopcountError, check_len};
use crate::matrix::PlaneMatrix;
use crate::pair::{nonzeros, score_pair};
use crate::planes::{TritPlanes, TritPlanesMut};
use crate::project::project;
use crate::rotate::rotate;
use crate::scores::scores;
use crate::top::top_k;

/// The operations on trit planes, as methods of [`Cpu`].
///
/// Operations on two vectors run on the caller's thread, those on matrices on as many threads as the work justifies. Results are
/// exact, except for [`TritOps::trit_project`], and the same for every instruction set and number of threads.
///
/// ```
/// use trike_host::Cpu;
/// use trike_popcount::{PlaneVector, TritOps};
///
/// let cpu = Cpu::new(1)?;
/// let (a, b) = (PlaneVector::from_trits(&[1, -1, 0, 0, 1])?, PlaneVector::from_trits(&[1, 1, -1, 0, 1])?);
/// let (a, b) = (a.view(), b.view());
/// assert_eq!(cpu.trit_dot(a, b)?, 1);
/// assert_eq!(cpu.trit_matches(a, b)?, 3);
/// assert_eq!(cpu.trit_agreements(a, b)?, 2);
/// assert_eq!(cpu.trit_hamming(a, b)?, 2);
/// assert_eq!(cpu.trit_nonzeros(a), 3);
/// # Ok::<(), trike_popcount::PopcountError>(())
/// ```
pub trait TritOps {
    /// The similarity of two vectors.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`] for vectors of different lengths.
    fn trit_score(
        &self,
        score: TritScore,
        a: TritPlanes<'_>,
        b: TritPlanes<'_>,
    ) -> Result<i32, PopcountError>;

    /// The dot product of two vectors.
    ///
    /// # Errors
    ///
    /// As [`TritOps::trit_score`].
    #[inline]
    fn trit_dot(&self, a: TritPlanes<'_>, b: TritPlanes<'_>) -> Result<i32, PopcountError> {
        self.trit_score(TritScore::Dot, a, b)
    }

    /// Number of positions where two vectors have the same value, including zeros.
    ///
    /// # Errors
    ///
    /// As [`TritOps::trit_score`].
    #[inline]
    fn trit_matches(&self, a: TritPlanes<'_>, b: TritPlanes<'_>) -> Result<i32, PopcountError> {
        self.trit_score(TritScore::Matches, a, b)
    }

    /// Number of positions where two vectors are nonzero with the same sign.
    ///
    /// # Errors
    ///
    /// As [`TritOps::trit_score`].
    #[inline]
    fn trit_agreements(&self, a: TritPlanes<'_>, b: TritPlanes<'_>) -> Result<i32, PopcountError> {
        self.trit_score(TritScore::Agreements, a, b)
    }

    /// Number of positions where two vectors differ (Hamming distance).
    ///
    /// # Errors
    ///
    /// As [`TritOps::trit_score`].
    #[inline]
    fn trit_hamming(&self, a: TritPlanes<'_>, b: TritPlanes<'_>) -> Result<i32, PopcountError> {
        Ok(a.len() as i32 - self.trit_matches(a, b)?)
    }

    /// Number of nonzero positions of a vector.
    fn trit_nonzeros(&self, a: TritPlanes<'_>) -> i32;

    /// `out = a + b` modulo 3, with -1 for 2. Invertible: [`TritOps::trit_difference_mod3`] recovers `a` exactly.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`] for vectors of different lengths.
    fn trit_sum_mod3(
        &self,
        a: TritPlanes<'_>,
        b: TritPlanes<'_>,
        out: TritPlanesMut<'_>,
    ) -> Result<(), PopcountError>;

    /// `out = a - b` modulo 3, the inverse of [`TritOps::trit_sum_mod3`].
    ///
    /// # Errors
    ///
    /// As [`TritOps::trit_sum_mod3`].
    #[inline]
    fn trit_difference_mod3(
        &self,
        a: TritPlanes<'_>,
        b: TritPlanes<'_>,
        out: TritPlanesMut<'_>,
    ) -> Result<(), PopcountError> {
        self.trit_sum_mod3(a, b.negated(), out)
    }

    /// `out = a * b`; where `b` is nonzero, multiplying by `b` again recovers `a`.
    ///
    /// ```
    /// use trike_host::Cpu;
    /// use trike_popcount::{PlaneVector, TritOps};
    ///
    /// let cpu = Cpu::new(1)?;
    /// let (a, b) = (PlaneVector::from_trits(&[1, -1, -1, 1])?, PlaneVector::from_trits(&[1, 1, -1, 0])?);
    /// let mut out = PlaneVector::zeros(4)?;
    /// cpu.trit_product(a.view(), b.view(), out.view_mut())?;
    /// assert_eq!(out.to_trits(), [1, -1, 1, 0]);
    /// # Ok::<(), trike_popcount::PopcountError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`TritOps::trit_sum_mod3`].
    fn trit_product(
        &self,
        a: TritPlanes<'_>,
        b: TritPlanes<'_>,
        out: TritPlanesMut<'_>,
    ) -> Result<(), PopcountError>;

    /// `out = a` where `a` is nonzero, `b` elsewhere; breaks the ties of a majority, for example.
    ///
    /// # Errors
    ///
    /// As [`TritOps::trit_sum_mod3`].
    fn trit_overlay(
        &self,
        a: TritPlanes<'_>,
        b: TritPlanes<'_>,
        out: TritPlanesMut<'_>,
    ) -> Result<(), PopcountError>;

    /// `out = -a`. If a view is sufficient, use [`TritPlanes::negated`], which copies nothing.
    ///
    /// # Errors
    ///
    /// As [`TritOps::trit_sum_mod3`].
    #[inline]
    fn trit_negate(&self, a: TritPlanes<'_>, mut out: TritPlanesMut<'_>) -> Result<(), PopcountError> {
        out.copy_from(a.negated())
    }

    /// `out[(j + by) % len] = a[j]`; the inverse is a rotation by `-by`.
    ///
    /// ```
    /// use trike_host::Cpu;
    /// use trike_popcount::{PlaneVector, TritOps};
    ///
    /// let cpu = Cpu::new(1)?;
    /// let a = PlaneVector::from_trits(&[1, 0, 0, -1])?;
    /// let mut out = PlaneVector::zeros(4)?;
    /// cpu.trit_rotate(a.view(), 1, out.view_mut())?;
    /// assert_eq!(out.to_trits(), [-1, 1, 0, 0]);
    /// # Ok::<(), trike_popcount::PopcountError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`] for vectors of different lengths.
    fn trit_rotate(&self, a: TritPlanes<'_>, by: isize, out: TritPlanesMut<'_>) -> Result<(), PopcountError>;

    /// The scores of `m` queries with `n` stored rows, `m x n`, row-major. Each stored row is read from memory once.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`] if the numbers of columns differ or `out` does not have `m n` elements.
    fn trit_scores(
        &self,
        score: TritScore,
        queries: &PlaneMatrix,
        stored: &PlaneMatrix,
        out: &mut [i32],
    ) -> Result<(), PopcountError>;

    /// `m x k` trits times transposed `n x k` trits: the dot products of every query with every stored row, `m x n`.
    ///
    /// # Errors
    ///
    /// As [`TritOps::trit_scores`].
    fn trit_matmul(
        &self,
        queries: &PlaneMatrix,
        stored: &PlaneMatrix,
        out: &mut [i32],
    ) -> Result<(), PopcountError> {
        self.trit_scores(TritScore::Dot, queries, stored, out)
    }

    /// For each query, the `k` stored rows with the highest scores, best first, ties ordered by row; all rows if there
    /// are fewer than `k`. Exact, and the same for every number of threads.
    ///
    /// ```
    /// use trike_host::Cpu;
    /// use trike_popcount::{PlaneMatrix, PlaneVector, TritHit, TritOps, TritScore};
    ///
    /// let mut stored = PlaneMatrix::new(3)?;
    /// for trits in [[1, 0, -1], [1, 1, 0], [1, -1, -1], [1, 0, -1]] {
    ///     stored.push(PlaneVector::from_trits(&trits)?.view())?;
    /// }
    /// let mut queries = PlaneMatrix::new(3)?;
    /// queries.push(PlaneVector::from_trits(&[1, 0, -1])?.view())?;
    /// let hits = Cpu::new(2)?.trit_top_k(TritScore::Matches, &queries, &stored, 3)?;
    /// let expected = [(0, 3), (3, 3), (2, 2)].map(|(row, score)| TritHit { row, score });
    /// assert_eq!(hits, [expected]);
    /// # Ok::<(), trike_popcount::PopcountError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`] if the numbers of columns differ, [`PopcountError::Range`] for a `k` of 0 or no stored rows.
    fn trit_top_k(
        &self,
        score: TritScore,
        queries: &PlaneMatrix,
        stored: &PlaneMatrix,
        k: usize,
    ) -> Result<Vec<Vec<TritHit>>, PopcountError>;

    /// The product of every stored row with a vector of floats, in f32: `out[r] = stored[r] . x`.
    ///
    /// ```
    /// use trike_host::Cpu;
    /// use trike_popcount::{PlaneMatrix, PlaneVector, TritOps};
    ///
    /// let mut stored = PlaneMatrix::new(3)?;
    /// stored.push(PlaneVector::from_trits(&[1, 0, -1])?.view())?;
    /// stored.push(PlaneVector::from_trits(&[1, 1, 0])?.view())?;
    /// let mut out = [f32::NAN; 2];
    /// Cpu::new(1)?.trit_project(&stored, &[0.5, 2.0, 4.0], &mut out)?;
    /// assert_eq!(out, [-3.5, 2.5]);
    /// # Ok::<(), trike_popcount::PopcountError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`] if `x` does not have one element per column, or `out` one per row.
    fn trit_project(&self, stored: &PlaneMatrix, x: &[f32], out: &mut [f32]) -> Result<(), PopcountError>;
}

impl TritOps for Cpu {
    #[inline]
    fn trit_score(
        &self,
        score: TritScore,
        a: TritPlanes<'_>,
        b: TritPlanes<'_>,
    ) -> Result<i32, PopcountError> {
        check_len("the second vector of trits", a.len(), b.len())?;
        Ok(score_pair(self.isa(), score, a.pos(), a.neg(), b.pos(), b.neg(), a.len()))
    }

    fn trit_nonzeros(&self, a: TritPlanes<'_>) -> i32 {
        nonzeros(self.isa(), a)
    }

    #[inline]
    fn trit_sum_mod3(
        &self,
        a: TritPlanes<'_>,
        b: TritPlanes<'_>,
        out: TritPlanesMut<'_>,
    ) -> Result<(), PopcountError> {
        elements(self.isa(), SumMod3, a, b, out)
    }

    #[inline]
    fn trit_product(
        &self,
        a: TritPlanes<'_>,
        b: TritPlanes<'_>,
        out: TritPlanesMut<'_>,
    ) -> Result<(), PopcountError> {
        elements(self.isa(), Product, a, b, out)
    }

    #[inline]
    fn trit_overlay(
        &self,
        a: TritPlanes<'_>,
        b: TritPlanes<'_>,
        out: TritPlanesMut<'_>,
    ) -> Result<(), PopcountError> {
        elements(self.isa(), Overlay, a, b, out)
    }

    fn trit_rotate(&self, a: TritPlanes<'_>, by: isize, out: TritPlanesMut<'_>) -> Result<(), PopcountError> {
        rotate(self.isa(), a, by, out)
    }

    fn trit_scores(
        &self,
        score: TritScore,
        queries: &PlaneMatrix,
        stored: &PlaneMatrix,
        out: &mut [i32],
    ) -> Result<(), PopcountError> {
        scores(self, score, queries, stored, out)
    }

    fn trit_top_k(
        &self,
        score: TritScore,
        queries: &PlaneMatrix,
        stored: &PlaneMatrix,
        k: usize,
    ) -> Result<Vec<Vec<TritHit>>, PopcountError> {
        top_k(self, score, queries, stored, k)
    }

    fn trit_project(&self, stored: &PlaneMatrix, x: &[f32], out: &mut [f32]) -> Result<(), PopcountError> {
        project(self, stored, x, out)
    }
}
