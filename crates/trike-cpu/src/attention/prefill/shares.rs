//! The attention that sampled rows give to blocks of keys, counted block by block.

use std::ops::Range;

use super::{KEYS, Row, row_of};
use crate::attention::Job;
use crate::math::exp;

/// Sampled rows of a head, in the order of their tokens, and the attention that they give.
pub(super) struct Sample<'o> {
    pub(super) kv_head: usize,
    /// A token and a query head each.
    pub(super) rows: Vec<(usize, usize)>,
    /// `[rows][key blocks]`
    pub(super) shares: &'o mut [f32],
}

impl Sample<'_> {
    /// The start of each key block that some row sees, and its visible positions.
    pub(super) fn blocks(&self, job: &Job<'_>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let (first, last) = (job.span(self.rows[0].0), job.span(self.rows[self.rows.len() - 1].0));
        let starts = (first.start / KEYS * KEYS..last.end).step_by(KEYS);
        starts.map(move |start| (start, first.start.max(start)..last.end.min(start + KEYS)))
    }

    /// Writes the shares of all rows from what was counted block by block.
    pub(super) fn finish<const V: usize>(&mut self, tallies: &[Tally<V>]) {
        let width = self.shares.len() / self.rows.len();
        for (row, shares) in self.shares.chunks_exact_mut(width).enumerate() {
            let of = |row: &Row<V>, at: usize| row[at / 16].0[at % 16];
            let top = tallies.iter().fold(f32::NEG_INFINITY, |top, tally| top.max(of(&tally.largest, row)));
            let weight = |tally: &Tally<V>| of(&tally.total, row) * exp(of(&tally.largest, row) - top);
            // A block with a score that is not a number stands out alone.
            let total: f32 = tallies.iter().map(weight).filter(|weight| !weight.is_nan()).sum();
            for tally in tallies {
                shares[tally.start / KEYS] = weight(tally) / total;
            }
        }
    }
}

/// The largest score of each row in a block, and the sum of the exponentials of the scores minus it.
pub(super) struct Tally<const V: usize> {
    start: usize,
    largest: Row<V>,
    total: Row<V>,
}

/// Counts the scores of a block.
#[inline(always)]
pub(super) fn tally<const V: usize>(start: usize, scores: &[Row<V>]) -> Tally<V> {
    let (mut largest, mut total) = (row_of::<V>(f32::NEG_INFINITY), row_of::<V>(0.0));
    for v in 0..V {
        let mut top = [f32::NEG_INFINITY; 16];
        for scores in scores {
            for l in 0..16 {
                let score = scores[v].0[l];
                top[l] = if score > top[l] { score } else { top[l] };
            }
        }
        // Where a row sees nothing, all exponentials are zero.
        let mut from = [0.0; 16];
        for l in 0..16 {
            from[l] = if top[l] == f32::NEG_INFINITY { 0.0 } else { top[l] };
        }
        for scores in scores {
            for l in 0..16 {
                total[v].0[l] += exp(scores[v].0[l] - from[l]);
            }
        }
        largest[v].0 = top;
    }
    Tally { start, largest, total }
}
