//! Conversion of counts to numbers and to trits.

use crate::counter::BitCounter;
use crate::error::{PopcountError, check_len};
use crate::lanes::{LINE_WORDS, Lanes, with_lanes};
use crate::planes::TritPlanesMut;
use trike_host::{Cpu, Loop};

impl BitCounter {
    /// The counts of +1 and of -1 at each position.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`](crate::PopcountError::Length) unless the slices have one element per position.
    pub fn counts(&self, cpu: &Cpu, positive: &mut [u32], negative: &mut [u32]) -> Result<(), PopcountError> {
        check_len("counts of +1", self.len(), positive.len())?;
        check_len("counts of -1", self.len(), negative.len())?;
        with_lanes!(cpu.isa(), lanes => lanes.run(Counts { counter: self, positive, negative }));
        Ok(())
    }

    /// The sum of the counted vectors: at each position, the count of +1 minus the count of -1.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`](crate::PopcountError::Length) unless the slice has one element per position.
    pub fn sums(&self, cpu: &Cpu, sums: &mut [i32]) -> Result<(), PopcountError> {
        check_len("sums of a bundle", self.len(), sums.len())?;
        with_lanes!(cpu.isa(), lanes => lanes.run(Sums { counter: self, sums }));
        Ok(())
    }

    /// The sums reduced to trits: the sign where the magnitude of a sum exceeds `threshold`, 0 otherwise.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`](crate::PopcountError::Length) unless the output has the length of the vectors.
    pub fn majority(&self, cpu: &Cpu, threshold: u32, out: TritPlanesMut<'_>) -> Result<(), PopcountError> {
        check_len("trits of a bundle", self.len(), out.len)?;
        with_lanes!(cpu.isa(), lanes => lanes.run(Majority { lanes, counter: self, threshold, out }));
        Ok(())
    }

    /// The most frequent of the three values at each position.
    ///
    /// Ties are broken in rotation, so that no value is favoured: by the first of 0, +1, -1 at positions that are 0 modulo 3, of
    /// +1, -1, 0 at 1 modulo 3, of -1, 0, +1 at 2 modulo 3. An empty counter gives zeros.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`](crate::PopcountError::Length) unless the output has the length of the vectors.
    pub fn plurality(&self, cpu: &Cpu, out: TritPlanesMut<'_>) -> Result<(), PopcountError> {
        check_len("trits of a bundle", self.len(), out.len)?;
        with_lanes!(cpu.isa(), lanes => lanes.run(Plurality { lanes, counter: self, out }));
        Ok(())
    }

    /// Unpacks the counts of one sign in one word: passes bit `l` of each of the 64 counts, shifted by `l`, to `add`.
    #[inline(always)]
    fn spread(&self, plane: usize, word: usize, mut add: impl FnMut(usize, u32)) {
        let (half, levels) = (self.plane_words(), self.levels());
        for level in 0..self.depth() {
            let bits = levels[(2 * level + plane) * half + word];
            for j in 0..64 {
                add(j, (((bits >> j) & 1) as u32) << level);
            }
        }
    }
}

struct Counts<'a> {
    counter: &'a BitCounter,
    positive: &'a mut [u32],
    negative: &'a mut [u32],
}

impl Loop for Counts<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (plane, counts) in [self.positive, self.negative].into_iter().enumerate() {
            for (word, counts) in counts.chunks_mut(64).enumerate() {
                let mut sums = [0; 64];
                self.counter.spread(plane, word, |j, value| sums[j] += value);
                counts.copy_from_slice(&sums[..counts.len()]);
            }
        }
    }
}

struct Sums<'a> {
    counter: &'a BitCounter,
    sums: &'a mut [i32],
}

impl Loop for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (word, out) in self.sums.chunks_mut(64).enumerate() {
            let mut sums = [0; 64];
            // A count is at most `MAX_WEIGHT`, which is `i32::MAX`.
            self.counter.spread(0, word, |j, value| sums[j] += value as i32);
            self.counter.spread(1, word, |j, value| sums[j] -= value as i32);
            out.copy_from_slice(&sums[..out.len()]);
        }
    }
}

struct Majority<'a, K> {
    lanes: K,
    counter: &'a BitCounter,
    threshold: u32,
    out: TritPlanesMut<'a>,
}

impl<K: Lanes> Loop for Majority<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { lanes, counter, threshold, out } = self;
        if threshold >= counter.total() {
            out.pos.fill(0);
            out.neg.fill(0);
            return;
        }
        let (half, levels) = (counter.plane_words(), counter.levels());
        let chunks = out.pos.chunks_mut(K::WORDS).zip(out.neg.chunks_mut(K::WORDS));
        for (at, (pos, neg)) in (0..).step_by(K::WORDS).zip(chunks) {
            lanes.store(exceeds(lanes, levels, half, at, [0, 1], counter.depth(), threshold), pos);
            lanes.store(exceeds(lanes, levels, half, at, [1, 0], counter.depth(), threshold), neg);
        }
    }
}

