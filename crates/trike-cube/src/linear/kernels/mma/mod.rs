//! int8 matrix instructions: `mma` s8 m16n8k32, with the weights as the 16 x 32 operand.

mod copy;
mod finish;

use cubecl::cmma::{MatrixIdent, MmaDefinition};
use cubecl::prelude::*;

#[expect(unused_imports, reason = "the launch function's arguments")]
use super::DimsLaunch;
use super::{Dims, Form, Quad, four_codes, group_of, segment_factor, sum_of};

/// Tiling of the matrix-instruction kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MmaShape {
    /// Tiles of 16 rows of weights per plane.
    pub tiles: usize,
    /// Groups of eight code rows per plane.
    pub octets: usize,
    /// Planes per cube along the rows of weights.
    pub row_planes: usize,
    /// Planes per cube along the code rows.
    pub code_planes: usize,
    /// Groups of planes per cube that split the columns.
    pub splits: usize,
    /// Steps of `splits` blocks in shared memory, 2 to [`MAX_STAGES`]; all but one of them are in flight.
    pub stages: usize,
    /// Cubes that split the columns, 1 to [`MAX_SPLIT_CUBES`](crate::linear::MAX_SPLIT_CUBES).
    pub cubes: usize,
}

/// Maximum steps of blocks in shared memory.
pub const MAX_STAGES: usize = 4;

impl MmaShape {
    /// Planes per cube.
    #[must_use]
    pub fn planes(self) -> usize {
        self.row_planes * self.code_planes * self.splits
    }

    /// Rows of weights per cube.
    #[must_use]
    pub fn rows(self) -> usize {
        16 * self.tiles * self.row_planes
    }

    /// Code rows per cube.
    #[must_use]
    pub fn code_rows(self) -> usize {
        8 * self.octets * self.code_planes
    }

    /// Partial sums per cube.
    pub(in crate::linear) fn partial(self) -> usize {
        self.rows() * self.code_rows()
    }

    /// Units per cube.
    fn units(self) -> usize {
        32 * self.planes()
    }

    /// True if a plane has all columns of its outputs.
    fn is_whole(self) -> bool {
        self.splits == 1 && self.cubes == 1
    }

    /// True if the sums leave registers for scales that are loaded early. With four tiles of four octets they did not: 2,048 tokens
    /// through 2560 x 2560 took 74 us on an H200 instead of 58.
    fn has_room(self) -> bool {
        self.tiles * self.octets < 16
    }

    /// True if each unit that adds up parts has outputs of a single row of weights.
    fn has_own_row(self) -> bool {
        self.units().is_multiple_of(self.rows())
    }

    /// Outputs that a unit adds up at a time: enough for about 32 loads in flight.
    fn at_once(self, form: Form) -> usize {
        let parts = if self.cubes > 1 { self.cubes } else { self.splits };
        let each = (32 / (parts * form.slices)).clamp(1, 8);
        each.min((self.partial() / form.slices).div_ceil(self.units()))
    }

    /// Vectors of weights per block of a cube.
    pub(in crate::linear) fn weights(self, planes: usize) -> usize {
        self.tiles * self.row_planes * planes * 32
    }

    /// Stride of code rows in shared memory, in vectors: a block plus one of padding, so that a plane's loads access each bank
    /// once.
    const STRIDE: usize = 9;

    /// Vectors of activations per block of a cube.
    fn activations(self) -> usize {
        self.code_rows() * Self::STRIDE
    }

    /// Bytes of shared memory, for sets of `planes` planes of weights.
    pub(in crate::linear) fn shared_bytes(self, planes: usize) -> usize {
        let staged = 16 * self.stages * self.splits * (self.weights(planes) + self.activations());
        let partial = if self.splits > 1 { 4 * self.splits * self.partial() } else { 4 };
        staged + partial + 8
    }
}

/// Position of a unit in the problem.
#[derive(CubeType, Clone, Copy)]
struct Place {
    unit: usize,
    g: usize,
    t: usize,
    /// Index of its group of planes among those that split the columns.
    slot: usize,
    /// The first tile and code row of the cube.
    cube_tile: usize,
    cube_row: usize,
    /// The first tile and code row of the plane.
    tile: usize,
    row: usize,
    /// Blocks per row, and the last tile and code row of the matrices.
    blocks: usize,
    last_tile: usize,
    last: usize,
}

