//! Very sparse weights: a list of nonzeros per row.

use cubecl::prelude::*;

/// Rows per cube.
pub(in crate::linear) const ROWS: usize = 4;
/// Units per row.
pub(in crate::linear) const UNITS: usize = 32;

/// Bytes of shared memory for the sums of all units.
pub(in crate::linear) fn shared_bytes(code_rows: usize) -> usize {
    4 * ROWS * UNITS * code_rows
}

/// Cube `(x, y)` computes four rows for `each` code rows; unit `(u, r)` processes every 32nd entry of row `r`.
///
/// An entry is a column and a sign: which byte of the activations to add or subtract.
#[cube(launch_unchecked)]
pub(in crate::linear) fn sparse(
    offsets: &[u32],
    entries: &[u32],
    scales: &[f32],
    x: &[u32],
    factors: &[f32],
    out: &mut [f32],
    rows: u32,
    code_rows: u32,
    blocks: u32,
    #[comptime] slices: usize,
    #[comptime] add: bool,
    #[comptime] each: usize,
) {
    let (unit, r) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
    let row = CUBE_POS_X as usize * ROWS + r;
    let first = CUBE_POS_Y as usize * each;
    let (last_row, last) = (rows as usize - 1, code_rows as usize - 1);
    let stride = blocks as usize * 32;

    let mut sums = Array::<i32>::new(each);
    #[unroll]
    for m in 0..each {
        sums[m] = 0;
    }
    // Rows and code rows past the last repeat the last one and are not stored.
    let clamped = clamp_max(row, last_row);
    let end = offsets[clamped + 1] as usize;
    let mut index = offsets[clamped] as usize + unit;
    while index < end {
        let entry = (entries[index / 2] >> (16 * (index as u32 % 2))) & 0xFFFF;
        let col = entry as usize / 2;
        let word = col / 128 * 32 + col % 16 / 4 * 8 + col % 128 / 16;
        let shift = 24 - 8 * (col as u32 % 4);
        #[unroll]
        for m in 0..each {
            let four = x[clamp_max(first + m, last) * stride + word];
            let value = i32::reinterpret(four << shift) >> 24;
            sums[m] += select(entry % 2 == 1, -value, value);
        }
        index += UNITS;
    }
    finish(&sums, scales, factors, out, rows, code_rows, slices, add, each);
}

/// Adds up the sums of each row's units, combines the digits of each token, and stores the outputs.
#[cube]
pub(super) fn finish(
    sums: &Array<i32>,
    scales: &[f32],
    factors: &[f32],
    out: &mut [f32],
    rows: u32,
    code_rows: u32,
    #[comptime] slices: usize,
    #[comptime] add: bool,
    #[comptime] each: usize,
) {
    let (unit, r) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
    let first = CUBE_POS_Y as usize * each;
    let (last_row, last) = (rows as usize - 1, code_rows as usize - 1);
    let mut shared = Shared::<[i32]>::new_slice(comptime!(ROWS * UNITS * each));
    #[unroll]
    for m in 0..each {
        shared[(r * each + m) * UNITS + unit] = sums[m];
    }
    sync_cube();
    let mut index = r * UNITS + unit;
    while index < comptime!(ROWS * each / slices) {
        let (of, within) = (index / (each / slices), index % (each / slices));
        let row = CUBE_POS_X as usize * ROWS + of;
        let token = first / slices + within;
        if row <= last_row && token * slices <= last {
            let mut value = 0.0f32;
            #[unroll]
            for s in 0..slices {
                let m = within * slices + comptime!(slices - 1 - s);
                let mut sum = 0i32;
                for u in 0..comptime!(UNITS) {
                    sum += shared[(of * each + m) * UNITS + u];
                }
                value = value * 256.0 + f32::cast_from(sum);
            }
            value *= scales[row] * factors[token];
            let at = token * rows as usize + row;
            if comptime!(add) {
                out[at] += value;
            } else {
                out[at] = value;
            }
        }
        index += comptime!(ROWS * UNITS);
    }
}
