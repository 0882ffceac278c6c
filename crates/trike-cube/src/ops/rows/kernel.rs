//! Cube `row` processes one row: its units iterate over the row in quads of four columns, once per stage.

use cubecl::prelude::*;

use super::super::gated::activate;
use crate::math::{magnitude, nearest, nearest_wide};
use crate::reduce::{max_words, sum_floats, sum_ints};
use trike_core::GatedActivation;

/// Compile-time parameters of the row kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    /// Gated activation of the two inputs; `None` = one input.
    pub(crate) gate: Option<GatedActivation>,
    /// Rows are normalized.
    pub(crate) norm: bool,
    /// Code rows per token.
    pub(crate) slices: usize,
    /// Columns per factor; 0 = one factor per row.
    pub(crate) group: usize,
    /// Units per cube, a power of two.
    pub(crate) units: usize,
    /// Reductions use plane operations.
    pub(crate) planes: bool,
    /// Block size of the rotation in columns; 0 = no rotation.
    pub(crate) rotation: usize,
}

impl Form {
    /// Floats of shared memory for the exchange in the rotation.
    fn spare(self) -> usize {
        if self.rotation > 4 { 4 * self.units } else { 1 }
    }
}

/// Bits of f32 infinity.
const INFINITE: u32 = 0x7F80_0000;
/// Lower bound of the magnitude that an int8 scale is computed from.
const SMALLEST: f32 = 1e-5;

/// Four columns of the source; columns past the end are zero.
#[cube]
fn source<N: Size>(
    x: &[Vector<f32, N>],
    other: &[Vector<f32, N>],
    row: usize,
    quad: usize,
    cols: usize,
    #[comptime] form: Form,
) -> Vector<f32, Const<4>> {
    let mut out = Vector::<f32, Const<4>>::new(0.0f32);
    let lanes = N::value();
    #[unroll]
    for part in 0..comptime!(4 / lanes) {
        let col = quad * 4 + part;
        if col < cols {
            let at = (row * cols + col) / lanes;
            let v = x[at];
            #[unroll]
            for lane in 0..lanes {
                let mut value = v.extract(lane);
                if comptime!(form.gate.is_some()) {
                    value = activate(value, comptime!(form.gate.unwrap_or(GatedActivation::SiLu)));
                    value *= other[at].extract(lane);
                }
                out.insert(comptime!(part + lane), value);
            }
        }
    }
    out
}

/// [`source`], normalized.
#[cube]
fn normed<N: Size>(
    x: &[Vector<f32, N>],
    other: &[Vector<f32, N>],
    weight: &[Vector<f32, N>],
    row: usize,
    quad: usize,
    cols: usize,
    factor: f32,
    #[comptime] form: Form,
) -> Vector<f32, Const<4>> {
    let mut out = source::<N>(x, other, row, quad, cols, form);
    if comptime!(form.norm) {
        let lanes = N::value();
        #[unroll]
        for part in 0..comptime!(4 / lanes) {
            let col = quad * 4 + part;
            if col < cols {
                let w = weight[col / lanes];
                #[unroll]
                for lane in 0..lanes {
                    let value = out.extract(comptime!(part + lane)) * factor;
                    out.insert(comptime!(part + lane), value * w.extract(lane));
                }
            }
        }
    }
    out
}