#[cube]
impl Place {
    fn new(dims: &Dims, tiles: usize, #[comptime] shape: MmaShape) -> Place {
        let lane = UNIT_POS_X as usize;
        let plane = UNIT_POS_Y as usize;
        let within = plane % comptime!(shape.row_planes * shape.code_planes);
        let cube_tile = CUBE_POS_X as usize * comptime!(shape.row_planes * shape.tiles);
        let cube_row = CUBE_POS_Y as usize * comptime!(shape.code_rows());
        Place {
            unit: plane * 32 + lane,
            g: lane / 4,
            t: lane % 4,
            slot: plane / comptime!(shape.row_planes * shape.code_planes),
            cube_tile,
            cube_row,
            tile: cube_tile + within / shape.code_planes * shape.tiles,
            row: cube_row + within % shape.code_planes * comptime!(8 * shape.octets),
            blocks: dims.blocks as usize,
            last_tile: tiles - 1,
            last: dims.code_rows as usize - 1,
        }
    }
}

/// Plane `(row, code, slot)` of cube `(x, y, z)` computes `tiles` tiles of weights times `octets` groups of eight code rows.
///
/// A lane's vector of weights holds its part of four operands of 16 rows by 32 columns, unpacked in registers and used for all
/// code rows of the plane; its two vectors of a code row are its part of the four operands of 32 columns by eight. Elements
/// `2t` and `2t + 1` of rows `g` and `g + 8` are the lane's part of a result, as defined by the instruction.
///
/// A step is `splits` blocks of columns, one per group of planes. The units of a cube copy the weights and activations of the next
/// steps to shared memory while one is multiplied. Cube `z` has an equal range of the steps; if there are several, each stores its
/// sums in `scratch`, and the last to arrive adds up all of them, in order.
#[cube(launch_unchecked)]
pub(in crate::linear) fn mma<S: Float>(
    codes: &[Quad],
    scales: &[S],
    means: &[S],
    x: &[Quad],
    sums: &[i32],
    factors: &[f32],
    out0: &mut [f32],
    out1: &mut [f32],
    out2: &mut [f32],
    scratch: &mut [f32],
    arrived: &mut [Atomic<u32>],
    dims: Dims,
    tiles: u32,
    #[comptime] form: Form,
    #[comptime] shape: MmaShape,
) {
    let def = MmaDefinition::<i8, i8, i32>::new(16usize, 8usize, 32usize);
    let size!(NA) = def.vector_size(MatrixIdent::A);
    let size!(NB) = def.vector_size(MatrixIdent::B);
    let size!(NC) = def.vector_size(MatrixIdent::Accumulator);

    let place = Place::new(&dims, tiles as usize, shape);
    let segment = comptime!(form.segment());
    let count = comptime!(shape.tiles * shape.octets);

    // One accumulator per tile and octet: rows g and g + 8, two code rows each.
    let mut acc = Sequence::<Array<Vector<i32, NC>>>::new();
    #[unroll]
    for _ in 0..count {
        let mut c = Array::<Vector<i32, NC>>::new(2usize);
        c[0] = Vector::zeroed();
        c[1] = Vector::zeroed();
        acc.push(c);
    }
    let mut totals = Array::<f32>::new(4 * count);
    #[unroll]
    for n in 0..4 * count {
        totals[n] = 0.0;
    }
    let mut w_stage = Shared::<[Quad]>::new_aligned_slice(
        comptime!(shape.stages * shape.splits * shape.weights(form.planes)),
        16usize,
    );
    let mut x_stage = Shared::<[Quad]>::new_aligned_slice(
        comptime!(shape.stages * shape.splits * shape.activations()),
        16usize,
    );
    let mut words = Array::<Quad>::new(comptime!(shape.tiles * form.planes));
    let mut xs = Array::<Quad>::new(shape.octets);
    let mut of_rows = Array::<S>::new(comptime!(2 * shape.tiles));
    let mut operand_a = Array::<Vector<i8, NA>>::new(4usize);
    let mut operand_b = Array::<Vector<i8, NB>>::new(2usize);

    // Scales of whole rows are used at the end; loaded there, every unit would wait for them.
    let mut of_unit = 1.0f32;
    if comptime!(form.exact() && shape.is_whole() && shape.has_room()) {
        load_rows(&mut of_rows, scales, &place, shape);
    }
    if comptime!(form.exact() && !shape.is_whole() && shape.has_own_row()) {
        let r = place.unit % comptime!(shape.rows());
        let tile = clamp_max(place.cube_tile + r / 16, place.last_tile);
        of_unit = f32::cast_from(scales[tile * 16 + r % 16]);
    }

    let steps = place.blocks.div_ceil(shape.splits);
    let per_cube = steps.div_ceil(shape.cubes);
    let begin = min(CUBE_POS_Z as usize * per_cube, steps);
    let end = min(begin + per_cube, steps);

    #[unroll]
    for set in 0..form.sets {
        #[unroll]
        for s in 0..comptime!(shape.stages - 1) {
            copy::step(codes, x, &mut w_stage, &mut x_stage, begin + s, end, s, &place, form, shape, set);
        }
        // Buffers of the steps that are being multiplied and copied.
        let mut buffer = 0usize;
        let mut copied = comptime!(shape.stages - 1).runtime();
        let mut step = begin;
        while step < end {
            // After the wait and the barrier this step has arrived, including other units' copies, and all planes have read the
            // previous step, whose buffer the next copies overwrite.
            copy::wait(comptime!(shape.stages - 2));
            sync_cube();
            let ahead = step + comptime!(shape.stages - 1);
            copy::step(codes, x, &mut w_stage, &mut x_stage, ahead, end, copied, &place, form, shape, set);
            let block = step * shape.splits + place.slot;
            if comptime!(shape.splits == 1) || block < place.blocks {
                if comptime!(segment == 128) {
                    // Loaded long before they are used.
                    let group = group_of(block * 4, &dims, form.group);
                    #[unroll]
                    for a in 0..shape.tiles {
                        let tile = clamp_max(place.tile + a, place.last_tile);
                        let at = ((tile * form.sets + set) * dims.groups as usize + group) * 16 + place.g;
                        of_rows[2 * a] = scales[at];
                        of_rows[2 * a + 1] = scales[at + 8];
                    }
                }
                let w_from = (buffer * shape.splits + place.slot) * comptime!(shape.weights(form.planes))
                    + (place.tile - place.cube_tile) * comptime!(form.planes * 32)
                    + UNIT_POS_X as usize;
                #[unroll]
                for n in 0..comptime!(shape.tiles * form.planes) {
                    words[n] = w_stage[w_from + comptime!(n * 32)];
                }
                let x_from = (buffer * shape.splits + place.slot) * comptime!(shape.activations())
                    + (place.row - place.cube_row + place.g) * MmaShape::STRIDE
                    + 2 * place.t;
                #[unroll]
                for i in 0..4usize {
                    if comptime!(i % 2 == 0) {
                        #[unroll]
                        for b in 0..shape.octets {
                            xs[b] = x_stage[x_from + comptime!(8 * b * MmaShape::STRIDE + i / 2)];
                        }
                    }
                    #[unroll]
                    for a in 0..shape.tiles {
                        let mut of_tile = Array::<Quad>::new(form.planes);
                        #[unroll]
                        for p in 0..form.planes {
                            of_tile[p] = words[a * form.planes + p];
                        }
                        #[unroll]
                        for j in 0..4usize {
                            operand_a[j] =
                                Vector::<i8, NA>::reinterpret(four_codes(&of_tile, i, j, form.planes));
                        }
                        #[unroll]
                        for b in 0..shape.octets {
                            #[unroll]
                            for h in 0..2usize {
                                operand_b[h] =
                                    Vector::<i8, NB>::reinterpret(xs[b].extract(comptime!(2 * (i % 2) + h)));
                            }
                            let n = comptime!(a * shape.octets + b);
                            def.execute_inplace(&operand_a, &operand_b, acc.index_mut(n));
                        }
                    }
                    if comptime!(segment != 0 && (i + 1) * 32 % segment == 0) {
                        let at32 = block * 4 + comptime!(((i + 1) * 32 - segment) / 32);
                        if comptime!(segment != 128) {
                            let group = group_of(at32, &dims, form.group);
                            #[unroll]
                            for a in 0..shape.tiles {
                                let tile = clamp_max(place.tile + a, place.last_tile);
                                let at =
                                    ((tile * form.sets + set) * dims.groups as usize + group) * 16 + place.g;
                                of_rows[2 * a] = scales[at];
                                of_rows[2 * a + 1] = scales[at + 8];
                            }
                        }
                        scale(
                            &mut acc,
                            &mut totals,
                            &of_rows,
                            means,
                            sums,
                            factors,
                            at32,
                            &place,
                            &dims,
                            form,
                            shape,
                            set,
                            segment,
                        );
                    }
                }
            }
            buffer = select(buffer == comptime!(shape.stages - 1), 0usize, buffer + 1);
            copied = select(copied == comptime!(shape.stages - 1), 0usize, copied + 1);
            step += 1;
        }
        if comptime!(set + 1 < form.sets) {
            // The first copies of the next set overwrite steps that other planes may still be reading.
            sync_cube();
        }
        if comptime!(segment == 0 && !form.exact()) {
            #[unroll]
            for a in 0..shape.tiles {
                let tile = clamp_max(place.tile + a, place.last_tile);
                let at = (tile * form.sets + set) * 16 + place.g;
                of_rows[2 * a] = scales[at];
                of_rows[2 * a + 1] = scales[at + 8];
            }
            scale(
                &mut acc,
                &mut totals,
                &of_rows,
                means,
                sums,
                factors,
                0usize,
                &place,
                &dims,
                form,
                shape,
                set,
                0usize,
            );
        }
    }
    if comptime!(shape.is_whole()) {
        if comptime!(form.exact() && !shape.has_room()) {
            load_rows(&mut of_rows, scales, &place, shape);
        }
        finish::from_registers(
            &mut acc, &totals, &of_rows, factors, out0, out1, out2, &place, &dims, form, shape,
        );
    } else {
        finish::from_parts(
            &mut acc, &totals, of_unit, scales, factors, out0, out1, out2, scratch, arrived, &place, &dims,
            form, shape,
        );
    }
}

