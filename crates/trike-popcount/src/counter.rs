//! Bit-sliced counts of +1 and -1 at each position of many vectors.

use std::ops::Range;

use crate::error::{PopcountError, check_len, check_range};
use crate::lanes::{LINE_WORDS, Lanes, with_lanes};
use crate::planes::{MAX_TRITS, TritPlanes, WordLine, as_words, as_words_mut, zeroed_lines};
use trike_host::{Cpu, Loop};

/// Maximum total weight of a counter, so that every count and difference of counts fits an i32.
pub const MAX_WEIGHT: u32 = i32::MAX as u32;

/// Counts of the two signs at every position of a bundle of vectors.
///
/// The counts are bit-sliced: level `l` holds bit `l` of every count, 64 positions per word, so that adding sixteen
/// vectors is a tree of full adders over words, without per-position work. There are as many levels as the
/// total weight has bits.
///
/// ```
/// use trike_popcount::{BitCounter, Cpu, PlaneVector};
///
/// let cpu = Cpu::new(1)?;
/// let mut counter = BitCounter::new(3)?;
/// let vectors = [[1, 0, -1], [1, 1, 0], [-1, 0, 0]].map(|trits| PlaneVector::from_trits(&trits));
/// for vector in &vectors {
///     counter.add(&cpu, vector.as_ref().unwrap().view(), 1)?;
/// }
/// let mut sums = [i32::MAX; 3];
/// counter.sums(&cpu, &mut sums)?;
/// assert_eq!(sums, [1, 1, -1]);
/// let mut bundle = PlaneVector::zeros(3)?;
/// counter.majority(&cpu, 0, bundle.view_mut())?;
/// assert_eq!(bundle.to_trits(), [1, 1, -1]);
/// counter.plurality(&cpu, bundle.view_mut())?;
/// assert_eq!(bundle.to_trits(), [1, 0, 0]);
/// # Ok::<(), trike_popcount::PopcountError>(())
/// ```
#[derive(Clone, Debug)]
pub struct BitCounter {
    /// Level by level, the counts of +1 and then those of -1, each zero-padded to whole cache lines.
    lines: Vec<WordLine>,
    len: usize,
    depth: usize,
    total: u32,
}

impl BitCounter {
    /// An empty counter for vectors of `len` trits.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Range`](crate::PopcountError::Range) above [`MAX_TRITS`].
    pub fn new(len: usize) -> Result<Self, PopcountError> {
        check_range("trits of a vector", 0, MAX_TRITS, len)?;
        Ok(Self { lines: Vec::new(), len, depth: 0, total: 0 })
    }

    /// A counter from saved counts: the counts of +1 and of -1 at each position, and the total weight.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`](crate::PopcountError::Length) for slices of different lengths,
    /// [`PopcountError::Range`](crate::PopcountError::Range) above [`MAX_TRITS`], for a total above [`MAX_WEIGHT`], and if the two
    /// counts of a position exceed the total, [`HostError::Memory`](trike_host::HostError::Memory).
    pub fn from_counts(positive: &[u32], negative: &[u32], total: u32) -> Result<Self, PopcountError> {
        let mut counter = Self::new(positive.len())?;
        check_len("counts of -1", positive.len(), negative.len())?;
        for (&p, &n) in positive.iter().zip(negative) {
            check_range("counts of one position", 0, total as usize, p as usize + n as usize)?;
        }
        counter.make_room(total as usize)?;
        counter.total = total;
        let half = counter.plane_words().max(1);
        for (at, plane) in as_words_mut(&mut counter.lines).chunks_exact_mut(half).enumerate() {
            let counts = if at % 2 == 0 { positive } else { negative };
            for (word, counts) in plane.iter_mut().zip(counts.chunks(64)) {
                *word = counts.iter().rev().fold(0, |word, c| (word << 1) | u64::from((c >> (at / 2)) & 1));
            }
        }
        Ok(counter)
    }

    /// Number of trits of a vector.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the vectors have no trits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Total weight of the counted vectors; for vectors of weight 1, their number.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Number of bits of a count.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Words of one sign at one level, padded to whole cache lines.
    pub(crate) fn plane_words(&self) -> usize {
        self.len.div_ceil(64).next_multiple_of(LINE_WORDS)
    }

    /// The words of all levels.
    pub(crate) fn levels(&self) -> &[u64] {
        as_words(&self.lines)
    }

    /// The words of all levels, mutable: no count may exceed the total, and padding must stay zero.
    pub(crate) fn levels_mut(&mut self) -> &mut [u64] {
        as_words_mut(&mut self.lines)
    }

    /// Sets the total weight, for which [`BitCounter::make_room`] must have made enough levels.
    pub(crate) fn set_total(&mut self, total: u32) {
        self.total = total;
    }

