//! Factorization of bound vectors with a resonator network.

use crate::algebra::Algebra;
use crate::bundle::Bundle;
use crate::error::{VsaError, check_dim, check_range};
use crate::memory::{Hit, ItemMemory};
use crate::ops::{bind_into, unbind};
use crate::vector::PackedTritVec;

/// Result of [`factorize`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Factors {
    /// One index into each codebook.
    pub indices: Vec<usize>,
    /// Number of rounds until the binding of the factors was the product, or the maximum.
    pub rounds: usize,
    /// Whether the binding of the factors is the product.
    pub exact: bool,
}

/// Factorizes a bound vector into one vector per codebook, with a resonator network (Frady et al. 2020).
///
/// The estimate of every factor starts as the bundle of its codebook. In each round, the estimate becomes the product with the
/// other estimates unbound, cleaned up by bundling the vectors of the codebook, weighted by their similarity to it. With `F`
/// codebooks of `N` vectors this finds one of `N^F` products in a few rounds of `F N` comparisons, if `N^F` is well below `D^2`.
/// It may not converge; [`Factors::exact`] is true if the binding of the factors is the product.
///
/// ```
/// use trike_vsa::{Bipolar, ItemMemory, PackedTritVec, bind, factorize};
///
/// let sets = [1, 2, 3].map(|seed| PackedTritVec::<Bipolar>::random_set(2000, 20, seed).unwrap());
/// let product = bind(&bind(&sets[0][4], &sets[1][17])?, &sets[2][9])?;
/// let codebooks = sets.each_ref().map(|set| ItemMemory::of(set).unwrap());
/// let factors = factorize(&product, &codebooks.each_ref(), 100)?;
/// assert!(factors.exact);
/// assert_eq!(factors.indices, [4, 17, 9]);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
///
/// # Errors
///
/// [`VsaError::Empty`] for no codebooks or one without vectors, [`VsaError::Dimension`], [`VsaError::Range`] for no rounds.
pub fn factorize<A: Algebra>(
    product: &PackedTritVec<A>,
    codebooks: &[&ItemMemory<A>],
    max_rounds: usize,
) -> Result<Factors, VsaError> {
    check_range("rounds of a resonator", 1, usize::MAX, max_rounds)?;
    if codebooks.is_empty() || codebooks.iter().any(|codebook| codebook.is_empty()) {
        return Err(VsaError::Empty { what: "a codebook" });
    }
    codebooks.iter().try_for_each(|codebook| check_dim("a codebook", product.dim(), codebook.dim()))?;
    let whole = |codebook: &&ItemMemory<A>| {
        let mut bundle = Bundle::<A>::new(codebook.dim())?;
        (0..codebook.len()).try_for_each(|index| bundle.add(&codebook.get(index)?))?;
        bundle.to_vector()
    };
    let mut estimates = codebooks.iter().map(whole).collect::<Result<Vec<_>, VsaError>>()?;
    let mut factors = Factors { indices: Vec::new(), rounds: 0, exact: false };
    while !factors.exact && factors.rounds < max_rounds {
        factors.rounds += 1;
        for at in 0..codebooks.len() {
            let mut rest = product.clone();
            for (_, other) in estimates.iter().enumerate().filter(|(i, _)| *i != at) {
                rest = unbind(&rest, other)?;
            }
            estimates[at] = clean(codebooks[at], &rest)?;
        }
        // Two factors may both be negated, which gives the same product.
        let most = |(codebook, estimate): (&&ItemMemory<A>, &PackedTritVec<A>)| {
            let hits = codebook.top_k(estimate, codebook.len())?;
            let strength = |hit: &Hit| A::excess(hit.score as i32, codebook.dim()).abs();
            Ok(hits.iter().max_by_key(|hit| strength(hit)).map_or(0, |hit| hit.index))
        };
        factors.indices = codebooks.iter().zip(&estimates).map(most).collect::<Result<Vec<_>, VsaError>>()?;
        factors.exact = bound(codebooks, &factors.indices)? == *product;
    }
    Ok(factors)
}

/// Bundles the vectors of a codebook, weighted by their similarity to a noisy vector.
fn clean<A: Algebra>(
    codebook: &ItemMemory<A>,
    noisy: &PackedTritVec<A>,
) -> Result<PackedTritVec<A>, VsaError> {
    let hits = codebook.top_k(noisy, codebook.len())?;
    let weight = |score: i64| A::excess(score as i32, codebook.dim());
    let most = hits.iter().map(|hit| weight(hit.score).abs()).max().unwrap_or(0).max(1);
    let mut bundle = Bundle::<A>::new(codebook.dim())?;
    for hit in &hits {
        // In units of 1/256 of the largest weight, rounded.
        let weight = (256 * weight(hit.score) + most / 2).div_euclid(most);
        let vector = codebook.get(hit.index)?;
        if weight > 0 {
            bundle.add_weighted(&vector, weight as u32)?;
        } else if weight < 0 {
            bundle.add_negative(&vector, weight.unsigned_abs() as u32)?;
        }
    }
    bundle.to_vector()
}

fn bound<A: Algebra>(codebooks: &[&ItemMemory<A>], indices: &[usize]) -> Result<PackedTritVec<A>, VsaError> {
    let mut product = PackedTritVec::<A>::identity(codebooks[0].dim())?;
    let mut next = product.clone();
    for (codebook, &index) in codebooks.iter().zip(indices) {
        bind_into(&product, &codebook.get(index)?, &mut next)?;
        std::mem::swap(&mut product, &mut next);
    }
    Ok(product)
}
