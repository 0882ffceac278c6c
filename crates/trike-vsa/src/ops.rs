//! Vector operations of the algebras.

use trike_popcount::TritOps;

use crate::algebra::Algebra;
use crate::bundle::Bundle;
use crate::error::{VsaError, check_dim};
use crate::vector::{PackedTritVec, cpu};

/// Binds two vectors: the result is dissimilar to both, and [`unbind`] inverts it.
///
/// Commutative and associative. In loops, [`bind_into`] reuses an existing vector for the result.
///
/// # Errors
///
/// [`VsaError::Dimension`](crate::VsaError::Dimension) if the dimensions differ, here and below.
#[inline]
pub fn bind<A: Algebra>(a: &PackedTritVec<A>, b: &PackedTritVec<A>) -> Result<PackedTritVec<A>, VsaError> {
    let mut out = PackedTritVec::blank(a.dim())?;
    bind_into(a, b, &mut out)?;
    Ok(out)
}

/// [`bind`] into an existing vector of the same dimensions.
///
/// # Errors
///
/// As [`bind`].
#[inline]
pub fn bind_into<A: Algebra>(
    a: &PackedTritVec<A>,
    b: &PackedTritVec<A>,
    out: &mut PackedTritVec<A>,
) -> Result<(), VsaError> {
    check_pair(a, b)?;
    check_dim("the output of bind", a.dim(), out.dim())?;
    A::bind(cpu()?, a.view(), b.view(), out.view_mut())
}

/// Unbinds `key` from a vector that it was bound to.
///
/// Exact in [`Z3`](crate::Z3) and [`Bipolar`](crate::Bipolar); in [`Ternary`](crate::Ternary), dimensions where the key is
/// zero are lost.
///
/// ```
/// use trike_vsa::{PackedTritVec, Ternary, bind, cosine_similarity, unbind};
///
/// let value = PackedTritVec::<Ternary>::random(10_000, 1)?;
/// let (sparse, dense) = (PackedTritVec::random(10_000, 2)?, PackedTritVec::random_dense(10_000, 3)?);
/// let lost = unbind(&bind(&sparse, &value)?, &sparse)?;
/// // The square root of the density of the key, 2/3.
/// assert!((cosine_similarity(&lost, &value)? - 0.816).abs() < 0.02);
/// assert_eq!(unbind(&bind(&dense, &value)?, &dense)?, value);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
///
/// # Errors
///
/// As [`bind`].
#[inline]
pub fn unbind<A: Algebra>(
    bound: &PackedTritVec<A>,
    key: &PackedTritVec<A>,
) -> Result<PackedTritVec<A>, VsaError> {
    let mut out = PackedTritVec::blank(bound.dim())?;
    unbind_into(bound, key, &mut out)?;
    Ok(out)
}

/// [`unbind`] into an existing vector of the same dimensions.
///
/// # Errors
///
/// As [`bind`].
#[inline]
pub fn unbind_into<A: Algebra>(
    bound: &PackedTritVec<A>,
    key: &PackedTritVec<A>,
    out: &mut PackedTritVec<A>,
) -> Result<(), VsaError> {
    check_pair(bound, key)?;
    check_dim("the output of unbind", bound.dim(), out.dim())?;
    A::unbind(cpu()?, bound.view(), key.view(), out.view_mut())
}

/// The inverse of `a` under binding: `-a` in [`Z3`](crate::Z3), `a` itself in the other algebras.
///
/// # Errors
///
/// [`VsaError::Popcount`](crate::VsaError::Popcount) if an allocation fails.
pub fn inverse<A: Algebra>(a: &PackedTritVec<A>) -> Result<PackedTritVec<A>, VsaError> {
    let mut out = PackedTritVec::blank(a.dim())?;
    out.view_mut().copy_from(A::inverse(a.view()))?;
    Ok(out)
}

/// `-a`, which has the lowest similarity to `a` in [`Bipolar`](crate::Bipolar) and
/// [`Ternary`](crate::Ternary), and is its inverse in [`Z3`](crate::Z3).
///
/// # Errors
///
/// As [`inverse`].
pub fn negate<A: Algebra>(a: &PackedTritVec<A>) -> Result<PackedTritVec<A>, VsaError> {
    let mut out = PackedTritVec::blank(a.dim())?;
    out.view_mut().copy_from(a.view().negated())?;
    Ok(out)
}

/// Rotates the dimensions: `out[(j + by) mod D] = a[j]`. The result is dissimilar to `a`; rotating by `-by` inverts it. Permutation
/// distributes over binding and bundling and preserves similarity.
///
/// # Errors
///
/// As [`inverse`].
pub fn permute<A: Algebra>(a: &PackedTritVec<A>, by: isize) -> Result<PackedTritVec<A>, VsaError> {
    let mut out = PackedTritVec::blank(a.dim())?;
    permute_into(a, by, &mut out)?;
    Ok(out)
}

