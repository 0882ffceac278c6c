//! Scores of codes: dot products of a query's small integers with signs by population counts, times the length of the key.

use super::project::{Projection, WORD};
use trike_host::Loop;

/// Bits of a query's integers, in two's complement.
pub(super) const PLANES: usize = 4;
/// Right shift of a product with a length: scores of keys of the mean length have one bit less than their sums.
const SHIFT: u32 = 7;
/// The largest magnitude of these integers.
pub(super) const LARGEST: i16 = 7;

/// The channels of a query as integers from -7 to 7, in bit planes: bit `c % 64` of `planes[b][c / 64]` is bit `b` of integer `c`.
#[derive(Clone, Debug)]
pub(super) struct QueryPlanes {
    words: usize,
    /// `[PLANES][words]`
    planes: Vec<u64>,
    /// Sum of the integers.
    sum: i64,
}

impl QueryPlanes {
    /// The bit planes of a query, rounded to nearest (ties to even) with the largest magnitude scaled to 7. A query that is zero or
    /// not finite becomes zeros, for which all scores are equal.
    pub(super) fn new(channels: &[f32]) -> Self {
        let words = channels.len().div_ceil(WORD);
        // As integers, magnitudes sort like the floats, and non-finite values sort above all others.
        let largest = channels.iter().fold(0, |most, x| most.max(x.to_bits() & 0x7FFF_FFFF));
        let largest = f32::from_bits(largest);
        let factor = f32::from(LARGEST) / largest;
        let mut planes = vec![0; PLANES * words];
        let mut sum = 0;
        if factor.is_finite() && largest.is_finite() {
            for (c, x) in channels.iter().enumerate() {
                // At most 7 up to rounding, so that a saturating cast is exact.
                let integer = (x * factor).round_ties_even() as i8;
                sum += i64::from(integer);
                for plane in 0..PLANES {
                    planes[plane * words + c / WORD] |= u64::from(integer as u8 >> plane & 1) << (c % WORD);
                }
            }
        }
        Self { words, planes, sum }
    }

    /// The four planes of one word.
    fn word(&self, word: usize) -> [u64; PLANES] {
        std::array::from_fn(|plane| self.planes[plane * self.words + word])
    }
}

/// The range of the scores plus one; the smallest is `-spread / 2`. The bound is all integers of one sign, times the largest
/// length.
pub(super) fn spread(projection: &Projection) -> usize {
    let largest = i64::from(LARGEST) * projection.channels() as i64;
    2 * score(largest, u8::MAX).unsigned_abs() as usize + 3
}

/// `scores[p] = floor(length p * (sum over the channels c: sign c of code p * integer c of the query) / 128)`, where a set bit is
/// the sign 1 and a clear bit -1.
///
/// The sum over the signs is twice the sum over the set bits, minus the sum of all integers. A key of the mean length has a length of 64.
pub(super) struct ScoreCodes<'a> {
    pub(super) query: &'a QueryPlanes,
    /// Consecutive codes, one per position.
    pub(super) codes: &'a [u64],
    /// The length of each.
    pub(super) lengths: &'a [u8],
    pub(super) scores: &'a mut [i16],
}

impl Loop for ScoreCodes<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { query, codes, lengths, scores } = self;
        // Heads of up to 64, 128 and 256 elements: the planes stay in registers.
        match query.words {
            1 => scores_of::<1>(query, codes, lengths, scores),
            2 => scores_of::<2>(query, codes, lengths, scores),
            4 => scores_of::<4>(query, codes, lengths, scores),
            words => {
                for ((code, length), to) in codes.chunks_exact(words).zip(lengths).zip(scores) {
                    let set: i64 = (0..words).map(|w| product(code[w], query.word(w))).sum();
                    *to = score(2 * set - query.sum, *length);
                }
            }
        }
    }
}

