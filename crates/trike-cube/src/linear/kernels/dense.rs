//! Dense and int8 weights times f32 activations.

use cubecl::prelude::*;

use crate::linear::dense::DenseKind;

/// Rows per cube of [`dense_decode`].
pub(in crate::linear) const ROWS: usize = 2;
/// Units per cube of [`dense_decode`].
pub(in crate::linear) const UNITS: usize = 64;
/// Partial sums after the first step of the reduction over the units.
const PARTS: usize = 8;
/// Rows and tokens per cube of [`dense_tiled`].
pub(in crate::linear) const SIDE: usize = 64;
/// Columns per step of [`dense_tiled`].
const STEP: usize = 16;
/// Row stride of a tile in shared memory, in floats; odd, so that rows start in different banks.
const STRIDE: usize = STEP + 1;
/// Shared memory of [`dense_tiled`].
pub(in crate::linear) const TILED_SHARED_BYTES: usize = 2 * SIDE * STRIDE * 4;

/// Shared memory of [`dense_decode`].
pub(in crate::linear) fn shared_bytes(tokens: usize) -> usize {
    4 * ROWS * tokens * (UNITS + PARTS)
}

/// Compile-time parameters of the dense kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DenseCompiled {
    pub(crate) kind: DenseKind,
    pub(crate) scale: ScaleMode,
    pub(crate) add: bool,
}

/// Granularity of the int8 scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ScaleMode {
    /// No scales.
    None,
    /// One scale per row.
    Row,
    /// Scales change only between words.
    Word,
    /// Scales may change at any weight.
    Weight,
}

/// Weight `i` of a word.
#[cube]
pub(crate) fn weight_of(word: u32, #[comptime] i: usize, #[comptime] kind: DenseKind) -> f32 {
    if comptime!(kind == DenseKind::F32) {
        f32::reinterpret(word)
    } else if comptime!(kind == DenseKind::Bf16) {
        if comptime!(i == 0) { f32::reinterpret(word << 16) } else { f32::reinterpret(word & 0xFFFF_0000) }
    } else if comptime!(kind == DenseKind::F16) {
        widened((word >> comptime!(16 * i as u32)) & 0xFFFF)
    } else {
        // Shift the byte to the top, then back with sign extension.
        f32::cast_from(i32::reinterpret(word << comptime!(24 - 8 * i as u32)) >> 24)
    }
}

/// Converts a finite f16 to f32 with integer operations: not every device has f16, and subnormals must not be flushed.
#[cube]
fn widened(half: u32) -> f32 {
    let magnitude = half & 0x7FFF;
    let normal = f32::reinterpret((magnitude << 13) + 0x3800_0000);
    let small = f32::cast_from(magnitude) * 5.960_464_5e-8;
    let value = select(magnitude < 0x400, small, normal);
    select(half >= 0x8000, -value, value)
}

/// The scale of the weight at a column.
#[cube]
fn scale_of(scales: &[f32], row: usize, col: usize, group: u32, groups: u32) -> f32 {
    scales[row * groups as usize + clamp_max(col / group as usize, groups as usize - 1)]
}

#[cube]
pub(in crate::linear) fn put(out: &mut [f32], at: usize, value: f32, #[comptime] add: bool) {
    if comptime!(add) {
        out[at] += value;
    } else {
        out[at] = value;
    }
}

/// Cube `(x, y, z)` computes two rows for `each` tokens, the pair of rows `z * cubes along x + x`; unit `u` processes every
/// 64th word of the rows.
#[cube(launch_unchecked)]
pub(in crate::linear) fn dense_decode(
    words: &[u32],
    scales: &[f32],
    x: &[f32],
    out: &mut [f32],
    tokens: u32,
    rows: u32,
    cols: u32,
    stride: u32,
    group: u32,
    groups: u32,
    #[comptime] form: DenseCompiled,
    #[comptime] each: usize,
) {
    let unit = UNIT_POS_X as usize;
    // May be past the last row in the last line of cubes.
    let first_row = (CUBE_POS_Z * CUBE_COUNT_X + CUBE_POS_X) as usize * ROWS;
    let first_token = CUBE_POS_Y as usize * each;
    let (last_row, last_token) = (rows as usize - 1, tokens as usize - 1);
    let (cols, stride) = (cols as usize, stride as usize);
    let per = comptime!(form.kind.per_word());
    let count = comptime!(ROWS * each);
    let is_word = comptime!(form.scale == ScaleMode::Word);

    let mut sums = Array::<f32>::new(count);
    #[unroll]
    for n in 0..count {
        sums[n] = 0.0;
    }
    let mut index = unit;
    while index < stride {
        let mut packed = Array::<u32>::new(ROWS);
        #[unroll]
        for r in 0..ROWS {
            // Rows and tokens past the last repeat the last one and are not stored.
            packed[r] = words[clamp_max(first_row + r, last_row) * stride + index];
        }
        // Sums of a word, if one scale covers it.
        let mut products = Array::<f32>::new(comptime!(if is_word { count } else { 1 }));
        #[unroll]
        for n in 0..comptime!(if is_word { count } else { 0 }) {
            products[n] = 0.0;
        }
        #[unroll]
        for i in 0..per {
            let col = index * per + i;
            let mut weights = Array::<f32>::new(ROWS);
            #[unroll]
            for r in 0..ROWS {
                weights[r] = weight_of(packed[r], i, form.kind);
                if comptime!(form.scale == ScaleMode::Weight) {
                    weights[r] *= scale_of(scales, clamp_max(first_row + r, last_row), col, group, groups);
                }
            }
            // The padding's weights are zero; `x` has no padding.
            let at = clamp_max(col, cols - 1);
            #[unroll]
            for m in 0..each {
                let token = clamp_max(first_token + m, last_token);
                let value = select(col < cols, x[token * cols + at], 0.0f32);
                #[unroll]
                for r in 0..ROWS {
                    if comptime!(is_word) {
                        products[comptime!(r * each + m)] += weights[r] * value;
                    } else {
                        sums[comptime!(r * each + m)] += weights[r] * value;
                    }
                }
            }
        }
        if comptime!(is_word) {
            // One division and one scale per word.
            #[unroll]
            for r in 0..ROWS {
                let row = clamp_max(first_row + r, last_row);
                let scale = scale_of(scales, row, index * per, group, groups);
                #[unroll]
                for m in 0..each {
                    sums[comptime!(r * each + m)] += products[comptime!(r * each + m)] * scale;
                }
            }
        }
        index += UNITS;
    }

    let mut shared = Shared::<[f32]>::new_slice(comptime!(count * UNITS));
    let mut parts = Shared::<[f32]>::new_slice(comptime!(count * PARTS));
    #[unroll]
    for n in 0..count {
        shared[n * UNITS + unit] = sums[n];
    }
    sync_cube();
    let mut index = unit;
    while index < comptime!(count * PARTS) {
        let mut sum = 0.0f32;
        for i in 0..comptime!(UNITS / PARTS) {
            // Neighbouring units read neighbouring words.
            sum += shared[index / PARTS * UNITS + index % PARTS + i * PARTS];
        }
        parts[index] = sum;
        index += UNITS;
    }
    sync_cube();
    if unit < count {
        let (row, token) = (first_row + unit / each, first_token + unit % each);
        if row <= last_row && token <= last_token {
            let mut sum = 0.0f32;
            for i in 0..comptime!(PARTS) {
                sum += parts[unit * PARTS + i];
            }
            if comptime!(form.scale == ScaleMode::Row) {
                sum *= scales[row];
            }
            put(out, token * rows as usize + row, sum, form.add);
        }
    }
}

