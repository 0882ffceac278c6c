//! Few-token kernel: 4-byte dot products, the columns of a row split across the units of a cube.

use cubecl::prelude::*;

#[expect(unused_imports, reason = "the launch function's arguments")]
use super::DimsLaunch;
use super::combine::leave;
use super::{Dims, Form, Quad, four_codes, group_of, segment_factor, store, stored, sum_of};

/// Cube `(tile, chunk)` computes 16 rows for `rows` code rows.
///
/// Its units are `(32, splits)`: unit `(lane, k)` processes blocks `k, k + splits, ..` of the tile, per block one vector of
/// weights and two of each code row, and holds sums of two rows of weights times `rows`. The units' sums are added up in shared
/// memory at the end; no plane operations are used, so any plane size works.
///
/// When the columns are also split across cubes, cube `(tile, chunk, z)` has the groups from `z * splits` on, and stores its
/// partial sums to `out0`, which is then the scratch buffer of [`combine`](super::combine::combine), not an output.
///
/// For one or two code rows, where the kernel is memory-bound, the weights of the next blocks (for one row of one plane the
/// activations too) are in flight while one is multiplied: a ring of [`ring_slots`] blocks, whose slots are registers because
/// the loop is unrolled.
///
/// When zero blocks are omitted, `index` holds the start of each tile's blocks, followed by the block numbers.
#[cube(launch_unchecked)]
pub(in crate::linear) fn decode<S: Float>(
    codes: &[Quad],
    scales: &[S],
    means: &[S],
    x: &[Quad],
    sums: &[i32],
    factors: &[f32],
    index: &[u32],
    out0: &mut [f32],
    out1: &mut [f32],
    out2: &mut [f32],
    dims: Dims,
    #[comptime] form: Form,
    #[comptime] rows: usize,
    #[comptime] splits: usize,
    #[comptime] cubes: usize,
) {
    let place = Place::new(rows, splits);
    let blocks = dims.blocks as usize;
    let mut first = place.k;
    let mut end = blocks;
    if comptime!(form.skip) {
        first += index[place.tile] as usize;
        end = index[place.tile + 1] as usize;
    }
    let segment = comptime!(form.segment());
    let ahead = load_ahead(scales, factors, out0, out1, out2, &place, &dims, form, rows, splits, cubes);

    let mut ints = Array::<i32>::new(2 * rows);
    let mut totals = Array::<f32>::new(2 * rows);
    #[unroll]
    for n in 0..2 * rows {
        ints[n] = 0;
        totals[n] = 0.0;
    }
    let mut words = Array::<Quad>::new(form.planes);
    let mut xs = Array::<Quad>::new(2 * rows);
    let slots = comptime!(ring_slots(form, rows));
    let mut ring = Array::<Quad>::new(comptime!((slots * form.planes).max(1)));
    // With more planes or rows this would halve the occupancy, for lack of registers.
    let has_x = comptime!(slots > 1 && form.planes == 1 && rows == 1);
    let mut ring_x = Array::<Quad>::new(comptime!(if has_x { slots * 2 * rows } else { 1 }));
    let step = comptime!(splits * cubes);

    #[unroll]
    for set in 0..form.sets {
        let plane = place.tile * form.sets + set;
        let mut at = first;
        if comptime!(slots > 0) {
            #[unroll]
            for s in 0..slots {
                // Past the last block the last one is loaded again, from cache.
                let block = clamp_max(first + comptime!(s * step), blocks - 1);
                load_words(&mut ring, codes, plane * blocks + block, &place, s, form.planes);
                if comptime!(has_x) {
                    load_x(&mut ring_x, x, block, &place, &dims, s, rows);
                }
            }
            while at < end {
                #[unroll]
                for s in 0..slots {
                    let block = at + comptime!(s * step);
                    if block < end {
                        #[unroll]
                        for p in 0..form.planes {
                            words[p] = ring[s * form.planes + p];
                        }
                        if comptime!(has_x) {
                            #[unroll]
                            for m in 0..2 * rows {
                                xs[m] = ring_x[s * 2 * rows + m];
                            }
                        } else {
                            load_x(&mut xs, x, block, &place, &dims, 0usize, rows);
                        }
                        let ahead = clamp_max(block + comptime!(slots * step), blocks - 1);
                        load_words(&mut ring, codes, plane * blocks + ahead, &place, s, form.planes);
                        if comptime!(has_x) {
                            load_x(&mut ring_x, x, ahead, &place, &dims, s, rows);
                        }
                        multiply_block(
                            &words,
                            &xs,
                            &mut ints,
                            &mut totals,
                            scales,
                            means,
                            sums,
                            factors,
                            block,
                            &place,
                            &dims,
                            form,
                            rows,
                            set,
                        );
                    }
                }
                at += comptime!(slots * step);
            }
        } else {
            while at < end {
                let mut block = at;
                let mut vectors = plane * blocks + at;
                if comptime!(form.skip) {
                    // One cube per tile, so the block numbers follow `CUBE_COUNT_X + 1` starts.
                    block = index[CUBE_COUNT_X as usize + 1 + at] as usize;
                    vectors = at * form.sets + set;
                }
                load_words(&mut words, codes, vectors, &place, 0usize, form.planes);
                load_x(&mut xs, x, block, &place, &dims, 0usize, rows);
                multiply_block(
                    &words,
                    &xs,
                    &mut ints,
                    &mut totals,
                    scales,
                    means,
                    sums,
                    factors,
                    block,
                    &place,
                    &dims,
                    form,
                    rows,
                    set,
                );
                at += step;
            }
        }
        if comptime!(segment == 0 && !form.exact()) {
            scale_segment(
                &mut ints,
                &mut totals,
                scales,
                means,
                sums,
                factors,
                0usize,
                &place,
                &dims,
                form,
                rows,
                set,
                0usize,
            );
        }
    }
    finish(
        &ints, &totals, &ahead, scales, sums, factors, out0, out1, out2, &place, &dims, form, rows, splits,
        cubes,
    );
}

