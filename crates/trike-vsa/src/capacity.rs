//! Capacity of bundles: the probability that the correct one of `N` candidates scores highest.
//!
//! A bundle of `k` vectors of `D` dimensions is compared with one vector that is in it and with `N - 1` random ones. The scores
//! are sums over many dimensions, hence approximately normal; in units of their common standard deviation, the mean of the
//! correct candidate is `s` above that of the others, and (Frady et al. 2018)
//!
//! ```text
//! P = integral of phi(h) Phi(h + s)^(N - 1) dh,    s = sqrt(eta D / k)
//! ```
//!
//! with the efficiency `eta`, which depends on the algebra and on the stored form of the bundle:
//!
//! | stored form | eta |
//! |---|---|
//! | [`Z3`](crate::Z3), counts | 2 |
//! | [`Z3`](crate::Z3), the most frequent value | 27 / (8 pi) = 1.074 |
//! | [`Bipolar`](crate::Bipolar), [`Ternary`](crate::Ternary), counts | 1 |
//! | [`Ternary`](crate::Ternary), sign above the best cut | 0.810 |
//! | [`Bipolar`](crate::Bipolar), sign | 2 / pi = 0.637 |
//!
//! The results for the multiplicative algebras are classical; the density cancels out of `s`, since zeros reduce signal and
//! noise equally. For sums modulo 3, write a trit as a rotation by a third of a turn, a unit vector in the plane. A vector of the
//! bundle matches itself in every dimension; the other `k - 1` vectors, and all `k` for a random candidate, match with probability
//! 1/3 and a variance of 2/9 each. So with counts `s = D (1 - 1/3) / sqrt(2/9 k D) = sqrt(2 D / k)`: twice the
//! efficiency of a sign, because the plane has two directions. Taking the most frequent value is choosing the one of three
//! sectors in which the sum of the unit vectors lies; the sum is normal with a variance of `k / 2` in each direction.
//! One more unit vector along the middle of a sector moves the mass `2 sin 60 / (2 pi (k/2)) integral exp(-r^2 / k) dr =
//! sqrt(3) / (2 sqrt(pi k))` into it, over its two edges, so that its value is the most frequent with probability
//! `1/3 + 0.489 / sqrt(k)`, and `s = D 0.489 / sqrt(k) / sqrt(2/9 D)`: `eta = 27 / (8 pi)`.
//!
//! Exact binding changes none of this. With keys of density `p` in [`Ternary`](crate::Ternary), signal and
//! noise shrink equally, and `s` is unchanged.

use crate::algebra::{Algebra, AlgebraKind};
use crate::error::{VsaError, check_range, check_real};

/// The form of a bundle that is compared with the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BundleForm {
    /// The counts of a [`Bundle`](crate::Bundle).
    Counts,
    /// The trits of [`Bundle::to_vector`](crate::Bundle::to_vector), two bits per dimension.
    Trits,
}

/// The squared signal-to-noise ratio times `k / D`.
pub fn efficiency<A: Algebra>(kept: BundleForm) -> f64 {
    use std::f64::consts::PI;
    match (kept, A::KIND) {
        (BundleForm::Counts, _) => A::COUNT_EFFICIENCY,
        (BundleForm::Trits, AlgebraKind::Z3) => 27.0 / (8.0 * PI),
        (BundleForm::Trits, AlgebraKind::Bipolar) => 2.0 / PI,
        // 2 phi(c)^2 / Q(c) at c = 0.612.
        (BundleForm::Trits, AlgebraKind::Ternary) => 0.8098,
    }
}

/// The probability that, of `candidates` vectors, the one that is among the `items` of a bundle scores highest.
///
/// For weighted items, use `sum(w^2) / w^2` as `items`, where the denominator is the squared weight of the item to retrieve.
///
/// ```
/// use trike_vsa::capacity::{BundleForm, retrieval_probability};
/// use trike_vsa::{Bipolar, Z3};
///
/// let p = retrieval_probability::<Z3>(BundleForm::Trits, 10_000, 500, 500)?;
/// assert!((p - 0.932).abs() < 0.001);
/// let p = retrieval_probability::<Bipolar>(BundleForm::Trits, 10_000, 500, 500)?;
/// assert!((p - 0.693).abs() < 0.001);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
///
/// # Errors
///
/// [`VsaError::Range`] for no dimensions, items or candidates.
pub fn retrieval_probability<A: Algebra>(
    kept: BundleForm,
    dim: usize,
    items: usize,
    candidates: usize,
) -> Result<f64, VsaError> {
    check_range("dimensions of a bundle", 1, usize::MAX, dim)?;
    check_range("items of a bundle", 1, usize::MAX, items)?;
    check_range("candidates", 1, usize::MAX, candidates)?;
    let ratio = (efficiency::<A>(kept) * dim as f64 / items as f64).sqrt();
    Ok(highest(ratio, candidates))
}