/// [`permute`] into an existing vector of the same dimensions.
///
/// # Errors
///
/// As [`bind`].
pub fn permute_into<A: Algebra>(
    a: &PackedTritVec<A>,
    by: isize,
    out: &mut PackedTritVec<A>,
) -> Result<(), VsaError> {
    check_dim("the output of permute", a.dim(), out.dim())?;
    Ok(cpu()?.trit_rotate(a.view(), by, out.view_mut())?)
}

/// Bundles two vectors: the result is similar to both.
///
/// # Errors
///
/// As [`bind`].
pub fn bundle<A: Algebra>(a: &PackedTritVec<A>, b: &PackedTritVec<A>) -> Result<PackedTritVec<A>, VsaError> {
    bundle_many([a, b])
}

/// Bundles `k` vectors: the similarity of the result to each is about `1 / sqrt(k)`. A [`Bundle`] keeps the counts instead.
///
/// ```
/// use trike_vsa::{PackedTritVec, Z3, bundle_many, similarity};
///
/// let vectors = PackedTritVec::<Z3>::random_set(10_000, 25, 7)?;
/// let bundle = bundle_many(&vectors)?;
/// // Theory for the plurality of three values: 0.73 / sqrt(25); see the module `capacity`.
/// assert!((similarity(&bundle, &vectors[3])? - 0.147).abs() < 0.04);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
///
/// # Errors
///
/// As [`bind`], and [`VsaError::Empty`](crate::VsaError::Empty) for no vectors.
pub fn bundle_many<'a, A: Algebra>(
    vectors: impl IntoIterator<Item = &'a PackedTritVec<A>>,
) -> Result<PackedTritVec<A>, VsaError> {
    Bundle::of(vectors)?.to_vector()
}

/// Bundles vectors with integer weights, equivalent to repeating each vector.
///
/// # Errors
///
/// As [`bundle_many`], and [`VsaError::Popcount`](crate::VsaError::Popcount) if the weights sum to more than `i32::MAX`.
pub fn bundle_weighted<'a, A: Algebra>(
    vectors: impl IntoIterator<Item = (&'a PackedTritVec<A>, u32)>,
) -> Result<PackedTritVec<A>, VsaError> {
    let mut bundle: Option<Bundle<A>> = None;
    for (vector, weight) in vectors {
        let bundle = match &mut bundle {
            Some(bundle) => bundle,
            none => none.insert(Bundle::new(vector.dim())?),
        };
        bundle.add_weighted(vector, weight)?;
    }
    bundle.ok_or(crate::VsaError::Empty { what: "a bundle" })?.to_vector()
}

/// The dot product.
///
/// # Errors
///
/// As [`bind`].
#[inline]
pub fn dot<A: Algebra>(a: &PackedTritVec<A>, b: &PackedTritVec<A>) -> Result<i32, VsaError> {
    check_pair(a, b)?;
    Ok(cpu()?.trit_dot(a.view(), b.view())?)
}

/// Number of dimensions with equal values.
///
/// # Errors
///
/// As [`bind`].
#[inline]
pub fn matches<A: Algebra>(a: &PackedTritVec<A>, b: &PackedTritVec<A>) -> Result<usize, VsaError> {
    check_pair(a, b)?;
    Ok(cpu()?.trit_matches(a.view(), b.view())? as usize)
}

/// Number of dimensions with different values.
///
/// # Errors
///
/// As [`bind`].
#[inline]
pub fn hamming_distance<A: Algebra>(a: &PackedTritVec<A>, b: &PackedTritVec<A>) -> Result<usize, VsaError> {
    Ok(a.dim() - matches(a, b)?)
}

/// The cosine similarity of two vectors; 0 if one is all zeros.
///
/// # Errors
///
/// As [`bind`].
pub fn cosine_similarity<A: Algebra>(a: &PackedTritVec<A>, b: &PackedTritVec<A>) -> Result<f64, VsaError> {
    let dot = dot(a, b)?;
    let norms = a.nonzeros()? as f64 * b.nonzeros()? as f64;
    Ok(if norms == 0.0 { 0.0 } else { f64::from(dot) / norms.sqrt() })
}

/// The similarity of two vectors in their algebra: 1 for equal vectors, about 0 for random ones. Based on matches in
/// [`Z3`](crate::Z3), the cosine otherwise.
///
/// # Errors
///
/// As [`bind`].
pub fn similarity<A: Algebra>(a: &PackedTritVec<A>, b: &PackedTritVec<A>) -> Result<f64, VsaError> {
    check_pair(a, b)?;
    let cpu = cpu()?;
    let score = cpu.trit_score(A::SCORE, a.view(), b.view())?;
    Ok(A::similarity(cpu, score, a.view(), b.view()))
}

#[inline]
fn check_pair<A: Algebra>(a: &PackedTritVec<A>, b: &PackedTritVec<A>) -> Result<(), VsaError> {
    check_dim("the second hypervector", a.dim(), b.dim())
}