/// Operands of a unit's outputs, loaded before the sums: at the end nothing else hides the latency.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Ahead {
    scale: f32,
    factor: f32,
    /// The previous output, to which the product is added.
    old: f32,
}

/// True if each unit of a cube stores at most one output, so that [`Ahead`] has all of them.
fn is_early(form: Form, rows: usize, splits: usize, cubes: usize) -> bool {
    cubes == 1 && rows / form.slices <= 2 * splits
}

/// Loads the operands; defaults if [`finish`] loads them itself.
#[cube]
pub(crate) fn load_ahead<S: Float>(
    scales: &[S],
    factors: &[f32],
    out0: &mut [f32],
    out1: &mut [f32],
    out2: &mut [f32],
    place: &Place,
    dims: &Dims,
    #[comptime] form: Form,
    #[comptime] rows: usize,
    #[comptime] splits: usize,
    #[comptime] cubes: usize,
) -> Ahead {
    let mut scale = 1.0f32;
    let mut factor = 1.0f32;
    let mut old = 0.0f32;
    if comptime!(is_early(form, rows, splits, cubes)) {
        let index = place.slot * 32 + place.lane;
        let r = index % 16;
        let token = place.first / form.slices + index / 16;
        if index < comptime!(16 * rows / form.slices) && token * form.slices < dims.code_rows as usize {
            if comptime!(form.exact()) {
                scale = f32::cast_from(scales[place.tile * 16 + r]);
            }
            if comptime!(form.x_group == 0) {
                factor = factors[token];
            }
            if comptime!(form.add) {
                old = stored(out0, out1, out2, token, place.tile, r, dims, form);
            }
        }
    }
    Ahead { scale, factor, old }
}

/// Blocks whose weights and activations are in flight while one is multiplied; 0 = blocks are loaded on demand.
///
/// Reading 4.3 TB/s with 132 multiprocessors takes 23 KB in flight on each; 1,024 resident units with three vectors of weights each
/// are 48 KB, which leaves room for matrices of few tiles. With two planes or more, two blocks are as many bytes.
pub(crate) fn ring_slots(form: Form, rows: usize) -> usize {
    match form.planes {
        _ if form.skip || rows > 2 => 0,
        // The loop is also unrolled once per set, and cubes of 1,024 units have 64 registers per unit.
        _ if form.sets > 1 => 1,
        1 => 3,
        _ => 2,
    }
}

/// Loads a lane's words of all planes of a block into a slot of `words`.
#[cube]
pub(crate) fn load_words(
    words: &mut Array<Quad>,
    codes: &[Quad],
    vectors: usize,
    place: &Place,
    #[comptime] slot: usize,
    #[comptime] planes: usize,
) {
    #[unroll]
    for p in 0..planes {
        words[slot * planes + p] = codes[(vectors * planes + p) * 32 + place.lane];
    }
}

