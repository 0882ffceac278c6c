//! Many-token kernel for any device: tiles in shared memory, unpacked once, 4-byte dot products.

use cubecl::prelude::*;

#[expect(unused_imports, reason = "the launch function's arguments")]
use super::DimsLaunch;
use super::{Dims, Form, Quad, four_codes, group_of, segment_factor, store, sum_of};

/// Tiles of weights per cube.
pub(in crate::linear) const TILES: usize = 4;
/// Code rows per cube.
pub(in crate::linear) const CODE_ROWS: usize = 32;
/// Units per cube along the rows of weights and along the code rows.
pub(in crate::linear) const UNITS: [usize; 2] = [16, 8];
/// Code rows per unit.
const EACH: usize = CODE_ROWS / UNITS[1];
/// Row stride in shared memory, in words: a block and one of padding, so that rows start in different banks.
const STRIDE: usize = 33;
/// Bytes of shared memory.
pub(in crate::linear) const SHARED_BYTES: usize = 4 * STRIDE * (16 * TILES + CODE_ROWS);

/// Cube `(tiles, chunk)` computes 64 rows for 32 code rows, one block of columns at a time.
///
/// Unit `(r, c)` computes row `r` of each of the four tiles times code rows `4c .. 4c + 4`. To fill the shared tiles, each unit
/// unpacks one lane's vector to 16 words of four signed codes. Words are in the order of the activations, so the tile of
/// activations is a plain copy.
#[cube(launch_unchecked)]
pub(in crate::linear) fn tiled<S: Float>(
    codes: &[Quad],
    scales: &[S],
    means: &[S],
    x: &[Quad],
    sums: &[i32],
    factors: &[f32],
    out0: &mut [f32],
    out1: &mut [f32],
    out2: &mut [f32],
    dims: Dims,
    tiles: u32,
    #[comptime] form: Form,
) {
    let (r, c) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
    let unit = c * 16 + r;
    let first_tile = CUBE_POS_X as usize * TILES;
    let first = CUBE_POS_Y as usize * CODE_ROWS;
    let blocks = dims.blocks as usize;
    let last = dims.code_rows as usize - 1;
    let last_tile = tiles as usize - 1;
    let segment = comptime!(form.segment());

    let mut w_tile = Shared::<[u32]>::new_slice(comptime!(16 * TILES * STRIDE));
    let mut x_tile = Shared::<[u32]>::new_slice(comptime!(CODE_ROWS * STRIDE));
    let count = comptime!(TILES * EACH);
    let mut ints = Array::<i32>::new(count);
    let mut totals = Array::<f32>::new(count);
    #[unroll]
    for n in 0..count {
        ints[n] = 0;
        totals[n] = 0.0;
    }
    let mut words = Array::<Quad>::new(form.planes);

    #[unroll]
    for set in 0..form.sets {
        for block in 0..blocks {
            // The weights: unit `u` unpacks lane `u % 32` of tile `u / 32`.
            let (lane, q) = (unit % 32, unit / 32);
            let (g, t) = (lane / 4, lane % 4);
            let tile = clamp_max(first_tile + q, last_tile);
            #[unroll]
            for p in 0..form.planes {
                words[p] = codes[(((tile * form.sets + set) * blocks + block) * form.planes + p) * 32 + lane];
            }
            #[unroll]
            for i in 0..4usize {
                #[unroll]
                for j in 0..4usize {
                    let row = q * 16 + g + comptime!(8 * (j % 2));
                    let word = t * 8 + comptime!(2 * i + j / 2);
                    w_tile[row * STRIDE + word] = u32::reinterpret(four_codes(&words, i, j, form.planes));
                }
            }
            // The activations: 256 vectors, two per unit.
            #[unroll]
            for half in 0..2usize {
                let vector = unit + comptime!(128 * half);
                let (m, v) = (vector / 8, vector % 8);
                let four = x[(clamp_max(first + m, last) * blocks + block) * 8 + v];
                #[unroll]
                for w in 0..4usize {
                    x_tile[m * STRIDE + v * 4 + w] = four.extract(w);
                }
            }
            sync_cube();

            #[unroll]
            for i in 0..4usize {
                for quarter in 0..4usize {
                    #[unroll]
                    for h in 0..2usize {
                        let word = quarter * 8 + comptime!(2 * i + h);
                        let mut four_x = Array::<i32>::new(EACH);
                        #[unroll]
                        for m in 0..EACH {
                            four_x[m] = i32::reinterpret(x_tile[(c * EACH + m) * STRIDE + word]);
                        }
                        #[unroll]
                        for q in 0..TILES {
                            let four = i32::reinterpret(w_tile[(comptime!(q * 16) + r) * STRIDE + word]);
                            #[unroll]
                            for m in 0..EACH {
                                let n = comptime!(q * EACH + m);
                                ints[n] = dp4a(four, four_x[m], ints[n]);
                            }
                        }
                    }
                }
                if comptime!(segment != 0 && (i + 1) * 32 % segment == 0) {
                    let at32 = block * 4 + comptime!(((i + 1) * 32 - segment) / 32);
                    let group = group_of(at32, &dims, form.group);
                    #[unroll]
                    for m in 0..EACH {
                        let row = clamp_max(first + c * EACH + m, last);
                        let factor = segment_factor(factors, row / form.slices, at32, &dims, form.x_group);
                        let mut sum = 0i32;
                        if comptime!(form.means) {
                            sum = sum_of(sums, row, at32, &dims, segment);
                        }
                        #[unroll]
                        for q in 0..TILES {
                            let tile = clamp_max(first_tile + q, last_tile);
                            let n = comptime!(q * EACH + m);
                            let at = ((tile * form.sets + set) * dims.groups as usize + group) * 16 + r;
                            let mut value = f32::cast_from(ints[n]) * f32::cast_from(scales[at]);
                            if comptime!(form.means && set == 0) {
                                let mean = means[(tile * dims.groups as usize + group) * 16 + r];
                                value += f32::cast_from(sum) * f32::cast_from(mean) * comptime!(form.unit());
                            }
                            totals[n] += value * factor;
                            ints[n] = 0;
                        }
                    }
                }
            }
            sync_cube();
        }
        if comptime!(segment == 0) {
            #[unroll]
            for m in 0..EACH {
                let mut sum = 0i32;
                if comptime!(form.means) {
                    sum = sum_of(sums, clamp_max(first + c * EACH + m, last), 0, &dims, 0usize);
                }
                #[unroll]
                for q in 0..TILES {
                    let tile = clamp_max(first_tile + q, last_tile);
                    let n = comptime!(q * EACH + m);
                    let scale = f32::cast_from(scales[(tile * form.sets + set) * 16 + r]);
                    // The scale is applied after the digits of a token are combined.
                    if comptime!(form.exact()) {
                        totals[n] = f32::cast_from(ints[n]);
                    } else {
                        totals[n] += f32::cast_from(ints[n]) * scale;
                        if comptime!(form.means && set == 0) {
                            totals[n] += f32::cast_from(sum)
                                * f32::cast_from(means[tile * 16 + r])
                                * comptime!(form.unit());
                        }
                    }
                    ints[n] = 0;
                }
            }
        }
    }

    #[unroll]
    for within in 0..comptime!(EACH / form.slices) {
        let row = first + c * EACH + comptime!(within * form.slices);
        if row <= last {
            let token = row / form.slices;
            #[unroll]
            for q in 0..TILES {
                if first_tile + q <= last_tile {
                    let mut value = 0.0f32;
                    #[unroll]
                    for s in 0..form.slices {
                        value = value * 256.0
                            + totals[comptime!(q * EACH + within * form.slices + form.slices - 1 - s)];
                    }
                    if comptime!(form.exact()) {
                        value *= f32::cast_from(scales[(first_tile + q) * 16 + r]);
                    }
                    if comptime!(form.x_group == 0) {
                        value *= factors[token];
                    }
                    store(out0, out1, out2, value, token, first_tile + q, r, &dims, form);
                }
            }
        }
    }
}
