//! Weights of the positions of a block, as integers.

use super::super::{Panel, Row, row_of};
use super::{MAGIC, Pairs, pair};
use crate::math::exp2;

/// Sum of the weights of a row over a block. Plus `KEYS / 2` for rounding, times `i16::MAX`, it is below `2^31`.
const MASS: f32 = 65_500.0;

/// Update of a panel's sums by a block.
pub(super) struct Change<const V: usize> {
    /// Factor of the sums of earlier blocks.
    pub(super) keep: Row<V>,
    /// Factor of the integer sums of this block.
    pub(super) add: Row<V>,
}

/// Computes the weights `2^(score - largest of the block)` times the scales of the values, as integers, and updates the
/// largest score and the sums of the rows.
#[inline(always)]
pub(super) fn soften<const V: usize>(
    value_scales: &[f32],
    scores: &mut [Row<V>],
    weights: &mut [Pairs<V>],
    panel: &mut Panel<V>,
) -> Change<V> {
    let mut change = Change { keep: row_of(0.0), add: row_of(0.0) };
    for v in 0..V {
        let mut top = [f32::NEG_INFINITY; 16];
        for scores in scores.iter() {
            for l in 0..16 {
                // Not a maximum: NaN is ignored here and propagates through the exponential.
                top[l] = if scores[v].0[l] > top[l] { scores[v].0[l] } else { top[l] };
            }
        }
        // A row without visible positions keeps minus infinity as its largest score, and all its exponentials are zero.
        let (mut from, mut fresh) = ([0.0; 16], [0.0; 16]);
        for l in 0..16 {
            let before = panel.largest[v].0[l];
            let now = if top[l] > before { top[l] } else { before };
            let base = if now == f32::NEG_INFINITY { 0.0 } else { now };
            from[l] = if top[l] == f32::NEG_INFINITY { 0.0 } else { top[l] };
            fresh[l] = exp2(top[l] - base);
            change.keep[v].0[l] = exp2(before - base);
            panel.largest[v].0[l] = now;
        }
        let (mut sum, mut mass, mut most) = ([0.0; 16], [0.0; 16], [0.0; 16]);
        for (scores, &scale) in scores.iter_mut().zip(value_scales) {
            for l in 0..16 {
                let weight = exp2(scores[v].0[l] - from[l]);
                let scaled = weight * scale;
                scores[v].0[l] = scaled;
                sum[l] += weight;
                mass[l] += scaled;
                most[l] = if scaled > most[l] { scaled } else { most[l] };
            }
        }
        let mut factor = [0.0; 16];
        for l in 0..16 {
            // The limit keeps the factor finite; tiny weights round to zero.
            let (by_mass, by_most) = (MASS / mass[l], f32::from(i16::MAX) / most[l]);
            let least = if by_mass < by_most { by_mass } else { by_most };
            factor[l] = if least < 1e30 { least } else { 1e30 };
            change.add[v].0[l] = fresh[l] / factor[l];
            panel.total[v].0[l] = panel.total[v].0[l] * change.keep[v].0[l] + fresh[l] * sum[l];
        }
        for (weights, scores) in weights.iter_mut().zip(scores.as_chunks::<2>().0) {
            for l in 0..16 {
                let low = (scores[0][v].0[l] * factor[l] + MAGIC).to_bits();
                let high = (scores[1][v].0[l] * factor[l] + MAGIC).to_bits();
                weights[v].0[l] = pair(low, high);
            }
        }
    }
    change
}

/// Adds the non-finite values of a position, which are zeros in the integers, to the rows that see it.
#[cold]
pub(super) fn add_fault<const V: usize>(
    values: &[f32],
    scores: &Row<V>,
    largest: &Row<V>,
    outs: &mut [Row<V>],
) {
    for row in 0..16 * V {
        let (v, l) = (row / 16, row % 16);
        if scores[v].0[l] == f32::NEG_INFINITY {
            continue;
        }
        let weight = exp2(scores[v].0[l] - largest[v].0[l]);
        for (out, value) in outs.iter_mut().zip(values) {
            out[v].0[l] += weight * value;
        }
    }
}
