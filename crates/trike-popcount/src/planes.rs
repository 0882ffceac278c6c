//! Vectors of trits in two bit planes: borrowed views and the owned type.

use trike_trit::{Trit, TritError};

use crate::error::{PopcountError, check_len, check_range};
use crate::lanes::LINE_WORDS;
use trike_host::{CacheLine, HostError};

/// Maximum number of trits of a vector, so that every count of them fits an i32.
pub const MAX_TRITS: usize = i32::MAX as usize;

/// Eight words, aligned so that a vector load does not cross a cache line.
pub(crate) type WordLine = CacheLine<[u64; LINE_WORDS]>;

/// A borrowed vector of trits: `ceil(len / 64)` words for each sign.
///
/// Trit `j` is bit `j % 64` of word `j / 64`, set in `pos` if it is +1 and in `neg` if it is -1. Every view satisfies the
/// invariants that no bit is set in both planes and none past the end, so operations do not check them again. Views of
/// [`PlaneVector`] and [`PlaneMatrix`](crate::PlaneMatrix) need no check, and start on a cache line where the padding is cheap.
///
/// ```text
/// trits  + 0 - +          bit 63 ... 4 3 2 1 0
///                         pos  0 ... 0 1 0 0 1
///                         neg  0 ... 0 0 1 0 0
/// ```
///
/// ```
/// use trike_popcount::{Cpu, TritOps, TritPlanes};
///
/// let a = TritPlanes::new(&[0b1001], &[0b0100], 4)?;
/// let b = TritPlanes::new(&[0b0001], &[0b1100], 4)?;
/// assert_eq!(Cpu::new(1)?.trit_dot(a, b)?, 1);
/// assert!(TritPlanes::new(&[0b1], &[0b1], 4).is_err(), "both signs");
/// assert!(TritPlanes::new(&[0b10000], &[0], 4).is_err(), "past the end");
/// # Ok::<(), trike_popcount::PopcountError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TritPlanes<'a> {
    pos: &'a [u64],
    neg: &'a [u64],
    len: usize,
}

impl<'a> TritPlanes<'a> {
    /// A view of two rows of words, checked in one linear pass.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Range`] above [`MAX_TRITS`], [`PopcountError::Length`] for a number of words other than `ceil(len / 64)`,
    /// [`TritError::BothBits`] and [`TritError::NonzeroPadding`] (as row 0 of plane 0) for words that violate the invariants.
    pub fn new(pos: &'a [u64], neg: &'a [u64], len: usize) -> Result<Self, PopcountError> {
        check_planes(pos.len(), neg.len(), len)?;
        if pos.iter().zip(neg).fold(0, |all, (p, n)| all | (p & n)) != 0 {
            let word = pos.iter().zip(neg).position(|(p, n)| p & n != 0).unwrap_or(0);
            return Err(TritError::BothBits { plane: 0, row: 0, word }.into());
        }
        let tail = !live(len);
        if pos.last().is_some_and(|p| p & tail != 0) || neg.last().is_some_and(|n| n & tail != 0) {
            return Err(TritError::NonzeroPadding { plane: 0, row: 0 }.into());
        }
        Ok(Self { pos, neg, len })
    }

    /// A view of words that are known to satisfy the invariants.
    #[inline]
    pub(crate) fn trusted(pos: &'a [u64], neg: &'a [u64], len: usize) -> Self {
        debug_assert!(Self::new(pos, neg, len).is_ok());
        Self { pos, neg, len }
    }

