//! Counter-based random words: the same on every device, in any order, without state.
//!
//! Draw `d` of word `w` of a seed is SplitMix64's output for the state `seed + (256 w + d + 1) * 0x9E3779B97F4A7C15`: 64-bit
//! integer arithmetic that gives the same result on every device, independently for each word.

use trike_popcount::{PlaneVector, TritPlanes};

use crate::error::VsaError;

/// The step of SplitMix64.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
/// Maximum number of bit pairs drawn for a word of uniform trits; a trit needs another pair with probability 1/4.
const PAIRS: u64 = 64;
/// Binary digits of a density.
const DENSITY_BITS: u32 = 32;

/// The finalizer of SplitMix64.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// 64 random bits.
pub(crate) fn bits(seed: u64, word: u64, draw: u64) -> u64 {
    let at = word.wrapping_mul(256).wrapping_add(draw).wrapping_add(1);
    mix(seed.wrapping_add(at.wrapping_mul(STEP)))
}

/// The seed of one item of a set: independent of the seeds of other items, and of sets with other seeds.
pub(crate) fn item_seed(seed: u64, item: u64) -> u64 {
    mix(mix(seed ^ 0x5851_F42D_4C95_7F2D).wrapping_add(item.wrapping_mul(STEP)))
}

/// 64 uniform trits, by rejection sampling: each trit is a pair of bits, and one of the four pairs is redrawn.
pub(crate) fn uniform(seed: u64, word: u64) -> [u64; 2] {
    let (mut pos, mut neg, mut open) = (0, 0, u64::MAX);
    for pair in 0..PAIRS {
        let (a, b) = (bits(seed, word, 2 * pair), bits(seed, word, 2 * pair + 1));
        pos |= open & a & !b;
        neg |= open & b & !a;
        open &= a & b;
        if open == 0 {
            break;
        }
    }
    [pos, neg]
}

/// 64 trits, each nonzero with probability `density`, with uniform signs.
pub(crate) fn of_density(seed: u64, word: u64, density: f64) -> [u64; 2] {
    let signs = bits(seed, word, 0);
    let nonzero = chance(seed, word, 1, density);
    [signs & nonzero, !signs & nonzero]
}

/// 64 bits, each set with `probability`, rounded to [`DENSITY_BITS`] binary digits.
pub(crate) fn chance(seed: u64, word: u64, first_draw: u64, probability: f64) -> u64 {
    let digits = (probability * f64::from(DENSITY_BITS).exp2()).round() as u64;
    if digits >> DENSITY_BITS != 0 {
        return u64::MAX;
    }
    // Compares the digits of a uniform number with those of the probability, from lowest to highest; a higher digit
    // overrides: the number is below where our digit is 1 and its digit 0.
    (0..DENSITY_BITS).fold(0, |below, digit| {
        let other = bits(seed, word, first_draw + u64::from(digit));
        if (digits >> digit) & 1 == 1 { !other | below } else { !other & below }
    })
}

/// A vector made of words, with the bits past the end cleared.
pub(crate) fn from_words(
    len: usize,
    mut word: impl FnMut(usize) -> [u64; 2],
) -> Result<PlaneVector, VsaError> {
    let (mut pos, mut neg): (Vec<u64>, Vec<u64>) = (0..len.div_ceil(64)).map(|w| word(w).into()).unzip();
    if let (Some(p), Some(n)) = (pos.last_mut(), neg.last_mut()) {
        *p &= live(len);
        *n &= live(len);
    }
    Ok(PlaneVector::from_view(TritPlanes::new(&pos, &neg, len)?)?)
}

/// Mask of the bits of the last word that belong to a vector.
pub(crate) fn live(len: usize) -> u64 {
    match len % 64 {
        0 => u64::MAX,
        n => (1 << n) - 1,
    }
}

/// The fixed vector of random signs that breaks the ties of bipolar bundles.
pub(crate) fn ties(len: usize) -> Result<PlaneVector, VsaError> {
    from_words(len, |word| {
        let bits = bits(0x7469_6573, word as u64, 0);
        [bits, !bits]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use trike_testkit::assert_near;

    #[test]
    fn words_are_the_documented_ones() {
        // SplitMix64 from the state 0: its published first outputs.
        assert_eq!(bits(0, 0, 0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(bits(0, 0, 1), 0x6E78_9E6A_A1B9_65F4);
        assert_eq!(bits(0, 0, 2), 0x06C4_5D18_8009_454F);
        assert_eq!(bits(STEP.wrapping_mul(256), 1, 0), bits(0, 2, 0));
    }

    #[test]
    fn uniform_trits_are_uniform() {
        let words = 4000;
        let (mut pos, mut neg) = (0, 0);
        for word in 0..words {
            let [p, n] = uniform(7, word);
            assert_eq!(p & n, 0);
            (pos, neg) = (pos + p.count_ones(), neg + n.count_ones());
        }
        // 256,000 trits: a third each, within five standard deviations of 0.00093.
        let share = |count: u32| f64::from(count) / (64.0 * words as f64);
        for share in [share(pos), share(neg)] {
            assert_near!(share, 1.0 / 3.0, abs = 0.0047);
        }
    }

    #[test]
    fn chances_are_what_was_asked_for() {
        for probability in [0.0, 1e-3, 0.25, 0.3, 2.0 / 3.0, 0.999, 1.0] {
            let ones: u32 = (0..4000).map(|word| chance(3, word, 1, probability).count_ones()).sum();
            let (n, share) = (256_000.0, f64::from(ones) / 256_000.0);
            let deviation = (probability * (1.0 - probability) / n).sqrt();
            assert_near!(share, probability, abs = 5.0 * deviation + 1e-9, "{probability}");
        }
    }
}