/// The probability that a normal variable with mean `s` exceeds `candidates - 1` variables with mean 0, all of variance 1.
fn highest(s: f64, candidates: usize) -> f64 {
    if candidates == 1 {
        return 1.0;
    }
    // Trapezoidal rule: for a function with this decay, the error vanishes faster than any power of the step.
    const STEP: f64 = 1.0 / 64.0;
    const STEPS: i32 = 9 * 64;
    let others = (candidates - 1) as f64;
    let sum: f64 = (-STEPS..=STEPS)
        .map(|i| {
            let h = f64::from(i) * STEP;
            let density = (-0.5 * h * h).exp();
            density * (others * (-upper_tail(h + s)).ln_1p()).exp()
        })
        .sum();
    (sum * STEP / (2.0 * std::f64::consts::PI).sqrt()).clamp(0.0, 1.0)
}

/// The probability that a standard normal variable exceeds `x`, with a relative error of about 1e-7.
fn upper_tail(x: f64) -> f64 {
    let z = x.abs() / std::f64::consts::SQRT_2;
    // Complementary error function by a Chebyshev fit, `erfcc` of Numerical Recipes: relative error below 1.2e-7.
    let t = 1.0 / (1.0 + 0.5 * z);
    const COEFFICIENTS: [f64; 10] = [
        -1.265_512_23,
        1.000_023_68,
        0.374_091_96,
        0.096_784_18,
        -0.186_288_06,
        0.278_868_07,
        -1.135_203_98,
        1.488_515_87,
        -0.822_152_23,
        0.170_872_77,
    ];
    let polynomial = COEFFICIENTS.iter().rev().fold(0.0, |sum, c| sum * t + c);
    let tail = 0.5 * t * (-z * z + polynomial).exp();
    if x < 0.0 { 1.0 - tail } else { tail }
}

/// The maximum number of items for which [`retrieval_probability`] is at least `probability`; 0 if one item is too many.
///
/// ```
/// use trike_vsa::capacity::{BundleForm, max_items};
/// use trike_vsa::{Bipolar, Ternary, Z3};
///
/// // 99 % of 1000 candidates in 10,000 dimensions.
/// assert_eq!(max_items::<Bipolar>(BundleForm::Trits, 10_000, 1000, 0.99)?, 193);
/// assert_eq!(max_items::<Ternary>(BundleForm::Trits, 10_000, 1000, 0.99)?, 246);
/// assert_eq!(max_items::<Z3>(BundleForm::Trits, 10_000, 1000, 0.99)?, 326);
/// assert_eq!(max_items::<Z3>(BundleForm::Counts, 10_000, 1000, 0.99)?, 608);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
///
/// # Errors
///
/// As [`retrieval_probability`], and [`VsaError::Real`] for a probability outside 0 to 1.
pub fn max_items<A: Algebra>(
    kept: BundleForm,
    dim: usize,
    candidates: usize,
    probability: f64,
) -> Result<usize, VsaError> {
    check_real("a probability", 0.0, 1.0, probability)?;
    let enough =
        |items| Ok::<_, VsaError>(retrieval_probability::<A>(kept, dim, items, candidates)? >= probability);
    if !enough(1)? {
        return Ok(0);
    }
    // Upper bound of the bisection: retrieval fails with more items than this.
    let (mut good, mut bad) = (1, dim.saturating_mul(1024).max(2));
    if enough(bad)? {
        return Ok(usize::MAX);
    }
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        *(if enough(middle)? { &mut good } else { &mut bad }) = middle;
    }
    Ok(good)
}

/// The minimum number of dimensions for which [`retrieval_probability`] is at least `probability`; `usize::MAX` if no number is
/// sufficient.
///
/// # Errors
///
/// As [`max_items`]; [`VsaError::Real`] also for a probability of 1, which no number of dimensions reaches.
pub fn min_dimensions<A: Algebra>(
    kept: BundleForm,
    items: usize,
    candidates: usize,
    probability: f64,
) -> Result<usize, VsaError> {
    check_real("a probability", 0.0, 1.0 - 1e-9, probability)?;
    let enough =
        |dim| Ok::<_, VsaError>(retrieval_probability::<A>(kept, dim, items, candidates)? >= probability);
    if enough(1)? {
        return Ok(1);
    }
    let (mut bad, mut good) = (1usize, 2usize);
    while !enough(good)? {
        if good == usize::MAX {
            return Ok(good);
        }
        (bad, good) = (good, good.saturating_mul(2));
    }
    while good - bad > 1 {
        let middle = bad + (good - bad) / 2;
        *(if enough(middle)? { &mut good } else { &mut bad }) = middle;
    }
    Ok(good)
}

