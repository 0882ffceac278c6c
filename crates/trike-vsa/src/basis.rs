//! Sets of vectors whose similarities follow an order: level, thermometer and circular sets.

use crate::algebra::Algebra;
use crate::error::{VsaError, check_range};
use crate::random;
use crate::vector::PackedTritVec;

/// Maximum number of vectors of a set, since all of them are materialized.
const MAX_SET: usize = 1 << 24;

/// Binary digits of the point at which a dimension switches from one random vector to the other.
const POINT_DIGITS: u64 = 32;

/// 64 bits, each set if the uniform random number of its dimension, fixed by the seed, is below `share`.
fn below(seed: u64, word: usize, share: f64) -> u64 {
    random::chance(seed, word as u64, POINT_DIGITS, share)
}

/// The random word of the first seed where the bit is 0, of the second where it is 1.
fn mixed<A: Algebra>(seeds: [u64; 2], word: usize, bits: u64) -> [u64; 2] {
    let [from, to] = seeds.map(|seed| A::random_word(seed, word as u64));
    [0, 1].map(|plane| (from[plane] & !bits) | (to[plane] & bits))
}

/// Vectors for the steps of a scale: similarity falls linearly with distance, from 1 for equal levels to 0 between the first
/// and the last.
///
/// Dimension `j` takes its value from one random vector up to a random point of the scale, and from another beyond it.
///
/// ```
/// use trike_vsa::{PackedTritVec, Z3, level_set, similarity};
///
/// let levels = level_set::<Z3>(10_000, 11, 1)?;
/// for (step, level) in levels.iter().enumerate() {
///     assert!((similarity(&levels[0], level)? - (1.0 - 0.1 * step as f64)).abs() < 0.05);
/// }
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
///
/// # Errors
///
/// [`VsaError::Range`](crate::VsaError::Range) for no levels or more than 2^24, and for an invalid number of dimensions.
pub fn level_set<A: Algebra>(
    dim: usize,
    levels: usize,
    seed: u64,
) -> Result<Vec<PackedTritVec<A>>, VsaError> {
    check_range("levels", 1, MAX_SET, levels)?;
    let (ends, points) = ([0, 1].map(|i| random::item_seed(seed, i)), random::item_seed(seed, 2));
    let share = |level: usize| level as f64 / (levels - 1).max(1) as f64;
    (0..levels)
        .map(|level| {
            PackedTritVec::from_words(dim, |word| mixed::<A>(ends, word, below(points, word, share(level))))
        })
        .collect()
}

/// Thermometer code: level `i` of `n` is +1 in the first `i / (n - 1)` of the dimensions and -1 in the others. Similarities are
/// deterministic, and the first and the last level are opposites.
///
/// # Errors
///
/// As [`level_set`].
pub fn thermometer_set<A: Algebra>(dim: usize, levels: usize) -> Result<Vec<PackedTritVec<A>>, VsaError> {
    check_range("levels", 1, MAX_SET, levels)?;
    (0..levels)
        .map(|level| {
            // In 128 bits, so that no product overflows.
            let full = (dim as u128 * level as u128 / (levels - 1).max(1) as u128) as usize;
            PackedTritVec::from_words(dim, |word| {
                let bits = match full.saturating_sub(64 * word) {
                    n if n >= 64 => u64::MAX,
                    n => (1 << n) - 1,
                };
                [bits, !bits]
            })
        })
        .collect()
}

/// Vectors for the steps around a circle, such as hours or directions: similarity falls linearly in both directions, from 1 to 0
/// on the opposite side.
///
/// Dimension `j` takes its value from one random vector on a half circle that starts at a random point, and from another on the
/// other half.
///
/// ```
/// use trike_vsa::{Bipolar, circular_set, similarity};
///
/// let hours = circular_set::<Bipolar>(10_000, 24, 1)?;
/// assert!((similarity(&hours[23], &hours[1])? - 5.0 / 6.0).abs() < 0.05);
/// assert!(similarity(&hours[6], &hours[18])?.abs() < 0.05);
/// # Ok::<(), trike_vsa::VsaError>(())
/// ```
///
/// # Errors
///
/// As [`level_set`].
pub fn circular_set<A: Algebra>(
    dim: usize,
    steps: usize,
    seed: u64,
) -> Result<Vec<PackedTritVec<A>>, VsaError> {
    check_range("steps of a circle", 1, MAX_SET, steps)?;
    let (sides, points) = ([0, 1].map(|i| random::item_seed(seed, i)), random::item_seed(seed, 2));
    (0..steps)
        .map(|step| {
            let turn = step as f64 / steps as f64;
            PackedTritVec::from_words(dim, |word| {
                // The half circle of a dimension starts at u / 2 of a turn, with u uniform, and ends half a turn later.
                let bits = if turn < 0.5 {
                    below(points, word, 2.0 * turn)
                } else {
                    !below(points, word, 2.0 * turn - 1.0)
                };
                mixed::<A>(sides, word, bits)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlgebraKind, Bipolar, Ternary, Z3, similarity};
    use trike_testkit::assert_near;

    fn check<A: Algebra>() {
        let (dim, n) = (20_000, 9);
        // Five standard deviations of a similarity of random vectors, which is at most 1 / sqrt(D).
        let close = 5.0 / (dim as f64).sqrt();
        let (levels, circle) =
            (level_set::<A>(dim, n, 3).unwrap(), circular_set::<A>(dim, 2 * n, 3).unwrap());
        for i in 0..n {
            for j in 0..n {
                let expected = 1.0 - i.abs_diff(j) as f64 / (n - 1) as f64;
                let got = similarity(&levels[i], &levels[j]).unwrap();
                assert_near!(got, expected, abs = close, "{} levels {i} {j}", A::KIND);
            }
        }
        for i in 0..2 * n {
            for j in 0..2 * n {
                let apart = i.abs_diff(j).min(2 * n - i.abs_diff(j));
                let expected = 1.0 - apart as f64 / n as f64;
                let got = similarity(&circle[i], &circle[j]).unwrap();
                assert_near!(got, expected, abs = close, "{} circle {i} {j}", A::KIND);
            }
        }
        let thermometer = thermometer_set::<A>(1000, 11).unwrap();
        for (i, vector) in thermometer.iter().enumerate() {
            let expected: Vec<i8> = (0..1000).map(|j| if j < 100 * i { 1 } else { -1 }).collect();
            assert_eq!(vector.to_trits(), expected);
        }
        assert_eq!(level_set::<A>(100, 1, 3).unwrap().len(), 1);
    }

    #[test]
    fn similarities_follow_the_order() {
        for kind in AlgebraKind::ALL {
            match kind {
                AlgebraKind::Z3 => check::<Z3>(),
                AlgebraKind::Bipolar => check::<Bipolar>(),
                AlgebraKind::Ternary => check::<Ternary>(),
            }
        }
    }

    #[test]
    fn empty_sets_are_refused() {
        assert!(level_set::<Z3>(100, 0, 1).is_err() && level_set::<Z3>(0, 2, 1).is_err());
        assert!(thermometer_set::<Z3>(100, 0).is_err() && circular_set::<Z3>(100, 0, 1).is_err());
    }
}
