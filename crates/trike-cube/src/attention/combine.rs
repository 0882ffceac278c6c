//! Attention with few query rows, second kernel: combines the partial sums of several cubes.

use cubecl::prelude::*;

use super::decode::{LOWEST, power};

/// Parts that a unit of [`combine`] loads before using them.
const AT_ONCE: usize = 16;

/// Cube `i` combines the partial results of all splits for one head of one row: sums, their maximum, and total weights.
#[cube(launch_unchecked)]
pub(super) fn combine(
    parts: &[f32],
    out: &mut [f32],
    count: u32,
    first: u32,
    splits: u32,
    #[comptime] head_dim: usize,
    #[comptime] units: usize,
    #[comptime] ptx: bool,
) {
    if CUBE_POS < count as usize {
        join(parts, out, first as usize + CUBE_POS, splits, head_dim, units, ptx);
    }
}

/// As [`combine`], for the tokens of a [table](super::TokenTable).
#[cube(launch_unchecked)]
pub(super) fn combine_several(
    parts: &[f32],
    table: &[u32],
    out: &mut [f32],
    count: u32,
    heads: u32,
    splits: u32,
    #[comptime] head_dim: usize,
    #[comptime] units: usize,
    #[comptime] ptx: bool,
) {
    if CUBE_POS < count as usize {
        let row = table[3 * (CUBE_POS / heads as usize)] as usize;
        let head = row * heads as usize + CUBE_POS % heads as usize;
        join(parts, out, head, splits, head_dim, units, ptx);
    }
}

/// Combines the partial results of `head`, counted from the first row.
#[cube]
fn join(
    parts: &[f32],
    out: &mut [f32],
    head: usize,
    splits: u32,
    #[comptime] head_dim: usize,
    #[comptime] units: usize,
    #[comptime] ptx: bool,
) {
    let stride = comptime!(head_dim + 2);
    let splits = splits as usize;
    let base = CUBE_POS * splits * stride;
    let mut maxima = Array::<f32>::new(AT_ONCE);
    let mut totals = Array::<f32>::new(AT_ONCE);
    let mut sums = Array::<f32>::new(AT_ONCE);
    let mut most = LOWEST.runtime();
    for block in 0..splits.div_ceil(AT_ONCE) {
        #[unroll]
        for i in 0..AT_ONCE {
            let s = clamp_max(block * AT_ONCE + i, splits - 1);
            maxima[i] = parts[base + s * stride + head_dim];
        }
        #[unroll]
        for i in 0..AT_ONCE {
            most = max(most, maxima[i]);
        }
    }
    let mut d = UNIT_POS as usize;
    while d < head_dim {
        let mut sum = 0.0f32;
        let mut total = 0.0f32;
        for block in 0..splits.div_ceil(AT_ONCE) {
            #[unroll]
            for i in 0..AT_ONCE {
                let at = base + clamp_max(block * AT_ONCE + i, splits - 1) * stride;
                sums[i] = parts[at + d];
                maxima[i] = parts[at + head_dim];
                totals[i] = parts[at + comptime!(head_dim + 1)];
            }
            #[unroll]
            for i in 0..AT_ONCE {
                let weight = power(maxima[i] - most, ptx);
                let weight = select(block * AT_ONCE + i < splits, weight, 0.0f32);
                sum += sums[i] * weight;
                total += totals[i] * weight;
            }
        }
        out[head * head_dim + d] = sum / total;
        d += units;
    }
}