/// [`normed`], rotated: a Walsh-Hadamard transform of each block of columns. All units of a cube must call it, for consecutive
/// quads that cover whole blocks. The first two rounds are within a quad; in the rest, pairs of units exchange their quads.
#[cube]
fn turned<N: Size>(
    x: &[Vector<f32, N>],
    other: &[Vector<f32, N>],
    weight: &[Vector<f32, N>],
    row: usize,
    quad: usize,
    cols: usize,
    factor: f32,
    spare: &mut Shared<[f32]>,
    #[comptime] form: Form,
) -> Vector<f32, Const<4>> {
    let mut v = Vector::<f32, Const<4>>::new(0.0f32);
    if quad * 4 < cols {
        v = normed::<N>(x, other, weight, row, quad, cols, factor, form);
    }
    if comptime!(form.rotation >= 2) {
        let (a, b, c, d) = (v.extract(0usize), v.extract(1usize), v.extract(2usize), v.extract(3usize));
        v.insert(0usize, a + b);
        v.insert(1usize, a - b);
        v.insert(2usize, c + d);
        v.insert(3usize, c - d);
    }
    if comptime!(form.rotation >= 4) {
        let (a, b, c, d) = (v.extract(0usize), v.extract(1usize), v.extract(2usize), v.extract(3usize));
        v.insert(0usize, a + c);
        v.insert(1usize, b + d);
        v.insert(2usize, a - c);
        v.insert(3usize, b - d);
    }
    if comptime!(form.rotation > 4) {
        let unit = UNIT_POS as usize;
        // Rows are whole blocks, so the minimum is always the block's. The compiler cannot prove that and does not unroll the
        // loop: unrolled, it would keep the address and the sign of every round in registers (64 instead of 31) and spill
        // others.
        let end = min(cols / 4, comptime!(form.rotation / 4));
        let mut distance = 1usize;
        while distance < end {
            #[unroll]
            for lane in 0..4usize {
                spare[lane * form.units + unit] = v.extract(lane);
            }
            sync_cube();
            let upper = (unit & distance) != 0;
            let sign = select(upper, -1.0f32, 1.0f32);
            #[unroll]
            for lane in 0..4usize {
                let theirs = spare[lane * form.units + (unit ^ distance)];
                v.insert(lane, theirs + sign * v.extract(lane));
            }
            sync_cube();
            distance *= 2;
        }
    }
    if comptime!(form.rotation != 0) {
        v *= Vector::new(comptime!(if form.rotation == 0 {
            1.0
        } else {
            (1.0 / (form.rotation as f64).sqrt()) as f32
        }));
    }
    v
}

/// `1 / sqrt(mean(x^2) + eps)`, or 1 without a norm.
#[cube]
fn norm_factor<N: Size>(
    x: &[Vector<f32, N>],
    other: &[Vector<f32, N>],
    row: usize,
    cols: usize,
    eps: f32,
    shared: &mut Shared<[f32]>,
    #[comptime] form: Form,
) -> f32 {
    let mut factor = 1.0f32;
    if comptime!(form.norm) {
        let mut sum = 0.0f32;
        let mut quad = UNIT_POS as usize;
        while quad * 4 < cols {
            let v = source::<N>(x, other, row, quad, cols, form);
            #[unroll]
            for lane in 0..4usize {
                sum += v.extract(lane) * v.extract(lane);
            }
            quad += form.units;
        }
        let total = sum_floats(sum, shared, form.units, form.planes);
        factor = 1.0 / f32::sqrt(total / f32::cast_from(cols as u32) + eps);
        // Squares that overflow f32 would silently make the row zero.
        factor = select(magnitude(total) < INFINITE, factor, f32::reinterpret(0x7FC0_0000u32));
    }
    factor
}

#[cube]
fn to_floats<N: Size>(
    x: &[Vector<f32, N>],
    other: &[Vector<f32, N>],
    weight: &[Vector<f32, N>],
    out: &mut [Vector<f32, N>],
    row: usize,
    cols: usize,
    eps: f32,
    #[comptime] form: Form,
) {
    let mut shared = Shared::<[f32]>::new_slice(form.units);
    let factor = norm_factor::<N>(x, other, row, cols, eps, &mut shared, form);
    let lanes = N::value();
    let mut quad = UNIT_POS as usize;
    while quad * 4 < cols {
        let v = normed::<N>(x, other, weight, row, quad, cols, factor, form);
        #[unroll]
        for part in 0..comptime!(4 / lanes) {
            let col = quad * 4 + part;
            if col < cols {
                let mut vector = Vector::<f32, N>::new(0.0f32);
                #[unroll]
                for lane in 0..lanes {
                    vector.insert(lane, v.extract(comptime!(part + lane)));
                }
                out[(row * cols + col) / lanes] = vector;
            }
        }
        quad += form.units;
    }
}