/// Loads a lane's activations of a block into a slot of `xs`: two vectors for each code row.
#[cube]
fn load_x(
    xs: &mut Array<Quad>,
    x: &[Quad],
    block: usize,
    place: &Place,
    dims: &Dims,
    #[comptime] slot: usize,
    #[comptime] rows: usize,
) {
    let last = dims.code_rows as usize - 1;
    #[unroll]
    for m in 0..rows {
        // Rows past the last repeat the last one and are not stored.
        let at = (clamp_max(place.first + m, last) * dims.blocks as usize + block) * 8 + place.t * 2;
        xs[slot * 2 * rows + 2 * m] = x[at];
        xs[slot * 2 * rows + 2 * m + 1] = x[at + 1];
    }
}

/// Adds a block's products to the integer sums, and scales them where a segment ends.
#[cube]
pub(crate) fn multiply_block<S: Float>(
    words: &Array<Quad>,
    xs: &Array<Quad>,
    ints: &mut Array<i32>,
    totals: &mut Array<f32>,
    scales: &[S],
    means: &[S],
    sums: &[i32],
    factors: &[f32],
    block: usize,
    place: &Place,
    dims: &Dims,
    #[comptime] form: Form,
    #[comptime] rows: usize,
    #[comptime] set: usize,
) {
    let segment = comptime!(form.segment());
    #[unroll]
    for i in 0..4usize {
        #[unroll]
        for j in 0..4usize {
            let four = four_codes(words, i, j, form.planes);
            #[unroll]
            for m in 0..rows {
                let meets = comptime!(i * 2 + j / 2);
                let four_x = xs[2 * m + comptime!(meets / 4)].extract(comptime!(meets % 4));
                let n = comptime!((j % 2) * rows + m);
                ints[n] = dp4a(four, i32::reinterpret(four_x), ints[n]);
            }
        }
        if comptime!(segment != 0 && (i + 1) * 32 % segment == 0) {
            let at32 = block * 4 + comptime!(((i + 1) * 32 - segment) / 32);
            scale_segment(
                ints, totals, scales, means, sums, factors, at32, place, dims, form, rows, set, segment,
            );
        }
    }
}

/// Position of a unit in the problem.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Place {
    /// The tile of the cube.
    pub(crate) tile: usize,
    /// The lane of the tile, `4 g + t`.
    pub(crate) lane: usize,
    pub(crate) g: usize,
    pub(crate) t: usize,
    /// Index of its group among all groups of units that split the columns, across cubes.
    pub(crate) k: usize,
    /// Index of its group within the cube.
    pub(crate) slot: usize,
    /// The first code row of the cube.
    pub(crate) first: usize,
}

#[cube]
impl Place {
    pub(crate) fn new(#[comptime] rows: usize, #[comptime] splits: usize) -> Place {
        let lane = UNIT_POS_X as usize;
        let slot = UNIT_POS_Y as usize;
        Place {
            tile: CUBE_POS_X as usize,
            lane,
            g: lane / 4,
            t: lane % 4,
            k: CUBE_POS_Z as usize * splits + slot,
            slot,
            first: CUBE_POS_Y as usize * rows,
        }
    }
}

/// Scales the integer sums of a segment, from segment number `at32` on, or those of a whole row of one set; one of the four lanes
/// of a row adds the mean and subtracts the bias for all four.
#[cube]
pub(crate) fn scale_segment<S: Float>(
    ints: &mut Array<i32>,
    totals: &mut Array<f32>,
    scales: &[S],
    means: &[S],
    sums: &[i32],
    factors: &[f32],
    at32: usize,
    place: &Place,
    dims: &Dims,
    #[comptime] form: Form,
    #[comptime] rows: usize,
    #[comptime] set: usize,
    #[comptime] segment: usize,
) {
    let last = dims.code_rows as usize - 1;
    let group = group_of(at32, dims, form.group);
    let at = ((place.tile * form.sets + set) * dims.groups as usize + group) * 16 + place.g;
    let of_mean = (place.tile * dims.groups as usize + group) * 16 + place.g;
    // All groups of units share a whole row, but a segment belongs to one group.
    let takes = place.t == 0 && (comptime!(segment != 0) || place.k == 0);
    #[unroll]
    for m in 0..rows {
        let row = clamp_max(place.first + m, last);
        let factor = segment_factor(factors, row / form.slices, at32, dims, form.x_group);
        let mut sum = 0i32;
        if comptime!(form.needs_sums()) && takes {
            sum = sum_of(sums, row, at32, dims, segment);
        }
        #[unroll]
        for half in 0..2usize {
            let n = comptime!(half * rows + m);
            let int = ints[n] - sum * comptime!(form.bias());
            let mut value = f32::cast_from(int) * f32::cast_from(scales[at + comptime!(8 * half)]);
            if comptime!(form.means && set == 0) {
                value += f32::cast_from(sum)
                    * f32::cast_from(means[of_mean + comptime!(8 * half)])
                    * comptime!(form.unit());
            }
            totals[n] += value * factor;
            ints[n] = 0;
        }
    }
}

