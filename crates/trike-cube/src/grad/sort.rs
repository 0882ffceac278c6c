//! Least-squares scales: the magnitudes of a group are sorted, and the best number of nonzero trits is found with their prefix
//! sums.
//!
//! With the `k` largest magnitudes nonzero, the best scale is their mean and reduces the squared error by `sum^2 / k`; the best `k`
//! maximizes this.

use cubecl::prelude::*;

use super::groups::Groups;
use super::{SUM_UNITS, check_apart, each, per_cube};
use crate::device::{Buffer, CubeDevice, Launch};
use crate::error::{Result, check_range, check_shape};
use crate::math::magnitude;

/// Longest group that is sorted in shared memory.
const LOCAL: usize = 2048;
/// Elements per chain of additions.
const CHAIN: usize = 256;

/// The magnitude of element `place` of a group as bits, which sort like magnitudes; zero past its end.
#[cube]
fn key_of(weights: &[f32], group: usize, place: usize, cols: usize, len: usize, per_row: usize) -> u32 {
    let (row, start) = (group / per_row, group % per_row * len);
    let most = clamp_max(len, cols - start);
    let inside = clamp_max(place, most - 1);
    select(place < most, magnitude(weights[row * cols + start + inside]), 0u32)
}

/// Cube `i` sorts group `i` in shared memory, largest first.
#[cube(launch_unchecked)]
fn sort_groups(
    weights: &[f32],
    sorted: &mut [u32],
    count: u32,
    cols: u32,
    len: u32,
    per_row: u32,
    #[comptime] padded: usize,
) {
    let mut keys = Shared::<[u32]>::new_slice(padded);
    if CUBE_POS < count as usize {
        let mut i = UNIT_POS as usize;
        while i < padded {
            keys[i] = key_of(weights, CUBE_POS, i, cols as usize, len as usize, per_row as usize);
            i += SUM_UNITS;
        }
        sync_cube();
        #[unroll]
        for level in 0..comptime!(padded.ilog2() as usize) {
            #[unroll]
            for pass in 0..comptime!(level + 1) {
                let distance = comptime!(1usize << (level - pass));
                let run = comptime!(2usize << level);
                let mut pair = UNIT_POS as usize;
                while pair < comptime!(padded / 2) {
                    let low = pair / distance * 2 * distance + pair % distance;
                    let (a, b) = (keys[low], keys[low + distance]);
                    // Runs alternate between descending and ascending; the last one is descending.
                    let descending = low & run == 0;
                    keys[low] = select(descending, max(a, b), min(a, b));
                    keys[low + distance] = select(descending, min(a, b), max(a, b));
                    pair += SUM_UNITS;
                }
                sync_cube();
            }
        }
        let mut i = UNIT_POS as usize;
        while i < padded {
            sorted[CUBE_POS * padded + i] = keys[i];
            i += SUM_UNITS;
        }
    }
}

/// Unit `i` writes key `i % padded` of group `i / padded`.
#[cube(launch_unchecked)]
fn fill_keys(weights: &[f32], keys: &mut [u32], cols: u32, len: u32, per_row: u32, padded: u32) {
    let i = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    if i < keys.len() {
        let (group, place) = (i / padded as usize, i % padded as usize);
        keys[i] = key_of(weights, group, place, cols as usize, len as usize, per_row as usize);
    }
}

/// One pass of a bitonic sort of all groups: unit `i` orders pair `i`.
#[cube(launch_unchecked)]
fn sort_pass(keys: &mut [u32], padded: u32, run: u32, distance: u32) {
    let pair = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    if pair < keys.len() / 2 {
        let distance = distance as usize;
        let low = pair / distance * 2 * distance + pair % distance;
        let (a, b) = (keys[low], keys[low + distance]);
        let descending = (low as u32 & (padded - 1)) & run == 0;
        keys[low] = select(descending, max(a, b), min(a, b));
        keys[low + distance] = select(descending, min(a, b), max(a, b));
    }
}

/// The magnitude above which one more nonzero trit after `count` reduces the error.
#[cube]
fn threshold(sum: f32, count: u32) -> f32 {
    let k = f32::cast_from(count);
    sum / k / (1.0 + f32::sqrt(1.0 + 1.0 / k))
}

#[cube]
fn magnitude_at(sorted: &[u32], from: usize, place: u32, padded: usize) -> f32 {
    f32::reinterpret(sorted[from + clamp_max(place as usize, padded - 1)])
}