/// The expected similarity between a bundle's trits and a vector in the bundle.
///
/// # Errors
///
/// [`VsaError::Range`] for no items.
pub fn expected_similarity<A: Algebra>(items: usize) -> Result<f64, VsaError> {
    check_range("items of a bundle", 1, usize::MAX, items)?;
    // The signal-to-noise ratio is the similarity in units of the standard deviation for a random vector: 1 / sqrt(2 D)
    // in Z3, where the similarity scales the fraction of matches by 3/2, and 1 / sqrt(D) for a cosine.
    let chance = if A::KIND == AlgebraKind::Z3 { 0.5 } else { 1.0 };
    Ok((efficiency::<A>(BundleForm::Trits) * chance / items as f64).sqrt().min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bipolar, Ternary, Z3};
    use trike_testkit::assert_near;

    #[test]
    fn tails_are_those_of_the_normal_distribution() {
        for (x, expected) in [
            (0.0, 0.5),
            (1.0, 0.158_655_253_931_457),
            (-1.0, 0.841_344_746_068_543),
            (3.0, 1.349_898_031_630_09e-3),
            (6.0, 9.865_876_450_376_98e-10),
            (9.0, 1.128_588_405_953_84e-19),
        ] {
            let got = upper_tail(x);
            assert_near!(got, expected, rel = 2e-7, "{x}");
        }
    }

    /// The table of the literature at D = 10,000 and k = 500, and the limits that follow from it.
    #[test]
    fn published_figures() {
        let p = |n| {
            [
                retrieval_probability::<Bipolar>(BundleForm::Counts, 10_000, 500, n).unwrap(),
                retrieval_probability::<Ternary>(BundleForm::Trits, 10_000, 500, n).unwrap(),
                retrieval_probability::<Bipolar>(BundleForm::Trits, 10_000, 500, n).unwrap(),
            ]
        };
        for (n, expected) in
            [(500, [0.910, 0.824, 0.693]), (1000, [0.877, 0.771, 0.623]), (10_000, [0.725, 0.567, 0.394])]
        {
            for (got, expected) in p(n).into_iter().zip(expected) {
                assert_near!(got, expected, abs = 0.001, "{n}");
            }
        }
        for (n, expected) in [(100, [656, 531, 418]), (1000, [472, 382, 300]), (10_000, [370, 300, 236])] {
            let got = [
                max_items::<Bipolar>(BundleForm::Counts, 10_000, n, 0.9).unwrap(),
                max_items::<Ternary>(BundleForm::Trits, 10_000, n, 0.9).unwrap(),
                max_items::<Bipolar>(BundleForm::Trits, 10_000, n, 0.9).unwrap(),
            ];
            for (got, expected) in got.into_iter().zip(expected) {
                assert!(got.abs_diff(expected) <= 1, "{n}: {got} {expected}");
            }
        }
    }

    #[test]
    fn limits_are_inverse_to_each_other() {
        for items in [1, 2, 30, 400] {
            let dim = min_dimensions::<Z3>(BundleForm::Trits, items, 200, 0.95).unwrap();
            let most = |dim| max_items::<Z3>(BundleForm::Trits, dim, 200, 0.95).unwrap();
            assert!(most(dim) >= items && most(dim - 1) < items, "{items} in {dim}");
        }
        assert_eq!(max_items::<Z3>(BundleForm::Trits, 100, 1, 0.99).unwrap(), usize::MAX);
        assert_eq!(max_items::<Z3>(BundleForm::Trits, 1, 1000, 0.99).unwrap(), 0);
        assert_eq!(min_dimensions::<Z3>(BundleForm::Trits, usize::MAX, 1000, 0.99).unwrap(), usize::MAX);
        for wrong in [f64::NAN, -0.1, 1.1] {
            assert!(max_items::<Z3>(BundleForm::Trits, 100, 10, wrong).is_err());
            assert!(min_dimensions::<Z3>(BundleForm::Trits, 100, 10, wrong).is_err());
        }
        for (dim, items, candidates) in [(0, 1, 1), (1, 0, 1), (1, 1, 0)] {
            assert!(retrieval_probability::<Z3>(BundleForm::Counts, dim, items, candidates).is_err());
        }
    }
}
