//! int8 matrix instructions: `mma` s8 m16n8k32, with the weights as the 16 x 32 operand.

use cubecl::cmma::{MatrixIdent, MmaDefinition};
use cubecl::prelude::barrier::copy_async;
use cubecl::prelude::*;

#[expect(unused_imports, reason = "the launch function's arguments")]
use super::DimsLaunch;
use super::combine::leave;
use super::{Dims, Form, Quad, four_codes, group_of, segment_factor, store, sum_of};

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
    /// Planes per cube that split the columns; with more than one, the two above must be 1.
    pub splits: usize,
    /// Staging of the activations.
    pub staging: Staging,
}

/// Staging of activation blocks for the planes of a cube, see [`MmaShape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Staging {
    /// Each plane loads its own rows from global memory.
    Direct,
    /// Double-buffered shared memory: the next block is held in registers while one is multiplied.
    Registers,
    /// Multi-buffered shared memory, filled by asynchronous copies (`cp.async`) that bypass registers while an earlier block is
    /// multiplied.
    Async {
        /// Blocks of shared memory, 2 to [`MAX_STAGES`]; all but one of them are in flight.
        stages: usize,
    },
}

/// Maximum blocks of activations in shared memory.
pub const MAX_STAGES: usize = 4;

impl Staging {
    /// Blocks of shared memory.
    #[must_use]
    pub fn stages(self) -> usize {
        match self {
            Self::Direct => 0,
            Self::Registers => 2,
            Self::Async { stages } => stages,
        }
    }

    /// Returns true if the copies are asynchronous.
    #[must_use]
    pub fn is_async(self) -> bool {
        matches!(self, Self::Async { .. })
    }
}

impl MmaShape {
    /// Planes per cube.
    #[must_use]
    pub fn planes(self) -> usize {
        self.row_planes * self.code_planes * self.splits
    }

    /// Stride of code rows in shared memory, in vectors: a block and one of padding, so that a plane's loads access each bank
    /// once.
    const STRIDE: usize = 9;

    /// Vectors per staged block.
    pub(super) fn stage(self) -> usize {
        self.code_planes * self.octets * 8 * Self::STRIDE
    }

    /// Vectors of a block copied per unit.
    pub(super) fn copies(self) -> usize {
        self.octets * 8 * 8 / (32 * self.row_planes)
    }

    /// Bytes of shared memory.
    pub(in crate::linear) fn shared_bytes(self) -> usize {
        let staged = 16 * (self.staging.stages() * self.stage()).max(1);
        let partial = if self.splits > 1 { 4 * self.splits * 16 * self.tiles * 8 * self.octets } else { 4 };
        staged + partial + 4
    }
}