/// Loads the scales of a plane's rows, one per row.
#[cube]
fn load_rows<S: Float>(of_rows: &mut Array<S>, scales: &[S], place: &Place, #[comptime] shape: MmaShape) {
    #[unroll]
    for a in 0..shape.tiles {
        let at = clamp_max(place.tile + a, place.last_tile) * 16 + place.g;
        of_rows[2 * a] = scales[at];
        of_rows[2 * a + 1] = scales[at + 8];
    }
}

/// Adds the scaled integer sums of a segment, from segment number `at32` on, or those of a whole row of one set, to the totals,
/// and clears them.
#[cube]
fn scale<S: Float, NC: Size>(
    acc: &mut Sequence<Array<Vector<i32, NC>>>,
    totals: &mut Array<f32>,
    of_rows: &Array<S>,
    means: &[S],
    sums: &[i32],
    factors: &[f32],
    at32: usize,
    place: &Place,
    dims: &Dims,
    #[comptime] form: Form,
    #[comptime] shape: MmaShape,
    #[comptime] set: usize,
    #[comptime] segment: usize,
) {
    let with_means = comptime!(form.means && set == 0);
    // All groups of planes and cubes share a whole row, but a segment belongs to one of them.
    let takes = comptime!(segment != 0) || (place.slot == 0 && CUBE_POS_Z == 0);
    let mut row_sums = Array::<f32>::new(comptime!(if with_means { 2 * shape.octets } else { 1 }));
    let mut row_factors = Array::<f32>::new(comptime!(if form.x_group != 0 { 2 * shape.octets } else { 1 }));
    #[unroll]
    for b in 0..shape.octets {
        #[unroll]
        for col in 0..2usize {
            let row = clamp_max(place.row + comptime!(8 * b + col) + 2 * place.t, place.last);
            if comptime!(with_means) {
                let sum = f32::cast_from(sum_of(sums, row, at32, dims, segment));
                row_sums[2 * b + col] = select(takes, sum, 0.0f32) * comptime!(form.unit());
            }
            if comptime!(form.x_group != 0) {
                row_factors[2 * b + col] =
                    segment_factor(factors, row / form.slices, at32, dims, form.x_group);
            }
        }
    }
    let group = group_of(at32, dims, form.group);
    #[unroll]
    for a in 0..shape.tiles {
        #[unroll]
        for half in 0..2usize {
            let scale = f32::cast_from(of_rows[2 * a + half]);
            let mut mean = 0.0f32;
            if comptime!(with_means) {
                let tile = clamp_max(place.tile + a, place.last_tile);
                let r = place.g + comptime!(8 * half);
                mean = f32::cast_from(means[(tile * dims.groups as usize + group) * 16 + r]);
            }
            #[unroll]
            for b in 0..shape.octets {
                #[unroll]
                for col in 0..2usize {
                    let n = comptime!(a * shape.octets + b);
                    let c = acc.index_mut(n);
                    let mut value = f32::cast_from(c[half].extract(col)) * scale;
                    if comptime!(with_means) {
                        value += row_sums[2 * b + col] * mean;
                    }
                    if comptime!(form.x_group != 0) {
                        value *= row_factors[2 * b + col];
                    }
                    totals[comptime!(4 * n + 2 * half + col)] += value;
                }
            }
        }
    }
    #[unroll]
    for n in 0..comptime!(shape.tiles * shape.octets) {
        let c = acc.index_mut(n);
        c[0] = Vector::zeroed();
        c[1] = Vector::zeroed();
    }
}
