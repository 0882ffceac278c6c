//! Converts the sums of the units to outputs.

use cubecl::prelude::*;

use super::super::{store, stored};
use super::{Dims, Form, MmaShape, Place};

/// Stores the outputs of a plane that has all columns. `of_rows` are the scales of its rows, if there is one scale per row.
#[cube]
pub(super) fn from_registers<S: Float, NC: Size>(
    acc: &mut Sequence<Array<Vector<i32, NC>>>,
    totals: &Array<f32>,
    of_rows: &Array<S>,
    factors: &[f32],
    out0: &mut [f32],
    out1: &mut [f32],
    out2: &mut [f32],
    place: &Place,
    dims: &Dims,
    #[comptime] form: Form,
    #[comptime] shape: MmaShape,
) {
    #[unroll]
    for b in 0..shape.octets {
        // The lane's two code rows; with four slices per token, its neighbour has the other two.
        let row = place.row + comptime!(8 * b) + 2 * place.t;
        #[unroll]
        for a in 0..shape.tiles {
            let tile = place.tile + a;
            #[unroll]
            for half in 0..2usize {
                let n = comptime!(a * shape.octets + b);
                let r = place.g + comptime!(8 * half);
                let mut pair = Array::<f32>::new(2usize);
                #[unroll]
                for col in 0..2usize {
                    if comptime!(form.exact()) {
                        let c = acc.index_mut(n);
                        pair[col] = f32::cast_from(c[half].extract(col));
                    } else {
                        pair[col] = totals[comptime!(4 * n + 2 * half + col)];
                    }
                }
                let mut scale = 1.0f32;
                if comptime!(form.exact()) {
                    scale = f32::cast_from(of_rows[2 * a + half]);
                }
                if comptime!(form.slices == 1) {
                    #[unroll]
                    for col in 0..2usize {
                        let token = row + col;
                        if token <= place.last && tile <= place.last_tile {
                            let mut value = pair[col] * scale;
                            if comptime!(form.x_group == 0) {
                                value *= factors[token];
                            }
                            store(out0, out1, out2, value, token, tile, r, dims, form);
                        }
                    }
                } else {
                    // Digits are combined from the most significant down, as in `from_parts` and in other kernels.
                    let mut value = pair[1] * 256.0 + pair[0];
                    if comptime!(form.slices == 4) {
                        value = (plane_shuffle_xor(value, 1u32) * 256.0 + pair[1]) * 256.0 + pair[0];
                    }
                    let token = row / form.slices;
                    // Only the lane with the first pair of a token stores.
                    let mine = token * form.slices == row;
                    if mine && row <= place.last && tile <= place.last_tile {
                        store(out0, out1, out2, value * scale * factors[token], token, tile, r, dims, form);
                    }
                }
            }
        }
    }
}