/// Plane `(row, code, k)` of cube `(x, y)` computes `tiles` tiles of weights times `octets` groups of eight code rows.
///
/// A lane's vector of weights holds its part of four operands of 16 rows by 32 columns, unpacked in registers and used for all
/// code rows of the plane; its two vectors of a code row are its part of the four operands of 32 columns by eight. Elements
/// `2t` and `2t + 1` of rows `g` and `g + 8` are the lane's part of a result, as defined by the instruction.
///
/// When the columns are also split across cubes, cube `(x, y, z)` has the splits from `z * splits` on, and `out0` is the
/// scratch buffer of [`combine`](super::combine::combine).
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
    dims: Dims,
    tiles: u32,
    #[comptime] form: Form,
    #[comptime] shape: MmaShape,
    #[comptime] cubes: usize,
) {
    let def = MmaDefinition::<i8, i8, i32>::new(16usize, 8usize, 32usize);
    let size!(NA) = def.vector_size(MatrixIdent::A);
    let size!(NB) = def.vector_size(MatrixIdent::B);
    let size!(NC) = def.vector_size(MatrixIdent::Accumulator);

    let lane = UNIT_POS_X as usize;
    let (g, t) = (lane / 4, lane % 4);
    let plane = UNIT_POS_Y as usize;
    let slot = plane / comptime!(shape.row_planes * shape.code_planes);
    let k = CUBE_POS_Z as usize * shape.splits + slot;
    let within = plane % comptime!(shape.row_planes * shape.code_planes);
    let row_plane = within / shape.code_planes;
    let code_plane = within % shape.code_planes;
    let first_tile = (CUBE_POS_X as usize * shape.row_planes + row_plane) * shape.tiles;
    let cube_first = CUBE_POS_Y as usize * comptime!(shape.code_planes * shape.octets * 8);
    let first = cube_first + code_plane * comptime!(shape.octets * 8);
    let blocks = dims.blocks as usize;
    let last = dims.code_rows as usize - 1;
    let last_tile = tiles as usize - 1;
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

    let mut stage = Shared::<[Quad]>::new_aligned_slice(
        comptime!((shape.staging.stages() * shape.stage()).max(1)),
        16usize,
    );
    let in_registers = comptime!(shape.staging == Staging::Registers);
    let mut copied = Array::<Quad>::new(comptime!(if in_registers { shape.copies() } else { 1 }));
    let unit = plane * 32 + lane;
    let units = comptime!(32 * shape.planes());

    let mut words = Array::<Quad>::new(comptime!(shape.tiles * form.planes));
    let mut next = Array::<Quad>::new(comptime!(shape.tiles * form.planes));
    let mut xs = Array::<Quad>::new(comptime!(2 * shape.octets));
    let mut operand_a = Array::<Vector<i8, NA>>::new(4usize);
    let mut operand_b = Array::<Vector<i8, NB>>::new(2usize);

    #[unroll]
    for set in 0..form.sets {
        #[unroll]
        for a in 0..shape.tiles {
            let tile = clamp_max(first_tile + a, last_tile) * form.sets + set;
            #[unroll]
            for p in 0..form.planes {
                next[a * form.planes + p] =
                    codes[((tile * blocks + clamp_max(k, blocks - 1)) * form.planes + p) * 32 + lane];
            }
        }
        if comptime!(in_registers) {
            #[unroll]
            for c in 0..shape.copies() {
                let vector = unit + comptime!(c * units);
                let row = clamp_max(cube_first + vector / 8, last);
                stage[vector / 8 * MmaShape::STRIDE + vector % 8] = x[row * blocks * 8 + vector % 8];
            }
            sync_cube();
        }
        if comptime!(shape.staging.is_async()) {
            #[unroll]
            for s in 0..comptime!(shape.staging.stages() - 1) {
                copy_block(x, &mut stage, s, blocks, cube_first, last, unit, units, shape);
            }
        }
        let mut block = k;
        while block < blocks {
            // Prefetch the next block while this one is multiplied.
            let ahead = clamp_max(block + comptime!(shape.splits * cubes), blocks - 1);
            #[unroll]
            for n in 0..comptime!(shape.tiles * form.planes) {
                words[n] = next[n];
            }
            #[unroll]
            for a in 0..shape.tiles {
                let tile = clamp_max(first_tile + a, last_tile) * form.sets + set;
                #[unroll]
                for p in 0..form.planes {
                    next[a * form.planes + p] =
                        codes[((tile * blocks + ahead) * form.planes + p) * 32 + lane];
                }
            }
            if comptime!(in_registers) {
                #[unroll]
                for c in 0..shape.copies() {
                    let vector = unit + comptime!(c * units);
                    let row = clamp_max(cube_first + vector / 8, last);
                    copied[c] = x[(row * blocks + ahead) * 8 + vector % 8];
                }
            }
            if comptime!(shape.staging.is_async()) {
                // After the wait and the barrier this block has arrived, including other units' copies, and all planes have
                // read the previous block, whose buffer the next copies overwrite.
                wait_for_copies(comptime!(shape.staging.stages() - 2));
                sync_cube();
                let next_block = block + comptime!(shape.staging.stages() - 1);
                copy_block(x, &mut stage, next_block, blocks, cube_first, last, unit, units, shape);
            }
            #[unroll]
            for b in 0..shape.octets {
                if comptime!(shape.staging != Staging::Direct) {
                    let row = code_plane * comptime!(shape.octets * 8) + comptime!(8 * b) + g;
                    let place = block % comptime!(shape.staging.stages());
                    let at = place * comptime!(shape.stage()) + row * MmaShape::STRIDE + 2 * t;
                    xs[2 * b] = stage[at];
                    xs[2 * b + 1] = stage[at + 1];
                } else {
                    let at = (clamp_max(first + comptime!(8 * b) + g, last) * blocks + block) * 8 + 2 * t;
                    xs[2 * b] = x[at];
                    xs[2 * b + 1] = x[at + 1];
                }
            }
            #[unroll]
            for i in 0..4usize {
                #[unroll]
                for a in 0..shape.tiles {
                    let mut of_tile = Array::<Quad>::new(form.planes);
                    #[unroll]
                    for p in 0..form.planes {
                        of_tile[p] = words[a * form.planes + p];
                    }
                    #[unroll]
                    for j in 0..4usize {
                        operand_a[j] = Vector::<i8, NA>::reinterpret(four_codes(&of_tile, i, j, form.planes));
                    }
                    #[unroll]
                    for b in 0..shape.octets {
                        #[unroll]
                        for h in 0..2usize {
                            let word = comptime!(2 * i + h);
                            operand_b[h] = Vector::<i8, NB>::reinterpret(
                                xs[2 * b + comptime!(word / 4)].extract(comptime!(word % 4)),
                            );
                        }
                        let n = comptime!(a * shape.octets + b);
                        def.execute_inplace(&operand_a, &operand_b, acc.index_mut(n));
                    }
                }
                if comptime!(segment != 0 && (i + 1) * 32 % segment == 0) {
                    let at32 = block * 4 + comptime!(((i + 1) * 32 - segment) / 32);
                    let group = group_of(at32, &dims, form.group);
                    #[unroll]
                    for a in 0..shape.tiles {
                        let tile = clamp_max(first_tile + a, last_tile);
                        #[unroll]
                        for half in 0..2usize {
                            let r = g + comptime!(8 * half);
                            let at = ((tile * form.sets + set) * dims.groups as usize + group) * 16 + r;
                            let scale = f32::cast_from(scales[at]);
                            #[unroll]
                            for b in 0..shape.octets {
                                #[unroll]
                                for col in 0..2usize {
                                    let row = clamp_max(first + comptime!(8 * b + col) + 2 * t, last);
                                    let n = comptime!(a * shape.octets + b);
                                    let c = acc.index_mut(n);
                                    let mut value = f32::cast_from(c[half].extract(col)) * scale;
                                    if comptime!(form.means && set == 0) {
                                        let mean = means[(tile * dims.groups as usize + group) * 16 + r];
                                        let sum = sum_of(sums, row, at32, &dims, segment);
                                        value += f32::cast_from(sum)
                                            * f32::cast_from(mean)
                                            * comptime!(form.unit());
                                    }
                                    value *=
                                        segment_factor(factors, row / form.slices, at32, &dims, form.x_group);
                                    totals[comptime!(4 * n + 2 * half + col)] += value;
                                }
                            }
                        }
                    }
                    #[unroll]
                    for n in 0..count {
                        let c = acc.index_mut(n);
                        c[0] = Vector::zeroed();
                        c[1] = Vector::zeroed();
                    }
                }
            }
            if comptime!(in_registers) {
                #[unroll]
                for c in 0..shape.copies() {
                    let vector = unit + comptime!(c * units);
                    let at = (block + 1) % 2 * comptime!(shape.stage());
                    stage[at + vector / 8 * MmaShape::STRIDE + vector % 8] = copied[c];
                }
                sync_cube();
            }
            block += comptime!(shape.splits * cubes);
        }
        if comptime!(shape.staging.is_async() && set + 1 < form.sets) {
            // The first copies of the next set overwrite blocks that other planes may still read.
            sync_cube();
        }
        if comptime!(segment == 0 && !form.exact()) {
            #[unroll]
            for b in 0..shape.octets {
                #[unroll]
                for col in 0..2usize {
                    let row = clamp_max(first + comptime!(8 * b + col) + 2 * t, last);
                    let mut sum = 0i32;
                    if comptime!(form.means) {
                        if k == 0 {
                            sum = sum_of(sums, row, 0, &dims, 0usize);
                        }
                    }
                    #[unroll]
                    for a in 0..shape.tiles {
                        let tile = clamp_max(first_tile + a, last_tile);
                        #[unroll]
                        for half in 0..2usize {
                            let n = comptime!(a * shape.octets + b);
                            let r = g + comptime!(8 * half);
                            let c = acc.index_mut(n);
                            let mut value = f32::cast_from(c[half].extract(col))
                                * f32::cast_from(scales[(tile * form.sets + set) * 16 + r]);
                            if comptime!(form.means && set == 0) {
                                value += f32::cast_from(sum)
                                    * f32::cast_from(means[tile * 16 + r])
                                    * comptime!(form.unit());
                            }
                            totals[comptime!(4 * n + 2 * half + col)] += value;
                        }
                    }
                }
            }
            #[unroll]
            for n in 0..count {
                let c = acc.index_mut(n);
                c[0] = Vector::zeroed();
                c[1] = Vector::zeroed();
            }
        }
    }

    if comptime!(shape.splits == 1) {
        #[unroll]
        for b in 0..shape.octets {
            // The lane's two code rows; with four slices per token, its neighbour has the other two.
            let row = first + comptime!(8 * b) + 2 * t;
            #[unroll]
            for a in 0..shape.tiles {
                let tile = first_tile + a;
                #[unroll]
                for half in 0..2usize {
                    let n = comptime!(a * shape.octets + b);
                    let r = g + comptime!(8 * half);
                    let mut pair = Array::<f32>::new(2usize);
                    #[unroll]
                    for col in 0..2usize {
                        if comptime!(form.exact()) {
                            let c = acc.index_mut(n);
                            pair[col] = f32::cast_from(c[half].extract(col))
                                * f32::cast_from(scales[clamp_max(tile, last_tile) * 16 + r]);
                        } else {
                            pair[col] = totals[comptime!(4 * n + 2 * half + col)];
                        }
                    }
                    if comptime!(form.slices == 1) {
                        #[unroll]
                        for col in 0..2usize {
                            let token = row + col;
                            if token <= last && tile <= last_tile {
                                let mut value = pair[col];
                                if comptime!(form.x_group == 0) {
                                    value *= factors[token];
                                }
                                store(out0, out1, out2, value, token, tile, r, &dims, form);
                            }
                        }
                    } else {
                        let mut value = pair[1] * 256.0 + pair[0];
                        if comptime!(form.slices == 4) {
                            value += plane_shuffle_xor(value, 1u32) * 65536.0;
                        }
                        let token = row / form.slices;
                        // Only the lane whose pair starts a token stores.
                        let mine = token * form.slices == row;
                        if mine && row <= last && tile <= last_tile {
                            store(out0, out1, out2, value * factors[token], token, tile, r, &dims, form);
                        }
                    }
                }
            }
        }
    } else {
        // `[k][code row][row of the tiles]`.
        let height = comptime!(16 * shape.tiles);
        let per_split = comptime!(height * 8 * shape.octets);
        let mut shared_ints =
            Shared::<[i32]>::new_slice(comptime!(if form.exact() { shape.splits * per_split } else { 1 }));
        let mut shared_floats =
            Shared::<[f32]>::new_slice(comptime!(if form.exact() { 1 } else { shape.splits * per_split }));
        #[unroll]
        for a in 0..shape.tiles {
            #[unroll]
            for b in 0..shape.octets {
                #[unroll]
                for half in 0..2usize {
                    #[unroll]
                    for col in 0..2usize {
                        let n = comptime!(a * shape.octets + b);
                        let at = slot * per_split
                            + (comptime!(8 * b + col) + 2 * t) * height
                            + comptime!(16 * a + 8 * half)
                            + g;
                        if comptime!(form.exact()) {
                            let c = acc.index_mut(n);
                            shared_ints[at] = c[half].extract(col);
                        } else {
                            shared_floats[at] = totals[comptime!(4 * n + 2 * half + col)];
                        }
                    }
                }
            }
        }
        sync_cube();
        if comptime!(cubes > 1) {
            let mut index = unit;
            while index < per_split {
                let (r, row) = (index % height, first + index / height);
                let tile = first_tile + r / 16;
                if row <= last && tile <= last_tile {
                    let mut int = 0i32;
                    let mut float = 0.0f32;
                    #[unroll]
                    for part in 0..shape.splits {
                        if comptime!(form.exact()) {
                            int += shared_ints[part * per_split + index];
                        } else {
                            float += shared_floats[part * per_split + index];
                        }
                    }
                    leave(out0, int, float, row, tile, r % 16, tiles as usize, &dims, form);
                }
                index += units;
            }
        } else {
            let mut index = unit;
            while index < comptime!(per_split / form.slices) {
                let (r, within) = (index % height, index / height);
                let token = first / form.slices + within;
                let tile = first_tile + r / 16;
                if token * form.slices <= last && tile <= last_tile {
                    let mut value = 0.0f32;
                    #[unroll]
                    for s in 0..form.slices {
                        let m = within * form.slices + comptime!(form.slices - 1 - s);
                        let mut digit = 0.0f32;
                        if comptime!(form.exact()) {
                            let mut int = 0i32;
                            #[unroll]
                            for part in 0..shape.splits {
                                int += shared_ints[part * per_split + m * height + r];
                            }
                            digit = f32::cast_from(int);
                        } else {
                            #[unroll]
                            for part in 0..shape.splits {
                                digit += shared_floats[part * per_split + m * height + r];
                            }
                        }
                        value = value * 256.0 + digit;
                    }
                    if comptime!(form.exact()) {
                        value *= f32::cast_from(scales[tile * 16 + r % 16]);
                    }
                    if comptime!(form.x_group == 0) {
                        value *= factors[token];
                    }
                    store(out0, out1, out2, value, token, tile, r % 16, &dims, form);
                }
                index += units;
            }
        }
    }
}

/// Starts the copies of a block of activations, one commit group per unit; the group is empty past the last block.
///
/// Rows past the last repeat the last one; their results are not stored.
#[cube]
fn copy_block(
    x: &[Quad],
    stage: &mut [Quad],
    block: usize,
    blocks: usize,
    cube_first: usize,
    last: usize,
    unit: usize,
    #[comptime] units: usize,
    #[comptime] shape: MmaShape,
) {
    if block < blocks {
        let place = block % comptime!(shape.staging.stages()) * comptime!(shape.stage());
        #[unroll]
        for c in 0..shape.copies() {
            let vector = unit + comptime!(c * units);
            let row = clamp_max(cube_first + vector / 8, last);
            let from = (row * blocks + block) * 8 + vector % 8;
            let to = place + vector / 8 * MmaShape::STRIDE + vector % 8;
            copy_async(&x[from..from + 1], &mut stage[to..to + 1], 4u32);
        }
    }
    gpu_asm!("cp.async.commit_group;");
}

/// Waits until at most `pending` of the unit's own copy groups are in flight.
#[cube]
fn wait_for_copies(#[comptime] pending: usize) {
    gpu_asm!("cp.async.wait_group {n};", n = const pending);
}