    /// Whether the sum of the two counts exceeds a total at any position.
    pub(crate) fn exceeds(&self, cpu: &Cpu, total: u32) -> bool {
        let (half, depth, levels) = (self.plane_words(), self.depth, self.levels());
        with_lanes!(cpu.isa(), lanes => lanes.run(Exceeds { lanes, levels, half, depth, total }))
    }

    /// Adds a vector with a weight.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`](crate::PopcountError::Length) if the numbers of trits differ,
    /// [`PopcountError::Range`](crate::PopcountError::Range) if the total would exceed [`MAX_WEIGHT`],
    /// [`HostError::Memory`](trike_host::HostError::Memory). On error, the counts are unchanged.
    pub fn add(&mut self, cpu: &Cpu, vector: TritPlanes<'_>, weight: u32) -> Result<(), PopcountError> {
        check_len("trits of a counted vector", self.len, vector.len())?;
        self.make_room(weight as usize)?;
        self.add_weighted(cpu, vector, weight);
        self.total += weight;
        Ok(())
    }

    /// Adds many vectors with weight 1, on the caller's thread: sixteen per pass over the counts.
    ///
    /// # Errors
    ///
    /// As [`BitCounter::add`].
    pub fn add_all(&mut self, cpu: &Cpu, vectors: &[TritPlanes<'_>]) -> Result<(), PopcountError> {
        for vector in vectors {
            check_len("trits of a counted vector", self.len, vector.len())?;
        }
        self.make_room(vectors.len())?;
        with_lanes!(cpu.isa(), lanes => {
            let rest = self.add_blocks::<_, 16>(lanes, vectors);
            let rest = self.add_blocks::<_, 8>(lanes, rest);
            let rest = self.add_blocks::<_, 4>(lanes, rest);
            let rest = self.add_blocks::<_, 2>(lanes, rest);
            self.add_blocks::<_, 1>(lanes, rest);
        });
        // `make_room` has checked that the sum is at most `MAX_WEIGHT`.
        self.total += vectors.len() as u32;
        Ok(())
    }

    /// Removes a vector that was added with at least this weight. Returns `false` and changes nothing if the counts rule out that
    /// it was added.
    ///
    /// Only the counts are checked: a vector that was never added can be removed if other vectors cover its trits.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`](crate::PopcountError::Length) if the numbers of trits differ.
    pub fn remove(&mut self, cpu: &Cpu, vector: TritPlanes<'_>, weight: u32) -> Result<bool, PopcountError> {
        check_len("trits of a counted vector", self.len, vector.len())?;
        if weight > self.total {
            return Ok(false);
        }
        let total = self.total - weight;
        let possible = with_lanes!(cpu.isa(), lanes => {
            let mut possible = true;
            for first in bits_of(weight) {
                let (half, depth) = (self.plane_words(), self.depth);
                let levels = as_words_mut(&mut self.lines);
                possible &= !lanes.run(Subtract { lanes, levels, half, depth, first, vector });
            }
            possible
        });
        let possible = possible && !self.exceeds(cpu, total);
        if possible {
            self.total = total;
        } else {
            // Arithmetic is modulo the range of a count, so this restores the old counts even after an underflow.
            self.add_weighted(cpu, vector, weight);
        }
        Ok(possible)
    }

    /// Allocates the levels for counts up to the new total.
    pub(crate) fn make_room(&mut self, weight: usize) -> Result<(), PopcountError> {
        let total = (self.total as usize).saturating_add(weight);
        check_range("weight of a bundle", 0, MAX_WEIGHT as usize, total)?;
        let depth = (usize::BITS - total.leading_zeros()) as usize;
        if depth > self.depth {
            let mut lines = zeroed_lines(2 * (self.plane_words() / LINE_WORDS) * depth)?;
            lines[..self.lines.len()].copy_from_slice(&self.lines);
            (self.lines, self.depth) = (lines, depth);
        }
        Ok(())
    }

    fn add_weighted(&mut self, cpu: &Cpu, vector: TritPlanes<'_>, weight: u32) {
        with_lanes!(cpu.isa(), lanes => for first in bits_of(weight) {
            self.add_block(lanes, first, [vector]);
        });
    }

    /// Adds all whole blocks of `N` vectors and returns the remaining vectors.
    fn add_blocks<'v, 'a, K: Lanes, const N: usize>(
        &mut self,
        lanes: K,
        vectors: &'v [TritPlanes<'a>],
    ) -> &'v [TritPlanes<'a>] {
        let (blocks, rest) = vectors.as_chunks::<N>();
        for block in blocks {
            self.add_block(lanes, 0, *block);
        }
        rest
    }

    fn add_block<K: Lanes, const N: usize>(&mut self, lanes: K, first: usize, vectors: [TritPlanes<'_>; N]) {
        let (half, depth) = (self.plane_words(), self.depth);
        let levels = as_words_mut(&mut self.lines);
        lanes.run(Add { lanes, levels, half, depth, first, vectors });
    }
}