#[inline(always)]
fn scores_of<const W: usize>(query: &QueryPlanes, codes: &[u64], lengths: &[u8], scores: &mut [i16]) {
    let mut planes = [[0; PLANES]; W];
    for w in 0..W {
        planes[w] = query.word(w);
    }
    for ((code, length), to) in codes.as_chunks::<W>().0.iter().zip(lengths).zip(scores) {
        let mut set = 0;
        for w in 0..W {
            set += product(code[w], planes[w]);
        }
        *to = score(2 * set - query.sum, *length);
    }
}

/// The sum of the integers of a word's set bits.
#[inline(always)]
fn product(word: u64, planes: [u64; PLANES]) -> i64 {
    let ones = |plane: u64| i64::from((word & plane).count_ones());
    // The last plane is that of the sign.
    ones(planes[0]) + 2 * ones(planes[1]) + 4 * ones(planes[2]) - 8 * ones(planes[3])
}

/// The score of a sum over the signs: 16 bits, for heads of up to 1024 elements.
#[inline(always)]
fn score(signed: i64, length: u8) -> i16 {
    ((signed as i32 * i32::from(length)) >> SHIFT) as i16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::lanes::count_bits;
    use trike_host::Isa;
    use trike_testkit::Rng;

    /// The integers of a query, from the definition.
    fn integers(channels: &[f32]) -> Vec<i64> {
        let largest = channels.iter().fold(0f32, |most, x| most.max(x.abs()));
        channels.iter().map(|x| (x * (7.0 / largest)).round_ties_even() as i64).collect()
    }

    #[test]
    fn planes_are_the_bits_of_rounded_channels() {
        let query = QueryPlanes::new(&[7.0, -7.0, 1.0, -1.0, 0.5, 1.5, 0.0]);
        // 7, -7, 1, -1, 0, 2, 0 from the last channel to the first.
        assert_eq!(query.planes, [0b00_1111, 0b10_1001, 0b00_1001, 0b00_1010]);
        assert_eq!(query.sum, 2);
        for bad in [&[0.0, 0.0][..], &[f32::NAN, 1.0], &[f32::INFINITY, 1.0], &[1e-45, 0.0]] {
            assert_eq!(QueryPlanes::new(bad).planes, [0; 4], "{bad:?}");
        }
    }

    /// All instruction sets: codes of every number of words, every remainder of a vector, and lengths of every size.
    #[test]
    fn every_instruction_set_has_the_scores_of_the_definition() {
        let mut rng = Rng::new(51);
        for channels in [1, 8, 37, 63, 64, 65, 80, 128, 150, 192, 256, 320, 512, 1024] {
            let words = usize::div_ceil(channels, WORD);
            for n in [0, 1, 3, 7, 8, 15, 31, 64, 131] {
                let mut query = rng.normals(channels);
                // Includes the largest possible score.
                if n == 31 {
                    query.fill(1.0);
                }
                let mut bits: Vec<bool> = (0..n * channels).map(|_| rng.below(2) == 1).collect();
                if n == 31 {
                    bits[..channels].fill(true);
                }
                let mut codes = vec![0; n * words];
                for (i, bit) in bits.iter().enumerate() {
                    codes[i / channels * words + i % channels / WORD] |=
                        u64::from(*bit) << (i % channels % WORD);
                }
                let mut lengths: Vec<u8> = (0..n).map(|_| rng.below(256) as u8).collect();
                if n == 31 {
                    lengths[0] = 255;
                }
                let integers = integers(&query);
                let score = |(bits, length): (&[bool], &u8)| {
                    let signs = bits.iter().map(|bit| if *bit { 1.0 } else { -1.0 });
                    let sum: f64 = integers.iter().zip(signs).map(|(c, sign)| *c as f64 * sign).sum();
                    (sum * f64::from(*length) / 128.0).floor() as i16
                };
                let want: Vec<i16> = bits.chunks(channels).zip(&lengths).map(score).collect();
                let planes = QueryPlanes::new(&query);
                for isa in Isa::available() {
                    let mut scores = vec![i16::MIN; n];
                    let task =
                        ScoreCodes { query: &planes, codes: &codes, lengths: &lengths, scores: &mut scores };
                    count_bits(isa, task);
                    assert_eq!(scores, want, "{isa}: {n} codes of {channels}");
                }
            }
        }
    }
}