    /// The words of the positive plane.
    #[inline]
    pub fn pos(&self) -> &'a [u64] {
        self.pos
    }

    /// The words of the negative plane.
    #[inline]
    pub fn neg(&self) -> &'a [u64] {
        self.neg
    }

    /// Number of trits.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no trits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The negated vector: the same words with the planes exchanged.
    #[must_use]
    #[inline]
    pub fn negated(&self) -> Self {
        Self { pos: self.neg, neg: self.pos, len: self.len }
    }

    /// The trit at an index; `None` if out of range.
    pub fn get(&self, index: usize) -> Option<Trit> {
        let bit = |words: &[u64]| (words[index / 64] >> (index % 64)) & 1 == 1;
        (index < self.len).then(|| match (bit(self.pos), bit(self.neg)) {
            (true, _) => Trit::P,
            (_, true) => Trit::N,
            _ => Trit::Z,
        })
    }

    /// The trits as -1, 0 and 1.
    pub fn to_trits(self) -> Vec<i8> {
        let mut trits = Vec::with_capacity(self.len);
        for (p, n) in self.pos.iter().zip(self.neg) {
            let count = (self.len - trits.len()).min(64);
            trits.extend((0..count).map(|j| ((p >> j) & 1) as i8 - ((n >> j) & 1) as i8));
        }
        trits
    }
}

/// Output storage for a vector of trits; previous contents are overwritten.
#[derive(Debug)]
pub struct TritPlanesMut<'a> {
    pub(crate) pos: &'a mut [u64],
    pub(crate) neg: &'a mut [u64],
    pub(crate) len: usize,
}

impl<'a> TritPlanesMut<'a> {
    /// Output storage in two rows of words.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Range`] above [`MAX_TRITS`], [`PopcountError::Length`] for a number of words other than `ceil(len / 64)`.
    pub fn new(pos: &'a mut [u64], neg: &'a mut [u64], len: usize) -> Result<Self, PopcountError> {
        check_planes(pos.len(), neg.len(), len)?;
        Ok(Self { pos, neg, len })
    }

    /// Number of trits.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no trits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes one trit.
    ///
    /// # Errors
    ///
    /// [`TritError::OutOfRange`] if `index` is out of range.
    pub fn set(&mut self, index: usize, trit: Trit) -> Result<(), PopcountError> {
        if index >= self.len {
            return Err(TritError::OutOfRange { what: "trit", index, limit: self.len }.into());
        }
        let (word, bit) = (index / 64, index % 64);
        for (plane, sign) in [(&mut *self.pos, Trit::P), (&mut *self.neg, Trit::N)] {
            plane[word] = (plane[word] & !(1 << bit)) | (u64::from(trit == sign) << bit);
        }
        Ok(())
    }

    /// Copies the trits of a vector of the same length.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`].
    pub fn copy_from(&mut self, vector: TritPlanes<'_>) -> Result<(), PopcountError> {
        check_len("trits to be copied", self.len, vector.len)?;
        self.pos.copy_from_slice(vector.pos);
        self.neg.copy_from_slice(vector.neg);
        Ok(())
    }
}

fn check_planes(pos: usize, neg: usize, len: usize) -> Result<(), PopcountError> {
    check_range("trits of a vector", 0, MAX_TRITS, len)?;
    check_len("words of the positive plane", len.div_ceil(64), pos)?;
    check_len("words of the negative plane", len.div_ceil(64), neg)
}

/// Mask of the bits of the last word that belong to a vector.
pub(crate) fn live(len: usize) -> u64 {
    match len % 64 {
        0 => u64::MAX,
        n => (1 << n) - 1,
    }
}

/// An owned vector of trits, with each plane on its own cache lines.
///
/// ```
/// use trike_popcount::{Cpu, PlaneVector, TritOps};
///
/// let cpu = Cpu::new(1)?;
/// let (a, b) = (PlaneVector::from_trits(&[1, -1, 0, 1])?, PlaneVector::from_trits(&[1, 1, -1, 0])?);
/// let mut bound = PlaneVector::zeros(4)?;
/// // Sums modulo 3: 1 + 1 is -1.
/// cpu.trit_sum_mod3(a.view(), b.view(), bound.view_mut())?;
/// assert_eq!(bound.to_trits(), [-1, 0, -1, 1]);
/// let mut back = PlaneVector::zeros(4)?;
/// cpu.trit_difference_mod3(bound.view(), b.view(), back.view_mut())?;
/// assert_eq!(back, a);
/// # Ok::<(), trike_popcount::PopcountError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PlaneVector {
    /// The positive plane followed by the negative plane, each zero-padded to whole cache lines.
    lines: Vec<WordLine>,
    len: usize,
}

