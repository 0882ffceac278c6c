//! Top-k selection by a histogram of the scores.

use trike_host::Loop;

/// Counts the scores in a histogram. Score `s` is counted at `s + counts.len() / 2`.
pub(super) struct CountScores<'a> {
    pub(super) scores: &'a [i16],
    pub(super) counts: &'a mut [u32],
}

impl Loop for CountScores<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let zero = (self.counts.len() / 2) as i32;
        for &score in self.scores {
            self.counts[(i32::from(score) + zero) as usize] += 1;
        }
    }
}

/// The smallest selected score, and the number of selected positions with this score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Threshold {
    pub(super) score: i16,
    pub(super) ties: usize,
}

/// The threshold for the `best` largest scores of all histograms together, which count at least as many.
pub(super) fn threshold(counts: &[&[u32]], best: usize) -> Threshold {
    let len = counts.first().map_or(0, |counts| counts.len());
    let mut left = best;
    for at in (0..len).rev() {
        let count: usize = counts.iter().map(|counts| counts[at] as usize).sum();
        if count >= left {
            return Threshold { score: (at as i32 - (len / 2) as i32) as i16, ties: left };
        }
        left -= count;
    }
    Threshold { score: i16::MIN, ties: left }
}

/// Number of scores of a block above the threshold, and equal to it.
pub(super) fn above_and_equal(counts: &[u32], threshold: Threshold) -> [usize; 2] {
    let at = (i32::from(threshold.score) + (counts.len() / 2) as i32) as usize;
    [counts[at + 1..].iter().map(|&count| count as usize).sum(), counts[at] as usize]
}

/// Writes the positions of the scores above the threshold and of the last ties, in order; `to` has exactly that length.
pub(super) struct Collect<'a> {
    pub(super) scores: &'a [i16],
    pub(super) threshold: Threshold,
    /// Number of leading ties that are not selected.
    pub(super) skipped: usize,
    /// The position of the first score.
    pub(super) first: u32,
    pub(super) to: &'a mut [u32],
}

impl Loop for Collect<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { scores, threshold, mut skipped, first, to } = self;
        let mut to = to.iter_mut();
        let mut one = |i: usize, score: i16| {
            if score > threshold.score || (score == threshold.score && skipped == 0) {
                if let Some(to) = to.next() {
                    *to = first + i as u32;
                }
            } else if score == threshold.score {
                skipped -= 1;
            }
        };
        // Few positions are selected, so most blocks have none and are skipped in a few instructions.
        let (blocks, rest) = scores.as_chunks::<64>();
        for (block, scores) in blocks.iter().enumerate() {
            let mut any = false;
            for &score in scores {
                any |= score >= threshold.score;
            }
            if any {
                scores.iter().enumerate().for_each(|(i, &score)| one(64 * block + i, score));
            }
        }
        rest.iter().enumerate().for_each(|(i, &score)| one(64 * blocks.len() + i, score));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trike_testkit::Rng;

    /// Compared with sorting by score, ties by the later position.
    #[test]
    fn the_best_are_those_of_a_sort() {
        let mut rng = Rng::new(31);
        for (n, range) in [(1, 3), (63, 1), (64, 5), (500, 3), (1000, 400), (777, 2)] {
            let half = 200;
            let scores: Vec<i16> = (0..n).map(|_| (rng.below(range) as i16) - (range / 2) as i16).collect();
            let mut sorted: Vec<u32> = (0..n as u32).collect();
            sorted.sort_by_key(|&p| (scores[p as usize], p));
            for best in [1, n / 3, n / 2 + 1, n] {
                let mut want = sorted[n - best..].to_vec();
                want.sort_unstable();
                for block in [17, 64, 200, n] {
                    let mut counts = vec![vec![0; 2 * half + 1]; n.div_ceil(block)];
                    for (scores, counts) in scores.chunks(block).zip(&mut counts) {
                        CountScores { scores, counts }.run();
                    }
                    let threshold = threshold(&counts.iter().map(Vec::as_slice).collect::<Vec<_>>(), best);
                    let each: Vec<_> = counts.iter().map(|c| above_and_equal(c, threshold)).collect();
                    let mut skipped = each.iter().map(|[_, ties]| ties).sum::<usize>() - threshold.ties;
                    let mut got = Vec::new();
                    for (i, (scores, [above, ties])) in scores.chunks(block).zip(each).enumerate() {
                        let skip = skipped.min(ties);
                        skipped -= skip;
                        let mut to = vec![u32::MAX; above + ties - skip];
                        let first = (i * block) as u32;
                        Collect { scores, threshold, skipped: skip, first, to: &mut to }.run();
                        got.extend(to);
                    }
                    assert_eq!(got, want, "{best} of {n} in blocks of {block}");
                }
            }
        }
    }
}
