//! Operations on all vectors in a counter at once: binding with a key, merging, changing single trits.

use trike_trit::Trit;

use crate::counter::BitCounter;
use crate::error::{PopcountError, check_len, check_range};
use crate::lanes::{Lanes, with_lanes};
use crate::planes::TritPlanes;
use trike_host::{Cpu, Loop};

impl BitCounter {
    /// Adds a key modulo 3 to every counted vector, as [`TritOps::trit_sum_mod3`](crate::TritOps::trit_sum_mod3) does; the
    /// key's [`TritPlanes::negated`] subtracts it again. Exact: it permutes the counts of the three values.
    ///
    /// ```
    /// use trike_popcount::{BitCounter, Cpu, PlaneVector};
    ///
    /// let cpu = Cpu::new(1)?;
    /// let (a, key) = (PlaneVector::from_trits(&[1, 0, -1])?, PlaneVector::from_trits(&[1, 1, 0])?);
    /// let mut counter = BitCounter::new(3)?;
    /// counter.add(&cpu, a.view(), 2)?;
    /// counter.sum_mod3(&cpu, key.view())?;
    /// let mut sums = [0; 3];
    /// counter.sums(&cpu, &mut sums)?;
    /// assert_eq!(sums, [-2, 2, -2]);
    /// # Ok::<(), trike_popcount::PopcountError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`](crate::PopcountError::Length) if the numbers of trits differ.
    pub fn sum_mod3(&mut self, cpu: &Cpu, key: TritPlanes<'_>) -> Result<(), PopcountError> {
        check_len("key of a bundle", self.len(), key.len())?;
        let (half, depth, total) = (self.plane_words(), self.depth(), self.total());
        let levels = self.levels_mut();
        with_lanes!(cpu.isa(), lanes => lanes.run(SumMod3 { lanes, levels, half, depth, total, key }));
        Ok(())
    }

    /// Multiplies every counted vector by a key, as [`TritOps::trit_product`](crate::TritOps::trit_product) does.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`](crate::PopcountError::Length) if the numbers of trits differ.
    pub fn product(&mut self, cpu: &Cpu, key: TritPlanes<'_>) -> Result<(), PopcountError> {
        check_len("key of a bundle", self.len(), key.len())?;
        let (half, depth) = (self.plane_words(), self.depth());
        let levels = self.levels_mut();
        with_lanes!(cpu.isa(), lanes => lanes.run(Product { lanes, levels, half, depth, key }));
        Ok(())
    }

    /// Adds the counts of another counter.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`](crate::PopcountError::Length) if the numbers of trits differ,
    /// [`PopcountError::Range`](crate::PopcountError::Range) if the total would exceed [`MAX_WEIGHT`](crate::MAX_WEIGHT),
    /// [`HostError::Memory`](trike_host::HostError::Memory). On error, the counts are unchanged.
    pub fn merge(&mut self, cpu: &Cpu, other: &Self) -> Result<(), PopcountError> {
        check_len("merged bundle", self.len(), other.len())?;
        self.make_room(other.total() as usize)?;
        let (half, depth) = (self.plane_words(), self.depth());
        let (levels, added) = (self.levels_mut(), other.levels());
        with_lanes!(cpu.isa(), lanes => lanes.run(Merge { lanes, levels, half, depth, added }));
        self.set_total(self.total() + other.total());
        Ok(())
    }

    /// The counts of +1 and of -1 at a position.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Range`](crate::PopcountError::Range) past the last position.
    pub fn count(&self, index: usize) -> Result<[u32; 2], PopcountError> {
        check_range("position in a bundle", 0, self.len().saturating_sub(1), index)?;
        // For an empty counter the range above is 0..=0.
        check_range("trits of a bundle", 1, usize::MAX, self.len())?;
        let (word, bit) = (index / 64, index % 64);
        let mut counts = [0; 2];
        for (at, plane) in self.levels().chunks_exact(self.plane_words()).enumerate() {
            counts[at % 2] |= (((plane[word] >> bit) & 1) as u32) << (at / 2);
        }
        Ok(counts)
    }

    /// Changes one trit of counted vectors with this total weight from one value to another; their other trits are not needed.
    /// Returns `false` and changes nothing if the count of the old value is less than `weight`.
    ///
    /// Only the words of this position are accessed: one per sign and bit of a count.
    ///
    /// # Errors
    ///
    /// As [`BitCounter::count`].
    pub fn replace(
        &mut self,
        index: usize,
        from: Trit,
        to: Trit,
        weight: u32,
    ) -> Result<bool, PopcountError> {
        let [mut positive, mut negative] = self.count(index)?;
        let zero = self.total() - positive - negative;
        let there = match from {
            Trit::P => &mut positive,
            Trit::N => &mut negative,
            Trit::Z => &mut { zero },
        };
        let Some(left) = there.checked_sub(weight) else { return Ok(false) };
        *there = left;
        match to {
            Trit::P => positive += weight,
            Trit::N => negative += weight,
            Trit::Z => {}
        }
        let (half, word, bit) = (self.plane_words(), index / 64, index % 64);
        for (at, plane) in self.levels_mut().chunks_exact_mut(half).enumerate() {
            let count = [positive, negative][at % 2];
            let value = u64::from((count >> (at / 2)) & 1);
            plane[word] = (plane[word] & !(1 << bit)) | (value << bit);
        }
        Ok(true)
    }
}

impl BitCounter {
    /// Adds a sparse vector, given by its nonzero positions in ascending order, with a weight. Only the words of
    /// these positions are accessed, unless the total needs one more bit.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Range`](crate::PopcountError::Range) for positions that are not ascending or out of range, and as
    /// [`BitCounter::add`]; on error, the counts are unchanged.
    pub fn add_sparse(&mut self, trits: &[(usize, Trit)], weight: u32) -> Result<(), PopcountError> {
        self.check_sparse(trits)?;
        self.make_room(weight as usize)?;
        self.set_total(self.total() + weight);
        for &(index, trit) in trits {
            // This succeeds: raising the total has just added the weight to the count of zeros.
            self.replace(index, Trit::Z, trit, weight)?;
        }
        Ok(())
    }