/// Cube `i` finds the scale of group `i`; unit `u` has the `u`-th part of the sorted magnitudes.
#[cube(launch_unchecked)]
fn best_scales(sorted: &[u32], out: &mut [f32], padded: u32) {
    let unit = UNIT_POS as usize;
    let mut sums = Shared::<[f32]>::new_slice(SUM_UNITS);
    let mut gains = Shared::<[f32]>::new_slice(SUM_UNITS);
    let mut best_sums = Shared::<[f32]>::new_slice(SUM_UNITS);
    let mut best_counts = Shared::<[u32]>::new_slice(SUM_UNITS);
    if CUBE_POS < out.len() {
        let padded = padded as usize;
        let part = padded.div_ceil(SUM_UNITS);
        let (first, end) = (unit * part, clamp_max((unit + 1) * part, padded));
        let mut sum = 0.0f32;
        let mut chain = 0.0f32;
        for i in first..end {
            chain += f32::reinterpret(sorted[CUBE_POS * padded + i]);
            if i % CHAIN == CHAIN - 1 {
                sum += chain;
                chain = 0.0;
            }
        }
        sums[unit] = sum + chain;
        sync_cube();
        let mut before = 0.0f32;
        for other in 0..unit {
            before += sums[other];
        }
        chain = 0.0;
        let mut gain = 0.0f32;
        let mut best_sum = 0.0f32;
        let mut count = 0u32;
        for i in first..end {
            chain += f32::reinterpret(sorted[CUBE_POS * padded + i]);
            let total = before + chain;
            let found = total * (total / f32::cast_from(i as u32 + 1));
            if found > gain {
                gain = found;
                best_sum = total;
                count = i as u32 + 1;
            }
            if i % CHAIN == CHAIN - 1 {
                before += chain;
                chain = 0.0;
            }
        }
        gains[unit] = gain;
        best_sums[unit] = best_sum;
        best_counts[unit] = count;
        sync_cube();
        if unit == 0 {
            for other in 1..SUM_UNITS {
                if gains[other] > gain {
                    gain = gains[other];
                    best_sum = best_sums[other];
                    count = best_counts[other];
                }
            }
            // The gain is flat at its maximum: neighbours differ by less than f32 resolves. The condition for one more magnitude to
            // raise it is well conditioned: it must exceed `mean / (1 + sqrt(1 + 1 / k))`, about half of the mean.
            let from = CUBE_POS * padded;
            let mut last = magnitude_at(sorted, from, max(count, 1u32) - 1, padded);
            while count > 1 && last <= threshold(best_sum - last, count - 1) {
                best_sum -= last;
                count -= 1;
                last = magnitude_at(sorted, from, max(count, 1u32) - 1, padded);
            }
            let mut next = magnitude_at(sorted, from, count, padded);
            while count > 0 && count < padded as u32 && next > threshold(best_sum, count) {
                best_sum += next;
                count += 1;
                next = magnitude_at(sorted, from, count, padded);
            }
            let scale = best_sum / f32::cast_from(max(count, 1u32));
            // NaN sorts first and propagates.
            let largest = sorted[CUBE_POS * padded];
            out[CUBE_POS] = select(largest > 0x7F80_0000, f32::reinterpret(largest), scale);
        }
    }
}

impl CubeDevice {
    /// The least-squares scales; the lengths were checked.
    pub(super) fn least_squares(
        &self,
        weights: &Buffer<f32>,
        groups: Groups,
        out: &Buffer<f32>,
    ) -> Result<()> {
        check_apart("weights and their scales", out, &[weights])?;
        check_range("weights per scale of least squares", 1, 1 << 30, groups.len)?;
        let (count, padded) = (groups.count(), groups.len.next_power_of_two());
        let sorted = self.empty::<u32>(check_shape("sorted weights", count, padded)?)?;
        let [cols, len, per_row] = [groups.cols, groups.len, groups.per_row()].map(|n| n as u32);
        if padded <= LOCAL {
            let launch = Launch::new("sort groups", &padded, per_cube(count, 2, padded));
            self.launch(&launch, &[&sorted], |client, cubes, units| {
                // SAFETY: `validate` checked the groups against the weights, and there are `padded` keys per group; the kernel
                // checks its group and its keys.
                unsafe {
                    sort_groups::launch_unchecked(
                        client,
                        cubes,
                        units,
                        weights.arg(),
                        sorted.arg(),
                        count as u32,
                        cols,
                        len,
                        per_row,
                        padded,
                    );
                }
            })?;
        } else {
            let launch = Launch::new("fill keys", &(), each(sorted.len(), 2)?);
            self.launch(&launch, &[&sorted], |client, cubes, units| {
                let (weights, keys) = (weights.arg(), sorted.arg());
                // SAFETY: as above.
                unsafe {
                    fill_keys::launch_unchecked(
                        client,
                        cubes,
                        units,
                        weights,
                        keys,
                        cols,
                        len,
                        per_row,
                        padded as u32,
                    );
                }
            })?;
            for level in 0..padded.ilog2() {
                for pass in 0..=level {
                    let launch = Launch::new("sort pass", &(), each(sorted.len() / 2, 1)?);
                    self.launch(&launch, &[&sorted], |client, cubes, units| {
                        let (run, distance) = (2u32 << level, 1u32 << (level - pass));
                        // SAFETY: pairs lie within blocks of `2 distance` keys, of which there is a whole number; the kernel checks
                        // its pair.
                        unsafe {
                            sort_pass::launch_unchecked(
                                client,
                                cubes,
                                units,
                                sorted.arg(),
                                padded as u32,
                                run,
                                distance,
                            );
                        }
                    })?;
                }
            }
        }
        let launch = Launch::new("best scales", &(), per_cube(count, 2, 3 * SUM_UNITS));
        self.launch(&launch, &[out], |client, cubes, units| {
            // SAFETY: there are `padded` keys per scale, and the kernel checks its scale.
            unsafe {
                best_scales::launch_unchecked(client, cubes, units, sorted.arg(), out.arg(), padded as u32);
            }
        })
    }
}