/// The indices of the set bits of a weight.
fn bits_of(weight: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |bit| (weight >> bit) & 1 == 1)
}

/// Adds `N` vectors, a power of two, to the counts from level `first` on.
struct Add<'a, K, const N: usize> {
    lanes: K,
    levels: &'a mut [u64],
    half: usize,
    depth: usize,
    first: usize,
    vectors: [TritPlanes<'a>; N],
}

impl<K: Lanes, const N: usize> Loop for Add<'_, K, N> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { lanes, levels, half, depth, first, vectors } = self;
        let words = vectors[0].pos().len();
        for plane in 0..2 {
            let mut inputs = [[].as_slice(); N];
            for (input, vector) in inputs.iter_mut().zip(&vectors) {
                *input = &(if plane == 0 { vector.pos() } else { vector.neg() })[..words];
            }
            let levels = &mut levels[plane * half..];
            let mut at = 0;
            while at + K::WORDS <= words {
                add_words(lanes, &mut levels[at..], 2 * half, first..depth, inputs, at..at + K::WORDS);
                at += K::WORDS;
            }
            if at < words {
                add_words(lanes, &mut levels[at..], 2 * half, first..depth, inputs, at..words);
            }
        }
    }
}

/// Adds some words of `N` vectors to counts whose levels are `stride` words apart.
#[inline(always)]
fn add_words<K: Lanes, const N: usize>(
    lanes: K,
    counts: &mut [u64],
    stride: usize,
    levels: Range<usize>,
    vectors: [&[u64]; N],
    words: Range<usize>,
) {
    let mut bits = [lanes.splat(0); N];
    for (bits, vector) in bits.iter_mut().zip(vectors) {
        *bits = lanes.load(&vector[words.clone()]);
    }
    let Range { start: mut level, end } = levels;
    // Full adder: two vectors and the level give a sum bit, which stays, and a carry of twice the weight.
    let mut left = N;
    while left > 1 {
        let count = &mut counts[level * stride..][..K::WORDS];
        let mut sum = lanes.load(count);
        for j in 0..left / 2 {
            (sum, bits[j]) = lanes.add3(sum, bits[2 * j], bits[2 * j + 1]);
        }
        lanes.store(sum, count);
        (left, level) = (left / 2, level + 1);
    }
    let mut carry = bits[0];
    while level < end {
        let count = &mut counts[level * stride..][..K::WORDS];
        let sum;
        (sum, carry) = lanes.add2(lanes.load(count), carry);
        lanes.store(sum, count);
        level += 1;
    }
}

/// Subtracts a vector from the counts from level `first` on, and returns whether any count became negative.
struct Subtract<'a, K> {
    lanes: K,
    levels: &'a mut [u64],
    half: usize,
    depth: usize,
    first: usize,
    vector: TritPlanes<'a>,
}

impl<K: Lanes> Loop for Subtract<'_, K> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let Self { lanes, levels, half, depth, first, vector } = self;
        let mut below = lanes.none();
        for (plane, words) in [vector.pos(), vector.neg()].into_iter().enumerate() {
            for (chunk, words) in words.chunks(K::WORDS).enumerate() {
                let mut borrow = lanes.load(words);
                for level in first..depth {
                    let slice = &mut levels[(2 * level + plane) * half + chunk * K::WORDS..][..K::WORDS];
                    let old = lanes.load(slice);
                    lanes.store(lanes.xor(old, borrow), slice);
                    borrow = lanes.and_not(borrow, old);
                }
                below = lanes.tally(below, borrow);
            }
        }
        lanes.total(below) > 0
    }
}

/// Whether the sum of the two counts exceeds a total at any position.
struct Exceeds<'a, K> {
    lanes: K,
    levels: &'a [u64],
    half: usize,
    depth: usize,
    total: u32,
}

impl<K: Lanes> Loop for Exceeds<'_, K> {
    type Output = bool;

    #[inline(always)]
    fn run(self) -> bool {
        let Self { lanes, levels, half, depth, total } = self;
        let mut over = lanes.none();
        for at in (0..half).step_by(K::WORDS) {
            let zero = lanes.splat(0);
            let (mut carry, mut greater) = (zero, zero);
            for level in 0..depth {
                let positive = lanes.load(&levels[2 * level * half + at..]);
                let negative = lanes.load(&levels[(2 * level + 1) * half + at..]);
                let sum;
                (sum, carry) = lanes.add3(positive, negative, carry);
                // The number with the higher bit set is greater; if the bits are equal, the lower bits decide.
                greater =
                    if (total >> level) & 1 == 1 { lanes.and(greater, sum) } else { lanes.or(greater, sum) };
            }
            over = lanes.tally(over, lanes.or(carry, greater));
        }
        lanes.total(over) > 0
    }
}