/// Adds up the sums of a cube's units, combines the digits of each token, and stores the outputs; with columns split across
/// cubes, stores partial sums for [`combine`](super::combine::combine).
#[cube]
pub(crate) fn finish<S: Float>(
    ints: &Array<i32>,
    totals: &Array<f32>,
    ahead: &Ahead,
    scales: &[S],
    sums: &[i32],
    factors: &[f32],
    out0: &mut [f32],
    out1: &mut [f32],
    out2: &mut [f32],
    place: &Place,
    dims: &Dims,
    #[comptime] form: Form,
    #[comptime] rows: usize,
    #[comptime] splits: usize,
    #[comptime] cubes: usize,
) {
    let last = dims.code_rows as usize - 1;
    // `[k][t][m][row of the tile]`.
    let per_lane = comptime!(16 * rows);
    let all = comptime!(4 * splits * per_lane);
    let mut shared_ints = Shared::<[i32]>::new_slice(comptime!(if form.exact() { all } else { 1 }));
    let mut shared_floats = Shared::<[f32]>::new_slice(comptime!(if form.exact() { 1 } else { all }));
    #[unroll]
    for m in 0..rows {
        #[unroll]
        for half in 0..2usize {
            let at = (place.slot * 4 + place.t) * per_lane + comptime!(m * 16 + half * 8) + place.g;
            let n = comptime!(half * rows + m);
            if comptime!(form.exact()) {
                shared_ints[at] = ints[n];
            } else {
                shared_floats[at] = totals[n];
            }
        }
    }
    sync_cube();

    if comptime!(cubes > 1) {
        let mut index = place.slot * 32 + place.lane;
        while index < per_lane {
            let (r, row) = (index % 16, place.first + index / 16);
            if row <= last {
                let mut int = 0i32;
                let mut float = 0.0f32;
                for part in 0..comptime!(4 * splits) {
                    if comptime!(form.exact()) {
                        int += shared_ints[part * per_lane + index];
                    } else {
                        float += shared_floats[part * per_lane + index];
                    }
                }
                leave(out0, int, float, row, place.tile, r, CUBE_COUNT_X as usize, dims, form);
            }
            index += comptime!(32 * splits);
        }
    } else {
        let tokens = comptime!(rows / form.slices);
        let mut index = place.slot * 32 + place.lane;
        while index < 16 * tokens {
            let (r, within) = (index % 16, index / 16);
            let token = place.first / form.slices + within;
            if token * form.slices <= last {
                let mut value = 0.0f32;
                // From the most significant digit down.
                #[unroll]
                for s in 0..form.slices {
                    let m = within * form.slices + comptime!(form.slices - 1 - s);
                    let mut digit = 0.0f32;
                    if comptime!(form.exact()) {
                        let mut int = 0i32;
                        for part in 0..comptime!(4 * splits) {
                            int += shared_ints[part * per_lane + m * 16 + r];
                        }
                        if comptime!(form.needs_sums()) {
                            int -= sum_of(sums, place.first + m, 0, dims, 0usize) * comptime!(form.bias());
                        }
                        digit = f32::cast_from(int);
                    } else {
                        for part in 0..comptime!(4 * splits) {
                            digit += shared_floats[part * per_lane + m * 16 + r];
                        }
                    }
                    value = value * 256.0 + digit;
                }
                if comptime!(is_early(form, rows, splits, cubes)) {
                    value = value * ahead.scale * ahead.factor;
                    if comptime!(form.add) {
                        value += ahead.old * comptime!(form.unit());
                    }
                    let form = comptime!(Form { add: false, ..form });
                    store(out0, out1, out2, value, token, place.tile, r, dims, form);
                } else {
                    if comptime!(form.exact()) {
                        value *= f32::cast_from(scales[place.tile * 16 + r]);
                    }
                    if comptime!(form.x_group == 0) {
                        value *= factors[token];
                    }
                    store(out0, out1, out2, value, token, place.tile, r, dims, form);
                }
            }
            index += comptime!(32 * splits);
        }
    }
}