/// Adds up the sums of planes, and of cubes, that split the columns, and stores the outputs.
///
/// A cube stores its sums in `scratch`, `[z][y][x][code row of the cube][row of the cube]`, integers as their bits. The last to
/// arrive of the cubes that share an output adds up all sums in order, so that results do not depend on the order of arrival.
///
/// `of_unit` is the scale of the unit's row, if the unit [has a single row](MmaShape::has_own_row).
#[cube]
pub(super) fn from_parts<S: Float, NC: Size>(
    acc: &mut Sequence<Array<Vector<i32, NC>>>,
    totals: &Array<f32>,
    of_unit: f32,
    scales: &[S],
    factors: &[f32],
    out0: &mut [f32],
    out1: &mut [f32],
    out2: &mut [f32],
    scratch: &mut [f32],
    arrived: &mut [Atomic<u32>],
    place: &Place,
    dims: &Dims,
    #[comptime] form: Form,
    #[comptime] shape: MmaShape,
) {
    let height = comptime!(shape.rows());
    let partial = comptime!(shape.partial());
    let units = comptime!(shape.units());
    // Index of the cube's output tile.
    let square = CUBE_POS_Y as usize * CUBE_COUNT_X as usize + CUBE_POS_X as usize;
    let layer = CUBE_COUNT_Y as usize * CUBE_COUNT_X as usize * partial;
    let mine = CUBE_POS_Z as usize * layer + square * partial;
    let in_shared = comptime!(shape.splits > 1);
    let mut shared =
        Shared::<[f32]>::new_slice(comptime!(if in_shared { shape.splits * partial } else { 1 }));

    #[unroll]
    for a in 0..shape.tiles {
        #[unroll]
        for b in 0..shape.octets {
            #[unroll]
            for half in 0..2usize {
                #[unroll]
                for col in 0..2usize {
                    let n = comptime!(a * shape.octets + b);
                    let row = place.row - place.cube_row + comptime!(8 * b + col) + 2 * place.t;
                    let r = (place.tile - place.cube_tile) * 16 + comptime!(16 * a + 8 * half) + place.g;
                    let value = if comptime!(form.exact()) {
                        let c = acc.index_mut(n);
                        f32::reinterpret(c[half].extract(col))
                    } else {
                        totals[comptime!(4 * n + 2 * half + col)]
                    };
                    if comptime!(in_shared) {
                        shared[place.slot * partial + row * height + r] = value;
                    } else {
                        scratch[mine + row * height + r] = value;
                    }
                }
            }
        }
    }
    let mut last = true;
    if comptime!(shape.cubes > 1) {
        if comptime!(in_shared) {
            sync_cube();
            let mut index = place.unit;
            while index < partial {
                scratch[mine + index] = added(&mut shared, index, partial, shape.splits, form);
                index += units;
            }
        }
        let mut before = Shared::<u32>::new();
        sync_storage();
        if place.unit == 0 {
            *before = arrived[square].fetch_add(1u32);
        }
        sync_storage();
        last = *before == comptime!(shape.cubes as u32 - 1);
        if last && place.unit == 0 {
            // For the next launch.
            arrived[square].store(0u32);
        }
    } else {
        sync_cube();
    }
    if last {
        let outputs = comptime!(partial / form.slices);
        let each = comptime!(shape.at_once(form));
        let last_token = place.last / form.slices;
        let mut values = Array::<f32>::new(each);
        let mut of_rows = Array::<f32>::new(each);
        let mut of_tokens = Array::<f32>::new(each);
        let mut olds = Array::<f32>::new(each);
        let mut index = place.unit;
        while index < outputs {
            // All loads precede the first store, so that their latencies overlap.
            #[unroll]
            for j in 0..each {
                let at = clamp_max(index + comptime!(j * units), comptime!(outputs - 1));
                let (r, within) = (at % height, at / height);
                let mut value = 0.0f32;
                // From the most significant digit down.
                #[unroll]
                for s in 0..form.slices {
                    let at = (within * form.slices + comptime!(form.slices - 1 - s)) * height + r;
                    let digit = if comptime!(shape.cubes > 1) {
                        added(scratch, square * partial + at, layer, shape.cubes, form)
                    } else {
                        added(&mut shared, at, partial, shape.splits, form)
                    };
                    if comptime!(form.exact()) {
                        value = value * 256.0 + f32::cast_from(i32::reinterpret(digit));
                    } else {
                        value = value * 256.0 + digit;
                    }
                }
                values[j] = value;
                let tile = clamp_max(place.cube_tile + r / 16, place.last_tile);
                let token = clamp_max(place.cube_row / form.slices + within, last_token);
                if comptime!(form.exact() && !shape.has_own_row()) {
                    of_rows[j] = f32::cast_from(scales[tile * 16 + r % 16]);
                }
                if comptime!(form.x_group == 0) {
                    of_tokens[j] = factors[token];
                }
                if comptime!(form.add) {
                    olds[j] = stored(out0, out1, out2, token, tile, r % 16, dims, form);
                }
            }
            #[unroll]
            for j in 0..each {
                let at = index + comptime!(j * units);
                let (r, within) = (at % height, at / height);
                let token = place.cube_row / form.slices + within;
                let tile = place.cube_tile + r / 16;
                if at < outputs && token <= last_token && tile <= place.last_tile {
                    let mut value = values[j];
                    if comptime!(form.exact()) {
                        value *= if comptime!(shape.has_own_row()) { of_unit } else { of_rows[j] };
                    }
                    if comptime!(form.x_group == 0) {
                        value *= of_tokens[j];
                    }
                    if comptime!(form.add) {
                        value += olds[j] * comptime!(form.unit());
                    }
                    let form = comptime!(Form { add: false, ..form });
                    store(out0, out1, out2, value, token, tile, r % 16, dims, form);
                }
            }
            index += comptime!(each * units);
        }
    }
}

/// The sum of `count` parts, `stride` apart; integers as their bits, if the form has integers. Has no side effects.
#[cube]
fn added(
    parts: &mut [f32],
    first: usize,
    stride: usize,
    #[comptime] count: usize,
    #[comptime] form: Form,
) -> f32 {
    let mut int = 0i32;
    let mut float = 0.0f32;
    #[unroll]
    for part in 0..count {
        let value = parts[first + part * stride];
        if comptime!(form.exact()) {
            int += i32::reinterpret(value);
        } else {
            float += value;
        }
    }
    if comptime!(form.exact()) {
        float = f32::reinterpret(int);
    }
    float
}
