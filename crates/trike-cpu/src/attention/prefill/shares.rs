//! The attention of sampled rows to blocks of keys or to single keys, accumulated block by block.

use std::ops::Range;

use super::{KEYS, Row, row_of};
use crate::attention::Job;
use crate::math::exp;

/// Sampled rows of a head, in token order, and their attention.
pub(super) struct Sample<'o> {
    pub(super) kv_head: usize,
    /// A token and a query head each.
    pub(super) rows: Vec<(usize, usize)>,
    pub(super) shares: Shares<'o>,
}

/// How attention is accumulated.
pub(super) enum Shares<'o> {
    /// The attention of each row to each key block, `[rows][key blocks]`.
    Blocks(&'o mut [f32]),
    /// The attention to each position, summed over all rows, from position 0 on.
    Positions(Vec<f32>),
}

impl Sample<'_> {
    /// The start of each key block that is visible to any row, and its visible positions.
    pub(super) fn blocks(&self, job: &Job<'_>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let (first, last) = (job.span(self.rows[0].0), job.span(self.rows[self.rows.len() - 1].0));
        let starts = (first.start / KEYS * KEYS..last.end).step_by(KEYS);
        starts.map(move |start| (start, first.start.max(start)..last.end.min(start + KEYS)))
    }

    /// Whether the scores of every position are needed to [`finish`](Self::finish).
    pub(super) fn is_by_position(&self) -> bool {
        matches!(self.shares, Shares::Positions(_))
    }

    /// Normalizes the tallies of all blocks, and the exponentials if the attention is by position.
    pub(super) fn finish<const V: usize>(&mut self, tallies: &[Tally<V>], exponentials: &[Row<V>]) {
        let of = |row: &Row<V>, at: usize| row[at / 16].0[at % 16];
        let (rows, mut factors) = (self.rows.len(), vec![row_of::<V>(0.0); tallies.len()]);
        for row in 0..rows {
            let top = tallies.iter().fold(f32::NEG_INFINITY, |top, tally| top.max(of(&tally.largest, row)));
            let factor = |tally: &Tally<V>| exp(of(&tally.largest, row) - top);
            let weight = |tally: &Tally<V>| of(&tally.total, row) * factor(tally);
            // A NaN score affects only its own block.
            let total: f32 = tallies.iter().map(weight).filter(|weight| !weight.is_nan()).sum();
            match &mut self.shares {
                Shares::Blocks(shares) => {
                    let first = row * (shares.len() / rows);
                    for tally in tallies {
                        shares[first + tally.start / KEYS] = weight(tally) / total;
                    }
                }
                Shares::Positions(_) => {
                    let factors = factors.iter_mut().zip(tallies);
                    factors.for_each(|(to, tally)| to[row / 16].0[row % 16] = factor(tally) / total);
                }
            }
        }
        let Shares::Positions(shares) = &mut self.shares else { return };
        let mut exponentials = exponentials.iter();
        for (tally, factors) in tallies.iter().zip(&factors) {
            for position in tally.part.clone().map(|at| tally.start + at) {
                let Some(row) = exponentials.next() else { return };
                // Whole groups are scored, including padding past the last position.
                let Some(share) = shares.get_mut(position) else { continue };
                *share += (0..rows).map(|at| of(row, at) * of(factors, at)).sum::<f32>();
            }
        }
    }
}

/// The largest score of each row in a block, and the sum of the exponentials of the scores minus that maximum.
pub(super) struct Tally<const V: usize> {
    start: usize,
    /// The part of the block that was scored.
    pub(super) part: Range<usize>,
    largest: Row<V>,
    total: Row<V>,
}

/// Tallies the scores of a part of a block, and replaces them by the exponentials.
#[inline(always)]
pub(super) fn tally<const V: usize>(start: usize, part: Range<usize>, scores: &mut [Row<V>]) -> Tally<V> {
    let (mut largest, mut total) = (row_of::<V>(f32::NEG_INFINITY), row_of::<V>(0.0));
    for v in 0..V {
        let mut top = [f32::NEG_INFINITY; 16];
        for scores in scores.iter() {
            for l in 0..16 {
                let score = scores[v].0[l];
                top[l] = if score > top[l] { score } else { top[l] };
            }
        }
        // A row without visible positions has exponentials of zero.
        let mut from = [0.0; 16];
        for l in 0..16 {
            from[l] = if top[l] == f32::NEG_INFINITY { 0.0 } else { top[l] };
        }
        for scores in scores.iter_mut() {
            for l in 0..16 {
                scores[v].0[l] = exp(scores[v].0[l] - from[l]);
                total[v].0[l] += scores[v].0[l];
            }
        }
        largest[v].0 = top;
    }
    Tally { start, part, largest, total }
}