/// The bits of the largest magnitude of four columns.
#[cube]
fn largest(v: Vector<f32, Const<4>>) -> u32 {
    let mut bits = magnitude(v.extract(0usize));
    #[unroll]
    for lane in 1..4usize {
        bits = max(bits, magnitude(v.extract(lane)));
    }
    bits
}

/// The scale from values to codes, and the factor (step size) from codes to values.
#[cube]
fn scale_of(bits: u32, #[comptime] slices: usize) -> (f32, f32) {
    let mut scale = 0.0f32;
    let mut factor = f32::reinterpret(bits | 0x7FC0_0000);
    if bits < INFINITE {
        if comptime!(slices == 1) {
            scale = 127.0 / max(f32::reinterpret(bits), SMALLEST);
            factor = 1.0 / scale;
        } else {
            // The largest magnitude is below `2^(exponent + 1)`; powers of two are exact.
            let digits = comptime!(8 * slices as i32 - 3);
            let exponent = max(i32::cast_from(bits >> 23) - 127, comptime!(digits - 120));
            scale = f32::reinterpret((comptime!(127 + digits) - exponent) << 23);
            factor = f32::reinterpret((comptime!(127 - digits) + exponent) << 23);
        }
    }
    (scale, factor)
}

#[cube]
pub(crate) fn to_codes<N: Size>(
    x: &[Vector<f32, N>],
    other: &[Vector<f32, N>],
    weight: &[Vector<f32, N>],
    codes: &mut [u32],
    sums: &mut [i32],
    factors: &mut [f32],
    row: usize,
    cols: usize,
    eps: f32,
    #[comptime] form: Form,
) {
    let unit = UNIT_POS as usize;
    let units = form.units;
    let blocks = cols.div_ceil(128);
    let quads = blocks * 32;
    let stride = blocks * 4 + 4;
    let mut floats = Shared::<[f32]>::new_slice(units);
    let mut words = Shared::<[u32]>::new_slice(units);
    let mut ints = Shared::<[i32]>::new_slice(comptime!(units * form.slices));
    let mut spare = Shared::<[f32]>::new_slice(comptime!(form.spare()));

    let factor = norm_factor::<N>(x, other, row, cols, eps, &mut floats, form);
    let mut scale = 0.0f32;
    if comptime!(form.group == 0) {
        let mut bits = 0u32;
        if comptime!(form.rotation == 0) {
            let mut quad = unit;
            while quad * 4 < cols {
                let v = normed::<N>(x, other, weight, row, quad, cols, factor, form);
                bits = max(bits, largest(v));
                quad += units;
            }
        } else {
            for chunk in 0..quads.div_ceil(units) {
                let quad = chunk * units + unit;
                let v = turned::<N>(x, other, weight, row, quad, cols, factor, &mut spare, form);
                bits = max(bits, largest(v));
            }
        }
        let all = max_words(bits, &mut words, units, form.planes);
        let (row_scale, step) = scale_of(all, form.slices);
        scale = row_scale;
        if unit == 0 {
            factors[row] = step;
        }
    }

    let mut totals = Array::<i32>::new(form.slices);
    #[unroll]
    for s in 0..form.slices {
        totals[s] = 0;
    }
    // 128 in each byte except the highest: carries each byte's sign into the next.
    let offset = comptime!((0..form.slices - 1).fold(0i32, |o, byte| o | 0x80 << (8 * byte)));
    for chunk in 0..quads.div_ceil(units) {
        let quad = chunk * units + unit;
        let v = turned::<N>(x, other, weight, row, quad, cols, factor, &mut spare, form);
        if comptime!(form.group != 0) {
            let of_group = comptime!(form.group / 4);
            words[unit] = largest(v);
            sync_cube();
            let first = unit / of_group * of_group;
            let mut bits = 0u32;
            for i in 0..of_group {
                bits = max(bits, words[first + i]);
            }
            let (group_scale, step) = scale_of(bits, form.slices);
            scale = group_scale;
            if quad < quads && (quad & 7) == 0 {
                // Groups of padding get factor 1.
                let padding = (chunk * units + first) * 4 >= cols;
                factors[row * blocks * 4 + quad / 8] = select(padding, 1.0f32, step);
            }
        }
        let mut packed = Array::<u32>::new(form.slices);
        #[unroll]
        for s in 0..form.slices {
            packed[s] = 0;
            ints[s * units + unit] = 0;
        }
        if scale > 0.0 {
            #[unroll]
            for lane in 0..4usize {
                let scaled = v.extract(lane) * scale;
                let int = if comptime!(form.slices == 4) { nearest_wide(scaled) } else { nearest(scaled) };
                let digits = (int + offset) ^ offset;
                #[unroll]
                for s in 0..form.slices {
                    let byte = (digits >> comptime!(8 * s as i32)) & 0xFF;
                    packed[s] |= u32::cast_from(byte) << comptime!(8 * lane as u32);
                    // The byte's sign.
                    ints[s * units + unit] += (byte ^ 0x80) - 0x80;
                }
            }
        }
        if quad < quads {
            let place = quad / 32 * 32 + quad % 4 * 8 + quad % 32 / 8 * 2 + quad % 8 / 4;
            #[unroll]
            for s in 0..form.slices {
                codes[(row * form.slices + s) * quads + place] = packed[s];
            }
        }
        #[unroll]
        for s in 0..form.slices {
            totals[s] += ints[s * units + unit];
        }
        sync_cube();
        let segments = comptime!(units / 8);
        let mut n = unit;
        while n < comptime!(form.slices * units / 8) {
            let (s, segment) = (n / segments, n % segments);
            if chunk * segments + segment < blocks * 4 {
                let mut sum = 0i32;
                #[unroll]
                for i in 0..8usize {
                    sum += ints[s * units + segment * 8 + i];
                }
                sums[(row * form.slices + s) * stride + chunk * segments + segment] = sum;
            }
            n += units;
        }
        sync_cube();
    }
    #[unroll]
    for s in 0..form.slices {
        let total = sum_ints(totals[s], &mut ints, units, form.planes);
        if unit < 4 {
            sums[(row * form.slices + s) * stride + blocks * 4 + unit] = select(unit == 0, total, 0);
        }
    }
}

/// Kernel with f32 output.
#[cube(launch_unchecked)]
pub(super) fn floats<N: Size>(
    x: &[Vector<f32, N>],
    other: &[Vector<f32, N>],
    weight: &[Vector<f32, N>],
    out: &mut [Vector<f32, N>],
    rows: u32,
    cols: u32,
    eps: f32,
    #[comptime] form: Form,
) {
    if CUBE_POS < rows as usize {
        to_floats::<N>(x, other, weight, out, CUBE_POS, cols as usize, eps, form);
    }
}

/// Kernel with quantized output.
#[cube(launch_unchecked)]
pub(super) fn codes<N: Size>(
    x: &[Vector<f32, N>],
    other: &[Vector<f32, N>],
    weight: &[Vector<f32, N>],
    codes: &mut [u32],
    sums: &mut [i32],
    factors: &mut [f32],
    rows: u32,
    cols: u32,
    eps: f32,
    #[comptime] form: Form,
) {
    if CUBE_POS < rows as usize {
        to_codes::<N>(x, other, weight, codes, sums, factors, CUBE_POS, cols as usize, eps, form);
    }
}