/// Cube `(x, y)` computes 64 rows for 64 tokens; unit `(r, m)` holds rows `r, r + 16, ..` times tokens `m, m + 16, ..`.
#[cube(launch_unchecked)]
pub(in crate::linear) fn dense_tiled(
    words: &[u32],
    scales: &[f32],
    x: &[f32],
    out: &mut [f32],
    tokens: u32,
    rows: u32,
    cols: u32,
    stride: u32,
    group: u32,
    groups: u32,
    #[comptime] form: DenseCompiled,
) {
    let (r, m) = (UNIT_POS_X as usize, UNIT_POS_Y as usize);
    let unit = m * 16 + r;
    let first_row = CUBE_POS_X as usize * SIDE;
    let first_token = CUBE_POS_Y as usize * SIDE;
    let (last_row, last_token) = (rows as usize - 1, tokens as usize - 1);
    let (cols, stride) = (cols as usize, stride as usize);
    let per = comptime!(form.kind.per_word());

    let mut w_tile = Shared::<[f32]>::new_slice(comptime!(SIDE * STRIDE));
    let mut x_tile = Shared::<[f32]>::new_slice(comptime!(SIDE * STRIDE));
    let mut sums = Array::<f32>::new(16usize);
    #[unroll]
    for n in 0..16usize {
        sums[n] = 0.0;
    }

    let mut start = 0usize;
    while start < cols {
        // Unit `u` loads columns `4 (u % 4) ..` of row and token `u / 4`.
        let (line, first) = (unit / 4, unit % 4 * 4);
        let row = clamp_max(first_row + line, last_row);
        let token = clamp_max(first_token + line, last_token);
        #[unroll]
        for word in 0..comptime!(4 / per) {
            let packed = words[row * stride + (start + first) / per + word];
            #[unroll]
            for i in 0..per {
                let within = comptime!(word * per + i);
                let mut weight = weight_of(packed, i, form.kind);
                if comptime!(form.scale == ScaleMode::Word || form.scale == ScaleMode::Weight) {
                    weight *= scale_of(scales, row, start + first + within, group, groups);
                }
                w_tile[line * STRIDE + first + within] = weight;
            }
        }
        #[unroll]
        for i in 0..4usize {
            let col = start + first + i;
            x_tile[line * STRIDE + first + i] =
                select(col < cols, x[token * cols + clamp_max(col, cols - 1)], 0.0f32);
        }
        sync_cube();
        for step in 0..comptime!(STEP) {
            let mut ws = Array::<f32>::new(4usize);
            #[unroll]
            for a in 0..4usize {
                ws[a] = w_tile[(r + comptime!(16 * a)) * STRIDE + step];
            }
            #[unroll]
            for b in 0..4usize {
                let value = x_tile[(m + comptime!(16 * b)) * STRIDE + step];
                #[unroll]
                for a in 0..4usize {
                    sums[comptime!(4 * a + b)] += ws[a] * value;
                }
            }
        }
        sync_cube();
        start += STEP;
    }

    #[unroll]
    for a in 0..4usize {
        let row = first_row + r + comptime!(16 * a);
        #[unroll]
        for b in 0..4usize {
            let token = first_token + m + comptime!(16 * b);
            if row <= last_row && token <= last_token {
                let mut sum = sums[comptime!(4 * a + b)];
                if comptime!(form.scale == ScaleMode::Row) {
                    sum *= scales[row];
                }
                put(out, token * rows as usize + row, sum, form.add);
            }
        }
    }
}