    /// Removes a vector added by [`BitCounter::add_sparse`]. Returns `false` and changes nothing if the counts rule out that it
    /// was added. One pass over the counts checks the zeros of the vector.
    ///
    /// # Errors
    ///
    /// As [`BitCounter::add_sparse`].
    pub fn remove_sparse(
        &mut self,
        cpu: &Cpu,
        trits: &[(usize, Trit)],
        weight: u32,
    ) -> Result<bool, PopcountError> {
        self.check_sparse(trits)?;
        let mut done = 0;
        while done < trits.len() && self.replace(trits[done].0, trits[done].1, Trit::Z, weight)? {
            done += 1;
        }
        let left = self.total().checked_sub(weight).filter(|_| done == trits.len());
        match left.filter(|&left| !self.exceeds(cpu, left)) {
            Some(left) => {
                self.set_total(left);
                Ok(true)
            }
            None => {
                for &(index, trit) in &trits[..done] {
                    self.replace(index, Trit::Z, trit, weight)?;
                }
                Ok(false)
            }
        }
    }

    fn check_sparse(&self, trits: &[(usize, Trit)]) -> Result<(), PopcountError> {
        let mut next = 0;
        for &(index, _) in trits {
            check_range("position in a sparse vector", next, self.len().saturating_sub(1), index)?;
            next = index + 1;
        }
        check_range("trits of a bundle", usize::from(next > 0), usize::MAX, self.len())
    }
}

/// Counts of `x + key` from counts of `x`.
struct SumMod3<'a, K> {
    lanes: K,
    levels: &'a mut [u64],
    half: usize,
    depth: usize,
    total: u32,
    key: TritPlanes<'a>,
}

impl<K: Lanes> Loop for SumMod3<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { lanes, levels, half, depth, total, key } = self;
        let (zeros, ones) = (lanes.splat(0), lanes.splat(u64::MAX));
        let keys = key.pos().chunks(K::WORDS).zip(key.neg().chunks(K::WORDS));
        for (at, (key_pos, key_neg)) in (0..).step_by(K::WORDS).zip(keys) {
            let (key_pos, key_neg) = (lanes.load(key_pos), lanes.load(key_neg));
            let key_any = lanes.or(key_pos, key_neg);
            let (mut carry, mut borrow) = (zeros, zeros);
            for level in 0..depth {
                let (low, high) = levels[2 * level * half..][..2 * half].split_at_mut(half);
                let (low, high) = (&mut low[at..at + K::WORDS], &mut high[at..at + K::WORDS]);
                let (p, n) = (lanes.load(low), lanes.load(high));
                // The count of zeros: the total minus the two counts, bit by bit.
                let nonzeros;
                (nonzeros, carry) = lanes.add3(p, n, carry);
                let complement = if (total >> level) & 1 == 1 { zeros } else { ones };
                let inverted;
                (inverted, borrow) = lanes.add3(complement, nonzeros, borrow);
                let z = lanes.xor(inverted, ones);
                // A key of +1 maps 0 to +1, a key of -1 maps -1 to +1; past the end, keys are 0.
                let moved_p = lanes.or(lanes.and(z, key_pos), lanes.and(n, key_neg));
                let moved_n = lanes.or(lanes.and(p, key_pos), lanes.and(z, key_neg));
                lanes.store(lanes.or(lanes.and_not(p, key_any), moved_p), low);
                lanes.store(lanes.or(lanes.and_not(n, key_any), moved_n), high);
            }
        }
    }
}

/// Counts of `x * key` from counts of `x`.
struct Product<'a, K> {
    lanes: K,
    levels: &'a mut [u64],
    half: usize,
    depth: usize,
    key: TritPlanes<'a>,
}

impl<K: Lanes> Loop for Product<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { lanes, levels, half, depth, key } = self;
        let keys = key.pos().chunks(K::WORDS).zip(key.neg().chunks(K::WORDS));
        for (at, (key_pos, key_neg)) in (0..).step_by(K::WORDS).zip(keys) {
            let (key_pos, key_neg) = (lanes.load(key_pos), lanes.load(key_neg));
            for level in 0..depth {
                let (low, high) = levels[2 * level * half..][..2 * half].split_at_mut(half);
                let (low, high) = (&mut low[at..at + K::WORDS], &mut high[at..at + K::WORDS]);
                let (p, n) = (lanes.load(low), lanes.load(high));
                lanes.store(lanes.or(lanes.and(p, key_pos), lanes.and(n, key_neg)), low);
                lanes.store(lanes.or(lanes.and(n, key_pos), lanes.and(p, key_neg)), high);
            }
        }
    }
}

/// Adds counts to counts with at least as many levels, enough for the sum.
struct Merge<'a, K> {
    lanes: K,
    levels: &'a mut [u64],
    half: usize,
    depth: usize,
    added: &'a [u64],
}

impl<K: Lanes> Loop for Merge<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { lanes, levels, half, depth, added } = self;
        for at in (0..2 * half).step_by(K::WORDS) {
            let mut carry = lanes.splat(0);
            for level in 0..depth {
                let slice = &mut levels[2 * level * half + at..][..K::WORDS];
                let other = lanes.load(added.get(2 * level * half + at..).unwrap_or(&[]));
                let sum;
                (sum, carry) = lanes.add3(lanes.load(slice), other, carry);
                lanes.store(sum, slice);
            }
        }
    }
}