impl PlaneVector {
    /// A vector of zero trits.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Range`] above [`MAX_TRITS`], [`HostError::Memory`](trike_host::HostError::Memory).
    pub fn zeros(len: usize) -> Result<Self, PopcountError> {
        check_range("trits of a vector", 0, MAX_TRITS, len)?;
        Ok(Self { lines: zeroed_lines(2 * len.div_ceil(64).div_ceil(LINE_WORDS))?, len })
    }

    /// A vector from the numbers -1, 0 and 1.
    ///
    /// # Errors
    ///
    /// [`TritError::Value`] for any other number, and as [`PlaneVector::zeros`].
    pub fn from_trits(trits: &[i8]) -> Result<Self, PopcountError> {
        if let Some(index) = trits.iter().position(|t| !(-1..=1).contains(t)) {
            return Err(TritError::Value { index, value: trits[index] }.into());
        }
        let mut vector = Self::zeros(trits.len())?;
        let out = vector.view_mut();
        for (word, trits) in trits.chunks(64).enumerate() {
            let bits = |sign| trits.iter().rev().fold(0, |bits, &t| (bits << 1) | u64::from(t == sign));
            (out.pos[word], out.neg[word]) = (bits(1), bits(-1));
        }
        Ok(vector)
    }

    /// A copy of a view.
    ///
    /// # Errors
    ///
    /// [`HostError::Memory`](trike_host::HostError::Memory).
    pub fn from_view(view: TritPlanes<'_>) -> Result<Self, PopcountError> {
        let mut vector = Self::zeros(view.len)?;
        vector.view_mut().copy_from(view)?;
        Ok(vector)
    }

    /// Number of trits.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no trits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A view of the planes.
    #[inline]
    pub fn view(&self) -> TritPlanes<'_> {
        let words = self.len.div_ceil(64);
        let (pos, neg) = as_words(&self.lines).split_at(self.lines.len() / 2 * LINE_WORDS);
        TritPlanes::trusted(&pos[..words], &neg[..words], self.len)
    }

    /// The planes as the output of an operation.
    #[inline]
    pub fn view_mut(&mut self) -> TritPlanesMut<'_> {
        let words = self.len.div_ceil(64);
        let half = self.lines.len() / 2 * LINE_WORDS;
        let (pos, neg) = as_words_mut(&mut self.lines).split_at_mut(half);
        TritPlanesMut { pos: &mut pos[..words], neg: &mut neg[..words], len: self.len }
    }

    /// The trits as -1, 0 and 1.
    pub fn to_trits(&self) -> Vec<i8> {
        self.view().to_trits()
    }
}

impl PartialEq for PlaneVector {
    fn eq(&self, other: &Self) -> bool {
        self.view() == other.view()
    }
}

impl Eq for PlaneVector {}

/// `lines` zeroed cache lines.
pub(crate) fn zeroed_lines(lines: usize) -> Result<Vec<WordLine>, PopcountError> {
    let mut all = Vec::new();
    let requested = lines.saturating_mul(size_of::<WordLine>());
    all.try_reserve_exact(lines).map_err(|_| HostError::Memory { requested })?;
    all.resize(lines, CacheLine([0; LINE_WORDS]));
    Ok(all)
}

/// Cache lines as a slice of words.
#[inline]
pub(crate) fn as_words(lines: &[WordLine]) -> &[u64] {
    // SAFETY: a line is `repr(C)` with eight words, 64 bytes long and so without padding; the slice covers the same
    // bytes for the same lifetime.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * LINE_WORDS) }
}

/// [`as_words`], mutable.
#[inline]
pub(crate) fn as_words_mut(lines: &mut [WordLine]) -> &mut [u64] {
    // SAFETY: as in `as_words`; every bit pattern is a valid word, and the slice inherits the exclusive borrow.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LINE_WORDS) }
}
