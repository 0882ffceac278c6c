//! Scores between a counter and stored rows: the scores of a whole bundle, without reducing it to trits.

use crate::counter::BitCounter;
use crate::error::{PopcountError, check_len};
use crate::lanes::{Lanes, with_lanes};
use crate::matrix::PlaneMatrix;
use crate::pair::nonzeros as nonzeros_of;
use crate::planes::TritPlanes;
use trike_core::TritScore;
use trike_host::{Cpu, Loop};

/// Multiply-adds of trits with count bits that take as long as one f32 multiply-add.
const TRITS_PER_F32: usize = 16;

impl BitCounter {
    /// The weighted sum of the scores of a vector with all counted vectors.
    ///
    /// ```
    /// use trike_popcount::{BitCounter, Cpu, PlaneVector, TritScore};
    ///
    /// let cpu = Cpu::new(1)?;
    /// let [a, b, c] = [[1, 0, -1], [1, 1, 0], [1, 0, 0]].map(|trits| PlaneVector::from_trits(&trits).unwrap());
    /// let mut counter = BitCounter::new(3)?;
    /// counter.add(&cpu, a.view(), 1)?;
    /// counter.add(&cpu, b.view(), 2)?;
    /// assert_eq!(counter.score(&cpu, TritScore::Dot, c.view())?, 1 + 2 * 1);
    /// assert_eq!(counter.score(&cpu, TritScore::Matches, c.view())?, 2 + 2 * 2);
    /// # Ok::<(), trike_popcount::PopcountError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`](crate::PopcountError::Length) if the numbers of trits differ.
    pub fn score(&self, cpu: &Cpu, score: TritScore, vector: TritPlanes<'_>) -> Result<i64, PopcountError> {
        check_len("vector scored against a bundle", self.len(), vector.len())?;
        let nonzeros = if score == TritScore::Matches { self.nonzeros(cpu) } else { 0 };
        Ok(self.score_row(cpu, score, nonzeros, vector))
    }

    /// [`BitCounter::score`] of every stored row, on as many threads as the work justifies.
    ///
    /// # Errors
    ///
    /// [`PopcountError::Length`](crate::PopcountError::Length) if the numbers of columns differ or `out` does not have
    /// one element per row.
    pub fn scores(
        &self,
        cpu: &Cpu,
        score: TritScore,
        stored: &PlaneMatrix,
        out: &mut [i64],
    ) -> Result<(), PopcountError> {
        check_len("columns of rows scored against a bundle", self.len(), stored.cols())?;
        check_len("scores", stored.rows(), out.len())?;
        let nonzeros = if score == TritScore::Matches { self.nonzeros(cpu) } else { 0 };
        let trits = stored.rows().saturating_mul(stored.cols()).saturating_mul(self.depth());
        cpu.pool().for_each_chunk(out, 1, trits / TRITS_PER_F32, |start, part| {
            for (row, out) in (start..).zip(part) {
                let [pos, neg] = stored.planes(row);
                *out = self.score_row(cpu, score, nonzeros, TritPlanes::trusted(pos, neg, stored.cols()));
            }
        });
        Ok(())
    }

    fn score_row(&self, cpu: &Cpu, score: TritScore, nonzeros: i64, vector: TritPlanes<'_>) -> i64 {
        let [agree, oppose] = with_lanes!(cpu.isa(), lanes => {
            lanes.run(Weighted { lanes, counter: self, pos: vector.pos(), neg: vector.neg() })
        });
        match score {
            TritScore::Dot => agree - oppose,
            TritScore::Agreements => agree,
            // Where the vector is zero, the counted zeros match; the counted signs there are those that neither agree
            // nor oppose.
            TritScore::Matches => {
                let zeros = vector.len() as i64 - i64::from(nonzeros_of(cpu.isa(), vector));
                agree + zeros * i64::from(self.total()) - (nonzeros - agree - oppose)
            }
        }
    }

    /// The weighted number of nonzero trits of all counted vectors: the sum of the counts of both signs.
    pub fn nonzeros(&self, cpu: &Cpu) -> i64 {
        with_lanes!(cpu.isa(), lanes => lanes.run(All { lanes, counter: self }))
    }
}

/// Over the nonzero positions of a vector, the sum of the counts of the same sign and of the opposite sign.
struct Weighted<'a, K> {
    lanes: K,
    counter: &'a BitCounter,
    pos: &'a [u64],
    neg: &'a [u64],
}

impl<K: Lanes> Loop for Weighted<'_, K> {
    type Output = [i64; 2];

    #[inline(always)]
    fn run(self) -> [i64; 2] {
        let Self { lanes, counter, pos, neg } = self;
        let (half, words) = (counter.plane_words(), pos.len());
        let neg = &neg[..words];
        let mut sums = [0; 2];
        for (level, planes) in counter.levels().chunks_exact((2 * half).max(1)).enumerate() {
            let (p, n) = planes.split_at(half);
            let (p, n) = (&p[..words], &n[..words]);
            let mut tallies = [lanes.none(); 2];
            let mut at = 0;
            while at + K::WORDS <= words {
                let to = at + K::WORDS;
                tallies = step(lanes, tallies, [&p[at..to], &n[at..to]], [&pos[at..to], &neg[at..to]]);
                at = to;
            }
            if at < words {
                tallies = step(lanes, tallies, [&p[at..], &n[at..]], [&pos[at..], &neg[at..]]);
            }
            for (sum, tally) in sums.iter_mut().zip(tallies) {
                *sum += lanes.total(tally) << level;
            }
        }
        sums
    }
}

#[inline(always)]
fn step<K: Lanes>(
    lanes: K,
    [agree, oppose]: [K::Tally; 2],
    [p, n]: [&[u64]; 2],
    [pos, neg]: [&[u64]; 2],
) -> [K::Tally; 2] {
    let (p, n, pos, neg) = (lanes.load(p), lanes.load(n), lanes.load(pos), lanes.load(neg));
    [
        lanes.tally(agree, lanes.or(lanes.and(p, pos), lanes.and(n, neg))),
        lanes.tally(oppose, lanes.or(lanes.and(p, neg), lanes.and(n, pos))),
    ]
}

/// The sum of all counts.
struct All<'a, K> {
    lanes: K,
    counter: &'a BitCounter,
}

impl<K: Lanes> Loop for All<'_, K> {
    type Output = i64;

    #[inline(always)]
    fn run(self) -> i64 {
        let Self { lanes, counter } = self;
        let mut sum = 0;
        for (level, planes) in counter.levels().chunks_exact((2 * counter.plane_words()).max(1)).enumerate() {
            let mut tally = lanes.none();
            for words in planes.chunks_exact(K::WORDS) {
                tally = lanes.tally(tally, lanes.load(words));
            }
            sum += lanes.total(tally) << level;
        }
        sum
    }
}
