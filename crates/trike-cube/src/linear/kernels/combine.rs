//! Columns split across cubes: the partial sums of the cubes, and the kernel that adds them up.

use cubecl::prelude::*;

#[expect(unused_imports, reason = "the launch function's arguments")]
use super::DimsLaunch;
use super::{Dims, Form, store, sum_of};

/// Units per cube.
pub(in crate::linear) const UNITS: u32 = 64;

/// Floats per partial sum of a code row and a row of a tile: two for an integer, because an f32 holds only 24 bits of it.
pub(in crate::linear) fn numbers(form: Form) -> usize {
    if form.exact() { 2 } else { 1 }
}

/// Stores a cube's partial sum over its columns, `[z][code row][tile][row of the tile]`: an integer as its upper and lower 16
/// bits, both exact in f32.
///
/// Reinterpreting the integer works on most devices, but some bit patterns are NaNs, which WGSL does not guarantee to preserve.
#[cube]
pub(super) fn leave(
    scratch: &mut [f32],
    int: i32,
    float: f32,
    row: usize,
    tile: usize,
    r: usize,
    tiles: usize,
    dims: &Dims,
    #[comptime] form: Form,
) {
    let at = ((CUBE_POS_Z as usize * dims.code_rows as usize + row) * tiles + tile) * 16 + r;
    if comptime!(form.exact()) {
        scratch[2 * at] = f32::cast_from(int >> 16i32);
        scratch[2 * at + 1] = f32::cast_from(int & 0xFFFF);
    } else {
        scratch[at] = float;
    }
}

/// Unit `i` adds up the partial sums of `cubes` cubes for one output, in cube order, and finishes the output as a single cube
/// would.
///
/// The order is fixed, so the result is deterministic; with one integer sum per row it is bit-identical to that of a single
/// cube.
#[cube(launch_unchecked)]
pub(in crate::linear) fn combine<S: Float>(
    scratch: &[f32],
    scales: &[S],
    sums: &[i32],
    factors: &[f32],
    out0: &mut [f32],
    out1: &mut [f32],
    out2: &mut [f32],
    dims: Dims,
    tiles: u32,
    cubes: u32,
    #[comptime] form: Form,
) {
    let height = tiles as usize * 16;
    let per_cube = dims.code_rows as usize * height;
    let index = ABSOLUTE_POS;
    if index < per_cube / form.slices {
        let (row_of_tiles, token) = (index % height, index / height);
        let mut value = 0.0f32;
        // From the most significant digit down.
        #[unroll]
        for s in 0..form.slices {
            let row = token * form.slices + comptime!(form.slices - 1 - s);
            let mut digit = 0.0f32;
            let mut int = 0i32;
            for z in 0..cubes as usize {
                let at = z * per_cube + row * height + row_of_tiles;
                if comptime!(form.exact()) {
                    int += i32::cast_from(scratch[2 * at]) * 65_536 + i32::cast_from(scratch[2 * at + 1]);
                } else {
                    digit += scratch[at];
                }
            }
            if comptime!(form.exact()) {
                if comptime!(form.needs_sums()) {
                    int -= sum_of(sums, row, 0, &dims, 0usize) * comptime!(form.bias());
                }
                digit = f32::cast_from(int);
            }
            value = value * 256.0 + digit;
        }
        if comptime!(form.exact()) {
            value *= f32::cast_from(scales[row_of_tiles]);
        }
        if comptime!(form.x_group == 0) {
            value *= factors[token];
        }
        store(out0, out1, out2, value, token, row_of_tiles / 16, row_of_tiles % 16, &dims, form);
    }
}