/// `a > b + threshold` for the counts of two signs at the words `at`, from the lowest bit to the highest; higher bits override.
#[inline(always)]
fn exceeds<K: Lanes>(
    lanes: K,
    levels: &[u64],
    half: usize,
    at: usize,
    [a, b]: [usize; 2],
    depth: usize,
    threshold: u32,
) -> K::Bits {
    let (mut carry, mut greater) = (lanes.splat(0), lanes.splat(0));
    for level in 0..depth {
        let a = lanes.load(&levels[(2 * level + a) * half + at..][..K::WORDS]);
        let b = lanes.load(&levels[(2 * level + b) * half + at..][..K::WORDS]);
        let bit = lanes.splat(if (threshold >> level) & 1 == 1 { u64::MAX } else { 0 });
        let sum;
        (sum, carry) = lanes.add3(b, bit, carry);
        greater = is_greater(lanes, a, sum, greater);
    }
    // A sum with a carry out is greater than any count.
    lanes.and_not(greater, carry)
}

/// Whether `a > b`, from one bit of each and the comparison of the lower bits.
#[inline(always)]
fn is_greater<K: Lanes>(lanes: K, a: K::Bits, b: K::Bits, lower: K::Bits) -> K::Bits {
    lanes.or(lanes.and_not(a, b), lanes.and_not(lower, lanes.xor(a, b)))
}

/// `TURNS[r]` has the bits at positions that are `r` modulo 3 set, for ten words, so that a load of eight words can start at
/// any of the first three.
const TURNS: [[u64; LINE_WORDS + 2]; 3] = {
    let mut turns = [[0; LINE_WORDS + 2]; 3];
    let mut bit = 0;
    while bit < 64 * (LINE_WORDS + 2) {
        turns[bit % 3][bit / 64] |= 1 << (bit % 64);
        bit += 1;
    }
    turns
};

struct Plurality<'a, K> {
    lanes: K,
    counter: &'a BitCounter,
    out: TritPlanesMut<'a>,
}

impl<K: Lanes> Loop for Plurality<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { lanes, counter, out } = self;
        if counter.total() == 0 {
            out.pos.fill(0);
            out.neg.fill(0);
            return;
        }
        let (half, levels) = (counter.plane_words(), counter.levels());
        let chunks = out.pos.chunks_mut(K::WORDS).zip(out.neg.chunks_mut(K::WORDS));
        for (at, (pos, neg)) in (0..).step_by(K::WORDS).zip(chunks) {
            let zero = lanes.splat(0);
            let (mut carry, mut borrow) = (zero, zero);
            // For the pairs (+1, -1), (+1, 0) and (-1, 0): whether the first is more, and whether it is less frequent.
            let (mut more, mut less) = ([zero; 3], [zero; 3]);
            for level in 0..counter.depth() {
                let p = lanes.load(&levels[2 * level * half + at..][..K::WORDS]);
                let n = lanes.load(&levels[(2 * level + 1) * half + at..][..K::WORDS]);
                let total = lanes.splat(if (counter.total() >> level) & 1 == 1 { u64::MAX } else { 0 });
                let nonzeros;
                (nonzeros, carry) = lanes.add3(p, n, carry);
                // `total - nonzeros`: the borrow is the carry of the complement.
                let complement = lanes.xor(total, lanes.splat(u64::MAX));
                let inverted;
                (inverted, borrow) = lanes.add3(complement, nonzeros, borrow);
                let z = lanes.xor(inverted, lanes.splat(u64::MAX));
                for (i, (a, b)) in [(p, n), (p, z), (n, z)].into_iter().enumerate() {
                    more[i] = is_greater(lanes, a, b, more[i]);
                    less[i] = is_greater(lanes, b, a, less[i]);
                }
            }
            let turns = [0, 1, 2].map(|r| &TURNS[r][at % 3..]);
            let turns = [lanes.load(turns[0]), lanes.load(turns[1]), lanes.load(turns[2])];
            let mut wins = [lanes.or(turns[0], turns[1]), turns[1], lanes.or(turns[1], turns[2])];
            for ((wins, more), less) in wins.iter_mut().zip(more).zip(less) {
                *wins = lanes.or(more, lanes.and_not(*wins, less));
            }
            // Past the end, all counts of signs are zero and 0 is the most frequent value, so the tail stays zero.
            lanes.store(lanes.and(wins[0], wins[1]), pos);
            lanes.store(lanes.and_not(wins[2], wins[0]), neg);
        }
    }
}
